"""Deep, long and far-out arguments: each is answered with a result or with MongoDB's error, and at once."""

from __future__ import annotations

import time
from typing import Any

import pytest
from bson import Binary, Int64, Timestamp

from headrace.testing.driven import DrivenServer
from headrace.values.paths import any_value

DEEP_PATH = ".".join("a" * 1000)
FAR = Timestamp(2**32 - 1, 2**32 - 1)


@pytest.fixture
def server() -> Any:
    with DrivenServer() as driven:
        driven.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": [1, {"b": 2}]}]})
        yield driven


def pipeline(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"aggregate": "c", "pipeline": list(stages), "cursor": {}}


def update(*, u: Any, q: Any = None) -> dict[str, Any]:
    return {"update": "c", "updates": [{"q": q or {"_id": 1}, "u": u}]}


def nested(depth: int, name: str, value: Any) -> Any:
    for _ in range(depth):
        value = {name: value}
    return value


def nested_and(depth: int) -> dict[str, Any]:
    spec: dict[str, Any] = {"a": 1}
    for _ in range(depth):
        spec = {"$and": [spec]}
    return spec


def code_of(reply: Any) -> int:
    return int((reply.get("writeErrors") or [reply])[0].get("code", 0))


@pytest.mark.parametrize(
    ("code", "command"),
    [
        (0, pipeline(*[{"$addFields": {"a": 1}}] * 1000)),
        (7749501, pipeline(*[{"$addFields": {"a": 1}}] * 1001)),
        (0, pipeline({"$changeStream": {}}, *[{"$addFields": {"a": 1}}] * 990)),
        (0, {"find": "c", "filter": nested_and(95)}),
        (0, {"find": "c", "filter": {"a": nested(170, "$not", {"$eq": 1})}}),
        (0, {"find": "c", "filter": {"$expr": nested(170, "$abs", 1)}}),
        (0, update(q=nested_and(85), u={"$set": {"b": 1}})),
        (0, update(u=[{"$set": {"b": nested(170, "a", 1)}}])),
        (0, {"find": "c", "filter": {DEEP_PATH: 1}}),
        (15, {"find": "c", "projection": {DEEP_PATH: 1}}),
        (15, {"find": "c", "sort": {DEEP_PATH: 1}}),
        (15, pipeline({"$project": {"x": f"${DEEP_PATH}"}})),
        (15, pipeline({"$addFields": {DEEP_PATH: 1}})),
        (5984700, pipeline({"$addFields": {".".join("a" * 150): nested(100, "b", 1)}})),
        (15, update(u={"$set": {DEEP_PATH: 1}})),
        (15, update(u={"$unset": {DEEP_PATH: 1}})),
        (0, {"hello": 1, "compression": [{}]}),
        (0, {"find": "c", "projection": nested(90, "a", 1)}),
        (0, {"find": "c", "projection": {"x": nested(170, "$abs", 1)}}),
        (0, {"find": "c", "filter": {"$jsonSchema": nested(170, "not", {"type": "object"})}}),
        (0, {"find": "c", "filter": {"$jsonSchema": {"properties": {"a": nested(170, "items", {"type": "object"})}}}}),
        (0, {"find": "c", "filter": {"a": nested(170, "$elemMatch", {"b": 1})}}),
        (0, {"find": "c", "comment": nested(170, "a", 1)}),
        (14, {"find": "c", "collation": {"locale": "en", "strength": nested(170, "a", 1)}}),
        (40415, {"find": "c", "collation": nested(170, "a", 1)}),
        (40415, {"find": "c", "readConcern": nested(170, "a", 1)}),
        (15, update(u={"$set": {"z": nested(181, "a", 1)}})),
        (15, update(q={"_id": 2}, u={"$push": {"a": nested(181, "a", 1)}})),
        (0, update(q={"_id": 2}, u={"$pull": {"a": nested(170, "$elemMatch", {"b": 1})}})),
        (0, update(q={"_id": 2}, u={"$pull": {"a": nested_and(90)}})),
        (0, pipeline({"$facet": {"x": [{"$addFields": {"z": nested(170, "a", 1)}}]}})),
        (0, pipeline({"$group": {"_id": nested(170, "$abs", 1)}})),
        (0, pipeline({"$changeStream": {}}, {"$match": {"z": nested(170, "a", 1)}})),
        (0, pipeline({"$merge": {"into": "m", "whenMatched": [{"$set": {"z": nested(170, "a", 1)}}]}})),
        (0, {"create": "v", "viewOn": "c", "pipeline": [{"$addFields": {"z": nested(170, "a", 1)}}]}),
        (73, {"create": "v", "viewOn": "a\0b", "pipeline": []}),
        (73, {"find": "a\0b"}),
        (0, {"distinct": "c", "key": "a", "query": {"z": nested(170, "a", 1)}}),
    ],
)
def test_what_is_deep_or_long_works_or_is_refused(server: DrivenServer, code: int, command: dict[str, Any]) -> None:
    reply = server.run("admin" if "hello" in command else "t", command)
    assert code_of(reply) == code


def test_a_filter_on_a_path_deeper_than_any_document_finds_it_missing(server: DrivenServer) -> None:
    for condition, count in (({"$exists": False}, 2), (None, 2), (1, 0)):
        assert server.must("t", {"count": "c", "query": {DEEP_PATH: condition}})["n"] == count


def test_a_path_of_indexes_is_parsed_in_linear_time() -> None:
    path = ("a", *["0"] * 200)
    started = time.thread_time()
    matches = any_value(path, lambda value: value == 7)
    assert time.thread_time() - started < 1.0
    value: Any = 7
    for _ in range(200):
        value = [value]
    assert matches({"a": value}) and not matches({"a": [value]})


@pytest.mark.parametrize(
    ("condition", "count"), [({"$gt": FAR}, 0), ({"$gte": FAR}, 0), ({"$lt": Timestamp(0, 0)}, 0), ({"$lt": FAR}, 4)]
)
def test_the_oplog_is_read_to_the_ends_of_time(server: DrivenServer, condition: Any, count: int) -> None:
    for order in (1, -1):
        command = {"find": "oplog.rs", "filter": {"ts": condition}, "sort": {"$natural": order}}
        assert min(len(server.must("local", command)["cursor"]["firstBatch"]), 4) == count


@pytest.mark.parametrize(
    ("name", "positions", "ids"),
    [
        ("$bitsAnySet", [0, 2**31 - 1], [1, 2, 3]),
        ("$bitsAllSet", [2**31 - 1], [2]),
        ("$bitsAllSet", [0, 70], [2]),
        ("$bitsAllClear", [2**31 - 1], [1, 3]),
        ("$bitsAnyClear", [0, 2**31 - 1], [1, 3]),
        ("$bitsAllSet", [0, 9], [2, 3]),
    ],
)
def test_bits_beyond_a_number_are_its_sign_and_beyond_binary_data_clear(
    server: DrivenServer, name: str, positions: list[int], ids: list[int]
) -> None:
    values = [{"_id": 1, "v": 1}, {"_id": 2, "v": Int64(-1)}, {"_id": 3, "v": Binary(b"\xff\xff")}]
    server.must("t", {"insert": "bits", "documents": values})
    started = time.thread_time()
    matches = server.must("t", {"find": "bits", "filter": {"v": {name: positions}}})["cursor"]["firstBatch"]
    assert [document["_id"] for document in matches] == ids
    assert time.thread_time() - started < 1.0
