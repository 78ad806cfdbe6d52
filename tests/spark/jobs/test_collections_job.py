"""A job of several collections without Spark: its batches by hand, with its checks, its report and its comparison."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pymongo import MongoClient
from pyspark.sql.types import StringType, StructField, StructType

import headrace
from headrace import limits
from headrace.spark.jobs.checkpoint import JobRecord, planned_ends, read_checkpoint, read_record, write_record
from headrace.spark.jobs.collection_checks import SeenCollections
from headrace.spark.jobs.dead_letter_jobs import replay, with_dead_letters
from headrace.spark.jobs.job_file import Job, JobError, parse_job
from headrace.spark.jobs.job_tables import open_sink, tables_of
from headrace.spark.jobs.metrics import JobMetrics, TableLooks
from headrace.spark.jobs.metrics_listener import MetricsListener
from headrace.spark.jobs.report import explain_lines, verify_job
from headrace.spark.jobs.runner import job_lock, reset_job, source_options
from headrace.spark.jobs.start_checks import TableGone, begin, check_job, noted
from headrace.spark.jobs.status import job_status, lines_of
from headrace.spark.mongodb.listed_collections import CollectionReplaced
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.collections_sink import CollectionsSink
from headrace.spark.sinks.contract import FOLDED_COLUMNS, MicroBatch
from headrace.spark.sinks.sink_options import SinkError
from headrace.spark.source.options import parse_options
from headrace.spark.source.readers import StreamReader
from headrace.spark.tables.dead_letters import REFUSED, DeadLetter, DeadLetters
from headrace.spark.tables.fold import MirrorChanges
from headrace.spark.tables.progress import NotOurTable

pytestmark = pytest.mark.long

SCHEMA = StructType([StructField(name, StringType(), name != "token") for name in FOLDED_COLUMNS[:8]])
KINDS = ("mirror", "history", "changes")


@pytest.fixture
def server() -> Iterator[Any]:
    with headrace.Server() as server:
        yield server


def job_of(folder: Path, uri: str, *kinds: str, **source: Any) -> Job:
    sinks = [{"kind": kind, "path": f"{kind}/{{database}}/{{collection}}"} for kind in kinds or KINDS]
    given = {"uri": uri, "database": "shop", "startingPosition": "snapshot", "awaitMs": 20} | source
    given = {name: value for name, value in given.items() if value is not None}
    return parse_job({"checkpoint": "checkpoint", "source": given, "sink": sinks}, "job", folder)


class Runs:
    """Runs a job's batches as Spark does, with Spark's checkpoint."""

    def __init__(self, job: Job, query: str = "q") -> None:
        self.job, self.query = job, query
        self.checked = begin(job)
        self.options = parse_options(source_options(job) | self.checked.source_options())
        schema = StructType([*SCHEMA, StructField("server", StringType(), False)]) if self.options.others else SCHEMA
        self.reader = StreamReader(self.options, schema)
        self.sinks = [open_sink(job, sink, self.options) for sink in job.sinks]
        for options, sink in zip(job.sinks, self.sinks, strict=True):
            sink.owner = self.checked.owner_of(options)  # type: ignore[attr-defined]
        self.sinks = with_dead_letters(job, self.sinks)
        self.metrics = JobMetrics("job")
        self.seen = SeenCollections(self.options, self.checked.record)

    def run(self, batches: int = 1000) -> None:
        """Runs so many batches, or all there is."""
        checkpoint, record = self.checked.checkpoint, self.checked.record
        first = checkpoint.committed + 1
        start = checkpoint.offset or self.reader.initialOffset()
        self.reader.prepareForTriggerAvailableNow()
        for number in range(first, first + batches):
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            if end == start:
                break
            self._note("offsets", number, f"v1\n{{}}\n{json.dumps(end)}")
            partitions = self.reader.partitions(start, end)
            rows = [batch for one in partitions for batch in self.reader.read(one)]
            for sink in self.sinks:
                assert isinstance(sink, CollectionsSink)
                sink.listener = self.metrics.collection_committed
                if rows:
                    sink.apply(MicroBatch(self.query, number, pa.Table.from_batches(rows)))
            fans, ends = zip(self.job.sinks, self.sinks, strict=True), planned_ends(self.job.checkpoint, number)
            record = noted(self.job, record, self.seen, fans, ends)
            self._note("commits", number, "v1\n{}")
            start = end
        self.position = start
        self.reader.stop()

    def go_on(self) -> None:
        """Runs what is new, in the same process."""
        checkpoint, record = read_checkpoint(self.job.checkpoint), recorded(self.job)
        self.checked = replace(self.checked, checkpoint=checkpoint, record=record)
        self.run()

    def _note(self, folder: str, number: int, text: str) -> None:
        (self.job.checkpoint / folder).mkdir(exist_ok=True)
        (self.job.checkpoint / folder / str(number)).write_text(text)


def verified(job: Job) -> list[tuple[bool | None, str]]:
    return [(each.equal, each.description) for each in verify_job(job)]


def test_every_table_is_reported_compared_and_reset(server: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path, server.uri, maxRowsPerTrigger=10)
    with MongoClient[dict[str, Any]](server.uri) as client:
        for name in ("a", "b/c", "d"):
            client.shop[name].insert_many([{"_id": key} for key in range(8)])
        client.shop.create_collection("capped", capped=True, size=1000)
        Runs(job).run(1)
        lines = list(lines_of(job_status(job)))
        assert "collections: 4, 1 of them with a complete snapshot" in lines
        assert "  shop.a: streaming" in lines
        assert any(line.startswith(f"sink history {tmp_path}/history/shop/a: batch 0") for line in lines)
        assert "  shop.b/c: waits for its snapshot" in lines
        assert "  shop.capped: left out: a capped collection" in lines
        client.shop.a.update_one({"_id": 1}, {"$set": {"n": 1}})
        runs = Runs(job)
        runs.run()
        figures = runs.metrics.collections["shop.d"]
        assert (figures.rows_total, figures.rest_values_total, figures.dead_letters_total) == (30, 0, 0)
        assert figures.batches_total >= 1 and figures.batch_seconds > 0
        of_one = {"job": "job", "collection": "shop.b/c"}
        assert runs.metrics.registry().get_sample_value("headrace_pipeline_collection_rows_total", of_one) == 30
        client.shop.a.rename("e")
        client.shop.d.drop()
        client.shop.late.insert_one({"_id": 1})
        Runs(job).run()
        results = verified(job)
        # Mirrors and histories of a, b/c, d, e and late, and the logs of events.
        assert len(results) == 15 and all(equal for equal, _ in results), results
        client.shop["b/c"].delete_one({"_id": 1})
        assert all(equal for equal, _ in verified(job))
    assert (tmp_path / "mirror" / "shop" / "b~2Fc").is_dir()
    assert next(explain_lines(job)) == "source: shop, from snapshot"
    reset_job(job, data=True)
    assert not list(tmp_path.glob("*/shop/*"))


def test_the_metrics_have_lag_and_files_by_collection(server: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "TABLE_LOOK_COUNT_MAX", 2)
    job = job_of(tmp_path, server.uri, "mirror", "changes")
    with MongoClient[dict[str, Any]](server.uri) as client:
        for name in ("a", "b", "d"):
            client.shop[name].insert_one({"_id": 1})
        runs = Runs(job)
        runs.run()
        client.shop.a.insert_many([{"_id": key} for key in range(2, 5)])
        client.shop.late.insert_one({"_id": 1})
        listener = MetricsListener(runs.metrics)
        listener.resume(read_checkpoint(job.checkpoint).offset)
        listener.measure(job.source)

        def value(name: str, collection: str) -> float | None:
            labels = {"job": "job", "collection": f"shop.{collection}"}
            return runs.metrics.registry().get_sample_value(f"headrace_pipeline_collection_{name}", labels)

        assert [value("lag_events", name) for name in ("a", "b", "d", "late")] == [3, 0, 0, 1]
        assert value("lag_seconds", "b") == 0 and value("table_files", "a") is None
        looks = TableLooks(job, runs.metrics)
        looks.look()
        assert [value("table_files", name) for name in ("a", "b", "d")] == [2, 2, None]
        looks.look()
        assert [value("table_files", name) for name in ("d", "late")] == [2, 0]
        before = value("table_bytes", "a")
        runs.go_on()
        looks.look()
        assert value("table_files", "a") == 3 and before is not None and (value("table_bytes", "a") or 0) > before
        assert value("table_files", "late") == 2
        # A collection dropped, and its tables removed by hand: nothing there, nothing fails.
        shutil.rmtree(tmp_path / "mirror")
        runs.metrics.collections["shop.b"].batches_total += 1
        looks.look()
        assert value("table_files", "b") == 1


def test_a_snapshot_of_several_collections_says_how_much_of_it_is_done(server: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path, server.uri, "mirror", maxRowsPerTrigger=10)
    with MongoClient[dict[str, Any]](server.uri) as client:
        for name, count in (("a", 8), ("b", 12), ("c", 20)):
            client.shop[name].insert_many([{"_id": key} for key in range(count)])
        Runs(job).run(1)
        metrics = JobMetrics("job")
        listener = MetricsListener(metrics)
        listener.resume(read_checkpoint(job.checkpoint).offset, 8)
        listener.measure(job.source)
        assert metrics.snapshot_documents_total == 40
        client.shop.later.insert_one({"_id": 1})
        Runs(job).run(2)
        listener.resume(read_checkpoint(job.checkpoint).offset, 18)
        listener.measure(job.source)
        assert metrics.snapshot_documents_total == 40


def test_names_are_added_to_a_job_that_has_begun(server: Any, tmp_path: Path) -> None:
    with MongoClient[dict[str, Any]](server.uri) as client:
        for name in ("a", "log_1"):
            client.shop[name].insert_one({"_id": 1, "n": 0})
        Runs(job_of(tmp_path, server.uri, collections=["a"])).run()
        client.shop.log_1.update_one({"_id": 1}, {"$inc": {"n": 1}})
        job = job_of(tmp_path, server.uri, collections=["a", "log_*"])
        Runs(job).run()
        client.shop.log_1.update_one({"_id": 1}, {"$inc": {"n": 1}})
        Runs(job).run()
        assert [equal for equal, _ in verified(job)] == [True] * 6


def test_a_long_name_is_a_collection_like_any_other(server: Any, tmp_path: Path) -> None:
    """The name of its folder is shortened, so that it says no longer which collection it is of."""
    job, name = job_of(tmp_path, server.uri), "注文" * 30
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.shop[name].insert_one({"_id": 1})
        Runs(job).run()
        client.shop[name].insert_one({"_id": 2})
        Runs(job).run()
        assert [equal for equal, _ in verified(job)] == [True] * 3
        assert f"  shop.{name}: streaming" in list(lines_of(job_status(job)))
        client.shop[name].drop()
        Runs(job).run()
        assert [equal for equal, _ in verified(job)] == [True] * 3
    for folder in (tmp_path / "mirror" / "shop").iterdir():
        shutil.rmtree(folder)
    with pytest.raises(TableGone, match="mirror"):
        check_job(job)
    reset_job(job, data=True)


def test_a_mirror_that_is_added_to_a_job_of_several_collections_is_refused(server: Any, tmp_path: Path) -> None:
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.shop.a.insert_one({"_id": 1})
    Runs(job_of(tmp_path, server.uri, "changes")).run()
    with pytest.raises(NotOurTable, match=r"mirror .* was not in the job at its last start"):
        check_job(job_of(tmp_path, server.uri, "changes", "mirror"))


def test_next_to_the_tables_may_be_the_checkpoint_and_the_dead_letters(server: Any, tmp_path: Path) -> None:
    given = {"uri": server.uri, "database": "shop", "startingPosition": "snapshot", "awaitMs": 20}
    sink = {"kind": "mirror", "path": "{collection}"}
    others = {"errors": "deadletter", "deadletter": "_letters"}
    job = parse_job({"checkpoint": "_checkpoint", "source": given, "sink": [sink], **others}, "job", tmp_path)
    DeadLetters(job.deadletter, 1).add([DeadLetter("s", "t", None, REFUSED, None, "", "{}")], 0)
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.shop.a.insert_one({"_id": 1})
        for _ in range(2):
            with job_lock(job):
                Runs(job).run()
        assert verified(job) == [(True, "1 rows, 1 documents")]


def test_a_new_checkpoint_empties_the_tables_of_what_is_gone(server: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path, server.uri, "mirror")
    with MongoClient[dict[str, Any]](server.uri) as client:
        for name in ("a", "b"):
            client.shop[name].insert_one({"_id": 1})
        Runs(job).run()
        client.shop.b.drop()
        record = (job.checkpoint / "headrace.json").read_text()
        reset_job(job)
        job.checkpoint.mkdir()
        (job.checkpoint / "headrace.json").write_text(record)
        Runs(job, "r").run()
        assert verified(job) == [(True, "1 rows, 1 documents"), (True, "0 rows, 0 documents")]


def test_a_table_that_is_gone_or_of_another_job_is_refused(server: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path, server.uri, "mirror")
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.shop.a.insert_one({"_id": 1})
        client.shop.b.insert_one({"_id": 1})
    Runs(job).run()
    other = replace(job, checkpoint=tmp_path / "another")
    with pytest.raises(RuntimeError, match="filled by another job"):
        check_job(other)
    for file in sorted((tmp_path / "mirror" / "shop" / "b").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    (tmp_path / "mirror" / "shop" / "b").rmdir()
    with pytest.raises(TableGone, match="shop/b"):
        check_job(job)


def test_a_collection_that_is_another_without_an_event_is_a_position_lost(server: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path, server.uri, "mirror")
    with MongoClient[dict[str, Any]](server.uri) as client:
        for name in ("a", "b", "d", "e"):
            client.shop[name].insert_one({"_id": 1})
        Runs(job).run()
        client.shop.a.drop()
        client.shop.b.rename("d", dropTarget=True)
        client.shop.b.insert_one({"_id": 2})
        checked = check_job(job)
        assert [notice.split(" ")[0] for notice in checked.notices] == ["shop.a", "shop.b", "shop.d"]
        record = begin(job).record
        assert check_job(job).notices == ()
        for name, became in (("shop.e", "is another collection"), ("shop.gone", "is gone")):
            known = {**record.collections, name: {**record.collections["shop.e"], "uuid": "00" * 16}}
            write_record(job.checkpoint, replace(record, collections=known))
            with pytest.raises(CollectionReplaced, match=f"{name} on .* {became}"):
                check_job(job)


def recorded(job: Job) -> JobRecord:
    record = read_record(job.checkpoint)
    assert record is not None
    return record


def test_a_collection_that_appears_is_known_from_its_first_batch_on(server: Any, tmp_path: Path) -> None:
    """It is dropped and made anew while the job runs, and replaced without an event while it does not."""
    job = job_of(tmp_path, server.uri, "mirror")
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.shop.a.insert_one({"_id": 1})
        runs = Runs(job)
        runs.run()
        client.shop.b.insert_one({"_id": 1})
        runs.go_on()
        first = recorded(job).collections["shop.b"]["uuid"]
        client.shop.b.drop()
        client.shop.b.insert_one({"_id": 2})
        runs.go_on()
        second = recorded(job).collections["shop.b"]["uuid"]
        assert first and second and first != second
        assert check_job(job).notices == ()
        known = {"shop.b": {**recorded(job).collections["shop.b"], "uuid": "00" * 16}}
        write_record(job.checkpoint, replace(recorded(job), collections=known))
        with pytest.raises(CollectionReplaced, match=r"shop\.b on .* is another collection"):
            check_job(job)


def test_what_cannot_be_read_is_refused_by_name_and_skipped_by_pattern(server: Any, tmp_path: Path) -> None:
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.shop.create_collection("log_1", capped=True, size=1000)
        client.shop.create_collection("seen", viewOn="log_1", pipeline=[])
    with pytest.raises(JobError, match="log_1 is a capped collection"):
        check_job(job_of(tmp_path, server.uri, collections=["log_1"]))
    with pytest.raises(JobError, match="seen is a view"):
        check_job(job_of(tmp_path, server.uri, "changes", collections=["seen"]))
    check_job(job_of(tmp_path, server.uri, collections=["log_*"]))
    check_job(job_of(tmp_path, server.uri, "changes", collections=["log_1"]))


def test_paths_must_give_each_collection_another_table(tmp_path: Path) -> None:
    uri = "mongodb://localhost"
    with pytest.raises(JobError, match=r"needs \{database\} and \{collection\}"):
        sink = {"kind": "mirror", "path": "lake/{collection}"}
        source = {"uri": uri, "startingPosition": "snapshot"}
        parse_job({"checkpoint": "c", "source": source, "sink": [sink]}, "job", tmp_path)
    with pytest.raises(SinkError, match="one path"):
        both = [{"kind": kind, "path": "lake/{database}/{collection}"} for kind in ("mirror", "history")]
        source = {"uri": uri, "database": "d", "startingPosition": "snapshot"}
        parse_job({"checkpoint": "c", "source": source, "sink": both}, "job", tmp_path)
    one = job_of(tmp_path, uri, "mirror", collection="orders")
    assert str(one.sinks[0].location) == f"{tmp_path}/mirror/shop/orders"
    with pytest.raises(JobError, match="need startingPosition 'snapshot'"):
        job_of(tmp_path, uri, "mirror", startingPosition="earliest")


def test_what_a_table_refuses_goes_to_the_dead_letters_of_the_job(server: Any, tmp_path: Path) -> None:
    job = replace(job_of(tmp_path, server.uri, "mirror", "changes"), deadletter=str(tmp_path / "letters"))
    with MongoClient[dict[str, Any]](server.uri) as client:
        for name in ("a", "b"):
            client.shop[name].insert_many([{"_id": key} for key in range(3)])
        Runs(job).run()
        # A document that the mirror of `a` lacks, and the same key in `b`.
        table = job.sinks[0].of_collection(("shop", "a")).open()
        state = table.position()
        table.table.commit(MirrorChanges(state, deletes={dumps(1)}))  # type: ignore[attr-defined]
        for name in ("a", "b"):
            client.shop[name].update_one({"_id": 1}, {"$set": {"n": 1}})
        runs = Runs(job)
        runs.run()
        assert runs.metrics.collections["shop.a"].dead_letters_total == 1
        assert runs.metrics.collections["shop.b"].dead_letters_total == 0
        results = dict(zip([str(table.sink) for table in tables_of(job)], verified(job), strict=True))
        refused = f"mirror {tmp_path}/mirror/shop/a"
        assert [name for name, (equal, _) in results.items() if not equal] == [refused]
        (letter,) = DeadLetters(job.deadletter, 10).letters()
        assert letter.sink == refused and "the mirror has no document" in letter.reason
        assert list(replay(job)) == [f'{refused}: replayed {{"_id":{{"$numberInt":"1"}}}}']
        assert all(equal for equal, _ in verified(job))
