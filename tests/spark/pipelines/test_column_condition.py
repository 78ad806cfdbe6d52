"""Conditions on columns: no row fails one that the filter matches. Held against rows by SQLite, without Spark."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

import pytest
from hypothesis import given

from headrace.query.match import parse_filter
from headrace.spark.pipelines import row_events
from headrace.spark.pipelines.plan import column_condition
from headrace.spark.pipelines.program import canonical
from headrace.spark.rows.extjson import dumps
from headrace.values import bson
from headrace.values.arrow.event_columns import COLUMNS, DOCUMENTS, row_of
from tests.examples import examples
from tests.spark.pipelines.random_pipelines import EVENT_FILTERS, PITFALL_EVENTS, PITFALL_FILTERS, events

# HEADRACE_EXAMPLES asks for more than a check can afford.
EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "400"))
many = examples(EXAMPLES)


def cells_of(event: dict[str, Any]) -> dict[str, Any]:
    """The row of an event as the source tells it, times in microseconds."""
    cells = dict(zip(COLUMNS, row_of(bson.encode(event)), strict=True))
    for name in DOCUMENTS:
        cells[name] = None if cells[name] is None else dumps(bson.decode(cells[name]))
    return cells


def event_of(cells: dict[str, Any]) -> dict[str, Any]:
    """The event read back from its row."""
    decoded = {name: bson.decode(value) if type(value) is bytes else value for name, value in cells.items()}
    return row_events.event(decoded)


@many
@given(events())
def test_an_event_comes_back_from_its_row_byte_for_byte(event: dict[str, Any]) -> None:
    raw = dict(zip(COLUMNS, row_of(bson.encode(event)), strict=True))
    assert bson.encode(event_of(raw)) == bson.encode(event)


def passes(condition: str, event: dict[str, Any]) -> bool:
    """Whether the row of the event fulfils the condition, as a database computes it."""
    cells = cells_of(event)
    names = ("operationType", "database", "collection")
    columns = ", ".join(f"? AS {name}" for name in names)
    with sqlite3.connect(":memory:") as connection:
        found = connection.execute(f"SELECT {condition} FROM (SELECT {columns})", [cells[name] for name in names])
        return bool(found.fetchone()[0])


def condition_of(filter_: dict[str, Any]) -> str:
    return column_condition(parse_filter(canonical(filter_)).node)


def test_no_row_that_matches_is_left_out_where_engines_differ() -> None:
    for filter_ in PITFALL_FILTERS:
        condition, predicate = condition_of(filter_), parse_filter(canonical(filter_))
        for event in map(canonical, PITFALL_EVENTS):
            assert not condition or not predicate(event) or passes(condition, event), (filter_, event)


@many
@given(EVENT_FILTERS, events())
def test_no_row_that_matches_is_left_out(filter_: dict[str, Any], event: dict[str, Any]) -> None:
    condition, event = condition_of(filter_), canonical(event)
    assert not condition or not parse_filter(canonical(filter_))(event) or passes(condition, event)


@pytest.mark.parametrize(
    ("filter_", "condition"),
    [
        ({"operationType": "insert"}, "(operationType IS NULL OR operationType IN ('insert'))"),
        ({"ns.coll": {"$in": ["a", "b"]}}, "(collection IS NULL OR collection IN ('a', 'b'))"),
        ({"ns.db": "d", "fullDocument.n": {"$gt": 5}}, "(database IS NULL OR database IN ('d'))"),
        ({"$or": [{"ns.db": "d"}, {"fullDocument.n": 5}]}, ""),
        ({"$nor": [{"ns.db": "d"}]}, ""),
        ({"operationType": {"$in": ["insert", None]}}, ""),
        ({"ns.coll": "it's"}, ""),
    ],
)
def test_columns_say_what_is_plain(filter_: dict[str, Any], condition: str) -> None:
    assert condition_of(filter_) == condition


def test_a_row_that_does_not_match_is_left_out() -> None:
    condition = condition_of({"$or": [{"operationType": "insert", "ns.coll": "a"}, {"operationType": "delete"}]})
    ns = {"db": "d", "coll": "b"}
    assert not passes(condition, {"_id": {"_data": "82"}, "operationType": "insert", "ns": ns})
    assert passes(condition, {"_id": {"_data": "82"}, "operationType": "delete", "ns": ns})


def test_a_header_that_a_pipeline_reshaped_is_left_to_the_evaluator() -> None:
    assert passes(condition_of({"operationType": "x"}), {"_id": {"_data": "82"}, "operationType": 5})
