"""Names of a request's fields, and the numbers they take, on every command that drivers send."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.testing.driven import DrivenServer

SET = {"$set": {"a": 1}}


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.run("t", {"insert": "c", "documents": [{"_id": number} for number in range(5)]})
        yield server


@pytest.mark.parametrize(
    ("command", "field"),
    [
        ({"aggregate": "c", "pipeline": [], "cursor": {}, "nope": 1}, "aggregate.nope"),
        ({"aggregate": "c", "pipeline": [], "cursor": {"nope": 1}}, "aggregate.cursor.nope"),
        ({"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {"nope": 1}}, "aggregate.cursor.nope"),
        ({"bulkWrite": 1, "ops": [], "nsInfo": [], "nope": 1}, "bulkWrite.nope"),
        ({"count": "c", "filter": {}}, "count.filter"),
        ({"createIndexes": "c", "indexes": [], "nope": 1}, "createIndexes.nope"),
        ({"delete": "c", "deletes": [{"q": {}, "limit": 0}], "nope": 1}, "delete.nope"),
        ({"delete": "c", "deletes": [{"q": {}, "limit": 0, "multi": True}]}, "delete.deletes.multi"),
        ({"distinct": "c", "key": "a", "filter": {}}, "distinct.filter"),
        ({"drop": "c", "nope": 1}, "drop.nope"),
        ({"explain": {"find": "c", "nope": 1}}, "FindCommandRequest.nope"),
        ({"find": "c", "query": {}}, "FindCommandRequest.query"),
        ({"findAndModify": "c", "remove": True, "nope": 1}, "findAndModify.nope"),
        ({"findandmodify": "c", "remove": True, "nope": 1}, "findAndModify.nope"),
        ({"getMore": Int64(1), "collection": "c", "nope": 1}, "getMore.nope"),
        ({"insert": "c", "documents": [{}], "nope": 1}, "insert.nope"),
        ({"listCollections": 1, "nope": 1}, "listCollections.nope"),
        ({"update": "c", "updates": [{"q": {}, "u": SET}], "nope": 1}, "update.nope"),
        ({"update": "c", "updates": [{"q": {"_id": 1}, "u": SET, "upset": True}]}, "update.updates.upset"),
    ],
)
def test_an_unknown_field_is_refused_by_name(server: DrivenServer, command: dict[str, Any], field: str) -> None:
    failed = server.run("admin" if "bulkWrite" in command else "t", command)
    assert (failed["code"], failed["errmsg"]) == (40415, f"BSON field '{field}' is an unknown field.")
    assert server.run("t", {"count": "c", "query": {"_id": {"$gte": 0}}})["n"] == 5


def test_what_drivers_add_to_every_command_is_known(server: DrivenServer) -> None:
    added = {"comment": "x", "maxTimeMS": 1000, "$readPreference": {"mode": "primary"}, "apiVersion": "1"}
    for command in (
        {"find": "c"}, {"count": "c"}, {"distinct": "c", "key": "a"}, {"insert": "c", "documents": [{}]},
        {"findandmodify": "c", "query": {"_id": 1}, "update": SET}, {"listCollections": 1}, {"drop": "c"},
    ):  # fmt: skip
        assert server.run("t", command | added)["ok"] == 1.0, command


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        (Decimal128("2"), 2),
        (2.9, 2),
        (Decimal128("2.9"), 3),
        (Decimal128("2.5"), 2),
        (math.nan, 5),
        (math.inf, 5),
        (Decimal128("1E+99"), 5),
    ],
    ids=str,
)  # fmt: skip
def test_a_number_is_cut_to_one_that_fits(server: DrivenServer, limit: Any, count: int) -> None:
    assert len(server.run("t", {"find": "c", "limit": limit})["cursor"]["firstBatch"]) == count
    of_count = server.run("t", {"count": "c", "limit": limit})  # takes integers alone
    assert of_count.get("n") == count if limit == Decimal128("2") else of_count["code"] == 9


@pytest.mark.parametrize("size", [math.nan, math.inf, Decimal128("3")], ids=str)
def test_any_number_is_the_size_of_a_batch(server: DrivenServer, size: Any) -> None:
    assert server.run("t", {"find": "c", "batchSize": size})["ok"] == 1.0
    assert server.run("t", {"aggregate": "c", "pipeline": [], "cursor": {"batchSize": size}})["ok"] == 1.0


@pytest.mark.parametrize("size", [-1, -math.inf, Decimal128("-1")], ids=str)
def test_a_batch_has_no_negative_size(server: DrivenServer, size: Any) -> None:
    assert server.run("t", {"find": "c", "batchSize": size})["code"] == 51024


@pytest.mark.parametrize("limit", [math.nan, math.inf], ids=str)
def test_a_time_limit_is_an_integral_number_of_milliseconds(server: DrivenServer, limit: Any) -> None:
    assert server.run("t", {"find": "c", "maxTimeMS": limit})["code"] == 9


def test_flags_may_be_decimals(server: DrivenServer) -> None:
    answer = server.run("t", {"listCollections": 1, "nameOnly": Decimal128("1")})
    assert "options" not in answer["cursor"]["firstBatch"][0]
    assert server.run("t", {"find": "c", "singleBatch": Decimal128("1")})["code"] == 14  # a flag of a find is strict
    assert server.run("t", {"delete": "c", "deletes": [{"q": {}, "limit": Decimal128("1")}]})["n"] == 1


@pytest.mark.parametrize(("namespace_index", "code"), [(math.nan, None), (math.inf, 2), (1, 2), ("x", 14)], ids=str)
def test_an_operation_names_its_collection_by_a_number(
    server: DrivenServer, namespace_index: Any, code: int | None
) -> None:
    command = {"bulkWrite": 1, "ops": [{"delete": namespace_index, "filter": {}}], "nsInfo": [{"ns": "t.c"}]}
    assert server.run("admin", command).get("code") == code


@pytest.mark.parametrize(
    "command",
    [
        {"update": "c", "updates": [{"q": None, "u": SET, "multi": True}]},
        {"delete": "c", "deletes": [{"q": None, "limit": 0}]},
    ],
)
def test_a_filter_of_null_is_no_filter_of_everything(server: DrivenServer, command: dict[str, Any]) -> None:
    assert server.run("t", command)["code"] == 40414
    assert server.run("t", {"count": "c", "query": {"a": None}})["n"] == 5
