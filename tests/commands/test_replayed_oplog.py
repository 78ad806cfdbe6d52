"""The oplog, applied as mongorestore does, leads to the same collections, from its beginning and, over what it has led
to, from anywhere in it: so a dump may be read while others write."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, Timestamp

from headrace import limits
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode, encode, find_element, iter_elements

SESSION = {"lsid": {"id": Binary(b"0123456789abcdef", 4)}, "autocommit": False}


@pytest.fixture
def source() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        yield server


def entries_of(server: DrivenServer) -> list[dict[str, Any]]:
    body = {"find": "oplog.rs", "batchSize": 100_000}
    found: list[dict[str, Any]] = server.must("local", body)["cursor"]["firstBatch"]
    return found


def operations(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The operations that mongorestore sends: those of transactions when they commit, without UUIDs."""
    chains: dict[bytes, list[dict[str, Any]]] = {}
    for entry in entries:
        o = entry["o"]
        if entry["op"] != "c" or "applyOps" not in o:
            yield entry
            continue
        chain = chains.setdefault(bytes(entry["lsid"]["id"]), [])
        chain += o["applyOps"]
        if not o.get("partialTxn"):
            yield from chain
            chain.clear()


def replay(server: DrivenServer, entries: list[dict[str, Any]]) -> None:
    for entry in operations(entries):
        o = entry["o"]
        if entry["op"] == "n" or next(iter(o)) in ("startIndexBuild", "abortIndexBuild"):
            continue
        sent = {name: entry[name] for name in ("op", "ns", "o", "o2") if name in entry}
        all_sent = [sent]
        if "commitIndexBuild" in o:
            all_sent = [{**sent, "o": {"createIndexes": o["commitIndexBuild"], **spec}} for spec in o["indexes"]]
        for one in all_sent:
            server.must("admin", {"applyOps": [one]})


def state(server: DrivenServer) -> Any:
    """Every collection with its options, indexes and documents; order within a document counts, as do types."""
    found: dict[str, Any] = {}
    for database in ("d", "e"):
        for item in server.must(database, {"listCollections": 1})["cursor"]["firstBatch"]:
            where = f"{database}.{item['name']}"
            if item["name"] == "system.views":
                continue
            if item["type"] == "view":
                found[where] = item["options"]
                continue
            indexes = server.must(database, {"listIndexes": item["name"]})["cursor"]["firstBatch"]
            documents = server.must(database, {"find": item["name"], "batchSize": 10_000})["cursor"]["firstBatch"]
            named = {index["name"]: index for index in indexes}
            found[where] = item["options"], named, {encode({"": one["_id"]}): encode(one) for one in documents}
    return found


UPDATES: list[Callable[[int], Any]] = [
    lambda n: {"$set": {"a.b": n, "c": n}},
    lambda n: {"$unset": {"a": 1}},
    lambda n: {"$rename": {"c": "r"}},
    lambda n: {"$push": {"l": {"$each": [n, {"k": n}], "$position": 0, "$slice": 5}}},
    lambda n: {"$set": {"l": {"0": n}}},
    lambda n: {"$set": {"l": [n, [n, {"z": 1}]]}},
    lambda n: {"$pull": {"l": {"$lt": n}}},
    lambda n: {"$inc": {"d.e.f": n}, "$currentDate": {"when": {"$type": "timestamp"}}},
    lambda n: {"$set": {"x.7": n}},
    lambda n: {"$set": {"x": [1, 2, 3]}},
    lambda n: [{"$set": {"p": {"$concatArrays": [{"$ifNull": ["$p", []]}, [n]]}, "c": "$$REMOVE"}}],
    lambda n: [{"$replaceWith": {"n": n, "kept": "$d", "$literal": {"a": 1}} if n % 9 else {"n": n, "kept": "$d"}}],
    lambda n: {"c": n, "a": {"b": Decimal128("1.0"), "c": [None, {}]}, "t": Timestamp(0, 0)},
    lambda n: {"$bit": {"bits": {"xor": n}}, "$min": {"low": n}},
]
"""Each changes another kind of place, some a place that another has made of another type."""


def write(server: DrivenServer, seed: int, count: int) -> None:
    chance = random.Random(seed)
    for number in range(count):
        key, name = chance.randrange(6), chance.choice(("c", "indexed"))
        match chance.randrange(8):
            case 0:
                server.run("d", {"insert": name, "documents": [{"_id": key, "n": number}, {"_id": key + 0.5}]})
            case 1:
                server.must("d", {"delete": name, "deletes": [{"q": {"_id": key}, "limit": 1}]})
            case 2:
                transact(server, number, name, key)
            case _:
                update = {"q": {"_id": key}, "u": chance.choice(UPDATES)(number), "upsert": chance.random() < 0.5}
                server.run("d", {"update": name, "updates": [update]})


def transact(server: DrivenServer, number: int, name: str, key: int) -> None:
    session = {**SESSION, "txnNumber": Int64(number)}
    documents = [{"_id": f"{number}/{index}"} for index in range(number % 12)]
    first = {"update": name, "updates": [{"q": {"_id": key}, "u": {"$set": {"txn": number}}}]}
    server.must("d", {**first, **session, "startTransaction": True})
    server.must("d", {"insert": name, "documents": [*documents, {"_id": Int64(1000 + number)}], **session})
    server.in_turns("admin", {"commitTransaction": 1, **session})


