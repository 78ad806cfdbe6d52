"""What is held against each other before a job starts: without Spark, which only writes the checkpoint and the rows."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

import headrace
from headrace.spark.errors import OptionError
from headrace.spark.jobs.checkpoint import NAME, JobRecord, read_record, server_positions, write_record
from headrace.spark.jobs.collection_checks import SeenCollections
from headrace.spark.jobs.job_file import Job, JobError, parse_job
from headrace.spark.jobs.machine_checks import CannotStart, machine_problems
from headrace.spark.jobs.metrics import JobMetrics, serve
from headrace.spark.jobs.report import explain_lines, verify_job
from headrace.spark.jobs.runner import job_lock, run_job
from headrace.spark.jobs.sink_states import ServerUnreachable
from headrace.spark.jobs.start_checks import (
    CheckedJob,
    TableGone,
    begin,
    check_job,
    note_begun,
    noted,
    problems,
)
from headrace.spark.mongodb.listed_collections import CollectionReplaced
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.mongodb.server_history import HistoryChanged
from headrace.spark.mongodb.source_options import StreamPosition, server_name
from headrace.spark.rows.events import SNAPSHOT_BEGIN, Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.sink_options import SinkError
from headrace.spark.stream.offsets import ServerOffset
from headrace.spark.stream.server_stream import ServerStream
from headrace.spark.tables.progress import NotAMirror, NotOurTable
from headrace.values.position import from_timestamp
from tests.ports import free_port
from tests.spark.support.generated_changes import table_of
from tests.spark.support.pruning import prune_to

pytestmark = pytest.mark.long

Db = Database[dict[str, Any]]
SINKS = ({"kind": "changes"}, {"kind": "history"}, {"kind": "mirror"}, {"kind": "parquet"})


def job_of(uri: str, folder: Path, *sinks: dict[str, Any], checkpoint: str = "checkpoint", **source: Any) -> Job:
    options = {"uri": uri, "database": "d", "collection": "c", "startingPosition": "snapshot"} | source
    options = {name: value for name, value in options.items() if value is not None}
    given = {"checkpoint": checkpoint, "source": options}
    given["sink"] = [sink if "uri" in sink else {"path": sink["kind"], **sink} for sink in sinks]
    return parse_job(given, "job", folder)


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as server:
        yield server


def insert(uri: str, *keys: Any) -> None:
    with MongoClient[dict[str, Any]](uri) as client:
        client.d.c.insert_many([{"_id": key} for key in keys])


def last_event(uri: str) -> Row:
    options = job_of(uri, Path("/"), *SINKS[:1]).options
    mongodb = MongoDBStream(options)
    start = mongodb.resolve(StreamPosition("earliest"))
    *_, event = mongodb.read(start, mongodb.end_at(mongodb.now()))
    document, key = dumps(event["fullDocument"]), dumps(event["documentKey"])
    row = Row(event["_id"]["_data"], 0, 1, "insert", "d", "c", key, document)
    return row._replace(wallTime=None, clusterTime=None)


def ran(job: Job, *, number: int = 0, with_event: bool = True) -> CheckedJob:
    """As a run of one batch, which has the last event, leaves checkpoint and tables."""
    checked = begin(job)
    row = last_event(job.options.uri)
    rows = [row._replace(operationType=SNAPSHOT_BEGIN, documentKey=None, fullDocument=None), row][: 1 + with_event]
    for sink in job.sinks:
        opened: Any = sink.open()
        opened.owner = checked.owner_of(sink)
        opened.apply(MicroBatch("q", number, table_of(rows)))
    for name, text in (("offsets", f"v1\n{{}}\n{json.dumps({'token': row.token})}\n"), ("commits", "v1\n{}\n")):
        (job.checkpoint / name).mkdir(exist_ok=True)
        (job.checkpoint / name / str(number)).write_text(text)
    note_begun(job, checked.record)
    return checked


def test_a_job_that_ran_may_run_again(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, *SINKS)
    first = ran(job)
    insert(server.uri, 2)
    again = ran(job, number=1)
    assert again.record.job == first.record.job
    assert again.source_options() == {"replicasetid": first.record.histories[server.uri.split("/")[2]]}
    assert [state.exists for state in again.sinks] == [True] * 4


@pytest.mark.parametrize("policy", ["fail", "resnapshot"])
def test_a_server_with_another_history_is_refused_or_begun_again(tmp_path: Path, policy: str) -> None:
    with headrace.Server(port=(port := free_port())) as one:
        insert(one.uri, 1)
        job = job_of(one.uri, tmp_path, *SINKS, onPositionLost=policy)
        before = ran(job).record
    with headrace.Server(port=port) as two:
        insert(two.uri, *range(10))
        if policy == "fail":
            with pytest.raises(HistoryChanged, match=r"has another history .* onPositionLost = 'resnapshot'"):
                begin(job)
            record = read_record(job.checkpoint)
            assert record is not None and record.histories == before.histories
            return
        checked = begin(job)
        assert checked.checkpoint.planned == -1 and checked.record.snapshot and checked.record.job == before.job
        assert checked.source_options()["startingposition"] == "snapshot"
        assert checked.record.histories != before.histories
        insert(two.uri, 11)
        ran(job)
        record = read_record(job.checkpoint)
        assert record is not None and not record.snapshot
        begin(job)


def test_a_server_restored_from_an_older_copy_is_refused_or_begun_again(tmp_path: Path) -> None:
    with headrace.Server(tmp_path / "data") as server:
        insert(server.uri, 1)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    port = free_port()
    with headrace.Server(tmp_path / "data", port=port) as server:
        insert(server.uri, 2)
        job = job_of(server.uri, tmp_path, *SINKS)
        ran(job)
    with headrace.Server(tmp_path / "copy", port=port) as server:
        insert(server.uri, *range(10, 60))
        with pytest.raises(PositionLost, match="restored from an older copy"):
            begin(job)
        checked = begin(job_of(server.uri, tmp_path, *SINKS, onPositionLost="resnapshot"))
        assert checked.record.snapshot


@pytest.mark.parametrize("kind", [sink["kind"] for sink in SINKS])
def test_a_table_that_is_gone_is_named(server: headrace.Server, tmp_path: Path, kind: str) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, *SINKS)
    ran(job)
    shutil.rmtree(tmp_path / kind)
    with pytest.raises(TableGone, match=rf"the table of the sink {kind} .*{kind} is gone.*pipeline reset"):
        begin(job)


def test_a_mirror_that_is_added_to_a_job_is_refused_and_a_log_begins(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    ran(job_of(server.uri, tmp_path, SINKS[0]))
    begin(job_of(server.uri, tmp_path, SINKS[0], SINKS[3]))
    with pytest.raises(TableGone, match=r"mirror .*is past the snapshot"):
        begin(job_of(server.uri, tmp_path, SINKS[0], SINKS[2]))


@pytest.mark.parametrize("source", [{}, {"startingPosition": "earliest"}])
def test_a_sink_that_was_not_in_the_job_lacks_what_was_read(
    server: headrace.Server, tmp_path: Path, source: dict[str, Any]
) -> None:
    """It is added, or was taken out for a while. One that was moved has all."""
    insert(server.uri, 1)
    changes, mirror, others = {"kind": "changes"}, {"kind": "mirror"}, {"kind": "parquet"}
    ran(job_of(server.uri, tmp_path, changes, mirror, **source))
    (tmp_path / "mirror").rename(tmp_path / "moved")
    moved = {"kind": "mirror", "path": "moved"}
    ran(job_of(server.uri, tmp_path, changes, moved, **source), number=1)
    ran(job_of(server.uri, tmp_path, moved, others, **source), number=2)
    with pytest.raises(NotOurTable, match=r"changes .*was not in the job at its last start"):
        begin(job_of(server.uri, tmp_path, changes, moved, **source))
    with pytest.raises((NotOurTable, TableGone), match=r"mirror .*(was not in the job|is past the snapshot)"):
        begin(job_of(server.uri, tmp_path, moved, {"kind": "mirror", "path": "another"}, **source))
    begin(job_of(server.uri, tmp_path, moved, {"kind": "parquet", "path": "more"}, **source))


def test_the_sinks_of_a_job_are_recorded_when_all_of_them_are_known(server: headrace.Server, tmp_path: Path) -> None:
    job = job_of(server.uri, tmp_path, *SINKS)
    assert len(check_job(job).record.sinks) == len(SINKS)
    table = {"kind": "mirror", "table": "lake.d.c"}
    source = {**job.source, "startingPosition": "snapshot"}
    given = {"checkpoint": "c", "source": source, "sink": [{"kind": "changes", "path": "p"}, table]}
    assert check_job(parse_job(given, "job", tmp_path)).record.sinks == {}


def test_a_mirror_that_omits_other_fields_is_refused(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    ran(job_of(server.uri, tmp_path, {"kind": "changes"}, {"kind": "mirror", "omit": ["a"]}))
    begin(job_of(server.uri, tmp_path, {"kind": "changes", "omit": ["b"]}, {"kind": "mirror", "omit": ["a"]}))
    with pytest.raises(NotOurTable, match=r"mirror .* omits other fields than before"):
        begin(job_of(server.uri, tmp_path, {"kind": "changes"}, {"kind": "mirror"}))


def test_a_file_that_was_edited_to_another_collection_is_refused(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    ran(job_of(server.uri, tmp_path, *SINKS))
    edited = job_of(server.uri, tmp_path, *SINKS, collection="other")
    with pytest.raises(NotOurTable, match=r"is of d\.c, and the job's file says d\.other"):
        begin(edited)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(NotOurTable, match=r"has the rows of d\.c, and the job reads d\.other"):
        begin(edited)


def test_a_table_has_one_job(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    for sink in SINKS:
        ran(job_of(server.uri, tmp_path, sink, checkpoint=f"checkpoint of {sink['kind']}"))
        other = job_of(server.uri, tmp_path, sink, checkpoint="another")
        with pytest.raises(NotOurTable, match=r"is filled by another job, job \(checkpoint .*checkpoint of"):
            begin(other)


def test_a_sink_that_is_given_anothers_table_by_a_race_does_not_write(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    for sink in SINKS:
        job = job_of(server.uri, tmp_path, sink, checkpoint=f"one {sink['kind']}")
        late = job_of(server.uri, tmp_path, sink, checkpoint=f"two {sink['kind']}")
        checked, opened = begin(late), late.sinks[0].open()
        ran(job)
        opened.owner = checked.owner_of(late.sinks[0])  # type: ignore[attr-defined]
        with pytest.raises(NotOurTable, match="is filled by another job"):
            opened.apply(MicroBatch("r", 0, table_of([last_event(server.uri)])))


def test_without_its_checkpoint_a_job_still_owns_its_tables(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, *SINKS)
    first = ran(job)
    shutil.rmtree(job.checkpoint)
    assert begin(job).record.job == first.record.job


def test_checkpoints_and_tables_of_earlier_versions_are_taken_over(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, *SINKS)
    row = last_event(server.uri)
    for sink in job.sinks:
        sink.open().apply(MicroBatch("q", 0, table_of([row])))
    for name, text in (("offsets", f"v1\n{{}}\n{json.dumps({'token': row.token})}\n"), ("commits", "v1\n{}\n")):
        (job.checkpoint / name).mkdir(parents=True)
        (job.checkpoint / name / "0").write_text(text)
    assert not (job.checkpoint / NAME).exists()
    insert(server.uri, 2)
    ran(job, number=1)
    assert {state.owner.job for state in begin(job).sinks if state.owner} == {read_record(job.checkpoint).job}  # type: ignore[union-attr]


@pytest.mark.parametrize("one", [sink["kind"] for sink in SINKS])
@pytest.mark.parametrize("other", [sink["kind"] for sink in SINKS])
def test_a_table_of_another_sink_is_refused_by_name(
    server: headrace.Server, tmp_path: Path, one: str, other: str
) -> None:
    if one == other:
        return
    insert(server.uri, 1)
    sink: Any = job_of(server.uri, tmp_path, {"kind": one, "path": "table"}).sinks[0].open()
    sink.apply(MicroBatch("q", 0, table_of([last_event(server.uri)])))
    with pytest.raises((NotAMirror, NotOurTable), match="another"):
        begin(job_of(server.uri, tmp_path, {"kind": other, "path": "table"}))


@pytest.mark.parametrize("kind", ["changes", "history", "mirror"])
def test_a_tables_columns_and_partitions_are_those_it_was_made_with(
    server: headrace.Server, tmp_path: Path, kind: str
) -> None:
    insert(server.uri, 1)
    day = "day(clusterTime)" if kind == "changes" else "day(at)"
    sinks: list[dict[str, Any]] = [{"kind": kind}, {"schema": "infer"}, {"schema": "infer", "partition": day}]
    for number, sink in enumerate(sinks):
        folder = tmp_path / str(number)
        ran(job_of(server.uri, folder, {"kind": kind, **sink}))
        begin(job_of(server.uri, folder, {"kind": kind, **sink}))
        for other in sinks:
            if other is not sink:
                with pytest.raises(NotOurTable, match=r"has (documents as text|typed columns), and|is partitioned by"):
                    begin(job_of(server.uri, folder, {"kind": kind, **other}))


@pytest.mark.parametrize("path", ["table", "table/", "./table", "table/inside"])
def test_two_sinks_have_two_paths(tmp_path: Path, path: str) -> None:
    with pytest.raises(SinkError, match=r"one path|one is inside the other"):
        job_of("mongodb://h", tmp_path, {"kind": "mirror", "path": "table"}, {"kind": "changes", "path": path})


def test_two_sinks_have_two_collections(tmp_path: Path) -> None:
    sink = {"kind": "mongodb", "uri": "mongodb://elsewhere"}
    with pytest.raises(SinkError, match="one table"):
        job_of("mongodb://h", tmp_path, sink, sink)


def test_a_server_by_two_names_is_one(server: headrace.Server, tmp_path: Path) -> None:
    uris = [server.uri, server.uri.replace("127.0.0.1", "localhost")]
    with pytest.raises(JobError, match=r"127\.0\.0\.1:\d+ and localhost:\d+ are one server, or one replica set"):
        check_job(job_of(json.dumps(uris), tmp_path, {"kind": "mirror"}))
    with pytest.raises(OptionError, match="names a server twice"):
        job_of(json.dumps([server.uri, f"{server.uri}&appName=b"]), tmp_path, {"kind": "mirror"})


def test_a_server_that_was_removed_from_a_job_is_named(server: headrace.Server, tmp_path: Path) -> None:
    with headrace.Server() as two, headrace.Server() as three:
        insert(server.uri, 1)
        both = json.dumps([server.uri, two.uri])
        ran(job_of(server.uri, tmp_path, SINKS[0]))
        with pytest.raises(JobError, match=r"is of one server, and the job reads .*, .*: a server cannot be removed"):
            check_job(job_of(both, tmp_path, SINKS[0]))
        (tmp_path / "of both").mkdir()
        several = job_of(both, tmp_path / "of both", SINKS[0])
        begin(several)
        offset = {"servers": {server_name(uri): {"token": last_event(server.uri).token} for uri in json.loads(both)}}
        for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(offset)}\n"), ("commits", "v1\n{}\n")):
            (several.checkpoint / folder).mkdir()
            (several.checkpoint / folder / "0").write_text(text)
        for uris in ([server.uri], [server.uri, three.uri]):
            with pytest.raises(JobError, match=r"is of the server 127.*, among several, and the job reads"):
                check_job(job_of(json.dumps(uris), tmp_path / "of both", SINKS[0]))


@pytest.mark.parametrize(
    ("source", "target", "refused"),
    [
        ({}, {}, True),
        ({}, {"collection": "copy"}, False),
        ({"collection": None}, {}, True),
        ({"collection": None}, {"database": "copy"}, False),
        ({"collection": None, "collections": ["c", "d*"]}, {"collection": "e"}, False),
        ({"collection": None, "collections": ["c", "d*"]}, {"collection": "d1"}, True),
        ({"database": None, "collection": None}, {"database": "copy"}, True),
        ({"database": None, "collection": None, "collections": ["d.*"]}, {"database": "copy"}, False),
    ],
)
def test_a_copy_into_the_source_itself_is_refused(
    server: headrace.Server, tmp_path: Path, source: dict[str, Any], target: dict[str, Any], *, refused: bool
) -> None:
    """By whatever name the server is known."""
    sink = {"kind": "mongodb", "uri": server.uri.replace("127.0.0.1", "localhost"), **target}
    job = job_of(server.uri, tmp_path, sink, **source)
    if not refused:
        check_job(job)
        return
    with pytest.raises(JobError, match=r"would write into the source itself, 127\.0\.0\.1"):
        check_job(job)


@pytest.mark.parametrize(("kind", "source", "message"), [
    ("mirror", {"startingPosition": "latest"}, "what is there already would be missing"),
    ("history", {"startingPosition": "latest"}, "what is there already would be missing"),
    ("history", {"fullDocument": "updateLookup"}, "the document as it is later"),
])  # fmt: skip
def test_what_would_begin_or_become_wrong_is_refused(
    tmp_path: Path, kind: str, source: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        job_of("mongodb://h", tmp_path, {"kind": kind}, **source)


def test_a_capped_collection_a_view_and_a_time_series_are_no_source(server: headrace.Server, tmp_path: Path) -> None:
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.d.create_collection("capped", capped=True, size=4096)
        client.d.create_collection("view", viewOn="c", pipeline=[])
        client.d.create_collection("series", timeseries={"timeField": "t"})
    begin(job_of(server.uri, tmp_path, SINKS[0], collection="capped", checkpoint="capped"))
    with pytest.raises(JobError, match=r"mirror: d\.capped is a capped collection"):
        begin(job_of(server.uri, tmp_path, SINKS[2], collection="capped"))
    for name, kind in (("view", "a view"), ("series", "a time-series collection")):
        (line,) = problems(job_of(server.uri, tmp_path, SINKS[0], collection=name, checkpoint=name))
        assert f"d.{name} is {kind}, which has no change stream" in line


def test_a_server_that_does_not_answer_is_named_within_seconds(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ServerUnreachable, match=r"no server answers at 127\.0\.0\.1:9"):
        check_job(job_of("mongodb://127.0.0.1:9/", tmp_path, SINKS[0]))
    assert time.monotonic() - began < 15


def test_a_check_says_what_is_wrong_in_a_line_each(
    server: headrace.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(server.uri, tmp_path, *SINKS)
    assert problems(job) == []
    assert not job.checkpoint.exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("headrace.spark.session.jvm.find_spec", lambda name: None)
    assert "Spark needs Java" in machine_problems(job)[0] and machine_problems(job, starts_spark=False) == []
    with pytest.raises(CannotStart, match="Spark needs Java"):
        run_job(job)
    letters = replace(job, deadletter=str(tmp_path / "file/letters"))
    assert machine_problems(letters, starts_spark=False) == [
        f"{tmp_path}/file/letters is no folder that can be made: {tmp_path}/file is a file"
    ]
    down = job_of("mongodb://127.0.0.1:9/", tmp_path, {"kind": "changes", "path": "file/inside"})
    lines = problems(down)
    assert [len(line.splitlines()) for line in lines] == [1, 1, 1]
    assert "is a file" in lines[0] and "Spark needs Java" in lines[1] and "no server answers" in lines[2]


def test_a_check_says_that_the_metrics_have_no_address_unless_the_job_runs(
    server: headrace.Server, tmp_path: Path
) -> None:
    job = job_of(server.uri, tmp_path, SINKS[0])
    with serve(JobMetrics("other"), ("127.0.0.1", 0)) as port:
        job = replace(job, metrics=("127.0.0.1", port or 0))
        (line,) = problems(job)
        assert line == f"AddressRefused: metrics cannot be served at 127.0.0.1:{port}: Address already in use"
        with job_lock(job):
            assert problems(job) == []
    assert problems(job) == []


def test_a_check_names_a_position_that_is_gone_and_a_server_without_an_oplog(
    server: headrace.Server, tmp_path: Path
) -> None:
    insert(server.uri, 1, 2)
    job = job_of(server.uri, tmp_path, SINKS[0])
    ran(job)
    insert(server.uri, *range(3, 9))
    prune_to(server, 2)
    assert ["286" in line for line in problems(job)] == [True]
    with headrace.Server(oplog=False) as alone:
        (line,) = problems(job_of(alone.uri, tmp_path / "other", SINKS[0]))
        address = alone.address
    assert line == (
        f"StreamRefused: {address} has no oplog, and so no change streams: they need a replica set (of "
        "Headrace: no --no-oplog)"
    )


def test_before_its_first_run_a_job_has_nothing_to_verify(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, *SINKS)
    assert {(each.equal, each.description) for each in verify_job(job)} == {
        (None, "nothing yet: the job has committed nothing to it")
    }
    assert "trigger: as events arrive, until stopped; batches of any size" in list(explain_lines(job))


def test_a_collection_made_anew_between_two_runs_is_named_and_its_events_decide(
    server: headrace.Server, tmp_path: Path
) -> None:
    """The one was dropped, or another one was renamed to its name."""
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, *SINKS)
    assert ran(job).notices == ()
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.d.c.drop()
        insert(server.uri, 2)
        (notice,) = check_job(job).notices
        assert notice.startswith("d.c on 127.0.0.1") and "dropped or replaced since the last start" in notice
        assert ran(job, number=1).notices == (notice,)
        client.d.other.insert_one({"_id": 3})
        client.d.other.rename("c", dropTarget=True)
        assert check_job(job).notices == (notice,)


@pytest.mark.parametrize("policy", ["fail", "resnapshot"])
def test_another_collection_without_an_event_that_says_so_is_a_position_lost(
    server: headrace.Server, tmp_path: Path, policy: str
) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, *SINKS, onPositionLost=policy)
    record = ran(job).record
    known = {name: {**each, "uuid": "00" * 16} for name, each in record.collections.items()}
    write_record(job.checkpoint, replace(record, collections=known))
    with pytest.raises(CollectionReplaced, match=r"another collection .* than the one that was read .0000"):
        check_job(job)
    if policy == "fail":
        with pytest.raises(CollectionReplaced):
            begin(job)
    else:
        again = begin(job)
        assert again.record.snapshot and again.source_options()["startingposition"] == "snapshot"
        assert again.record.collections == record.collections | again.record.collections


def test_a_collection_that_is_gone_without_an_event_is_a_position_lost(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, *SINKS)
    record = ran(job).record
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.d.c.drop()
        assert len(check_job(job).notices) == 1
        (name,) = record.collections
        uuid = record.collections[name]["uuid"]
        # As if the drop had been before the last start, and so without an event since.
        write_record(job.checkpoint, replace(check_job(job).record, collections={name: now(client, uuid)}))
        with pytest.raises(CollectionReplaced, match=r"d\.c on .* is gone, and no event says that it was dropped"):
            check_job(job)


def test_a_collection_that_is_made_after_the_start_is_known_from_the_first_batch_on(
    server: headrace.Server, tmp_path: Path
) -> None:
    job = job_of(server.uri, tmp_path, *SINKS)
    record = begin(job).record
    assert [each["uuid"] for each in record.collections.values()] == [""]
    seen = SeenCollections(job.options, record)
    insert(server.uri, 1)
    record = seen.after(record, ())
    assert record.collections == begin(job).record.collections | record.collections
    assert [len(each["uuid"]) for each in record.collections.values()] == [32]


def test_a_collection_made_anew_while_the_job_runs_is_known_when_its_end_is_committed(
    server: headrace.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, *SINKS)
    first = ran(job).record
    seen, stream = SeenCollections(job.options, first), ServerStream(job.options)
    start = ServerOffset(stream.mongodb.resolve(StreamPosition("latest"))).document()
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.d.c.drop()
    insert(server.uri, 2)
    end = stream.latest_offset(start)
    again = noted(job, first, seen, (), server_positions(end))
    assert read_record(job.checkpoint) == again
    assert identities(again) == identities(check_job(job).record) != identities(first)
    assert check_job(job).notices == ()
    # What follows is a snapshot, whose batches end at the same token: nobody is asked again.
    monkeypatch.setattr(MongoDBStream, "now", None)
    following = stream.latest_offset(end)
    assert following["token"] == end["token"] != start["token"]
    assert noted(job, again, seen, (), server_positions(following)) == again
    stream.close()


def identities(record: JobRecord) -> list[str]:
    return [each["uuid"] for each in record.collections.values()]


def now(client: MongoClient[dict[str, Any]], uuid: str) -> dict[str, Any]:
    """The identity of a collection that was there a moment ago."""
    client.d.other.insert_one({})
    return {"uuid": uuid, "since": from_timestamp(client.admin.command("ping")["operationTime"])}


def test_a_table_of_another_collection_is_no_beginning_for_a_job_without_a_snapshot(
    server: headrace.Server, tmp_path: Path
) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, {"kind": "mirror"})
    ran(job)
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.d.c.drop()
        insert(server.uri, 2)
        since = datetime.now(UTC) + timedelta(seconds=1)
        while client.admin.command("ping")["operationTime"].time <= since.timestamp():
            client.d.other.insert_one({})
    shutil.rmtree(job.checkpoint)
    later = job_of(server.uri, tmp_path, {"kind": "mirror"}, startingPosition=since.isoformat())
    with pytest.raises(CollectionReplaced, match="snapshot"):
        check_job(later)
    earliest = job_of(server.uri, tmp_path, {"kind": "mirror"}, startingPosition="earliest")
    assert len(check_job(earliest).notices) == 1


def test_a_checkpoint_of_an_earlier_version_learns_which_collection_it_is_of(
    server: headrace.Server, tmp_path: Path
) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, *SINKS)
    record = ran(job).record
    path = job.checkpoint / NAME
    earlier = json.loads(path.read_text())
    del earlier["collections"]
    path.write_text(json.dumps(earlier))
    assert begin(job).record.collections.keys() == record.collections.keys()
