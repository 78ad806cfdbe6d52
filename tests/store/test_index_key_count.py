"""A document has a bounded number of keys in an index; one that has more of them from before can be made smaller."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import limits
from headrace.errors import CommandError
from headrace.store.check.directory import check
from headrace.store.indexes import index_entries
from headrace.store.indexes.index_keys import KeyMaker
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.bson import encode

COUNT_MAX = 100
KEYS: dict[str, dict[str, Any]] = {
    "array": {"key": {"n": 1}}, "descending": {"key": {"n": -1}}, "unique": {"key": {"n": 1}, "unique": True},
    "compound": {"key": {"x": 1, "n": 1}}, "path": {"key": {"a.b": 1}}, "paths": {"key": {"a.b": 1, "a.c": -1}},
    "partial": {"key": {"n": 1}, "partialFilterExpression": {"n": {"$gte": 0}}}, "wildcard": {"key": {"n.$**": 1}},
}  # fmt: skip
LONG = {"note": "x" * limits.KEYS_BYTES}


@pytest.fixture
def at(tmp_path: Path) -> Iterator[DrivenServer]:
    """At the end its indexes have the keys of its documents."""
    with DrivenServer(tmp_path, clock=FakeClock()) as server:
        bound(server, COUNT_MAX)
        yield server
        assert server.must("t", {"validate": "c"})["valid"]
    assert check(tmp_path).problems == []


def bound(at: DrivenServer, count: int) -> None:
    at.must("admin", {"setParameter": 1, "indexMaxNumGeneratedKeysPerDocument": count})


def document(key: int, count: int) -> dict[str, Any]:
    numbers = list(range(count))
    return {"_id": key, "x": "y", "n": numbers, "a": [{"b": n, "c": n % 7} for n in numbers], **LONG}


def indexed(at: DrivenServer, what: str) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"name": "x", **KEYS[what]}]})


def refusal(at: DrivenServer, body: dict[str, Any]) -> tuple[int, str]:
    with pytest.raises(CommandError) as caught:
        at.must("t", body)
    return caught.value.code, caught.value.message.removeprefix("Plan executor error during update :: caused by :: ")


def update(change: Any) -> dict[str, Any]:
    return {"update": "c", "updates": [{"q": {"_id": 1}, "u": change}]}


REFUSED = 201, "Maximum number of generated keys exceeded."


@pytest.mark.parametrize("what", KEYS)
def test_more_keys_are_refused_and_change_nothing(at: DrivenServer, what: str) -> None:
    indexed(at, what)
    assert refusal(at, {"insert": "c", "documents": [document(1, COUNT_MAX + 1)]}) == REFUSED
    assert at.must("t", {"count": "c"})["n"] == 0
    assert at.must("t", {"insert": "c", "documents": [document(1, COUNT_MAX)]})["n"] == 1
    more = {"$push": {"n": COUNT_MAX, "a": {"b": COUNT_MAX}}}
    assert refusal(at, update(more)) == REFUSED
    assert at.must("t", update({"$set": {"other": 1}}))["nModified"] == 1


@pytest.mark.parametrize("what", KEYS)
def test_what_has_more_of_them_can_be_made_smaller_and_goes(at: DrivenServer, what: str) -> None:
    bound(at, limits.INDEX_KEY_COUNT_MAX)
    indexed(at, what)
    at.must("t", {"insert": "c", "documents": [document(1, 3 * COUNT_MAX)]})
    bound(at, COUNT_MAX)
    at.restart()
    bound(at, COUNT_MAX)
    assert at.must("t", {"validate": "c", "full": True})["valid"]
    assert refusal(at, update({"$set": {"other": 1}})) == REFUSED
    assert at.must("t", update({"$set": {"n": [1], "a": []}}))["nModified"] == 1
    bound(at, limits.INDEX_KEY_COUNT_MAX)
    at.must("t", update(document(1, 3 * COUNT_MAX)))
    bound(at, COUNT_MAX)
    assert at.must("t", {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})["n"] == 1


@pytest.mark.parametrize("what", KEYS)
def test_an_index_is_not_built_over_more(at: DrivenServer, what: str) -> None:
    at.must("t", {"insert": "c", "documents": [document(1, COUNT_MAX + 1)]})
    body = {"createIndexes": "c", "indexes": [{"name": "x", **KEYS[what]}]}
    for reply in (at.run("t", body), at.in_turns("t", body)[0]):
        assert isinstance(reply, dict)
        assert (reply["code"], reply["codeName"], REFUSED[1] in reply["errmsg"]) == (201, "CannotBuildIndexKeys", True)
    [index] = at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]
    assert index["name"] == "_id_"


def test_the_keys_of_all_indexes_are_counted(at: DrivenServer) -> None:
    for name in ("n", "a.b", "a.c"):
        at.must("t", {"createIndexes": "c", "indexes": [{"name": name, "key": {name: 1}}]})
    count = COUNT_MAX // 3  # in each index, of which `a.c` has seven different ones
    for stored in (document(1, count), {**document(2, count), "note": "short"}):
        assert at.must("t", {"insert": "c", "documents": [stored]})["n"] == 1
    more = document(3, count + 1)
    for refused in (more, {**more, "note": "short"}):
        assert refusal(at, {"insert": "c", "documents": [refused]}) == REFUSED
        assert refusal(at, {"insert": "c", "documents": [{"_id": 9}, refused]}) == REFUSED
        assert refusal(at, update({"$set": {"n": refused["n"], "a": refused["a"]}})) == REFUSED
        assert at.must("t", {"delete": "c", "deletes": [{"q": {"_id": 9}, "limit": 1}]})["n"] == 1
    assert at.must("t", {"count": "c"})["n"] == 2


def test_an_index_is_not_built_over_more_keys_of_all_indexes(at: DrivenServer) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"name": "n", "key": {"n": 1}}]})
    at.must("t", {"insert": "c", "documents": [document(1, COUNT_MAX // 2 - 1)]})
    body = {"createIndexes": "c", "indexes": [{"name": "x", "key": {"x": 1}}, {"name": "b", "key": {"a.b": 1}}]}
    refused = {**body, "indexes": [*body["indexes"], {"name": "y", "key": {"x": 1, "n": 1}}]}
    for reply in (at.run("t", refused), at.in_turns("t", refused)[0]):
        assert isinstance(reply, dict) and reply["code"] == 201
    assert at.must("t", body)["ok"] == 1.0
    assert at.must("t", update({"$set": {"n.0": -1}}))["nModified"] == 1


def test_documents_with_many_keys_are_inserted_some_at_a_time(
    at: DrivenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_many, most = index_entries.put_many, 0

    def counted(txn: Any, items: list[Any]) -> None:
        nonlocal most
        most = max(most, len(items))
        put_many(txn, items)

    monkeypatch.setattr(limits, "BATCH_ENTRY_COUNT_MAX", 500)
    monkeypatch.setattr(index_entries, "put_many", counted)
    for name in ("n", "a.b", "x"):
        at.must("t", {"createIndexes": "c", "indexes": [{"name": name, "key": {name: 1}}]})
    documents = [{"_id": key, "n": list(range(20)), "a": {"b": list(range(10))}} for key in range(200)]
    assert at.must("t", {"insert": "c", "documents": documents})["n"] == 200
    assert 31 < most <= 500 + 31
    status = at.must("admin", {"serverStatus": 1})
    assert status["metrics"]["document"]["inserted"] == 200
    assert status["opcounters"]["insert"] == 200
    assert [item["_id"] for item in at.must("t", {"find": "c", "batchSize": 500})["cursor"]["firstBatch"]] == list(
        range(200)
    )


@pytest.mark.parametrize("pattern", [{"x": 1, "n": 1}, {"x": 1, "n.b": 1}, {"n.b": 1, "x": 1, "n.c": 1}])
def test_no_more_than_that_are_made(pattern: dict[str, Any]) -> None:
    maker = KeyMaker(1, {"key": pattern}, None, None, unique=False)
    elements: list[Any] = list(range(50_000))
    if "n" not in pattern:
        elements = [{"b": n} for n in elements]
    raw = encode({"x": "x" * 400, "n": elements})
    tracemalloc.start()
    try:
        with pytest.raises(CommandError) as caught:
            maker.keys(raw, 2000)
        assert caught.value.code == 201
        assert tracemalloc.get_traced_memory()[1] < 25 * len(raw)
    finally:
        tracemalloc.stop()


def test_the_bound_is_a_parameter(at: DrivenServer) -> None:
    name = "indexMaxNumGeneratedKeysPerDocument"
    assert at.must("admin", {"getParameter": 1, name: 1})[name] == COUNT_MAX
    for wrong in (0, -1, 1.5, "1", None, float("inf")):
        reply = at.run("admin", {"setParameter": 1, name: wrong})
        assert isinstance(reply, dict) and reply["code"] == 2
    at.restart()
    assert at.must("admin", {"getParameter": 1, name: 1})[name] == limits.INDEX_KEY_COUNT_MAX == 10_000
    at.must("t", {"create": "c"})


def test_keys_that_are_equal_count_each(at: DrivenServer) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"name": f"n{k}", "key": {"n": 1, f"x{k}": 1}} for k in range(3)]})
    equal = {"_id": 1, "n": [7] * (COUNT_MAX // 3)}
    for refused in ({**equal, "n": [7] * (COUNT_MAX // 3 + 1)}, {**equal, "n": [{"b": 7}] * (COUNT_MAX // 3 + 1)}):
        assert refusal(at, {"insert": "c", "documents": [refused]}) == REFUSED
    assert at.must("t", {"insert": "c", "documents": [equal]})["n"] == 1
