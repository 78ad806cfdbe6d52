"""Attacks with messages: long, deep, compressed, slow, unread, malformed, or very many."""

from __future__ import annotations

import contextlib
import os
import select
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import bson
import snappy
import zstandard
from messages import command, reply_document
from target import receive

from attacks.attacker import DATABASE, Attack, Attacker, aggregating, nested

_HEADER = struct.Struct("<iiii")
_COMPRESSED = struct.Struct("<iiiiiiB")


def _compressed(compressor: int, message: bytes) -> bytes:
    pack = {1: snappy.compress, 2: zlib.compress, 3: zstandard.compress}[compressor]
    data = pack(message[16:])
    return _COMPRESSED.pack(25 + len(data), 1, 0, 2012, 2013, len(message) - 16, compressor) + data


def _compressed_attack(name: str, compressor: int) -> Attack:
    def run(attacker: Attacker) -> None:
        documents = [{"note": "x" * 15_900_000} for _ in range(3)]
        message = _compressed(compressor, command({"insert": "c"}, DATABASE, documents=documents))
        attacker.repeat_message(message)

    return Attack(f"48 MB of one letter, compressed with {name}", run)


def _compressed_replies(attacker: Attacker) -> None:
    attacker.ask({"insert": "r"}, documents=[{"_id": 1, "note": os.urandom(7_500_000).hex()}])
    attacker.repeat_message(_compressed(2, command({"find": "r"}, DATABASE)))


def _body(name: str, value: Callable[[], Any], key: str = "filter") -> Attack:
    def run(attacker: Attacker) -> None:
        attacker.repeat({"find": "c", key: value()})

    return Attack(name, run, lambda attacker: attacker.fill(1000))


def _flood(body: dict[str, Any], database: str = "admin", count: int = 2000) -> Any:
    """Sends so many copies of a command at a time and reads the replies."""

    def run(attacker: Attacker) -> None:
        block = command(body, database) * count
        while attacker.seconds_left > 0:
            exchange(attacker, block, count)

    return run


def exchange(attacker: Attacker, block: bytes, count: int) -> None:
    """Send so many messages without waiting, and read all answers."""
    connection, pending, received = attacker.connection, memoryview(block), b""
    connection.setblocking(False)
    answered = 0
    while answered < count:
        readable, writable, _ = select.select([connection], [connection] if pending else [], [], 30.0)
        if not readable and not writable:
            attacker.answers["no answer"] += 1
            return
        if writable:
            pending = pending[connection.send(pending[:1_000_000]) :]
        if readable:
            data = connection.recv(1 << 20)
            if not data:
                raise ConnectionError
            received += data
            at = 0
            while len(received) - at >= 4 and (length := int.from_bytes(received[at : at + 4], "little")) <= (
                len(received) - at
            ):
                attacker.count(received[at : at + length])
                answered += 1
                at += length
            received = received[at:]


def _slow_senders(attacker: Attacker) -> None:
    message = command({"insert": "c"}, DATABASE, documents=[{"note": "x" * 15_000_000} for _ in range(3)])
    connections = [attacker.connect() for _ in range(50)]
    at = 0
    while attacker.seconds_left > 0:
        for connection in connections:
            connection.setblocking(False)
            try:
                connection.send(message[at : at + 200_000])
            except BlockingIOError:
                attacker.answers["not read"] += 1
        at += 200_000
        time.sleep(0.05)


def _unread_replies(attacker: Attacker) -> None:
    block = command({"find": "c"}, DATABASE)
    connections = [attacker.connect() for _ in range(20)]
    for connection in connections:
        connection.setblocking(False)
    while attacker.seconds_left > 0:
        for connection in connections:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                connection.send(block)
        time.sleep(0.01)
    attacker.ask({"ping": 1})


def _deserters(attacker: Attacker) -> None:
    block = command(aggregating({"$match": {"note": "none"}}, collection="c"), DATABASE) * 2000
    while attacker.seconds_left > 0:
        connection = attacker.connect()
        connection.sendall(block)
        connection.close()
        attacker.answers["left"] += 1


