"""Fields that are null: the same as absent, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.testing.driven import DrivenServer


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        yield server


_FIND_AND_MODIFY = {"findAndModify": "c", "query": {}, "update": {"$set": {"a": 1}}}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "c", "hint": None}, 9),
        ({"count": "c", "hint": None}, 9),
        ({"aggregate": "c", "pipeline": [], "cursor": {}, "hint": None}, 9),
        ({"aggregate": "c", "pipeline": [], "cursor": None}, 14),
        ({"aggregate": "c", "pipeline": None, "cursor": {}}, 14),
        ({**_FIND_AND_MODIFY, "hint": None}, 9),
        ({**_FIND_AND_MODIFY, "update": None}, 9),
        ({"update": "c", "updates": [{"q": {}, "u": None}]}, 9),
        ({"createIndexes": "c", "indexes": [{"key": None, "name": "n"}]}, 14),
        ({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "n", "v": None}]}, 14),
        ({"find": "c", "filter": None}, 14),
        ({"find": "c", "singleBatch": None}, 14),
        ({"find": "c", "let": None, "limit": None, "skip": None}, 0),
        ({"count": "c", "query": None, "skip": None}, 0),
    ],
    ids=str,
)
def test_null_is_absence_save_where_a_field_has_an_error_of_its_own(
    server: DrivenServer, command: dict[str, Any], expected: int
) -> None:
    reply = server.run("t", command)
    assert reply.get("writeErrors", [reply])[0].get("code", 0) == expected
