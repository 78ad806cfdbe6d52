"""The fields of a statement of an update on one `_id`, which has a fast path: the types are checked all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Decimal128, ObjectId

from headrace.testing.driven import DrivenServer

_ID = ObjectId("64b000000000000000000001")


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1, "s": "a"}]})
        yield server


@pytest.mark.parametrize("value", [0, 1, 0.0, Decimal128("0"), "", [], {}, {"a": 1}, _ID], ids=str)
@pytest.mark.parametrize("field", ["multi", "upsert"])
def test_flags_are_booleans(server: DrivenServer, field: str, value: Any) -> None:
    reply = server.run("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"b": 1}}, field: value}]})
    assert isinstance(reply, dict) and reply["code"] == 14


@pytest.mark.parametrize("value", [True, False, None])
@pytest.mark.parametrize("field", ["multi", "upsert"])
def test_null_is_false(server: DrivenServer, field: str, value: Any) -> None:
    reply = server.must("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"b": 1}}, field: value}]})
    assert reply["n"] == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        *(({name: None}, 0) for name in ("strength", "caseLevel", "caseFirst", "alternate", "maxVariable", "version")),
        ({"backwards": None}, 14),
        ({"locale": None}, 40414),
        *(({"strength": value}, 0) for value in (1.5, Decimal128("2.5"), 5)),
        *(({"strength": value}, 2) for value in (0, 6, -1, 0.9, float("nan"), float("inf"), Decimal128("NaN"))),
        ({"strength": "2"}, 14),
    ],
    ids=str,
)
def test_options_of_a_collation_may_be_null(server: DrivenServer, options: dict[str, Any], expected: int) -> None:
    reply = server.run("t", {"find": "c", "filter": {"s": "a"}, "collation": {"locale": "en", **options}})
    assert isinstance(reply, dict) and reply.get("code", 0) == expected
