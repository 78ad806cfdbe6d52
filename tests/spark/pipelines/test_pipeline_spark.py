"""A pipeline means the same everywhere: evaluator here, evaluator on workers, columns, server cursor."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bson import Decimal128, Int64
from bson.datetime_ms import DatetimeMS
from hypothesis import HealthCheck, given, settings
from pymongo.database import Database

import headrace.spark
from headrace.errors import CommandError
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline
from headrace.spark.pipelines.program import canonical
from headrace.spark.pipelines.refusals import StageRefused
from headrace.spark.pipelines.windows import Bins
from headrace.spark.rows.events import SCHEMA
from headrace.spark.rows.extjson import dumps, loads
from headrace.values import bson
from tests.spark.pipelines.random_pipelines import PIPELINES, PITFALL_EVENTS, PITFALL_FILTERS, STREAM_PIPELINES, events
from tests.spark.pipelines.test_column_condition import cells_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Event = dict[str, Any]
EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "8"))
few = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def evaluated(stages: list[Event], given_events: list[Event]) -> list[str]:
    """What the evaluator says, as canonical text (which is as good as BSON), or the code of its error."""
    try:
        results = run_pipeline(parse_pipeline(canonical(stages), context=PipelineContext()), given_events)
        return [dumps(document) for document in results]
    except CommandError as error:
        return [f"error {error.code}"]


def frame(spark: SparkSession, given_events: list[Event]) -> DataFrame:
    """Rows of the source for the events."""
    from datetime import UTC, datetime, timedelta

    rows = []
    for event in given_events:
        cells = cells_of(event)
        for name in ("clusterTime", "wallTime"):
            if cells[name] is not None:
                cells[name] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=cells[name])
        rows.append(tuple(cells.values()))
    return spark.createDataFrame(rows, SCHEMA).coalesce(1)


@pytest.fixture(scope="module")
def many_events() -> list[Event]:
    collected: list[Event] = []

    @settings(max_examples=80, deadline=None, derandomize=True, database=None)
    @given(events())
    def gather(event: Event) -> None:
        collected.append(canonical(event | {"_id": {"_data": f"82{len(collected):06X}"}}))

    gather()
    return collected


@pytest.fixture(scope="module")
def rows(spark: SparkSession, many_events: list[Event]) -> Iterator[DataFrame]:
    cached = frame(spark, many_events).cache()
    yield cached
    cached.unpersist()


def documents(df: DataFrame) -> list[str]:
    return [row.document for row in df.collect()]


def read_back(df: DataFrame) -> list[str]:
    """The events of rows, as text."""
    from headrace.spark.pipelines.row_events import events as read

    return [dumps(event) for batch in df.toArrow().to_batches() for event in read(batch)]


@few
@given(stages=PIPELINES)
def test_workers_and_columns_say_what_the_evaluator_says(
    rows: DataFrame, many_events: list[Event], stages: list[Event]
) -> None:
    expected = evaluated(stages, many_events)
    made = headrace.spark.pipeline(rows, stages)
    read = read_back if "document" not in made.columns else documents
    if expected[:1] == ["error"] or any(text.startswith("error") for text in expected):
        try:
            read(made)  # a row that columns leave out is not evaluated
        except Exception as error:
            assert "CommandError" in str(error)
        return
    assert read(made) == expected


def test_columns_workers_and_cursor_agree_on_values_at_which_engines_differ(spark: SparkSession, uri: str) -> None:
    from functools import reduce

    from pymongo import MongoClient
    from pyspark.sql import functions as f

    with MongoClient[Event](uri) as client:
        client.drop_database("pitfalls")
        collection = client.pitfalls.get_collection("a", codec_options=bson.OPTIONS)
        with collection.watch() as stream:
            start = stream.resume_token
        collection.insert_many([event["fullDocument"] for event in PITFALL_EVENTS])
        everything = cursor_events(collection, start, [])
        chosen = [canonical(each) for each in PITFALL_FILTERS[:: max(1, len(PITFALL_FILTERS) // 40)]]
        expected = [evaluated([{"$match": each}], everything) for each in chosen]
        for each, texts in zip(chosen, expected, strict=True):
            assert [dumps(event) for event in cursor_events(collection, start, [{"$match": each}])] == texts
        client.drop_database("pitfalls")
    events_ = frame(spark, everything).cache()
    made = [
        headrace.spark.pipeline(events_, [{"$match": each}]).withColumn("at", f.lit(number))
        for number, each in enumerate(chosen)
    ]
    results: list[list[str]] = [[] for _ in chosen]
    for row in reduce(lambda one, other: one.unionAll(other), made).select("at", "token").collect():
        results[row["at"]].append(row.token)
    assert [sorted(each) for each in results] == [
        sorted(loads(text)["_id"]["_data"] for text in texts) for texts in expected
    ]


@pytest.fixture(scope="module")
def collection_and_events(uri: str) -> Iterator[tuple[Any, dict[str, Any], list[Event]]]:
    """A collection that was written to, the token before that, and its events."""
    from pymongo import MongoClient

    with MongoClient[Event](uri) as client:
        client.drop_database("pipelines")
        collection = client.pipelines.get_collection("a", codec_options=bson.OPTIONS)
        with collection.watch() as stream:
            start = stream.resume_token
        chosen: list[Event] = []

        @settings(max_examples=60, deadline=None, derandomize=True, database=None)
        @given(events())
        def gather(event: Event) -> None:
            chosen.append(event.get("fullDocument") or {"a": 1})

        gather()
        for number, document in enumerate(chosen):
            collection.replace_one({"_id": number}, {**document, "_id": number}, upsert=True)
            if number % 3 == 0:
                collection.update_one({"_id": number}, {"$set": {"a": number, "m.b": 1.5}, "$unset": {"b": 1}})
            if number % 7 == 0:
                collection.delete_one({"_id": number})
        yield collection, start, cursor_events(collection, start, [])
        client.drop_database("pipelines")


def cursor_events(collection: Any, start: Event, stages: list[Event]) -> list[Event]:
    """What a change stream of the server gives from `start` to now."""
    collected = []
    with collection.watch() as newest:
        now = newest.resume_token["_data"]
    collection.database.client.ticks.t.insert_one({})  # a quiet server's streams advance every ten seconds only
    with collection.watch(stages, start_after=start, max_await_time_ms=50, batch_size=1000) as stream:
        while (event := stream.try_next()) is not None or stream.resume_token["_data"] < now:
            if event is not None:  # it is where a batch had nothing before its time was up
                collected.append(event)
    return collected


@few
@given(stages=STREAM_PIPELINES)
def test_spark_gives_the_rows_that_the_servers_cursor_gives(
    spark: SparkSession, collection_and_events: tuple[Any, dict[str, Any], list[Event]], stages: list[Event]
) -> None:
    collection, start, everything = collection_and_events
    try:
        cursor = cursor_events(collection, start, stages)
    except Exception:  # the server's error; the evaluator's own are compared above
        assert evaluated(stages, everything)[-1].startswith("error")
        return
    before = frame(spark, everything)
    expected = evaluated(stages, everything)
    assert [dumps(event) for event in cursor] == expected
    after = headrace.spark.pipeline(before, stages, output="events")
    assert after.columns == before.columns
    assert after.collect() == frame(spark, cursor).collect() if cursor else after.count() == 0


def test_bson_columns_are_input_and_output_too(spark: SparkSession) -> None:
    given_documents = [{"_id": 1, "a": [1, Int64(2)]}, {"_id": 2}]
    df = spark.createDataFrame(
        [(7, bytearray(bson.encode(each))) for each in given_documents], "n INT, document BINARY"
    )
    stages = [{"$unwind": "$a"}, {"$set": {"b": {"$add": ["$a", 1]}}}]
    results = headrace.spark.pipeline(df, stages).collect()
    assert [(row.n, dumps(bson.decode(bytes(row.document)))) for row in results] == [
        (7, text) for text in evaluated(stages, given_documents)
    ]


GROUPS: list[Event] = [
    {"_id": "$operationType", "n": {"$sum": 1}, "c": {"$count": {}}, "last": {"$last": "$documentKey._id"}},
    {"_id": "$fullDocument.a", "s": {"$sum": "$fullDocument.n"}, "m": {"$avg": "$fullDocument.n"}},
    {"_id": {"k": "$fullDocument.n", "c": "$ns.coll"}, "lo": {"$min": "$fullDocument.a"}, "f": {"$first": "$lsid"}},
    {"_id": None, "hi": {"$max": "$fullDocument._id"}, "lo": {"$min": "$documentKey._id"}, "s": {"$sum": "$txnNumber"}},
    {"_id": {"$dateTrunc": {"date": "$clusterTime", "unit": "second", "binSize": 3}}, "n": {"$sum": 2.5}},
]


@pytest.mark.parametrize("spec", GROUPS)
def test_groups_are_those_of_the_evaluator(rows: DataFrame, many_events: list[Event], spec: Event) -> None:
    stages = [{"$match": {"operationType": {"$ne": "rename"}}}, {"$group": spec}]
    expected = evaluated(stages, many_events)
    made = headrace.spark.pipeline(rows.repartition(3), stages)
    assert sorted(documents(made)) == sorted(expected)
    after = [*stages, {"$match": {"_id": {"$ne": None}}}, {"$set": {"twice": 2}}]
    assert sorted(documents(headrace.spark.pipeline(rows, after))) == sorted(evaluated(after, many_events))


def test_numbers_of_all_types_add_up_as_the_evaluator_adds_them(spark: SparkSession) -> None:
    numbers = [1, Int64(2**62), Int64(2**62), 0.1, 1e16, -1e16, Decimal128("0.1"), "no", None, 2.5, Decimal128("1E+3")]
    cases = [
        {"_id": number, "g": group, "v": numbers[(group * 3 + number) % len(numbers)]}
        for group in range(6)
        for number in range(group + 2)
    ]
    df = spark.createDataFrame([(dumps(each),) for each in cases], "document STRING").repartition(3)
    stages = [{"$group": {"_id": "$g", "s": {"$sum": "$v"}, "a": {"$avg": "$v"}, "x": {"$max": "$v"}}}]
    assert sorted(documents(headrace.spark.pipeline(df, stages))) == sorted(evaluated(stages, cases))


def test_a_lookup_joins_as_the_evaluator_does(spark: SparkSession, rows: DataFrame, many_events: list[Event]) -> None:
    table = [
        {"_id": 1, "k": 1.0},
        {"_id": 2, "k": ["a", 1]},
        {"_id": 3},
        {"_id": 4, "k": {"b": 1}},
        {"_id": 5, "k": "b"},
    ]
    other = spark.createDataFrame([(dumps(each),) for each in table], "document STRING").repartition(2)
    for extra in ({}, {"let": {"kind": "$operationType"}, "pipeline": [{"$set": {"kind": "$$kind"}}, {"$limit": 1}]}):
        spec = {"from": "t", "localField": "fullDocument.a", "foreignField": "k", "as": "found", **extra}
        stages = [{"$match": {"ns.coll": "a"}}, {"$lookup": spec}, {"$unset": "updateDescription"}]
        context = PipelineContext(read_collection=lambda database, name, depth: table)
        expected = [dumps(each) for each in run_pipeline(parse_pipeline(stages, context=context), many_events)]
        assert documents(headrace.spark.pipeline(rows, stages, tables={"t": other})) == expected


def test_a_group_on_a_stream_gives_each_window_once_when_it_has_ended(
    spark: SparkSession, tmp_path: Any, many_events: list[Event]
) -> None:
    spec = {
        "_id": {"w": {"$dateTrunc": {"date": "$clusterTime", "unit": "second", "binSize": 2}}, "k": "$operationType"}
    }
    spec |= {"n": {"$sum": "$txnNumber"}, "last": {"$last": "$documentKey"}, "m": {"$avg": "$fullDocument.n"}}
    stages = [{"$match": {"ns.coll": "a"}}, {"$group": spec}]
    ordered = sorted(many_events, key=lambda event: (event["clusterTime"].time, event["clusterTime"].inc))
    ordered = [event | {"_id": {"_data": f"82{number:06X}"}} for number, event in enumerate(ordered)]
    for number in range(4):
        chunk = ordered[number * 20 : number * 20 + 20]
        frame(spark, chunk).write.parquet(str(tmp_path / f"in/{number}"))
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in/*"))
    results: list[str] = []
    grouped = headrace.spark.pipeline(stream, stages)
    query = grouped.writeStream.foreachBatch(lambda batch, _: results.extend(documents(batch)))
    query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    last = max(event["clusterTime"].time for event in ordered if event["ns"]["coll"] == "a") // 2 * 2 * 1000
    expected = [text for text in evaluated(stages, ordered) if int(loads(text)["_id"]["w"]) < last]
    assert sorted(results) == sorted(expected)


@pytest.mark.parametrize(
    "bins",
    [
        {"unit": "month", "timezone": "Europe/Berlin"},
        {"unit": "quarter", "binSize": 2},
        {"unit": "week", "startOfWeek": "monday", "timezone": "America/New_York"},
        {"unit": "year", "timezone": "+05:30"},
    ],
)
def test_bins_of_the_calendar_are_given_when_they_have_ended_and_never_before(
    spark: SparkSession, tmp_path: Any, bins: Event
) -> None:
    day, delay_days = 86_400_000, 20
    # Some come as late as the delay allows: behind documents that are of a later bin.
    starts = [day * (19_000 + 13 * number - (delay_days - 1 if number % 3 == 0 else 0)) for number in range(60)]
    documents_ = [{"_id": number, "d": DatetimeMS(start), "v": number} for number, start in enumerate(starts)]
    stages = [
        {"$group": {"_id": {"$dateTrunc": {"date": "$d"} | bins}, "n": {"$count": {}}, "s": {"$sum": "$v"}}},
        {"$set": {"end": "$_id"}},
    ]
    for number in range(6):
        chunk = [(dumps(each),) for each in documents_[number * 10 : number * 10 + 10]]
        spark.createDataFrame(chunk, "document STRING").coalesce(1).write.parquet(str(tmp_path / f"in/{number}"))
    stream = spark.readStream.schema("document STRING").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in/*"))
    results: list[str] = []
    made = headrace.spark.pipeline(stream, stages, delay=f"{delay_days} days")
    query = made.writeStream.foreachBatch(lambda batch, _: results.extend(documents(batch)))
    query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    passed = max(starts) - delay_days * day
    expected = [text for text in evaluated(stages, documents_) if int(Bins(bins).end(loads(text)["_id"])) <= passed]
    assert sorted(results) == sorted(expected)
    assert 0 < len(results) < len(evaluated(stages, documents_))
    batch = spark.read.schema("document STRING").parquet(str(tmp_path / "in/*"))
    assert sorted(documents(headrace.spark.pipeline(batch, stages))) == sorted(evaluated(stages, documents_))


def test_a_header_that_was_reshaped_before_is_matched_as_it_is(spark: SparkSession) -> None:
    reshaped = frame(spark, [{"_id": {"_data": "82"}, "operationType": 5}])
    assert headrace.spark.pipeline(reshaped, [{"$match": {"operationType": 5}}]).count() == 1
    assert headrace.spark.pipeline(reshaped, [{"$match": {"operationType": "insert"}}]).count() == 0


def test_events_that_lose_their_token_are_refused_as_a_change_stream_does(rows: DataFrame) -> None:
    with pytest.raises(Exception, match="_id field"):
        headrace.spark.pipeline(rows, [{"$project": {"_id": 0}}], output="events").collect()


def test_with_failures_rows_on_which_a_stage_fails_come_as_they_are(rows: DataFrame, many_events: list[Event]) -> None:
    halves = [{"$match": {"operationType": {"$ne": "drop"}}}, {"$set": {"half": {"$divide": ["$fullDocument.a", 2]}}}]
    expected = [evaluated(halves, [event]) for event in many_events]
    failing = {event["_id"]["_data"] for event, made in zip(many_events, expected, strict=True) if "error" in str(made)}
    passing = [each for made in expected for each in made if not each.startswith("error")]
    assert failing and passing
    made = headrace.spark.pipeline(rows, halves, output="events", failures=True).cache()
    assert {row.token for row in made.where("_failed is not null").collect()} == failing
    assert sorted(read_back(made.where("_failed is null").drop("_failed"))) == sorted(passing)
    made.unpersist()
    texts = headrace.spark.pipeline(rows, halves, failures=True)
    assert sorted(documents(texts.where("_failed is null"))) == sorted(passing)
    with pytest.raises(StageRefused, match="leave out failures"):
        headrace.spark.pipeline(rows, [*halves, {"$group": {"_id": None}}], failures=True)


def test_with_failures_a_join_leaves_what_failed_before_it_and_adds_what_fails_in_it(spark: SparkSession) -> None:
    events = [
        {"_id": {"_data": f"82{number:04X}"}, "fullDocument": {"n": n}} for number, n in enumerate([1, "x", 2, 0.5])
    ]
    table = spark.createDataFrame([(dumps({"_id": number, "n": number}),) for number in range(4)], "document STRING")
    inverse = {"$divide": [1, {"$subtract": ["$n", 2]}]}
    lookup = {"from": "t", "localField": "half", "foreignField": "n", "as": "t", "pipeline": [{"$set": {"m": inverse}}]}
    stages = [
        {"$set": {"half": {"$divide": ["$fullDocument.n", 0.5]}}},
        {"$lookup": lookup},
        {"$set": {"third": {"$divide": [1, {"$size": "$t"}]}}},
    ]
    made = headrace.spark.pipeline(frame(spark, events), stages, tables={"t": table}, failures=True).collect()
    rows = {row.token[-1]: (loads(row.document), row._failed or "") for row in made}
    assert len(rows) == len(made) == 4
    # Halves: 2, for which the table's pipeline divides by zero; none; 4, which the table does not have; 1.
    assert rows["0"][0]["half"] == 2 and "t" not in rows["0"][0] and "by zero" in rows["0"][1]
    assert rows["1"][0]["fullDocument"] == {"n": "x"} and "numeric" in rows["1"][1]
    assert rows["2"][0]["t"] == [] and "by zero" in rows["2"][1]
    assert (rows["3"][0]["t"], rows["3"][0]["third"], rows["3"][1]) == ([{"_id": 1, "n": 1, "m": -1.0}], 1.0, "")


def test_inserted_documents_are_read_through_the_source(
    spark: SparkSession, uri: str, database: Database[Event]
) -> None:
    with database.c.watch() as stream:
        start = stream.resume_token["_data"]
    database.c.insert_many([{"_id": number, "n": number} for number in range(20)])
    source = spark.read.format("headrace").options(
        uri=uri, database=database.name, collection="c", startingPosition=start
    )
    stages = [{"$match": {"operationType": "insert", "fullDocument.n": {"$gt": 16}}}, {"$replaceWith": "$fullDocument"}]
    results = documents(headrace.spark.pipeline(source.load(), stages))
    assert [loads(text) for text in results] == [{"_id": number, "n": number} for number in (17, 18, 19)]


def test_the_examples_of_the_page_run_and_say_what_it_says(rows: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark" / "pipelines.md").read_text()
    names: dict[str, Any] = {"events": rows}
    for example in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(example, "pipelines.md", "exec"), names)
    assert names["adults"].columns == ["token", "clusterTime", "clusterTimeIncrement", "wallTime", "document"]
    printed = "".join(re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    assert capsys.readouterr().out == printed
