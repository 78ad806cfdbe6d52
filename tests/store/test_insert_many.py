"""A batch that is inserted at once leaves the same tables and answers as its documents one by one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

from headrace import limits
from headrace.store.write_transaction import WriteTransaction
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.bson import encode

INDEXES: list[dict[str, Any]] = [
    {"key": {"n": 1}, "name": "n"},
    {"key": {"t": -1, "n": 1}, "name": "tn"},
    {"key": {"o.a": 1}, "name": "oa", "sparse": True},
    {"key": {"n": 1, "_id": 1}, "name": "partial", "partialFilterExpression": {"n": {"$gt": 2}}},
]
UNIQUE: list[dict[str, Any]] = [{"key": {"n": 1, "t": 1}, "name": "u", "unique": True}]


def object_id(chance: random.Random) -> ObjectId:
    return ObjectId(chance.randbytes(12))


IDS: list[Callable[[random.Random], Any]] = [
    object_id,
    lambda chance: chance.randint(-300, 300),
    lambda chance: Int64(chance.randint(-(2**63), 2**63 - 1)),
    lambda chance: "x" * chance.randint(0, 3) + "\0" * chance.randint(0, 1) + chance.choice(["é", "", "b"]),
    lambda chance: "long" * 200 + str(chance.randint(0, 9)),
    lambda chance: chance.choice([1.5, 2.0, float("nan"), -0.0, Decimal128("2.00")]),
    lambda chance: {"a": chance.randint(0, 5), "b": [1]},
    lambda chance: Binary(chance.randbytes(chance.randint(0, 3)), 0),
    lambda chance: chance.choice([None, True, False, MinKey(), MaxKey(), Timestamp(1, 2), Code("c")]),
    lambda chance: datetime(2026, 1, chance.randint(1, 28), tzinfo=UTC),
    lambda chance: chance.choice([[1], Regex("a"), {"$bad": 1}]),
]
KINDS: list[list[Callable[[random.Random], Any]]] = [IDS[:1], IDS[1:2], IDS[:2], IDS[:4], IDS[:10], IDS]
VALUES: list[Callable[[random.Random], Any]] = [
    lambda chance: chance.randint(0, 5),
    lambda chance: chance.choice([Int64(3), 2.5, "text", None]),
    lambda chance: [chance.randint(0, 3) for _ in range(chance.randint(0, 3))],
    lambda chance: Timestamp(0, 0),
    lambda chance: Int64(0),
    lambda chance: {"a": chance.choice([1, [2, 3], {"b": 1}])},
    lambda chance: "y" * 2000,
]


def document(chance: random.Random, ids: list[Callable[[random.Random], Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in ("n", "t", "o"):
        if chance.random() < 0.8:
            made[name] = chance.choice(VALUES)(chance)
    identity = chance.choice(ids)(chance)
    return {**made, "_id": identity} if chance.random() < 0.1 else {"_id": identity, **made}


def batch(chance: random.Random) -> list[dict[str, Any]]:
    """Documents of one kind of `_id` or several, some of them twice."""
    ids = chance.choice(KINDS)
    made = [document(chance, ids) for _ in range(chance.choice([2, 3, 20, 60]))]
    if chance.random() < 0.3:
        made.insert(chance.randrange(len(made)), dict(chance.choice(made)))
    return made


def commands(seed: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(seed)
    indexes = chance.choice([[], [], INDEXES[:1], INDEXES, UNIQUE])
    if indexes:
        yield {"createIndexes": "c", "indexes": indexes}
    stored: list[dict[str, Any]] = []
    for number in range(6):
        documents = batch(chance)
        if stored and chance.random() < 0.3:
            documents.insert(chance.randrange(len(documents)), {**chance.choice(stored), "n": 9})
        stored += documents
        command: dict[str, Any] = {"insert": "c", "documents": documents, "ordered": chance.random() < 0.6}
        if chance.random() < 0.3:
            session = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(number)}
            command |= session
        if chance.random() < 0.1:
            command["bypassEmptyTsReplacement"] = True
        yield command
        if chance.random() < 0.3:
            yield {"insert": "z", "documents": [{"_id": number}]}  # its documents follow in the table
        if chance.random() < 0.2:
            yield {"delete": "c", "deletes": [{"q": {}, "limit": 1}]}


def plain(entry: bytes) -> bytes:
    """An entry without the UUID of the collection, which differs from server to server."""
    before, name, after = entry.partition(b"\x05ui\0")
    return before + name + (after[21:] if name else after)


def state(server: DrivenServer) -> dict[str, Any]:
    """All documents in order of insertion, the keys that lead to each, and the oplog."""
    with server.store.reading() as view:
        tables: dict[str, Any] = {"oplog": [(at, plain(raw)) for at, raw in view.entries(0) if b"\x03o2\0" in raw]}
        tables["runs"] = [
            list(view.runs(view.catalog.topics[topic], 0)) for topic in ("d.c", "d.z") if topic in view.catalog.topics
        ]
        for name in ("c", "z"):
            collection = view.catalog.collections.get(f"d.{name}")
            if collection is None:
                continue
            found = list(view.scan(collection))
            places = {record: place for place, (record, _) in enumerate(found)}
            tables[name] = [raw for _, raw in found]
            tables[f"{name} ids"] = [
                (key, places[record]) for key, record in view.id_keys(collection, b"", b"\xff" * 600)
            ]
            for index in collection.maintained:
                low = index.number.to_bytes(4, "big")
                high = (index.number + 1).to_bytes(4, "big")
                tables[f"{name} {index.name}"] = [
                    (key[: -8 if not index.unique else None], places[record])
                    for key, record in view.index_keys(index, low, high)
                ]
            tables[f"{name} count"] = view.count(collection)
    return tables


def reply(server: DrivenServer, command: dict[str, Any]) -> bytes:
    """The reply as bytes, in which NaN is equal to NaN."""
    answer = server.run("d", command)
    assert isinstance(answer, dict)
    return encode(answer)


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_is_its_documents_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Any] = []
    for one_by_one in (False, True):
        with monkeypatch.context() as patch, DrivenServer(clock=FakeClock()) as server:
            if one_by_one:
                patch.setattr(WriteTransaction, "insert_many", lambda *arguments, **options: None)
            replies = [reply(server, command) for command in commands(seed)]
            results.append((replies, state(server)))
    assert results[0][0] == results[1][0]
    assert results[0][1] == results[1][1]


def test_one_document_is_too_large_among_object_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DOCUMENT_BYTES_MAX", 1000)
    with DrivenServer(clock=FakeClock()) as server:
        documents = [{"_id": ObjectId(), "t": "x" * size} for size in (1, 2000, 1)]
        reply = server.run("d", {"insert": "c", "documents": documents, "ordered": False})
        assert isinstance(reply, dict)
        assert reply["n"] == 2
        assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(1, 10334)]


def test_documents_of_many_bytes_keep_their_checksums() -> None:
    with DrivenServer() as server:
        documents = [{"_id": number, "t": "x" * size} for number, size in enumerate((10, 300_000, 10))]
        server.run("d", {"insert": "c", "documents": documents})
        with server.store.reading() as view:
            found = [raw for _, raw in view.scan(view.catalog.collections["d.c"])]
        assert found == [encode(document) for document in documents]
        assert [bson.decode(raw) for raw in found] == documents
