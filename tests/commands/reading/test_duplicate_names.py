"""Commands that name a field twice, as drivers send them whose documents are lists of fields, such as Go's `bson.D`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import encode
from bson.raw_bson import RawBSONDocument

from headrace.testing.driven import DrivenServer


def fields(*pairs: tuple[str, Any]) -> Any:
    """A document of these fields, some with the same name."""
    body = b"".join(encode({name: value})[4:-1] for name, value in pairs)
    return RawBSONDocument((len(body) + 5).to_bytes(4, "little") + body + b"\0")


BETWEEN: Any = fields(("a", {"$gt": 1}), ("a", {"$lt": 4}))
"""A filter for 2 and 3; with only one of the conditions, it would be for more."""


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": number, "a": number} for number in range(6)]})
        yield server


def found(server: DrivenServer, filter_: Any) -> list[int]:
    return [document["_id"] for document in server.must("t", {"find": "c", "filter": filter_})["cursor"]["firstBatch"]]


def ran(server: DrivenServer, body: dict[str, Any]) -> dict[str, Any]:
    reply = server.run("t", body)
    assert isinstance(reply, dict)
    return reply


def test_a_filter_has_every_condition_of_a_field(server: DrivenServer) -> None:
    assert found(server, BETWEEN) == [2, 3]
    assert found(server, fields(("_id", 1), ("_id", 2))) == []
    assert found(server, {"a": fields(("$gt", 3), ("$gt", 1))}) == [4, 5]
    assert found(server, {"a": {"$not": fields(("$lt", 4), ("$lt", 1))}}) == [1, 2, 3, 4, 5]
    assert found(server, {"$or": [BETWEEN, {"_id": 5}]}) == [2, 3, 5]
    assert found(server, fields(("$or", [{"a": 1}, {"a": 2}]), ("$or", [{"a": 2}, {"a": 3}]))) == [2]
    assert found(server, {"$expr": {"$gt": ["$a", 4]}, "a": fields(("$gt", 9), ("$gt", 1))}) == []


def test_every_command_with_a_filter_has_every_condition(server: DrivenServer) -> None:
    assert server.must("t", {"count": "c", "query": BETWEEN})["n"] == 2
    assert server.must("t", {"distinct": "c", "key": "a", "query": BETWEEN})["values"] == [2, 3]
    matched = [{"$match": BETWEEN}, {"$count": "n"}]
    pipelines: list[Any] = [
        matched,
        [{"$facet": {"n": matched}}, {"$unwind": "$n"}, {"$replaceWith": "$n"}],
        [{"$limit": 1}, {"$lookup": {"from": "c", "pipeline": matched, "as": "n"}}, {"$replaceWith": {"$first": "$n"}}],
        [{"$match": {"a": 9}}, {"$unionWith": {"coll": "c", "pipeline": matched}}],
    ]
    for pipeline in pipelines:
        reply = server.must("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}})
        assert reply["cursor"]["firstBatch"] == [{"n": 2}], pipeline
    changed = {"findAndModify": "c", "query": BETWEEN, "sort": {"a": -1}, "update": {"$set": {"x": 1}}}
    assert server.must("t", changed)["value"]["_id"] == 3
    update = {"q": BETWEEN, "u": {"$set": {"y": 1}}, "multi": True}
    assert server.must("t", {"update": "c", "updates": [update]})["n"] == 2
    ops = [{"update": 0, "filter": BETWEEN, "updateMods": {"$set": {"z": 1}}, "multi": True}]
    assert server.must("admin", {"bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": "t.c"}]})["nMatched"] == 2
    assert server.must("t", {"delete": "c", "deletes": [{"q": BETWEEN, "limit": 0}]})["n"] == 2
    assert found(server, {}) == [0, 1, 4, 5]


def test_a_validator_has_every_condition(server: DrivenServer) -> None:
    server.must("t", {"create": "v", "validator": BETWEEN})
    refused = ran(server, {"insert": "v", "documents": [{"a": 0}, {"a": 2}, {"a": 9}], "ordered": False})
    assert [error["index"] for error in refused["writeErrors"]] == [0, 2]


def test_an_update_has_every_operator_and_no_path_twice(server: DrivenServer) -> None:
    both = fields(("$set", {"x": 1}), ("$set", {"y": 2}))
    server.must("t", {"update": "c", "updates": [{"q": {"_id": 0}, "u": both}]})
    server.must("t", {"findAndModify": "c", "query": {"_id": 1}, "update": both})
    reply = server.must("t", {"find": "c", "filter": {"x": 1, "y": 2}})
    assert [document["_id"] for document in reply["cursor"]["firstBatch"]] == [0, 1]
    for name in ("$set", "$unset", "$inc"):
        twice = {name: fields(("z", 1), ("z", 2))}
        (error,) = ran(server, {"update": "c", "updates": [{"q": {"_id": 0}, "u": twice}]})["writeErrors"]
        assert (error["code"], error["errmsg"]) == (40, "Updating the path 'z' would create a conflict at 'z'")
    assert found(server, {"z": {"$exists": True}}) == []


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        ({"$sort": fields(("a", 1), ("a", -1))}, 7472500),
        ({"$project": fields(("a", 1), ("a", "$_id"))}, 31250),
        ({"$set": fields(("x", 1), ("x", 2))}, 40176),
        ({"$addFields": fields(("x", 1), ("x", 2))}, 40176),
        ({"$group": fields(("_id", "$a"), ("_id", "$b"))}, 15948),
    ],
)
def test_a_stage_that_names_a_field_twice_is_refused(server: DrivenServer, stage: Any, code: int) -> None:
    for pipeline in ([stage], [{"$lookup": {"from": "c", "pipeline": [stage], "as": "x"}}]):
        assert ran(server, {"aggregate": "c", "pipeline": pipeline, "cursor": {}}).get("code") == code


def test_a_find_that_names_a_field_twice_is_refused(server: DrivenServer) -> None:
    for name, code in (("sort", 7472500), ("projection", 31250)):
        assert ran(server, {"find": "c", name: fields(("a", 1), ("a", 1))}).get("code") == code


def test_a_repeated_find_has_every_condition(server: DrivenServer) -> None:
    for number in range(4):  # a body like the ones before it is read from what the server remembers
        assert found(server, {"_id": number}) == [number]
        assert found(server, fields(("_id", number), ("_id", number + 1))) == []


def test_a_refused_document_has_its_new_id(server: DrivenServer) -> None:
    server.must("t", {"create": "v", "validator": {"a": 1}})
    (error,) = ran(server, {"insert": "v", "documents": [{"a": 2}]})["writeErrors"]
    assert error["errInfo"]["failingDocumentId"] is not None
