"""Where each stage of a pipeline runs, what is refused before anything runs, and what the source's reader runs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st
from pymongo.database import Database

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression
from headrace.query.expressions.dates import UNITS
from headrace.spark import StageRefused, Window, explain
from headrace.spark.errors import OptionError
from headrace.spark.mongodb.event_ranges import read_range
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.pipelines import row_events
from headrace.spark.pipelines.reader import split_stages
from headrace.spark.pipelines.refusals import REFUSED
from headrace.spark.pipelines.windows import Bins
from headrace.spark.rows.extjson import dumps
from headrace.spark.source.options import parse_options
from headrace.values.arrow.event_columns import COLUMNS
from tests.examples import examples

HOUR = {"$dateTrunc": {"date": "$clusterTime", "unit": "hour"}}


def engines_of(stages: list[Any], source: dict[str, Any] | None = None, **given: Any) -> list[tuple[str, str]]:
    return [(item.where, item.stage.split('"')[1]) for item in explain(stages, source, **given).stages]


def test_explain_shows_where_each_stage_runs() -> None:
    source = {"pipeline": [{"$match": {"ns.coll": "c"}}, {"$unwind": "$fullDocument.a"}, {"$set": {"b": 1}}]}
    stages = [
        {"$match": {"operationType": "insert"}},
        {"$match": {"fullDocument.n": {"$gt": 5}}},
        {"$set": {"d": "$fullDocument"}},
        {"$lookup": {"from": "t", "localField": "d.k", "foreignField": "_id", "as": "t"}},
        {"$group": {"_id": HOUR, "n": {"$sum": 1}}},
        {"$project": {"n": 1}},
    ]
    assert engines_of(stages, source, tables=["t"]) == [
        ("server cursor", "$match"),
        ("source reader", "$unwind"),
        ("source reader", "$set"),
        ("Spark columns", "$match"),
        ("Spark evaluator", "$match"),
        ("Spark evaluator", "$match"),
        ("Spark evaluator", "$set"),
        ("Spark evaluator", "$lookup"),
        ("Spark aggregation", "$group"),
        ("Spark evaluator", "$project"),
    ]


def test_columns_leave_out_rows_before_the_evaluator_decides() -> None:
    explanation = explain([{"$match": {"operationType": {"$in": ["insert", "delete"]}}}])
    assert str(explanation).splitlines() == [
        'Spark columns    {"$match":{"operationType":{"$in":["insert","delete"]}}}',
        "                   at most: (operationType IS NULL OR operationType IN ('insert', 'delete'))",
        'Spark evaluator  {"$match":{"operationType":{"$in":["insert","delete"]}}}',
    ]
    assert engines_of([{"$match": {"fullDocument.a": 1}}]) == [("Spark evaluator", "$match")]
    assert engines_of([{"$match": {"a": 1}}], events=False) == [("Spark evaluator", "$match")]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_stage_that_spark_cannot_run_is_refused_by_name(name: str) -> None:
    with pytest.raises(StageRefused, match=rf"\{name} cannot be run on Spark"):
        explain([{name: {}}])


@pytest.mark.parametrize(
    ("stage", "word"),
    [
        ({"$group": {"_id": "$a", "n": {"$sum": 1}}}, "window"),
        ({"$group": {"_id": {"$dateTrunc": {"date": "$clusterTime", "unit": "$unit"}}}}, "constant unit"),
        ({"$group": {"_id": {"$dateTrunc": {"date": "$clusterTime", "unit": "day", "timezone": "$z"}}}}, "timezone"),
        ({"$group": {"_id": {"$dateTrunc": {"date": "$wallTime", "unit": "hour"}}}}, "delay"),
        ({"$group": {"_id": HOUR, "all": {"$push": "$a"}}}, r"\$push"),
        ({"$fill": {"sortBy": {"a": 1}, "output": {"a": {"method": "locf"}}}}, "values"),
        ({"$lookup": {"from": "t", "localField": "a", "foreignField": "b", "as": "c"}}, "tables="),
        ({"$lookup": {"from": "t", "pipeline": [], "as": "c"}}, "localField"),
        (
            {"$lookup": {"from": "t", "localField": "a", "foreignField": "b", "as": "c",
                         "pipeline": [{"$unionWith": "u"}]}},
            "unionWith",
        ),
    ],
)  # fmt: skip
def test_the_refusal_names_the_part_of_a_stage_that_spark_cannot_run(stage: dict[str, Any], word: str) -> None:
    with pytest.raises(StageRefused, match=word):
        explain([stage])


def test_first_and_last_need_an_order_of_rows() -> None:
    stages = [{"$group": {"_id": None, "x": {"$last": "$a"}}}]
    explain(stages, streaming=False)
    with pytest.raises(StageRefused, match="order="):
        explain(stages, streaming=False, order=None)


@pytest.mark.parametrize(
    ("stages", "code"), [([{"$mach": {}}], 40324), ([{"$match": 5}], 15959), ([{"$set": 5}], 40272), ([{}], 40323)]
)
def test_a_wrong_stage_is_the_servers_error(stages: list[Any], code: int) -> None:
    with pytest.raises(CommandError) as raised:
        explain(stages)
    assert raised.value.code == code


def test_a_configured_window_is_explained() -> None:
    explanation = str(explain([{"$group": {"_id": "$a", "n": {"$count": {}}}}], window=Window("1 hour", "10 minutes")))
    assert 'window 1 hour, watermark on "$clusterTime" less 0 seconds' in explanation


def test_bins_of_the_calendar_are_explained() -> None:
    bins = {"date": "$wallTime", "unit": "month", "timezone": "Europe/Oslo"}
    explanation = str(explain([{"$group": {"_id": {"$dateTrunc": bins}}}], delay="1 hour"))
    assert 'bins of 1 month in Europe/Oslo, watermark on "$wallTime" less 1 hour' in explanation


def test_a_bin_that_is_wrong_is_the_servers_error_before_anything_runs() -> None:
    for wrong in ({"unit": "fortnight"}, {"unit": "day", "timezone": "Nowhere"}, {"unit": "day", "binSize": 0}):
        with pytest.raises((CommandError, StageRefused)):
            explain([{"$group": {"_id": {"$dateTrunc": {"date": "$clusterTime"} | wrong}}}])


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "+05:30"]
CHANGES_OF_CLOCKS = [1679792400000, 1698541200000, 1678604400000, 1699164000000, 1696089600000, 946684800000]
moments = st.one_of(
    st.integers(0, 1 << 42),
    st.tuples(st.sampled_from(CHANGES_OF_CLOCKS), st.integers(-14_400_000, 14_400_000)).map(sum),
)


@examples(300)
@given(
    st.sampled_from(sorted(UNITS - {"millisecond"})), st.integers(1, 12), st.sampled_from(ZONES),
    st.sampled_from(["monday", "sunday", "wed"]), moments,
)  # fmt: skip
def test_a_bin_ends_where_the_next_begins(unit: str, size: int, zone: str, weekday: str, moment: int) -> None:
    bins = {"unit": unit, "binSize": size, "timezone": zone} | ({"startOfWeek": weekday} if unit == "week" else {})

    def cut(date: int) -> int:
        return int(parse_expression({"$dateTrunc": bins | {"date": DatetimeMS(date)}})(Env({})))

    start = cut(moment)
    end = int(Bins(bins).end(DatetimeMS(start)))
    assert start <= moment < end
    assert (cut(end), cut(end - 1), cut(start)) == (end, start, start)
    assert cut(start - 1) < start


def test_the_server_gets_what_change_streams_allow_and_the_reader_the_rest() -> None:
    match, unwind = {"$match": {"a": 1}}, {"$unwind": "$a"}
    assert split_stages([match, unwind, match]) == ((match,), (unwind, match))
    with pytest.raises(StageRefused, match=r"\$sort"):
        split_stages([match, {"$sort": {"a": 1}}])
    with pytest.raises(OptionError, match=r"pipeline.*\$limit"):
        parse_options({"uri": "mongodb://h", "pipeline": '[{"$limit": 1}]'})


@pytest.mark.parametrize("transport", ["arrow", "bson"])
def test_the_reader_runs_behind_the_cursor(uri: str, database: Database[dict[str, Any]], transport: str) -> None:
    with database.c.watch() as stream:
        start = stream.resume_token["_data"]
    database.c.insert_many([{"_id": number, "a": list(range(number))} for number in range(4)])
    stages = [{"$match": {"fullDocument._id": {"$gt": 1}}}, {"$unwind": "$fullDocument.a"}]
    options = parse_options(
        {"uri": uri, "database": database.name, "collection": "c", "pipeline": dumps(stages), "transport": transport}
    )
    feed = MongoDBStream(options)
    first = parse_options({"uri": uri, "startingPosition": start}).start.token
    assert first is not None
    batches = read_range(feed, first, feed.end_at(feed.now()), COLUMNS)
    full_documents = [event["fullDocument"] for batch in batches for event in row_events.events(batch)]
    assert full_documents == [{"_id": number, "a": item} for number in (2, 3) for item in range(number)]


def test_importing_headrace_or_its_pipelines_names_does_not_import_spark() -> None:
    code = "import sys, headrace, headrace.spark; headrace.spark.explain; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
