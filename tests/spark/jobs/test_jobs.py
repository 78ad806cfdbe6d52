"""Jobs in Spark: every sink from one query, a stop and a new run, failures told; Spark reads the Parquet files."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest
from pymongo import MongoClient
from pymongo.database import Database

import headrace
from headrace import limits
from headrace.spark import errors
from headrace.spark.jobs import metrics_listener as listener
from headrace.spark.jobs.job_file import Job, parse_job
from headrace.spark.jobs.metrics import JobMetrics, serve
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import _Run, reset_job, run_job
from headrace.spark.jobs.status import job_status, lines_of
from headrace.spark.mongodb.source_options import server_name
from headrace.spark.rows.extjson import loads
from headrace.spark.sinks.contract import BatchReport
from headrace.spark.sinks.sink_options import parse_sink
from headrace.spark.tables.dead_letters import DeadLetters
from headrace.spark.tables.progress import CollectionGone
from tests.spark.support.pruning import prune_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Db = Database[dict[str, Any]]


def job_of(uri: str, database: Db, folder: Path, *sinks: dict[str, Any], **source: Any) -> Job:
    options = {"uri": uri, "database": database.name, "collection": "c", "startingPosition": "snapshot"}
    options |= {"maxRowsPerTrigger": 60} | source
    given = {
        "checkpoint": "checkpoint",
        "report_seconds": 0.3,
        "source": {name: value for name, value in options.items() if value is not None},
        "trigger": {"availableNow": True},
        "sink": [{"path": sink["kind"].replace(" ", "-"), **sink} for sink in sinks],
    }
    return parse_job(given, "job", folder)


def silent(_: str) -> None:
    """Nobody listens."""


def scribble(database: Db, count: int) -> None:
    for number in range(count):
        key = {"_id": number % 17}
        database.c.update_one(key, {"$push": {"list": number}, "$set": {"n": number}}, upsert=True)
        if number % 5 == 0:
            database.c.delete_one({"_id": (number + 3) % 17})


ALL = ({"kind": "changes"}, {"kind": "history"}, {"kind": "mirror", "buckets": 2}, {"kind": "parquet"})


def test_one_job_fills_every_sink_and_goes_on_where_it_was(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    job = job_of(uri, database, tmp_path, *ALL, maxRowsPerTrigger=12)
    mongodb = {"kind": "mongodb", "uri": uri, "database": database.name, "collection": "kept"}
    job = replace(job, sinks=(*job.sinks, parse_sink(mongodb, tmp_path)))
    scribble(database, 100)
    for _ in range(2):
        run_job(job, session=spark, report=silent)
        verifications = list(verify_job(job))
        assert [each.equal for each in verifications] == [True] * 5, verifications
        scribble(database, 90)
    reset_job(job)
    reported: list[str] = []
    run_job(job, session=spark, report=reported.append)
    (position,) = (line.split()[-1] for line in lines_of(job_status(job)) if line.startswith("  2"))
    assert reported[-1].endswith(f"ended at {position}")
    assert [each.equal for each in verify_job(job)] == [True] * 5
    assert list((tmp_path / "parquet" / "_spark_metadata").glob("*.compact"))
    files = spark.read.parquet(str(tmp_path / "parquet"))
    rows = pq.ParquetDataset([str(path) for path in job.sinks[3].open().table.files()]).read()  # type: ignore[attr-defined]
    assert files.count() == rows.num_rows > 100
    assert files.select("token").distinct().count() == len(set(rows.column("token").to_pylist()))
    assert any("0 events, 0 s" in line for line in lines_of(job_status(job)))


def test_a_job_that_is_stopped_ends_after_a_batch_and_continues_when_run_again(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    job = replace(job_of(uri, database, tmp_path, {"kind": "changes"}, {"kind": "mirror"}), every="0 seconds")
    scribble(database, 50)
    for _ in range(3):
        stop = threading.Event()
        reported: list[str] = []
        ended: list[JobMetrics] = []

        def run(stop: threading.Event = stop, reported: list[str] = reported, ended: list[JobMetrics] = ended) -> None:
            ended.append(run_job(job, session=spark, stop=stop, report=reported.append))

        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(10):
            scribble(database, 20)
        while not any("events (" in line for line in reported):
            assert thread.is_alive(), reported
            stop.wait(0.1)
        stop.set()
        thread.join(240)
        assert ended and ended[0].running == 0 and ended[0].rows_total > 0
        assert "stopped" in reported[-1]
    run_job(replace(job, every=None), session=spark, report=silent)
    assert [each.equal for each in verify_job(job)] == [True, True]


def test_a_batch_that_comes_as_the_job_is_stopped_is_no_error_of_the_query(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark logs the trace of a query that ends with an error. The stop waits here until the next batch has come."""
    job = job_of(uri, database, tmp_path, {"kind": "mirror"}, maxRowsPerTrigger=10)
    database.c.insert_many([{"_id": key} for key in range(30)])
    stop, came = threading.Event(), threading.Event()
    gated, end = _Run._gated, _Run._end
    errors: list[Any] = []

    def noticing(self: _Run, apply: Any) -> Any:
        call = gated(self, apply)

        def noticed(frame: Any, number: int) -> None:
            if stop.is_set():
                came.set()
            call(frame, number)

        return noticed

    def end_late(self: _Run) -> None:
        assert came.wait(240)
        end(self)
        errors.append(self._query.exception())

    monkeypatch.setattr(_Run, "_gated", noticing)
    monkeypatch.setattr(_Run, "_end", end_late)
    metrics = run_job(job, session=spark, stop=stop, report=silent, listener=lambda _: stop.set())
    assert (errors, metrics.phase) == ([None], "stopped")
    monkeypatch.undo()
    run_job(job, session=spark, report=silent)
    assert [each.equal for each in verify_job(job)] == [True]


