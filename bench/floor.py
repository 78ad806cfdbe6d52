"""The floor: the least that a durable server of this protocol can cost on a machine, in Python.

uvloop, LMDB, and nothing that is not needed to acknowledge an insert durably: no checks of fields, no sessions, no
cluster time, no indexes, no streams. Three puts a document (document, `_id`, oplog entry), one synced commit for all
inserts of a turn of the loop. It answers hello, ping, create, drop and insert; everything else is {ok: 1}.

`load.py --floor` starts it beside a Headrace: the ratio of their CPU times is what Headrace costs beyond the floor.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import struct
import tempfile
from typing import Any

import bson
import lmdb
import uvloop

HELLO = {
    "helloOk": True, "isWritablePrimary": True, "ismaster": True, "setName": "rs0", "maxBsonObjectSize": 16777216,
    "maxMessageSizeBytes": 48000000, "maxWriteBatchSize": 100000, "logicalSessionTimeoutMinutes": 30,
    "connectionId": 1, "minWireVersion": 0, "maxWireVersion": 21, "readOnly": False, "ok": 1.0,
}  # fmt: skip
HEADER = struct.Struct("<iiii")
POSITION = struct.Struct(">Q")


class FloorStore:
    """Three tables, one write transaction for each turn of the loop."""

    def __init__(self, directory: str) -> None:
        self.env = lmdb.open(directory, map_size=1 << 36, max_dbs=3, lock=False)
        self.documents, self.ids, self.oplog = (self.env.open_db(name) for name in (b"documents", b"ids", b"oplog"))
        self.position = 0

    def insert(self, batches: list[list[bytes]]) -> None:
        with self.env.begin(write=True) as txn:
            for documents in batches:
                for document in documents:
                    self.position += 1
                    key = POSITION.pack(self.position)
                    at = document.find(b"_id\x00")
                    txn.put(document[at + 4 : at + 16], key, db=self.ids)
                    txn.put(key, document, db=self.documents, append=True)
                    txn.put(key, document, db=self.oplog, append=True)


class FloorClient(asyncio.Protocol):
    """One socket."""

    transport: Any

    def __init__(self, store: FloorStore, pending: list[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.store, self.pending, self.loop, self.buffer = store, pending, loop, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        while len(self.buffer) >= 16:
            length, request, _, opcode = HEADER.unpack_from(self.buffer)
            if len(self.buffer) < length:
                return
            message, self.buffer = self.buffer[:length], self.buffer[length:]
            if opcode == 2004:
                self.legacy(request)
            else:
                self.command(request, message)

    def command(self, request: int, message: bytes) -> None:
        body: dict[str, Any] = {}
        documents: list[bytes] = []
        at = 20
        while at < len(message):
            kind = message[at]
            size = int.from_bytes(message[at + 1 : at + 5], "little")
            section, at = message[at + 1 : at + 1 + size], at + 1 + size
            if kind == 0:
                body = bson.decode(section)
                continue
            item = section.index(0, 4) + 1
            while item < size:
                length = int.from_bytes(section[item : item + 4], "little")
                documents.append(section[item : item + length])
                item += length
        name = next(iter(body))
        if name == "insert":
            documents = documents or [bson.encode(document) for document in body["documents"]]
            if not self.pending:
                self.loop.call_soon(self.flush)
            self.pending.append((self, request, documents))
        else:
            self.reply(request, HELLO if name.lower() in ("hello", "ismaster") else {"ok": 1.0})

    def flush(self) -> None:
        batch, self.pending[:] = list(self.pending), []
        self.store.insert([documents for _, _, documents in batch])
        for client, request, documents in batch:
            client.reply(request, {"n": len(documents), "ok": 1.0})

    def reply(self, request: int, document: dict[str, Any]) -> None:
        raw = bson.encode(document)
        self.transport.write(HEADER.pack(21 + len(raw), request, request, 2013) + b"\0\0\0\0\0" + raw)

    def legacy(self, request: int) -> None:
        raw = bson.encode(HELLO)
        self.transport.write(HEADER.pack(36 + len(raw), request, request, 1) + struct.pack("<iqii", 8, 0, 0, 1) + raw)


async def serve(port: int, directory: str) -> None:
    store, loop = FloorStore(directory), asyncio.get_running_loop()
    pending: list[Any] = []
    server = await loop.create_server(lambda: FloorClient(store, pending, loop), "127.0.0.1", port)
    print(f"the floor listens on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=37017)
    parser.add_argument("--directory", help="where the new directory is made; default: the temporary directory")
    arguments = parser.parse_args()
    place = tempfile.mkdtemp(prefix="headrace-floor-", dir=arguments.directory)
    try:
        uvloop.run(serve(arguments.port, place))
    except KeyboardInterrupt:
        pass
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
