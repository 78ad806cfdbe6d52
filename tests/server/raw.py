"""A client that speaks the wire protocol by itself, one socket, so that it can also speak it badly."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any

from bson import Int64

from headrace.values.bson import decode, encode

_HEADER = struct.Struct("<iiii")


def message(
    body: dict[str, Any], *, request_id: int = 1, documents: list[bytes] | None = None, flags: int = 0
) -> bytes:
    """An OP_MSG; `documents` travel in a section of their own."""
    sections = b"\0" + encode(body)
    if documents is not None:
        inside = b"documents\0" + b"".join(documents)
        sections += b"\1" + struct.pack("<i", len(inside) + 4) + inside
    payload = struct.pack("<I", flags) + sections
    return _HEADER.pack(16 + len(payload), request_id, 0, 2013) + payload


class RawClient:
    """One socket to a server at "host:port"."""

    def __init__(self, address: str, *, receive_bytes: int | None = None, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket: socket.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(120)
        self.socket.connect((host, int(port)))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *failure: object) -> None:
        self.socket.close()

    def send(self, body: dict[str, Any], database: str = "t", **options: Any) -> None:
        self.socket.sendall(message({**body, "$db": database}, **options))

    def receive(self) -> tuple[int, dict[str, Any]]:
        """(the request that is answered, the reply)."""
        _, request, _, reply = self.receive_one()
        return request, reply

    def receive_one(self) -> tuple[int, int, int, dict[str, Any]]:
        """(the reply's own number, the request that it answers, its flags, the reply)."""
        length, number, request, _ = _HEADER.unpack(self._exactly(16))
        content = self._exactly(length - 16)
        return number, request, struct.unpack_from("<I", content)[0], decode(content[5:])

    def ask(self, body: dict[str, Any], database: str = "t", **options: Any) -> dict[str, Any]:
        self.send(body, database, **options)
        return self.receive()[1]

    def watch(self, collection: str, database: str = "t", **options: Any) -> Int64:
        """Open a stream; its cursor."""
        body = {"aggregate": collection, "pipeline": [{"$changeStream": options}], "cursor": {}}
        return Int64(self.ask(body, database)["cursor"]["id"])

    def is_cut_off(self) -> bool:
        """Whether the server closes the connection, without a further byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            chunk = self.socket.recv(count - len(received))
            if not chunk:
                raise ConnectionError("the server has closed the connection")
            received += chunk
        return received
