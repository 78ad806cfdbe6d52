"""Hints and key patterns: fields in order, numbers of every type, no booleans; in every command that takes a hint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.testing.driven import DrivenServer

Document = dict[str, Any]

COMMANDS: dict[str, Callable[[Any], Document]] = {
    "find": lambda hint: {"find": "c", "filter": {"b": 1}, "hint": hint},
    "count": lambda hint: {"count": "c", "query": {"b": 1}, "hint": hint},
    "distinct": lambda hint: {"distinct": "c", "key": "a", "query": {"b": 1}, "hint": hint},
    "aggregate": lambda hint: {"aggregate": "c", "pipeline": [{"$match": {"b": 1}}], "cursor": {}, "hint": hint},
    "delete": lambda hint: {"delete": "c", "deletes": [{"q": {"b": 9}, "limit": 0, "hint": hint}]},
    "update": lambda hint: {"update": "c", "updates": [{"q": {"b": 1}, "u": {"$set": {"c": 1}}, "hint": hint}]},
    "findAndModify": lambda hint: {"findAndModify": "c", "query": {"b": 1}, "update": {"$set": {"c": 1}}, "hint": hint},
    "explain": lambda hint: {"explain": {"find": "c", "filter": {"b": 1}, "hint": hint}},
}
HINTS: list[tuple[Any, int]] = [
    ("_id_", 0), ("a_1_b_-1", 0), ({}, 0), ("x", 2),
    *(({"_id": one}, 0) for one in (1, 1.0, Int64(1), Decimal128("1"))),
    *(({"_id": other}, 2) for other in (True, 2, -1, "1", None)),
    ({"a": 1, "b": -1}, 0), ({"a": Int64(1), "b": -1.0}, 0), ({"b": -1, "a": 1}, 2), ({"a": 1}, 2),
    ({"a": True, "b": -1}, 2),
    *(({"$natural": one}, 0) for one in (1, -1, 1.0, Int64(-1), Decimal128("-1"))),
    *(({"$natural": other}, 2) for other in (True, 2, 0, "1", None)), ({"$natural": 1, "a": 1}, 2),
]  # fmt: skip


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": n, "a": n % 2, "b": n} for n in range(4)]})
        index = {"key": {"a": 1, "b": -1}, "name": "a_1_b_-1"}
        server.must("t", {"createIndexes": "c", "indexes": [index]})
        yield server


def code_of(reply: Any) -> int:
    if reply.get("writeErrors"):
        return int(reply["writeErrors"][0]["code"])
    return 0 if reply["ok"] else int(reply["code"])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_the_same_hints(at: DrivenServer, name: str) -> None:
    for hint, code in HINTS:
        reply = at.run("t", COMMANDS[name](hint))
        assert code_of(reply) == code, (name, hint, reply)


def test_a_natural_hint_of_any_number_gives_the_order(at: DrivenServer) -> None:
    for one in (-1, -1.0, Int64(-1), Decimal128("-1")):
        for body in ({"hint": {"$natural": one}}, {"sort": {"$natural": one}}):
            found = at.must("t", {"find": "c", **body})["cursor"]["firstBatch"]
            assert [item["_id"] for item in found] == [3, 2, 1, 0], body


@pytest.mark.parametrize(
    ("hint", "code"),
    [({"$natural": 1}, 0), ({"$natural": 1.0}, 0), ({"$natural": -1}, 2), ("_id_", 2), ({"_id": 1}, 2), ({}, 0)],
)
def test_a_natural_sort_has_no_other_hint(at: DrivenServer, hint: Any, code: int) -> None:
    assert code_of(at.run("t", {"find": "c", "sort": {"$natural": 1}, "hint": hint})) == code


def test_a_key_pattern_names_an_index_by_its_fields_in_order(at: DrivenServer) -> None:
    reverse = {"b": -1, "a": 1}
    assert code_of(at.run("t", {"dropIndexes": "c", "index": reverse})) == 27
    assert code_of(at.run("t", {"collMod": "c", "index": {"keyPattern": reverse, "hidden": True}})) == 27
    assert code_of(at.run("t", {"collMod": "c", "index": {"keyPattern": {"a": True, "b": -1}, "hidden": True}})) == 27
    same = {"key": {"a": Int64(1), "b": Decimal128("-1")}, "name": "a_1_b_-1"}
    made = at.must("t", {"createIndexes": "c", "indexes": [same]})
    assert made["numIndexesBefore"] == made["numIndexesAfter"] == 2
    at.must("t", {"collMod": "c", "index": {"keyPattern": {"a": 1.0, "b": -1}, "hidden": True}})
    at.must("t", {"dropIndexes": "c", "index": {"a": 1.0, "b": Int64(-1)}})


@pytest.mark.parametrize("hint", [{"_id": 1}, "_id_"])
def test_a_hint_of_the_index_on_id_reads_in_its_order(at: DrivenServer, hint: Any) -> None:
    at.must("t", {"insert": "h", "documents": [{"_id": number, "b": number % 2} for number in (3, 1, 4, 0, 2)]})

    def ids(**find: Any) -> list[int]:
        batch = at.must("t", {"find": "h", "hint": hint, **find})["cursor"]["firstBatch"]
        return [document["_id"] for document in batch]

    assert ids() == [0, 1, 2, 3, 4]
    assert ids(filter={"b": 0}, skip=1) == [2, 4]
    assert ids(sort={"_id": -1}, limit=2) == [4, 3]
    assert ids(sort={"b": -1}) == [1, 3, 0, 2, 4]
    assert ids(filter={"_id": {"$gt": 2}}) == [3, 4]
    assert ids(returnKey=True, projection={}) == [0, 1, 2, 3, 4]
    first = at.must("t", {"find": "h", "hint": hint, "batchSize": 2})["cursor"]
    more = at.must("t", {"getMore": Int64(first["id"]), "collection": "h"})["cursor"]["nextBatch"]
    assert [document["_id"] for document in more] == [2, 3, 4]
    piped = at.must("t", {"aggregate": "h", "pipeline": [{"$limit": 2}], "cursor": {}, "hint": hint})
    assert [document["_id"] for document in piped["cursor"]["firstBatch"]] == [0, 1]
    removed = at.must("t", {"findAndModify": "h", "query": {"b": 1}, "hint": hint, "remove": True})
    assert removed["value"]["_id"] == 1


def ids_of(reply: Any) -> list[Any]:
    if "values" in reply:
        return list(reply["values"])
    return [document["_id"] for document in reply["cursor"]["firstBatch"]]


@pytest.mark.parametrize(
    ("hint", "order"),
    [({"$natural": -1}, [2, 0, 4, 1, 3]), ({"$natural": 1}, [3, 1, 4, 0, 2]), ({"_id": 1}, [0, 1, 2, 3, 4]),
     ("b", [4, 0, 2, 3, 1])],
)  # fmt: skip
@pytest.mark.parametrize("name", ["h", "v"])
def test_a_hint_gives_the_order_of_a_collection_and_of_its_views(
    at: DrivenServer, name: str, hint: Any, order: list[int]
) -> None:
    at.must("t", {"insert": "h", "documents": [{"_id": number, "b": number % 2} for number in (3, 1, 4, 0, 2)]})
    at.must("t", {"createIndexes": "h", "indexes": [{"key": {"b": 1}, "name": "b"}]})
    at.must("t", {"create": "v", "viewOn": "h", "pipeline": [{"$match": {"_id": {"$type": "int"}}}]})
    rest = {"cursor": {}, "hint": hint}
    assert ids_of(at.must("t", {"find": name, "hint": hint})) == order
    assert ids_of(at.must("t", {"aggregate": name, "pipeline": [], **rest})) == order
    assert ids_of(at.must("t", {"aggregate": name, "pipeline": [{"$skip": 1}, {"$limit": 2}], **rest})) == order[1:3]
    assert ids_of(at.must("t", {"distinct": name, "key": "_id", "hint": hint})) == order
    assert code_of(at.run("t", {"count": name, "hint": "missing"})) == 2
    if type(hint) is dict and "$natural" in hint:
        assert ids_of(at.must("t", {"find": name, "sort": hint, "skip": 1, "limit": 2})) == order[1:3]


def test_writes_read_in_reverse_natural_order_if_hinted(at: DrivenServer) -> None:
    backward = {"$natural": -1}
    changed = {"findAndModify": "c", "query": {"b": {"$lt": 3}}, "hint": backward, "update": {"$set": {"c": 1}}}
    assert at.must("t", changed)["value"]["_id"] == 2
    update = {"q": {"b": {"$gte": 0}}, "u": {"$set": {"d": 1}}, "hint": backward}
    at.must("t", {"update": "c", "updates": [update]})
    assert ids_of(at.must("t", {"find": "c", "filter": {"d": 1}})) == [3]
    at.must("t", {"delete": "c", "deletes": [{"q": {"b": {"$gte": 0}}, "limit": 1, "hint": backward}]})
    assert ids_of(at.must("t", {"find": "c"})) == [0, 1, 2]


@pytest.mark.parametrize(
    ("option", "code"),
    [({"singleBatch": True}, 168), ({"singleBatch": True, "limit": 1}, 0), ({"tailable": True}, 168),
     ({"noCursorTimeout": True}, 168), ({"allowPartialResults": True}, 168), ({"readOnce": True}, 168),
     ({"returnKey": True}, 168), ({"min": {"_id": 1}}, 168)],
)  # fmt: skip
def test_a_view_refuses_the_options_that_only_a_find_has(at: DrivenServer, option: Document, code: int) -> None:
    at.must("t", {"create": "v", "viewOn": "c", "pipeline": []})
    assert code_of(at.run("t", {"find": "v", **option})) == code
