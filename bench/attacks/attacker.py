"""A client that attacks: what it may send, how long, and how it was answered."""

from __future__ import annotations

import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import bson
import snappy
import zstandard
from bson.raw_bson import RawBSONDocument
from messages import command, reply_document
from target import receive

DATABASE = "attacked"
ENDLESS = float("inf")
ANSWER_SECONDS_MAX = 30.0
"""Beyond the time that a command is given: an answer that comes later does not count."""


class Attacker:
    """Connections to one server for so many seconds, and the answers by code."""

    def __init__(self, address: tuple[str, int], seconds: float) -> None:
        self.address = address
        self._seconds = seconds
        self._until: float | None = None
        self.answers: Counter[str] = Counter()
        self._connection: socket.socket | None = None

    @property
    def seconds_left(self) -> float:
        """Until it ends; the first look begins it, so that what is encoded before takes none."""
        if self._until is None:
            self._until = time.monotonic() + self._seconds
        return self._until - time.monotonic()

    def connect(self) -> socket.socket:
        """One more connection, without a hello."""
        connection = socket.create_connection(self.address, timeout=ANSWER_SECONDS_MAX + 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def close(self) -> None:
        """Close the connection that `ask` uses."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def connection(self) -> socket.socket:
        """The one that `ask` uses."""
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def limited(self, body: dict[str, Any]) -> dict[str, Any]:
        """The command, to end with the attack."""
        return body if self.seconds_left > 1e6 else {**body, "maxTimeMS": max(50, int(self.seconds_left * 1000))}

    def ask(self, body: dict[str, Any], database: str = DATABASE, **sequences: list[dict[str, Any]]) -> dict[str, Any]:
        """Send one command; its reply, which is counted. An empty document where the connection was closed."""
        return self.ask_message(command(self.limited(body), database, **sequences))

    def ask_message(self, message: bytes) -> dict[str, Any]:
        """As `ask`, of an encoded message."""
        try:
            self.connection.sendall(message)
            return self.count(receive(self.connection))
        except (ConnectionError, TimeoutError) as error:
            self.answers["no answer" if isinstance(error, TimeoutError) else "closed"] += 1
            self.connection.close()
            self._connection = None
            return {}

    def count(self, reply: bytes) -> dict[str, Any]:
        """Note how a message was answered."""
        document = reply_document(_unpacked(reply))
        self.note(document)
        return document

    def note(self, document: dict[str, Any]) -> None:
        """Note how a command was answered."""
        errors = document.get("writeErrors")
        if document.get("ok") != 1.0:
            self.answers[str(document.get("code"))] += 1
        elif errors:
            self.answers[f"writeErrors {errors[0].get('code')}"] += 1
        else:
            self.answers["ok"] += 1

    def repeat(self, body: dict[str, Any], database: str = DATABASE, **sequences: list[dict[str, Any]]) -> None:
        """Send a command again and again until the time is over."""
        message = command({**body, "maxTimeMS": max(50, int(self._seconds * 1000))}, database, **sequences)
        self.repeat_message(message)

    def repeat_message(self, message: bytes) -> None:
        """As `repeat`, of an encoded message."""
        while self.seconds_left > 0:
            self.ask_message(message)

    def send_all(self, connections: Sequence[socket.socket], body: dict[str, Any], database: str = DATABASE) -> None:
        """A command on each connection at a time; then all answers."""
        for connection in connections:
            connection.sendall(command(self.limited(body), database))
        for connection in connections:
            self.count(receive(connection))

    def fill(self, count: int, size: int = 100, collection: str = "c") -> None:
        """Insert documents of so many bytes, with the fields `_id`, `n` and `note`."""
        note = "x" * max(0, size - 40)
        step = max(1, min(10_000, 10_000_000 // size))
        for start in range(0, count, step):
            documents = [{"_id": key, "n": key, "note": note} for key in range(start, min(count, start + step))]
            self.insert(documents, collection)

    def insert(self, documents: list[dict[str, Any]], collection: str = "c") -> None:
        """Insert documents; raises where that fails."""
        reply = self.ask({"insert": collection}, documents=documents)
        if reply.get("ok") != 1.0 or "writeErrors" in reply:
            raise RuntimeError(f"not inserted: {str(reply)[:500]}")


@dataclass(frozen=True, slots=True)
class Attack:
    """Something that a client may do to a server. `run` goes on until its attacker's time is over."""

    name: str
    run: Callable[[Attacker], None]
    prepare: Callable[[Attacker], None] | None = None
    processes: int = 1
    flags: tuple[str, ...] = ()
    """Of the server's command line."""


def aggregating(*stages: dict[str, Any], collection: Any = 1) -> dict[str, Any]:
    """An aggregate over a collection, or over what its first stage makes."""
    return {"aggregate": collection, "pipeline": list(stages), "cursor": {}, "allowDiskUse": True}


def over(count: int) -> dict[str, Any]:
    """A stage that makes so many documents of one, with the field `i`."""
    return {"$documents": {"$map": {"input": {"$range": [0, count]}, "as": "i", "in": {"i": "$$i"}}}}


def computing(expression: Any) -> dict[str, Any]:
    """An aggregate that evaluates one expression and answers little."""
    return aggregating({"$documents": [{}]}, {"$project": {"x": {"$lt": [{"$add": [0, {"$size": [expression]}]}, 0]}}})


def repeated(
    name: str, body: dict[str, Any], prepare: Callable[[Attacker], None] | None = None, **options: Any
) -> Attack:
    """The attack that sends one command again and again."""
    return Attack(name, lambda attacker: attacker.repeat(body), prepare, **options)


def nested(depth: int, name: str = "a", *, array: bool = False) -> RawBSONDocument:
    """A document of so many levels, which the codec could not encode; `array`: each in an array of one."""
    level = bson.encode({"n": 1})
    for _ in range(depth):
        if array:
            level = _inside(b"\x030\0", level)
        level = _inside((b"\x04" if array else b"\x03") + name.encode() + b"\0", level)
    return RawBSONDocument(level)


def _inside(head: bytes, level: bytes) -> bytes:
    return struct.pack("<i", len(head) + len(level) + 5) + head + level + b"\0"


def _unpacked(reply: bytes) -> bytes:
    """A reply as it is without compression."""
    if int.from_bytes(reply[12:16], "little") != OP_COMPRESSED:
        return reply
    return reply[:16] + _DECOMPRESSORS[reply[24]](reply[25:])


OP_COMPRESSED = 2012
_DECOMPRESSORS: dict[int, Callable[[bytes], bytes]] = {
    1: snappy.uncompress,
    2: zlib.decompress,
    3: lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}
