"""The sink of documents: each once, whatever is given again; and a job from its file that fills it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pymongo.database import Database

from headrace.cli.main import main
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline
from headrace.spark.jobs.job_file import parse_job, read_job
from headrace.spark.jobs.runner import reset_job, run_job
from headrace.spark.jobs.status import job_status, lines_of
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.log_sink import DocumentsSink, documents_sink
from headrace.values import bson

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Db = Database[dict[str, Any]]


def groups(*identities: int, window: int | None = None) -> pa.Table:
    rows = [{"document": dumps({"_id": identity, "n": 1})} for identity in identities]
    if window is not None:
        rows = [row | {"window": {"start": datetime(2026, 1, window)}} for row in rows]  # type: ignore[dict-item]
    return pa.Table.from_pylist(rows, pa.schema([("document", pa.string())]) if window is None else None)


def made(*tokens: str) -> pa.Table:
    return pa.table({"token": list(tokens), "document": [dumps({"of": token}) for token in tokens]})


def held(sink: DocumentsSink) -> list[Any]:
    return sorted(str(loads(text).get("_id", text)) for text in sink.table.read().column("document").to_pylist())


@pytest.fixture(params=["delta", "parquet"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> DocumentsSink:
    return documents_sink(tmp_path / "t", table=request.param)


def test_a_batch_given_again_is_passed_over_and_an_empty_one_writes_nothing(sink: DocumentsSink) -> None:
    assert sink.apply(MicroBatch("q", 0, groups())) is None
    assert sink.position().batch == -1
    for number, table in ((1, groups(1, 2)), (1, groups(1, 2)), (2, groups(3)), (1, groups(1, 2))):
        sink.apply(MicroBatch("q", number, table))
    assert held(sink) == ["1", "2", "3"]
    assert (sink.position().query, sink.position().batch) == ("q", 2)


def test_groups_of_another_query_are_taken_when_they_are_not_in_yet(sink: DocumentsSink, tmp_path: Path) -> None:
    sink.apply(MicroBatch("q", 7, groups(1, 2)))
    first = sink.apply(MicroBatch("r", 0, groups(1, 3)))
    assert first and (first.row_count, first.event_count) == (2, 1)
    sink.apply(MicroBatch("r", 1, groups(2, 3, 4)))
    again = DocumentsSink(sink.table)
    again.apply(MicroBatch("r", 2, groups(4, 5)))
    again.apply(MicroBatch("r", 1, groups(2, 3, 4)))
    assert held(again) == ["1", "2", "3", "4", "5"]


def test_groups_of_different_windows_are_different(tmp_path: Path) -> None:
    sink = documents_sink(tmp_path / "t")
    sink.apply(MicroBatch("q", 0, groups(1, window=1)))
    sink.apply(MicroBatch("r", 0, groups(1, window=2)))
    sink.apply(MicroBatch("s", 0, groups(1, window=1)))
    assert held(sink) == ["1", "1"]


def test_documents_of_events_are_known_by_their_tokens(sink: DocumentsSink) -> None:
    sink.apply(MicroBatch("q", 0, made("82AA", "82AB", "82AB")))
    assert sink.position().token == "82AB"
    sink.apply(MicroBatch("r", 0, made("82AA", "82AB", "82AB", "82AC")))
    sink.apply(MicroBatch("r", 1, made("82AB")))
    assert sorted(loads(text)["of"] for text in sink.table.read().column("document").to_pylist()) == [
        "82AA", "82AB", "82AB", "82AC"
    ]  # fmt: skip


STAGES = [
    {"$match": {"operationType": "insert"}},
    {"$unwind": "$fullDocument.items"},
    {"$lookup": {"from": "regions", "localField": "fullDocument.city", "foreignField": "_id", "as": "region"}},
    {
        "$group": {
            "_id": {
                "month": {"$dateTrunc": {"date": "$fullDocument.day", "unit": "month", "timezone": "Europe/Oslo"}},
                "region": {"$first": "$region.name"},
            },
            "items": {"$sum": "$fullDocument.items.count"},
            "count": {"$count": {}},
        }
    },
    {"$set": {"mean": {"$divide": ["$items", "$count"]}}},
]
CITIES = ("Oslo", "Bergen", "Rome")


def orders(first: int, count: int) -> list[dict[str, Any]]:
    """Two in a day, in the order of days."""
    return [
        {
            "_id": number,
            "city": CITIES[number % 3],
            "day": datetime(2025 + number // 720, 1 + number % 720 // 60, 1 + number % 60 // 3),
            "items": [{"count": part + 1} for part in range(number % 4)],
        }
        for number in range(first, first + count)
    ]


@pytest.mark.spark
def test_a_job_from_its_file_unwinds_looks_up_and_groups_and_goes_on_where_it_was(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regions = [{"_id": "Oslo", "name": "east"}, {"_id": "Bergen", "name": "west"}]
    write_deltalake(tmp_path / "regions", pa.table({"document": [dumps(each) for each in regions]}))
    with database.c.watch() as stream:
        start = stream.resume_token["_data"]
    (tmp_path / "job.toml").write_text(
        f"""
