"""Filters compiled to conditions on columns: sound for every row, exact where they say so. Without Spark."""

from __future__ import annotations

import os
from typing import Any

import pytest
from bson import Int64, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given

from headrace.query.match import parse_filter
from headrace.spark.pipelines import row_events
from headrace.spark.pipelines.compile_match import MatchCompiler
from headrace.spark.pipelines.conditions import FALSE, TRUE
from headrace.spark.pipelines.program import canonical
from headrace.spark.rows.extjson import dumps
from headrace.values import bson
from headrace.values.arrow import COLUMNS, DOCUMENTS, row_of
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


def test_values_at_which_engines_differ_match_as_the_evaluator_matches_them() -> None:
    cells = [(cells_of(canonical(event)), canonical(event)) for event in PITFALL_EVENTS]
    for filter_ in PITFALL_FILTERS:
        predicate = parse_filter(canonical(filter_))
        verdict = MatchCompiler().approximation(predicate)
        for row, event in cells:
            matches = predicate(event)
            assert matches or not verdict.certain.holds(row), (filter_, event)
            assert verdict.possible.holds(row) or not matches, (filter_, event)


@many
@given(EVENT_FILTERS, events())
def test_what_columns_say_of_a_row_the_evaluator_says_too(filter_: dict[str, Any], event: dict[str, Any]) -> None:
    event = canonical(event)
    predicate = parse_filter(canonical(filter_))
    compiler = MatchCompiler()
    verdict = compiler.approximation(predicate)
    cells, matches = cells_of(event), predicate(event)
    assert not compiler.misplaced().holds(cells)
    assert not verdict.certain.holds(cells) or matches
    assert verdict.possible.holds(cells) or not matches
    if verdict.exact:
        assert verdict.certain.holds(cells) == matches


@pytest.mark.parametrize(
    "filter_",
    [
        {"operationType": "insert"},
        {"operationType": {"$in": ["insert", "update"]}, "ns.coll": {"$ne": "c"}},
        {"$nor": [{"ns.db": "d"}, {"wallTime": {"$lt": DatetimeMS(5)}}]},
        {"clusterTime": {"$gte": Timestamp(5, 2), "$lt": Timestamp(9, 0)}},
        {"txnNumber": {"$exists": False}},
        {"txnNumber": {"$gt": 1.0}},
        {"documentKey": {"_id": "a"}, "other": {"$exists": True}, "operationType": {"$type": "number"}},
        {"operationType": {"$gt": 5}},
    ],
)
def test_filters_of_an_events_header_are_decided_by_columns(filter_: dict[str, Any]) -> None:
    verdict = MatchCompiler().approximation(parse_filter(canonical(filter_)))
    assert verdict.exact


def test_a_filter_of_documents_becomes_a_prefilter_of_their_text() -> None:
    verdict = MatchCompiler().approximation(parse_filter({"operationType": "insert", "fullDocument.age": {"$gt": 30}}))
    assert verdict.certain == FALSE
    expected = "fullDocument contains '\"age\":'"
    assert expected in str(verdict.possible)
    assert "operationType = 'insert'" in str(verdict.possible)


def test_a_negated_filter_is_certain_of_rows_without_the_field() -> None:
    verdict = MatchCompiler().approximation(parse_filter({"fullDocument.age": {"$ne": 30}}))
    assert verdict.possible == TRUE
    absent = {"fullDocument": '{"_id":{"$numberInt":"1"}}', "other": None}
    assert verdict.certain.holds(absent)
    assert not verdict.certain.holds(absent | {"fullDocument": '{"age":{"$numberInt":"31"}}'})


def test_an_id_matches_with_certainty_in_every_encoding_of_an_integer() -> None:
    verdict = MatchCompiler().approximation(parse_filter({"documentKey._id": Int64(5)}))
    for text in ('{"$numberInt":"5"}', '{"$numberLong":"5"}', '{"$numberDouble":"5.0"}'):
        assert verdict.certain.holds({"documentKey": f'{{"_id":{text}}}', "other": None})
    decimal = {"documentKey": '{"_id":{"$numberDecimal":"5.0"}}', "other": None}
    assert not verdict.certain.holds(decimal)
    assert verdict.possible.holds(decimal)


def test_a_header_that_a_pipeline_reshaped_is_noticed() -> None:
    compiler = MatchCompiler()
    compiler.approximation(parse_filter({"operationType": "x"}))
    reshaped = cells_of({"_id": {"_data": "82"}, "operationType": 5})
    assert compiler.misplaced().holds(reshaped)
    assert not compiler.misplaced().holds(cells_of({"_id": {"_data": "82"}, "operationType": "x", "to": {}}))