def _writes_ahead(attacker: Attacker) -> None:
    block = command({"insert": "many"}, DATABASE, documents=[{"x": 1}]) * 2000
    while attacker.seconds_left > 0:
        exchange(attacker, block, 2000)


def _malformed(attacker: Attacker) -> None:
    number = 0
    while attacker.seconds_left > 0:
        number += 1
        connection = attacker.connect()
        kind = number % 4
        good = command({"ping": 1, "x": "y" * 300}, "admin")
        if kind == 0:
            connection.sendall(_HEADER.pack(2**31 - 1, 1, 0, 2013) + os.urandom(100))
        elif kind == 1:
            connection.sendall(good[:40] + os.urandom(len(good) - 40))
        elif kind == 2:
            connection.sendall(_COMPRESSED.pack(125, 1, 0, 2012, 2013, 48_000_000 - 16, 2) + os.urandom(100))
        else:
            connection.sendall(good[:16] + os.urandom(len(good) - 16))
        connection.settimeout(5)
        try:
            reply = receive(connection)
            attacker.note(reply_document(reply))
        except (ConnectionError, bson.InvalidBSON):
            attacker.answers["closed"] += 1
        except TimeoutError:
            attacker.answers["no answer"] += 1
        connection.close()


def _hello(attacker: Attacker) -> None:
    client = {"driver": {"name": "x" * 400, "version": "1"}, "os": {"type": "Linux"}, "platform": "y" * 1_000_000}
    message = command({"hello": 1, "client": client}, "admin")
    while attacker.seconds_left > 0:
        connection = attacker.connect()
        connection.sendall(message)
        attacker.count(receive(connection))
        connection.close()


def _numbers() -> dict[str, Any]:
    return {"n": {"$in": list(range(1_200_000))}}


def _or() -> dict[str, Any]:
    return {"$or": [{"n": -key} for key in range(400_000)]}


def _fields() -> dict[str, Any]:
    return {f"f{key}": key for key in range(700_000)}


def _projection() -> dict[str, Any]:
    return {f"f{key}": 1 for key in range(300_000)}


def _empty_documents() -> dict[str, Any]:
    return {"n": {"$in": [{}] * 1_000_000}}


def _nested_arrays() -> dict[str, Any]:
    return {"n": [[[[key % 100] * 10] * 10] * 10 for key in range(1000)]}


ATTACKS = (
    _body("a filter of 16 MB: $in of 1,200,000 numbers", _numbers),
    _body("a filter of 16 MB: $in of 1,000,000 empty documents", _empty_documents),
    _body("a filter of 11 MB: $or of 400,000", _or),
    _body("a filter of 11 MB: 700,000 fields", _fields),
    _body("a filter of 9 MB: arrays in arrays", _nested_arrays),
    _body("a projection of 300,000 fields", _projection, "projection"),
    _body("a filter nested 5,000 deep", lambda: nested(5000), "filter"),
    _body("$and nested 3,000 deep", lambda: nested(3000, "$and", array=True), "filter"),
    _compressed_attack("snappy", 1),
    _compressed_attack("zlib", 2),
    _compressed_attack("zstd", 3),
    Attack("replies of 15 MB, compressed with zlib", _compressed_replies),
    Attack("pings sent ahead, 2,000 at a time", _flood({"ping": 1})),
    Attack("inserts sent ahead, 2,000 at a time", _writes_ahead),
    Attack("scans sent ahead by clients that leave", _deserters, lambda attacker: attacker.fill(20_000)),
    Attack("50 messages of 45 MB, sent slowly", _slow_senders),
    Attack("unread replies of 16 MB on 20 connections", _unread_replies, lambda attacker: attacker.fill(
        1000, 100_000)),
    Attack("malformed messages", _malformed),
    Attack("hello with 1 MB of metadata", _hello),
)  # fmt: skip
