"""The target of an aggregation: a collection's name or the number 1. Hints at missing indexes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MinKey, ObjectId, Regex

from headrace.testing.driven import DrivenServer

_ID = ObjectId("64b000000000000000000001")


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]})
        server.must("t", {"createIndexes": "c", "indexes": [{"key": {"$**": 1}, "name": "w"}]})
        yield server


def code(server: DrivenServer, command: dict[str, Any]) -> int:
    reply = server.run("t", command)
    assert isinstance(reply, dict)
    return int(reply.get("code", 0))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, 0) for name in (1, Int64(1), 1.0, Decimal128("1.0"))),
        *((name, 2) for name in (0, 2, -1, 1.5, math.nan, math.inf, Decimal128("0"), Decimal128("NaN"))),
        *(
            (name, 73)
            for name in (
                None,
                True,
                [1],
                {"a": 1},
                _ID,
                Regex("a"),
                Binary(b"x"),
                MinKey(),
            )
        ),
        *((name, 73) for name in ("", ".a", "a\0b", "$cmd.aggregate")),
    ],
    ids=str,
)
@pytest.mark.parametrize("stage", [{"$documents": [{"a": 1}]}, {"$changeStream": {}}], ids=["documents", "stream"])
def test_what_stands_for_the_collection(server: DrivenServer, name: Any, expected: int, stage: Any) -> None:
    assert code(server, {"aggregate": name, "pipeline": [stage], "cursor": {}}) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "c", "hint": ""}, 2),
        ({"find": "c", "hint": {}}, 0),
        ({"find": "c", "filter": {"_id": 2}, "hint": "w"}, 291),
        ({"find": "c", "filter": {"_id": 2}, "hint": "_id_"}, 0),
        ({"killCursors": "", "cursors": [Int64(1)]}, 73),
    ],
    ids=str,
)
def test_names_of_indexes_and_cursors(server: DrivenServer, command: dict[str, Any], expected: int) -> None:
    assert code(server, command) == expected
