"""A command or statement that is refused leaves nothing: no collection, no entry of the oplog, no changed document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

SESSION = {"lsid": {"id": Binary(b"s" * 16, 4)}, "txnNumber": Int64(1), "autocommit": False}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("t", {"insert": "source", "documents": [{"_id": 1, "a": "text"}, {"_id": 2}]})
        yield server


def left(at: DrivenServer) -> tuple[list[str], list[Any]]:
    """(the collections of the database, the entries of the oplog)."""
    names = [item["name"] for item in at.must("t", {"listCollections": 1})["cursor"]["firstBatch"]]
    entries = at.must("local", {"find": "oplog.rs", "filter": {"op": {"$ne": "n"}}, "batchSize": 1000})
    return sorted(names), entries["cursor"]["firstBatch"]


def codes(reply: Any) -> list[int]:
    """The codes of a reply: of the command, of its statements, or of the operations of a bulkWrite."""
    if not reply["ok"]:
        return [reply["code"]]
    results = [*reply.get("writeErrors", []), *reply.get("cursor", {}).get("firstBatch", [])]
    return [item["code"] for item in results]


def upsert(update: Any, query: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"update": "c", "updates": [{"q": query or {}, "u": update, "upsert": True, **more}]}


def modify(update: Any, query: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"findAndModify": "c", "query": query or {}, "update": update, "upsert": True, **more}


def bulk(*operations: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"bulkWrite": 1, "ops": list(operations), "nsInfo": [{"ns": "t.c"}], **more}


def indexes(*specs: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"createIndexes": "c", "indexes": [{"key": {path: 1}, "name": name} for path, name in specs], **more}


REFUSED: dict[str, tuple[dict[str, Any], list[int]]] = {
    "bulkWrite: an insert": (bulk({"insert": 0, "document": {"_id": [1]}}), [2]),
    "bulkWrite: inserts": (bulk(*[{"insert": 0, "document": {"_id": [1]}}] * 2, ordered=False), [2, 2]),
    "createIndexes: a collation of _id": (
        {"createIndexes": "c", "indexes": [{"key": {"_id": 1}, "name": "_id_", "collation": {"locale": "en"}}]}, [2],
    ),
    "createIndexes: too many": (indexes(*[(f"a{number}", f"a{number}") for number in range(64)]), [67]),
    "createIndexes: two names": (indexes(("a", "x"), ("a", "y")), [85]),
    "createIndexes: two of a name": (indexes(("a", "x"), ("b", "x")), [86]),
    "createIndexes: option": ({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "b": 1}]}, [197]),
    "findAndModify: filter": (modify({"a": 1}, {"$no": 1}), [2]),
    "findAndModify: hint": (modify({"a": 1}, hint="none"), [2]),
    "findAndModify: projection": (modify({"a": 1}, fields={"a": {"$no": 1}}, new=True), [31325]),
    "findAndModify: sort": (modify({"a": 1}, sort={"a": "up"}), [15974]),
    "insert: all of two": ({"insert": "c", "documents": [{"_id": [1]}, {"_id": {"$a": 1}}], "ordered": False}, [2, 52]),
    "insert: one": ({"insert": "c", "documents": [{"_id": [1]}]}, [2]),
    "insert: the first of two": ({"insert": "c", "documents": [{"_id": [1]}, {"_id": 2}]}, [2]),
    "insert: too large": ({"insert": "c", "documents": [{"_id": 1, "a": "x" * (16 << 20)}]}, [10334]),
    "update: filter": (upsert({"a": 1}, {"$no": 1}), [2]),
    "update: hint": (upsert({"a": 1}, hint="none"), [2]),
}  # fmt: skip


UPSERTS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "bulkWrite: an upsert": (
        bulk({"update": 0, "filter": {}, "updateMods": {"_id": [1]}, "upsert": True}), [53],
    ),
    "findAndModify: $inc of a string": (modify({"$inc": {"a": 1}}, {"a": "text"}), [14]),
    "findAndModify: array as _id": (modify({"_id": [1]}), [53]),
    "update: $inc of a string": (upsert({"$inc": {"a": 1}}, {"a": "text"}), [14]),
    "update: array as _id": (upsert({"_id": [1]}), [53]),
    "update: path": (upsert({"$set": {"a.$": 1}}), [2]),
}  # fmt: skip


@pytest.mark.parametrize("case", UPSERTS)
def test_an_upsert_that_is_refused_leaves_the_empty_collection_as_on_mongodb(at: DrivenServer, case: str) -> None:
    command, expected = UPSERTS[case]
    names, entries = left(at)
    assert codes(at.run("admin" if "bulkWrite" in command else "t", command)) == expected
    after = left(at)
    assert after[0] == sorted([*names, "c"])
    assert [entry["o"].get("create") for entry in after[1][len(entries) :]] == ["c"]


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_makes_no_collection(at: DrivenServer, case: str) -> None:
    command, expected = REFUSED[case]
    before = left(at)
    assert codes(at.run("admin" if "bulkWrite" in command else "t", command)) == expected
    assert left(at) == before


@pytest.mark.parametrize("case", [*REFUSED, *UPSERTS])
def test_in_a_transaction_it_makes_none_either(at: DrivenServer, case: str) -> None:
    command, expected = {**REFUSED, **UPSERTS}[case]
    before = left(at)
    asked = {**command, **SESSION, "startTransaction": True}
    assert codes(at.run("admin" if "bulkWrite" in command else "t", asked)) == expected
    assert codes(at.run("admin", {"commitTransaction": 1, **SESSION})) == [251]
    assert left(at) == before


MERGES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[int]]] = {
    "array as _id": ([{"$set": {"_id": [1]}}], {}, [2]),
    "discarded": ([], {"whenNotMatched": "discard"}, []),
    "missing unique index": ([], {"on": "a"}, [51183]),
    "no match": ([], {"whenNotMatched": "fail"}, [13113]),
    "nothing": ([{"$match": {"_id": 3}}], {}, []),
    "stage that fails": ([{"$set": {"a": {"$toInt": "$a"}}}], {}, [241]),
}


@pytest.mark.parametrize("case", MERGES)
def test_merge_makes_no_collection_unless_it_inserts(at: DrivenServer, case: str) -> None:
    stages, options, expected = MERGES[case]
    before = left(at)
    merge = {"$merge": {"into": "c", **options}}
    assert codes(at.run("t", {"aggregate": "source", "pipeline": [*stages, merge], "cursor": {}})) == expected
    assert left(at) == before


@pytest.mark.parametrize(
    "stages", [[{"$set": {"_id": [1]}}], [{"$set": {"_id": 1}}], [{"$set": {"a": {"$toInt": "$a"}}}]]
)
def test_out_leaves_the_collection_as_it_was_when_it_fails(at: DrivenServer, stages: list[dict[str, Any]]) -> None:
    at.must("t", {"insert": "c", "documents": [{"_id": 7}]})
    names = left(at)[0]
    assert codes(at.run("t", {"aggregate": "source", "pipeline": [*stages, {"$out": "c"}], "cursor": {}})) != []
    assert left(at)[0] == names
    assert at.must("t", {"find": "c"})["cursor"]["firstBatch"] == [{"_id": 7}]


def test_the_documents_that_are_not_refused_are_inserted(at: DrivenServer) -> None:
    documents = [{"_id": [1]}, {"_id": 2}, {"_id": [3]}, {"_id": 4}]
    reply = at.run("t", {"insert": "c", "documents": documents, "ordered": False})
    assert isinstance(reply, dict)
    assert reply["n"] == 2 and [error["index"] for error in reply["writeErrors"]] == [0, 2]
    operations = [{"insert": 0, "document": document} for document in documents]
    reply = at.must("admin", bulk(*operations, ordered=False) | {"nsInfo": [{"ns": "t.d"}]})
    assert [item["ok"] for item in reply["cursor"]["firstBatch"]] == [0.0, 1.0, 0.0, 1.0]
    for name in ("c", "d"):
        assert at.must("t", {"find": name})["cursor"]["firstBatch"] == [{"_id": 2}, {"_id": 4}]


@pytest.mark.parametrize("change", [{"update": {"$set": {"a": 9}}}, {"remove": True}])
@pytest.mark.parametrize("fields", [{"a": {"$no": 1}}, {"a": 1, "b": 0}])
def test_find_and_modify_with_a_wrong_projection_changes_nothing(
    at: DrivenServer, fields: dict[str, Any], change: dict[str, Any]
) -> None:  # fmt: skip
    before = left(at), at.must("t", {"find": "source"})["cursor"]["firstBatch"]
    assert codes(at.run("t", {"findAndModify": "source", "query": {"_id": 1}, "fields": fields, **change})) in (
        [31254],
        [31325],
    )
    assert (left(at), at.must("t", {"find": "source"})["cursor"]["firstBatch"]) == before