def begin(server: DrivenServer) -> None:
    server.must("d", {"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    specs = [
        {"key": {"n": 1}, "name": "n", "sparse": True}, {"key": {"l": 1, "c": -1}, "name": "l"},
        {"key": {"$**": 1}, "name": "all"}, {"key": {"h": "hashed"}, "name": "h"},
        {"key": {"t": 1}, "name": "t", "expireAfterSeconds": 10**9, "hidden": True},
        {"key": {"r": 1}, "name": "r", "unique": True, "partialFilterExpression": {"r": {"$gt": 10**6}}},
    ]  # fmt: skip
    server.must("d", {"insert": "indexed", "documents": [{"_id": "first"}]})
    server.must("d", {"createIndexes": "indexed", "indexes": specs})


@pytest.mark.parametrize("seed", range(4))
def test_documents_are_the_same_from_the_beginning_and_from_anywhere(
    source: DrivenServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_ENTRY_BYTES", 300)
    begin(source)
    write(source, seed, 60)
    entries, expected = entries_of(source), state(source)
    assert any(entry["o"].get("partialTxn") for entry in entries)
    with DrivenServer() as target:
        replay(target, entries)
        assert state(target) == expected
        starts = [index for index, entry in enumerate(entries) if not entry["o"].get("partialTxn")]
        for index in starts[seed::7]:
            replay(target, entries[index:] if "count" not in entries[index]["o"] else entries[index + 1 :])
            assert state(target) == expected, index


def test_definitions_are_the_same(source: DrivenServer) -> None:
    begin(source)
    run = source.must
    run("d", {"create": "capped", "capped": True, "size": 4096, "max": 3})
    run("d", {"insert": "capped", "documents": [{"_id": number} for number in range(7)]})
    run("d", {"create": "ruled", "validator": {"$or": [{"a": 1}, {"b": {"$exists": False}}]}, "validationLevel": "off"})
    run("d", {"collMod": "ruled", "validationLevel": "moderate", "validationAction": "warn"})
    run("d", {"create": "collated", "collation": {"locale": "sv", "strength": 1}})
    run("d", {"insert": "collated", "documents": [{"_id": "Å"}]})
    run(
        "d",
        {"createIndexes": "collated", "indexes": [{"key": {"a": 1}, "name": "a", "collation": {"locale": "simple"}}]},
    )
    run("d", {"create": "view", "viewOn": "c", "pipeline": [{"$match": {"$expr": {"$gt": ["$n", 1]}}}]})
    run("d", {"create": "other view", "viewOn": "view", "pipeline": [], "collation": {"locale": "fr"}})
    run("d", {"collMod": "view", "viewOn": "c", "pipeline": []})
    run("d", {"create": "gone", "viewOn": "c", "pipeline": []})
    run("d", {"drop": "gone"})
    run("d", {"collMod": "indexed", "index": {"name": "t", "expireAfterSeconds": 5000, "hidden": False}})
    run("d", {"dropIndexes": "indexed", "index": ["n", "l"]})
    run("d", {"collMod": "c", "changeStreamPreAndPostImages": {"enabled": False}})
    run("e", {"insert": "moved", "documents": [{"_id": 1}]})
    run("admin", {"renameCollection": "e.moved", "to": "d.moved"})
    run("d", {"insert": "again", "documents": [{"_id": 1}]})
    run("admin", {"renameCollection": "d.again", "to": "d.moved", "dropTarget": True})
    run("d", {"insert": "big", "documents": [{"_id": number} for number in range(50)]})
    run("d", {"convertToCapped": "big", "size": 4096})
    run("d", {"aggregate": "big", "pipeline": [{"$out": "out"}], "cursor": {}})
    run("d", {"aggregate": "big", "pipeline": [{"$merge": {"into": {"db": "e", "coll": "merged"}}}], "cursor": {}})
    run("e", {"create": "dropped"})
    run("e", {"dropDatabase": 1})
    run("e", {"insert": "last", "documents": [{"_id": 1}]})
    with DrivenServer() as target:
        replay(target, entries_of(source))
        assert state(target) == state(source)


def test_a_document_is_restored_to_the_byte(source: DrivenServer) -> None:
    """Bytes show what Python's values do not: the order of fields, the types of numbers, a name that comes twice."""
    twice = encode({"_id": 1})[4:-1] + encode({"a": 1})[4:-1] + encode({"a": 2})[4:-1]
    raw = (len(twice) + 5).to_bytes(4, "little") + twice + b"\0"
    source.must("d", {"create": "c"})
    request = source.request("admin", {"applyOps": [{"op": "i", "ns": "d.c", "o": {"_id": 1}}]})
    element = find_element(request.raw, b"applyOps")
    assert element is not None
    inner = next(iter_elements(request.raw, element[1]))
    o = find_element(request.raw[inner[2] : inner[3]], b"o")
    assert o is not None
    request.raw = _with(request.raw, element[1], inner[2], inner[2] + o[1], inner[2] + o[2], raw)
    assert decode(request.raw)["applyOps"][0]["o"] == decode(raw)
    answer = source.answer(request)
    assert isinstance(answer, dict) and answer["results"] == [True]
    collection = source.store.catalog.collections["d.c"]
    with source.store.reading() as view:
        assert [document for _, document in view.scan(collection)] == [raw]


def _with(message: bytes, array: int, operation: int, start: int, end: int, value: bytes) -> bytes:
    """The message with another value of `o`; all lengths around it follow."""
    grown, made = len(value) - (end - start), bytearray(message[:start] + value + message[end:])
    for at in (0, array, operation):
        made[at : at + 4] = (int.from_bytes(made[at : at + 4], "little") + grown).to_bytes(4, "little")
    return bytes(made)
