"""Tables of state begin with a snapshot or their collection's creation; rows are made by one pipeline; streams open."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo import MongoClient

import headrace
from headrace.spark.jobs.checkpoint import read_record, write_record
from headrace.spark.jobs.job_file import Job, JobError, parse_job
from headrace.spark.jobs.runner import reset_job
from headrace.spark.jobs.start_checks import begin, check_job, problems
from headrace.spark.rows.events import SNAPSHOT_BEGIN, Row
from headrace.spark.sinks.contract import Sink
from headrace.spark.sinks.folding_sink import HistorySink, mirror_sink, sql_sink
from headrace.spark.sinks.foreach_batch import NoBeginning, for_each_batch
from headrace.spark.sinks.mongodb_sink import mongodb_sink
from headrace.spark.tables.progress import NotOurTable
from tests.spark.jobs.test_start_checks import SINKS, insert, job_of, ran
from tests.spark.support.generated_changes import table_of, token_at
from tests.spark.support.pruning import prune_to

pytestmark = pytest.mark.long


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as server:
        yield server


STATE = (
    {"kind": "mirror"}, {"kind": "history"}, {"kind": "mongodb", "uri": "mongodb://elsewhere"},
    {"kind": "sql", "uri": "sqlite:///copy", "table": "copy"},
)  # fmt: skip


@pytest.mark.parametrize("sink", STATE, ids=lambda sink: sink["kind"])
def test_a_table_of_state_begins_at_no_position_that_leaves_documents_out(tmp_path: Path, sink: dict[str, Any]) -> None:
    with pytest.raises(JobError, match=r"startingPosition 'latest'.* would be missing"):
        job_of("mongodb://h", tmp_path, sink, startingPosition="latest")
    if sink["kind"] == "mongodb":
        with pytest.raises(JobError, match="need startingPosition 'snapshot'"):
            job_of("mongodb://h", tmp_path, sink, startingPosition="earliest", collection=None)
    with pytest.raises(JobError, match="the snapshot that is in it"):
        job_of("mongodb://h", tmp_path, sink, startingPosition="earliest", archive="old")


@pytest.mark.parametrize("kind", ["mirror", "history"])
@pytest.mark.parametrize("start", ["time", "token"])
def test_a_table_of_state_begins_at_a_time_or_a_token_before_its_collections_creation_only(
    server: headrace.Server, tmp_path: Path, kind: str, start: str
) -> None:
    def position() -> str:
        with MongoClient[dict[str, Any]](server.uri) as client:
            if start == "time":
                now = client.admin.command("ping")["operationTime"]
                while client.admin.command("ping")["operationTime"].time <= now.time:
                    client.other.c.insert_one({})
                return datetime.fromtimestamp(now.time + 1, UTC).isoformat()
            with client.d.watch() as stream:
                return str(stream.resume_token["_data"])

    before = position()
    insert(server.uri, 1, 2)
    between = position()
    insert(server.uri, 3)
    check_job(job_of(server.uri, tmp_path, {"kind": kind}, startingPosition=before))
    late = job_of(server.uri, tmp_path, {"kind": kind}, startingPosition=between)
    for check in (check_job, begin):
        with pytest.raises(JobError, match=r"documents that d\.c had before startingPosition .*'snapshot'"):
            check(late)
    assert ["would be missing" in line for line in problems(late)] == [True]
    check_job(job_of(server.uri, tmp_path, {"kind": "changes"}, startingPosition=between))


def test_a_table_of_state_begins_with_the_oplog_only_if_that_has_the_collections_creation(
    server: headrace.Server, tmp_path: Path
) -> None:
    earliest = job_of(server.uri, tmp_path, {"kind": "mirror"}, startingPosition="earliest")
    check_job(earliest)
    insert(server.uri, *range(1, 9))
    check_job(earliest)
    prune_to(server, 2)
    with pytest.raises(JobError, match="would be missing"):
        check_job(earliest)


def test_a_table_that_is_there_goes_on_at_no_later_position(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    mirror = {"kind": "mirror"}
    ran(job_of(server.uri, tmp_path, mirror))
    shutil.rmtree(tmp_path / "checkpoint")
    with MongoClient[dict[str, Any]](server.uri) as client, client.d.watch() as stream:
        here = str(stream.resume_token["_data"])
        insert(server.uri, 2)
        stream.next()
        later = str(stream.resume_token["_data"])
    insert(server.uri, 3)
    check_job(job_of(server.uri, tmp_path, mirror, startingPosition="earliest"))
    with pytest.raises(JobError, match="what lies between would be missing"):
        check_job(job_of(server.uri, tmp_path, mirror, startingPosition=later))
    assert here < later


def opened(kind: str, folder: Path, uri: str) -> Sink:
    if kind == "mongodb":
        return mongodb_sink(uri, database="copy", collection="c")
    if kind == "every collection":
        return mongodb_sink(uri, database="copy")
    if kind == "sql":
        return sql_sink(f"sqlite:///{folder}/copy.db", "c")
    return (
        mirror_sink(folder / "table", writers="driver")
        if kind == "mirror"
        else HistorySink(folder / "table", writers="driver")
    )


@pytest.mark.parametrize("kind", ["mirror", "history", "mongodb", "every collection", "sql"])
@pytest.mark.parametrize("beginning", [SNAPSHOT_BEGIN, "create"])
def test_in_a_program_the_first_row_of_a_table_of_state_is_a_beginning(
    server: headrace.Server, tmp_path: Path, kind: str, beginning: str
) -> None:
    first = Row(token_at(1), operationType=beginning, database="d", collection="c")
    document = {"documentKey": '{"_id":1}', "fullDocument": '{"_id":1}'}
    event = Row(token_at(2), operationType="insert", database="d", collection="c")._replace(**document)
    context = SimpleNamespace(getLocalProperty=lambda _: "q")

    def frame(*rows: Row) -> Any:
        return SimpleNamespace(toArrow=lambda: table_of(list(rows)), sparkSession=SimpleNamespace(sparkContext=context))

    with pytest.raises(NoBeginning, match=r"d\.c is an event, 'insert'.* would be missing"):
        for_each_batch(opened(kind, tmp_path, server.uri))(frame(event), 0)
    for_each_batch(opened(kind, tmp_path, server.uri))(frame(first, event), 1)
    later = event._replace(token=token_at(3), documentKey='{"_id":2}', fullDocument='{"_id":2}')
    for_each_batch(opened(kind, tmp_path, server.uri))(frame(later), 2)


PIPELINES: tuple[dict[str, Any], ...] = (
    {"stages": [{"$match": {"operationType": "delete"}}]},
    {"stages": '[{"$match": {"operationType": {"$in": ["insert", "delete"]}}}]'},
    {"stages": [{"$match": {"operationType": "insert"}}, {"$set": {"fullDocument.n": 1}}]},
    {},
)


@pytest.mark.parametrize("now", PIPELINES)
def test_a_pipeline_that_was_edited_does_not_go_on_with_the_tables_of_the_one_before(
    server: headrace.Server, tmp_path: Path, now: dict[str, Any]
) -> None:
    def job(pipeline: dict[str, Any]) -> Job:
        source = {"uri": server.uri, "database": "d", "collection": "c", "startingPosition": "earliest"}
        sink = {"kind": "changes", "path": "changes"}
        given = {"checkpoint": "checkpoint", "source": source, "sink": [sink]}
        return parse_job(given | ({"pipeline": pipeline} if pipeline else {}), "job", tmp_path)

    insert(server.uri, 1)
    before = job({"stages": [{"$match": {"operationType": "insert"}}]})
    ran(before)
    check_job(job({"stages": '[ { "$match" : {"operationType": "insert"} } ]'}))
    with pytest.raises(NotOurTable, match=r"pipeline is another one .*reset --data"):
        check_job(job(now))
    reset_job(before, data=True)
    check_job(job(now))


def test_a_checkpoint_of_an_earlier_version_learns_its_pipeline(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, {"kind": "changes"})
    ran(job)
    record = read_record(job.checkpoint)
    assert record
    write_record(job.checkpoint, replace(record, pipeline=""))
    assert begin(job).record.pipeline == record.pipeline != ""


def test_a_user_without_the_right_to_the_stream_is_named(tmp_path: Path) -> None:
    users = {"stranger": {"pwd": "pw", "roles": [{"role": "read", "db": "other"}]}}
    with headrace.Server(users=users) as server:
        uri = server.uri.replace("mongodb://", "mongodb://stranger:pw@").replace("?", "?authSource=admin&")
        (line,) = problems(job_of(uri, tmp_path, SINKS[0]))
        assert line.startswith("StreamRefused: 127.0.0.1:") and "gives the user no right" in line
        (line,) = problems(job_of(uri.replace(":pw@", ":wrong@"), tmp_path, SINKS[0]))
        assert "Authentication failed" in line and "wrong" not in line


def test_a_stream_that_the_server_refuses_is_named_with_its_reason(tmp_path: Path) -> None:
    with headrace.Server() as server:
        job = job_of(server.uri, tmp_path, {"kind": "changes", "path": "changes"}, database="local")
        (line,) = problems(job)
    assert re.search(r"StreamRefused: 127.0.0.1:\d+ refuses the change stream: .*local", line)
