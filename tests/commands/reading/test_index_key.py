"""`{$meta: "indexKey"}` in pipelines: the key of the index that led to the document, up to the first stage that returns
other documents than it reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.testing.driven import DrivenServer

Document = dict[str, Any]
KEY = {"$meta": "indexKey"}
SHOWN: Document = {"$project": {"_id": 1, "k": KEY}}


@pytest.fixture(scope="module")
def at() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": n, "a": n % 2, "b": -n} for n in range(4)]})
        server.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1, "b": 1}, "name": "i"}]})
        yield server


def rows(at: DrivenServer, *pipeline: Document, **options: Any) -> list[Document]:
    found: list[Document] = at.must("t", {"aggregate": "c", "pipeline": list(pipeline), "cursor": {}, **options})[
        "cursor"
    ]["firstBatch"]
    return found


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        ([{"$match": {"a": 1}}, SHOWN], [(3, {"a": 1, "b": -3}), (1, {"a": 1, "b": -1})]),
        ([{"$match": {"_id": 2}}, SHOWN], [(2, {"_id": 2})]),
        ([{"$match": {"a": 1}}, {"$sort": {"_id": 1}}, SHOWN], [(1, {"a": 1, "b": -1}), (3, {"a": 1, "b": -3})]),
        ([{"$sort": {"a": 1, "b": 1}}, {"$limit": 1}, SHOWN], [(2, {"a": 0, "b": -2})]),
        ([{"$match": {"a": 1}}, {"$unset": "a"}, {"$addFields": {"k": KEY}}, {"$limit": 1}], [(3, {"a": 1, "b": -3})]),
        ([{"$match": {"b": -1}}, SHOWN], [(1, None)]),
        ([{"$match": {"b": -1}}, SHOWN, {"$match": {"_id": 1}}], [(1, None)]),
        ([{"$match": {"a": 1}}, {"$group": {"_id": "$a"}}, SHOWN], [(1, None)]),
        ([{"$match": {"a": 1}}, {"$group": {"_id": "$a", "k": {"$first": KEY}}}], [(1, {"a": 1, "b": -3})]),
    ],
)
def test_the_key_is_that_of_the_index(at: DrivenServer, pipeline: list[Document], expected: list[Any]) -> None:
    assert [(row["_id"], row.get("k")) for row in rows(at, *pipeline)] == expected


def test_documents_have_no_marks(at: DrivenServer) -> None:
    (found,) = rows(at, {"$match": {"_id": 1}}, {"$addFields": {"k": KEY}})
    assert found == {"_id": 1, "a": 1, "b": -1, "k": {"_id": 1}}
    assert rows(at, {"$match": {"_id": 1}}, {"$addFields": {"k": KEY}}, {"$unset": "k"}) == [
        {"_id": 1, "a": 1, "b": -1}
    ]


def test_settings_of_queries_are_not_for_a_facet(at: DrivenServer) -> None:
    reply = at.run("t", {"aggregate": "c", "pipeline": [{"$facet": {"x": [{"$querySettings": {}}]}}], "cursor": {}})
    assert reply.get("code") == 40600