checkpoint = "checkpoint"
[source]
uri = "{uri}"
database = "{database.name}"
collection = "c"
startingPosition = "{start}"
maxRowsPerTrigger = 50
[trigger]
availableNow = true
[pipeline]
delay = "1 day"
stages = '''{dumps(STAGES)}'''
tables.regions = {{path = "regions", format = "delta"}}
[[sink]]
kind = "documents"
path = "months"
"""
    )
    job = read_job(tmp_path / "job.toml")
    assert main(["pipeline", "explain", str(tmp_path / "job.toml")]) == 0
    output = capsys.readouterr().out
    for line in ("server cursor      {", "Spark evaluator    {", "each worker holds regions", "Spark aggregation  {"):
        assert line in output
    inserted: list[dict[str, Any]] = []
    for first, count in ((0, 170), (170, 1), (171, 200)):
        some = orders(first, count)
        database.c.insert_many(some)
        inserted += some
        run_job(job, session=spark, report=lambda _: None)
    opened = job.sinks[0].open()
    assert isinstance(opened, DocumentsSink)
    events = [{"operationType": "insert", "fullDocument": bson.decode(bson.encode(each))} for each in inserted]
    context = PipelineContext(read_collection=lambda _, name, depth: regions)
    expected = [dumps(each) for each in run_pipeline(parse_pipeline(STAGES, context=context), events)]
    last = max(loads(text)["_id"]["month"] for text in expected)
    ended = sorted(text for text in expected if loads(text)["_id"]["month"] < last)
    assert sorted(opened.table.read().column("document").to_pylist()) == ended
    assert len(ended) > 10
    reset_job(job)
    run_job(job, session=spark, report=lambda _: None)
    assert sorted(opened.table.read().column("document").to_pylist()) == ended
    assert any(line.startswith("sink documents") and "batch" in line for line in lines_of(job_status(job)))


@pytest.mark.spark
def test_documents_of_events_leave_a_job_that_replaces_them(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    with database.c.watch() as stream:
        start = stream.resume_token["_data"]
    database.c.insert_many([{"_id": number, "n": number} for number in range(5)])
    source = {"uri": uri, "database": database.name, "collection": "c", "startingPosition": start}
    stages = [{"$match": {"operationType": "insert"}}, {"$replaceWith": "$fullDocument"}]
    sinks = [{"kind": "documents", "path": "t", "table": "parquet"}]
    job = parse_job(
        {"checkpoint": "c", "source": source, "pipeline": {"stages": stages}, "trigger": {"availableNow": True},
         "sink": sinks},
        "job",
        tmp_path,
    )  # fmt: skip
    for _ in range(2):
        run_job(job, session=spark, report=lambda _: None)
        reset_job(job)
    rows = spark.read.parquet(str(tmp_path / "t")).orderBy("token").collect()
    assert [loads(row.document) for row in rows] == [{"_id": number, "n": number} for number in range(5)]