@pytest.mark.parametrize("kind", ["changes", "parquet"])
def test_rows_that_workers_write_as_they_read_them_are_in_the_table_once_although_a_commit_fails(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    batch = limits.PREFETCH_ROW_COUNT_MAX + 200
    database.c.insert_many([{"_id": number} for number in range(3 * batch)])
    begin = {"startingPosition": "earliest", "maxRowsPerTrigger": batch, "partitions": 2, "partitionBy": "document"}
    job = job_of(uri, database, tmp_path, {"kind": kind}, **begin)
    log = type(job.sinks[0].open().table)  # type: ignore[attr-defined]
    append, calls = log.append_files, []

    def fails_once(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            raise RuntimeError("the disk is full")
        append(*given)

    monkeypatch.setattr(log, "append_files", fails_once)
    with pytest.raises(RuntimeError, match="the disk is full"):
        run_job(job, session=spark, report=silent)
    assert run_job(job, session=spark, report=silent).rows_total == 2 * batch
    assert [each.equal for each in verify_job(job)] == [True]
    assert len(calls) == 4
    # Two tasks have written each batch, and what they wrote for the commit that failed is gone.
    assert len(list(tmp_path.glob(f"{kind}/part-*.parquet"))) == 6


def test_what_stops_a_sink_stops_the_job_and_is_what_is_raised(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    job = job_of(uri, database, tmp_path, {"kind": "mirror", "policy": "fail"})
    scribble(database, 20)
    run_job(job, session=spark, report=silent)
    database.c.drop()
    with pytest.raises(CollectionGone, match="drop of"):
        run_job(job, session=spark, report=silent)


def test_an_error_of_the_source_is_reported_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        for _ in range(5):
            client.d.c.insert_one({})
        prune_to(server, 2)
        job = job_of(server.uri, client.d, tmp_path, {"kind": "changes"}, startingPosition="2001-01-01T00:00:00Z")
        with pytest.raises(Exception, match="STREAM_FAILED") as caught:
            run_job(job, session=spark, report=silent)
    assert "no longer" in errors.error_line(caught.value)
    assert errors.error_line(caught.value).startswith("PositionLost: ") and "\n" not in errors.error_line(caught.value)


def test_a_pipeline_behind_a_snapshot_is_run_by_spark_on_all_rows(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    job = job_of(uri, database, tmp_path, {"kind": "changes"})
    job = replace(job, stages=({"$match": {"fullDocument.n": {"$gte": 10}}}, {"$unset": "fullDocument.list"}))
    database.c.insert_many([{"_id": number, "n": number, "list": [1]} for number in range(20)])
    for _ in range(2):
        run_job(job, session=spark, report=silent)
    table = job.sinks[0].open().table.read()  # type: ignore[attr-defined]
    kinds = table.column("operationType").to_pylist()
    assert (len(kinds), kinds.count("snapshot"), kinds.count("snapshotBegin")) == (12, 10, 1)
    assert not any("list" in (text or "") for text in table.column("fullDocument").to_pylist())


def test_events_on_which_the_pipeline_fails_go_to_the_dead_letters(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    job = job_of(uri, database, tmp_path, {"kind": "changes"})
    stages = ({"$set": {"fullDocument.half": {"$divide": ["$fullDocument.n", 2]}}},)
    job = replace(job, stages=stages, deadletter=str(tmp_path / "letters"))
    database.c.insert_many([{"_id": number, "n": number} for number in range(4)] + [{"_id": 4, "n": "four"}])
    for _ in range(2):
        run_job(job, session=spark, report=silent)
        database.c.insert_many([{"_id": 5, "n": "five"}, {"_id": 6, "n": 6}])
        database.c.delete_many({"_id": {"$gt": 4}})
    run_job(job, session=spark, report=silent)
    table = job.sinks[0].open().table.read()  # type: ignore[attr-defined]
    kinds = table.column("operationType").to_pylist()
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "delete": 4, "insert": 2, "snapshot": 4, "snapshotBegin": 1, "snapshotEnd": 1,
    }  # fmt: skip
    letters = DeadLetters(job.deadletter, 10).letters()
    assert [letter.operationType for letter in letters] == ["snapshot", "insert", "insert"]
    assert all("$divide" in letter.reason for letter in letters)


def test_events_on_which_a_join_fails_go_to_the_dead_letters(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    sink: dict[str, Any] = {"kind": "documents"}
    job = job_of(uri, database, tmp_path, sink, startingPosition="earliest")
    spark.createDataFrame([('{"_id": 2, "name": "two"}',)], "document STRING").write.parquet(str(tmp_path / "names"))
    lookup = {"from": "names", "localField": "half", "foreignField": "_id", "as": "names"}
    stages = ({"$set": {"half": {"$divide": ["$fullDocument.n", 2]}}}, {"$lookup": lookup})
    job = replace(job, stages=stages, tables={"names": {"path": str(tmp_path / "names")}})
    job = replace(job, deadletter=str(tmp_path / "letters"))
    database.c.insert_many([{"_id": 1, "n": 4}, {"_id": 2, "n": "four"}, {"_id": 3, "n": 5}])
    run_job(job, session=spark, report=silent)
    database.c.insert_many([{"_id": 4, "n": "five"}, {"_id": 5, "n": 4}])
    run_job(job, session=spark, report=silent)
    table = job.sinks[0].open().table.read().sort_by("token")  # type: ignore[attr-defined]
    names = [[each["name"] for each in loads(text)["names"]] for text in table.column("document").to_pylist()]
    assert names == [["two"], [], ["two"]]
    letters = DeadLetters(job.deadletter, 10).letters()
    assert [loads(loads(letter.row)["document"])["documentKey"] for letter in letters] == [{"_id": 2}, {"_id": 4}]


def test_the_servers_pipeline_leaves_what_the_log_gets(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    job = job_of(uri, database, tmp_path, {"kind": "changes"}, startingPosition="earliest")
    job = replace(job, stages=({"$match": {"operationType": "delete"}},))
    scribble(database, 60)
    run_job(job, session=spark, report=silent)
    kinds = set(job.sinks[0].open().table.read().column("operationType").to_pylist())  # type: ignore[attr-defined]
    assert kinds == {"delete"}
    assert [each.equal for each in verify_job(job)] == [True]


def test_events_of_other_collections_are_no_progress_of_a_snapshot(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    for name, count in (("a", 10), ("b", 50)):
        database[name].insert_many([{"_id": key} for key in range(count)])
    source = {"collection": None, "collections": ["a", "b"], "maxRowsPerTrigger": 20}
    job = job_of(uri, database, tmp_path, {"kind": "mirror", "path": "mirror/{collection}"}, **source)
    stop = threading.Event()

    def committed(report: BatchReport) -> None:
        if report.batch == 0:  # the first documents of b
            for number in range(35):
                database.a.update_one({"_id": number % 10}, {"$set": {"n": number}})

    def reported(line: str) -> None:
        if " streaming at " in line:
            stop.set()

    metrics = run_job(replace(job, every="0 seconds"), session=spark, stop=stop, report=reported, listener=committed)
    assert metrics.rows_total > 90 and metrics.snapshot_documents == 60
    run_job(job, session=spark, report=silent)
    assert [each.equal for each in verify_job(job)] == [True] * 2


def test_a_custom_query_has_the_same_metrics(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MEASURE_MS", 0)
    scribble(database, 40)
    source = {"uri": uri, "database": database.name, "collection": "c", "startingPosition": "earliest"}
    metrics = JobMetrics("own")
    query_listener = listener.MetricsListener(metrics, source=source)
    rows = spark.readStream.format("headrace").options(**source, maxRowsPerTrigger="10").load()
    seen: list[int] = []
    spark.streams.addListener(query_listener)
    try:
        writer = rows.writeStream.foreachBatch(lambda frame, number: seen.append(frame.count()))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        assert query_listener.ended.wait(240)
    finally:
        spark.streams.removeListener(query_listener)
    assert (metrics.rows_total, metrics.batches_total, metrics.lag_events) == (sum(seen), len(seen), 0)
    with serve(metrics, ("127.0.0.1", 0)) as port:
        text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert f'headrace_pipeline_rows_total{{job="own"}} {sum(seen)}' in text
    assert 'headrace_pipeline_lag_events{job="own"} 0' in text


def test_the_status_of_a_job_of_several_servers_has_a_line_for_each(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.Server() as one, headrace.Server() as two:
        for server, count in ((one, 3), (two, 4)):
            with MongoClient[dict[str, Any]](server.uri) as client:
                client.d.c.insert_many([{"_id": number} for number in range(count)])
        given = {
            "checkpoint": "checkpoint",
            "source": {"uri": [one.uri, two.uri], "database": "d", "collection": "c", "startingPosition": "earliest"},
            "trigger": {"availableNow": True},
            "sink": [{"kind": "changes", "path": "changes"}],
        }
        job = parse_job(given, "two", tmp_path)
        assert run_job(job, session=spark, report=silent).rows_total == 7
        with MongoClient[dict[str, Any]](two.uri) as client:
            client.d.c.insert_many([{"_id": number} for number in range(10, 15)])
        reported = list(lines_of(job_status(job)))
        assert [line for line in reported if server_name(one.uri) in line] != []
        assert [line for line in reported if server_name(two.uri) in line] != []
        assert "lag: 5 events" in "\n".join(reported)
        run_job(job, session=spark, report=silent)
        assert "lag: 0 events" in "\n".join(lines_of(job_status(job)))
