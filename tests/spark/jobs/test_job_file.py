"""A job's file, parsed whole before Spark is started; the figures; the command line without Spark."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from bson.datetime_ms import DatetimeMS

from headrace.cli.main import main
from headrace.spark import Window
from headrace.spark.errors import error_line
from headrace.spark.jobs.checkpoint import Checkpoint, JobRecord, read_checkpoint, server_positions
from headrace.spark.jobs.job_file import Job, JobError, parse_job, read_job
from headrace.spark.jobs.job_model import Trigger
from headrace.spark.jobs.job_stages import server_stages, spark_stages
from headrace.spark.jobs.machine_checks import machine_problems
from headrace.spark.jobs.metrics import AddressRefused, JobMetrics, serve
from headrace.spark.jobs.report import explain_lines
from headrace.spark.jobs.runner import (
    JobRunning,
    SparkEnded,
    _Run,
    job_lock,
    reset_job,
    run_job,
    running_process,
    source_options,
)
from headrace.spark.jobs.start_checks import CheckedJob
from headrace.spark.sinks import foreach_batch
from headrace.spark.sinks.file_values import FileError
from headrace.spark.sinks.foreach_batch import wait_for_sinks
from headrace.spark.sinks.sink_options import KINDS, SinkError

pytestmark = pytest.mark.long

GIVEN = """
checkpoint = "notes"
[source]
uri = "mongodb://localhost"
database = "shop"
collection = "orders"
startingPosition = "snapshot"
maxRowsPerTrigger = 500
showExpandedEvents = true
[trigger]
every = "2 seconds"
[metrics]
port = 0
[[sink]]
kind = "changes"
path = "changes"
[[sink]]
kind = "mirror"
path = "mirror"
buckets = 4
policy = "keep"
[[sink]]
kind = "mongodb"
uri = "mongodb://elsewhere"
"""


def job_of(text: str, folder: Path) -> Job:
    return parse_job(tomllib.loads(text), "orders", folder)


def test_every_key_of_a_job_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(GIVEN)
    job = read_job(tmp_path / "orders.toml")
    assert (job.name, job.checkpoint, job.every, job.metrics) == (
        "orders", tmp_path / "notes", "2 seconds", ("127.0.0.1", 0)
    )  # fmt: skip
    assert (job.source["maxrowspertrigger"], job.source["showexpandedevents"]) == ("500", "true")
    assert [str(sink) for sink in job.sinks] == [
        f"changes {tmp_path / 'changes'}", f"mirror {tmp_path / 'mirror'}", "mongodb mongodb://elsewhere",
    ]  # fmt: skip
    assert (job.sinks[2].options["database"], job.sinks[2].options["collection"]) == ("shop", "orders")
    assert job.folds and job.trigger == {"processingTime": "2 seconds"}


def test_paths_of_the_source_are_relative_to_the_file(tmp_path: Path) -> None:
    job = job_of(GIVEN.replace("showExpandedEvents = true", 'Archive = "events"'), tmp_path)
    assert job.options.archive == str(tmp_path / "events")


@pytest.mark.process
def test_a_data_directory_is_a_source_like_a_server(tmp_path: Path) -> None:
    job = job_of(GIVEN.replace('uri = "mongodb://localhost"', 'path = "data"', 1), tmp_path)
    job = replace(job, source={name: text for name, text in job.source.items() if name != "showexpandedevents"})
    assert (tmp_path / "data").is_dir()
    assert source_options(job)["showRawUpdateDescription"] == "true"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "changes"', 'kind = "chnages"', "one of changes, documents, history"),
        ('path = "changes"', "", "needs 'path'"),
        ("buckets = 4", "bucket = 4", "has no 'bucket'.* did you mean 'buckets'"),
        ('"keep"', '"ignore"', "one of follow, keep, fail"),
        ("[trigger]\nevery", "[trigger]\nevry", "has no 'evry'"),
        ('checkpoint = "notes"', "", "needs 'checkpoint'"),
        ('uri = "mongodb://elsewhere"', 'uri = "mongodb://localhost"', "into the source itself"),
        ("[trigger]", "[pipeline]\nstages = '[{\"$match\": {}}]'\n[trigger]", "takes no pipeline"),
        ("[trigger]", "[pipeline]\nstages = '{'\n[trigger]", "not JSON"),
        ("maxRowsPerTrigger = 500", "maxRows = 500", "has no 'maxRows'; did you mean"),
        ('collection = "orders"', "", "each collection has another table"),
    ],
)
def test_an_invalid_job_is_refused_before_anything_is_started(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        job_of(GIVEN.replace(old, new, 1), tmp_path)


GROUP = '{"$group": {"_id": {"$dateTrunc": {"date": "$clusterTime", "unit": "month"}}, "n": {"$count": {}}}}'
LOOKUP = '{"$lookup": {"from": "regions", "localField": "a", "foreignField": "b", "as": "c"}}'
DOCUMENTS = """
checkpoint = "notes"
[source]
uri = "mongodb://localhost"
database = "shop"
collection = "orders"
startingPosition = "earliest"
[pipeline]
stages = '''[{"$match": {"operationType": "insert"}}, {"$set": {"b": 1}}, STAGE]'''
[pipeline.tables.regions]
path = "regions"
[[sink]]
kind = "documents"
path = "hours"
"""


@pytest.mark.parametrize("kind", ["changes", "history", "mirror", "mongodb", "parquet"])
@pytest.mark.parametrize("stage", [GROUP, LOOKUP])
def test_a_sink_of_events_refuses_what_makes_documents_by_the_stages_name(
    tmp_path: Path, kind: str, stage: str
) -> None:
    position = 'uri = "mongodb://elsewhere"' if kind == "mongodb" else 'path = "x"'
    text = DOCUMENTS.replace("STAGE", stage) + f'[[sink]]\nkind = "{kind}"\n{position}\n'
    with pytest.raises(ValueError, match=rf"\{stage[2:8]}.* makes documents, and the sink '{kind}' takes events"):
        job_of(text, tmp_path)


@pytest.mark.parametrize(
    ("stage", "old", "new", "message"),
    [
        ('{"$sort": {"a": 1}}', "", "", r"\$sort cannot be run on Spark"),
        ('{"$group": {"_id": "$a"}}', "", "", r"\$group.* window"),
        (LOOKUP, "tables.regions", "tables.others", "tables="),
        (
            LOOKUP,
            'path = "regions"',
            'paths = "regions"',
            "regions.* has no 'paths'; it has document, format, options, path",
        ),
        (GROUP, '"earliest"', '"snapshot"', r"\$group: .*begin at a position"),
        (GROUP, "[pipeline]", 'columns = "token"\n[pipeline]', r"\$group: .*whole events"),
        (GROUP.replace("$clusterTime", "$wallTime"), "", "", "delay"),
        ('{"$set": {"n": {"$nothing": 1}}}', "", "", "nothing"),
        ('{"$set": {"n": 1}}', 'kind = "documents"', 'kind = "documents"\ntable = "csv"', "delta, parquet"),
    ],
)
def test_invalid_stages_that_make_documents_are_refused_with_the_reason(
    tmp_path: Path, stage: str, old: str, new: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        job_of(DOCUMENTS.replace("STAGE", stage).replace(old, new, 1), tmp_path)


def test_only_filters_go_to_the_server_before_stages_that_make_documents(tmp_path: Path) -> None:
    job = job_of(DOCUMENTS.replace("STAGE", GROUP), tmp_path)
    assert [list(stage) for stage in server_stages(job)] == [["$match"]]
    explanation = "\n".join(explain_lines(job))
    assert 'server cursor      {"$match"' in explanation
    assert 'Spark evaluator    {"$set"' in explanation
    assert 'Spark aggregation  {"$group"' in explanation
    assert 'bins of 1 month in UTC, watermark on "$clusterTime" less 0 seconds' in explanation
    assert explanation.endswith(f"sink: documents {tmp_path / 'hours'}")


def test_a_window_and_a_delay_are_read_from_the_file(tmp_path: Path) -> None:
    group = '{"$group": {"_id": "$a", "n": {"$count": {}}}}'
    window = 'window = "1 hour"\nslide = "10 minutes"\ndate = "$wallTime"\ndelay = "5 seconds"\n[pipeline.tables'
    job = job_of(DOCUMENTS.replace("STAGE", group).replace("[pipeline.tables", window), tmp_path)
    assert job.window == Window("1 hour", "10 minutes", "$wallTime", "5 seconds")
    assert 'window 1 hour, watermark on "$wallTime" less 5 seconds' in "\n".join(explain_lines(job))


def test_values_of_stages_are_extended_json_in_text_and_in_toml(tmp_path: Path) -> None:
    stage = '{"$match": {"fullDocument.d": {"$gt": {"$date": {"$numberLong": "5"}}}}}'
    assert spark_stages(job_of(DOCUMENTS.replace("STAGE", stage), tmp_path))[1]["$match"] == {
        "fullDocument.d": {"$gt": DatetimeMS(5)}
    }


SEVERAL = """
checkpoint = "notes"
[source]
uri = ["mongodb://one", "mongodb://two"]
database = "shop"
collection = "orders"
[[sink]]
kind = "changes"
path = "changes"
"""


def test_several_servers_go_into_tables_whose_rows_name_their_server_and_into_nothing_else(tmp_path: Path) -> None:
    assert len(job_of(SEVERAL, tmp_path).options.servers) == 2
    with pytest.raises(JobError, match=r"mongodb: .*of one server; take mirror or history"):
        job_of(SEVERAL.replace('"changes"\npath = "changes"', '"mongodb"\nuri = "mongodb://three"'), tmp_path)
    snapshot = SEVERAL.replace("database", 'startingPosition = "snapshot"\ndatabase')
    for kind in ("history", "mirror"):
        job = job_of(snapshot.replace('"changes"\npath', f'"{kind}"\npath'), tmp_path)
        assert job.folds and job.options.others
    letters = snapshot.replace('"changes"\npath', '"mirror"\npath').replace(
        "[source]", 'errors = "deadletter"\ndeadletter = "letters"\n[source]'
    )
    with pytest.raises(JobError, match="rows of one server"):
        job_of(letters, tmp_path)
    skipping = SEVERAL.replace("database", 'onServerDown = "skip"\ndatabase')
    assert job_of(skipping, tmp_path).options.on_server_down == "skip"
    staged = skipping.replace("[[sink]]", '[pipeline]\nstages = \'[{"$match": {"fullDocument.a": 1}}]\'\n[[sink]]')
    with pytest.raises(JobError, match="comes late"):
        job_of(staged, tmp_path)


def test_a_missing_or_malformed_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("= 1")
    for name in ("bad.toml", "none.toml"):
        with pytest.raises(JobError, match=name):
            read_job(tmp_path / name)


def test_only_one_process_runs_a_job_and_a_reset_waits_for_none(tmp_path: Path) -> None:
    job = job_of(GIVEN.replace("mongodb://elsewhere", "mongodb://127.0.0.1:1"), tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "changes").mkdir()
    with job_lock(job):
        assert running_process(job)
        with pytest.raises(JobRunning, match="runs in process"):
            reset_job(job)
    assert running_process(job) is None
    assert reset_job(job) == (str(tmp_path / "notes"),)
    assert (tmp_path / "changes").exists()


def test_who_looks_whether_a_job_runs_keeps_it_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the lock for a moment, and the status by which a second run ends is final to a supervisor."""
    tries = []

    def flock(file: int, how: int) -> None:
        tries.append(file)
        if len(tries) < 3:
            raise BlockingIOError

    monkeypatch.setattr("headrace.spark.jobs.runner.fcntl.flock", flock)
    job = job_of(GIVEN, tmp_path)
    with job_lock(job):
        assert len(tries) == 3
    tries.clear()
    with pytest.raises(JobRunning), job_lock(job, 0):
        pass


def test_a_custom_sink_is_a_function_that_can_be_imported(tmp_path: Path) -> None:
    custom = '[[sink]]\nkind = "own"\nfactory = "headrace.spark.sinks.log_sink:changes_sink"\npath = "x"'
    sink = job_of(GIVEN + custom, tmp_path).sinks[-1]
    assert sink.open() and not sink.folds
    with pytest.raises(SinkError, match="can be imported"):
        job_of(GIVEN + custom.replace(":changes_sink", ":nothing"), tmp_path).sinks[-1].open()
    assert list(KINDS) == sorted(KINDS)


@pytest.mark.parametrize("action", ["status", "verify"])
def test_an_unreachable_server_is_an_error_of_one_line(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes" / "commits").mkdir(parents=True)
    (tmp_path / "notes" / "offsets").mkdir()
    (tmp_path / "notes" / "commits" / "0").write_text("v1\n{}")
    (tmp_path / "notes" / "offsets" / "0").write_text('v1\n{}\n{"token": "826B01AC9E000000022B0429296E1404"}')
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"mongodb://127.0.0.1:{closed.getsockname()[1]}/?serverSelectionTimeoutMS=50"
    given = GIVEN[: GIVEN.index('[[sink]]\nkind = "mongodb"')].replace("mongodb://localhost", uri)
    (tmp_path / "orders.toml").write_text(given.replace("showExpandedEvents = true\n", ""))
    status = main(["pipeline", action, str(tmp_path / "orders.toml")])
    out, err = capsys.readouterr()
    assert status == 1
    assert "Connection refused" in (out if action == "status" else err)
    assert "Topology" not in out + err and "Traceback" not in out + err


def test_an_error_of_several_lines_is_one() -> None:
    error = OSError("Generic S3 error\n   \x1b[31m↳\x1b[0m Error performing GET\n    \x1b[31m↳\x1b[0m refused\n")
    assert error_line(error) == "OSError: Generic S3 error Error performing GET refused"


def test_a_checkpoint_is_read_without_spark(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) == Checkpoint()
    for name in ("offsets/0", "offsets/1", "commits/0", "commits/.0.crc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('v1\n{}\n{"token": "82AA"}')
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.planned, checkpoint.committed) == (1, 0)
    assert [position.token.text for position in server_positions(checkpoint.offset)] == ["82AA"]
    several = {"servers": {"a:1": {"token": "82BB"}, "b:1": {"token": "82AA"}, "c:1": {"token": "82CC", "after": ""}}}
    assert [(position.server, position.in_snapshot) for position in server_positions(several)] == [
        ("c:1", True), ("b:1", False), ("a:1", False),
    ]  # fmt: skip
    assert server_positions(None) == server_positions({"servers": {}}) == []


def test_metrics_have_the_format_of_prometheus() -> None:
    metrics = JobMetrics('a "job"')
    metrics.ended(3, 500, 0.5)
    with serve(metrics, ("127.0.0.1", 0)) as port, urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    assert 'headrace_pipeline_rows_per_second{job="a \\"job\\""} 1000.0\n' in text
    assert "# TYPE headrace_pipeline_rows_total counter\n" in text
    assert "lag_events" not in text
    assert metrics.line().startswith('a "job": batch 3, 500 rows, 1000 rows/s')


def test_explain_and_status_need_neither_spark_nor_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(GIVEN.partition('[[sink]]\nkind = "mongodb"')[0])
    assert main(["pipeline", "explain", str(file)]) == 0
    assert main(["pipeline", "status", str(file)]) == 0
    output = capsys.readouterr().out
    assert "source: shop.orders, from snapshot" in output
    assert "a drop or a rename is ignored" in output
    assert "job orders: not running" in output
    assert "nothing committed yet" in output
    assert main(["pipeline", "status", str(tmp_path / "none.toml")]) == 1
    assert "none.toml" in capsys.readouterr().err


def test_a_pipeline_goes_to_the_server_as_far_as_it_can_and_not_before_a_snapshot(tmp_path: Path) -> None:
    text = GIVEN.partition('[[sink]]\nkind = "mirror"')[0]
    stages = '[{"$match": {"operationType": "insert"}}, {"$unwind": "$fullDocument.a"}]'
    text = text.replace("[trigger]", f"[pipeline]\nstages = '{stages}'\n[trigger]")
    job = job_of(text, tmp_path)
    assert server_stages(job) == ()
    assert list(spark_stages(job)[0]["$match"]) == ["$or"]
    job = job_of(text.replace('"snapshot"', '"earliest"'), tmp_path)
    assert [list(stage) for stage in (*server_stages(job), *spark_stages(job))] == [["$match"], ["$unwind"]]
    explanation = "\n".join(explain_lines(job))
    assert 'server cursor    {"$match"' in explanation and 'Spark evaluator  {"$unwind"' in explanation


def test_the_command_line_and_a_jobs_file_import_no_spark() -> None:
    modules = (
        "headrace.cli.main, headrace.spark.jobs.job_file, headrace.spark.jobs.runner, headrace.spark.jobs.job_stages"
    )
    program = f"import sys, {modules}; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_jobs_of_the_page_are_jobs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark" / "jobs.md").read_text()
    texts = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    jobs = [job_of(text, tmp_path) for text in texts if "[source]" in text]  # others show a table of a job's file
    assert [job.sinks[0].kind for job in jobs][:2] == ["changes", "documents"]


def test_a_job_whose_spark_is_gone_ends_behind_the_sink_that_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[str] = []
    writing, awaited = threading.Event(), threading.Event()

    def write() -> None:
        with foreach_batch._writing("q"):
            writing.set()
            awaited.wait()
            batches.append("the batch")

    def wait(*, query: str) -> None:
        awaited.set()
        wait_for_sinks(query=query)

    class Running(_Run):
        def start(self, session: Any) -> None:
            self._query_id = "q"
            threading.Thread(target=write, daemon=True).start()
            writing.wait()

        def watch(self, report: Any) -> None:
            raise ConnectionResetError

    monkeypatch.setattr("headrace.spark.jobs.runner._Run", Running)
    record = JobRecord("id", "shop.orders")
    monkeypatch.setattr("headrace.spark.jobs.runner.begin", lambda job: CheckedJob(job, record, Checkpoint(), ()))
    monkeypatch.setattr("headrace.spark.jobs.runner.wait_for_sinks", wait)
    job = job_of(GIVEN, tmp_path)
    with pytest.raises(SparkEnded):
        run_job(job, session=object(), report=lambda _: None)  # type: ignore[arg-type]
    assert batches == ["the batch"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('report_seconds = "often"', "'report_seconds' is a number of seconds above 0, not 'often'"),
        ("deadletter_max = []", r"'deadletter_max' is a whole number from 0 to 1000000000, not \[\]"),
        ("pipeline.tables = 3", "'tables' is a table, not 3"),
        ("spark = 3", "'spark' is a table, not 3"),
        ('metrics.port = "http"', "'port' is a port from 0 to 65535, not 'http'"),
        ("spark.cores = 0", "'cores' is a whole number from 1 to 1024, not 0"),
        ('spark.memory = "lots"', "'memory' is a size from 512m to 1024g such as '1g', not 'lots'"),
        *[
            (f'spark.memory = "{size}"', f"'memory' is a size from 512m to 1024g such as '1g', not '{size}'")
            for size in ("1k", "512", "511m", "999999999g", "0g", "2t", "1 g", "-1g")
        ],
        *[
            (
                f'trigger.every = "{every}"',
                f"'every' is an interval such as '1 second', of at most 365 days, not '{every}'",
            )
            for every in (
                "366 days",
                "99999999999999 days",
                "8760 hours 1 second",
                "-1 second",
                "1 second x",
                "interval",
            )
        ],
        ("spark.quick = 1", "'quick' is true or false, not 1"),
        ('spark.conf = "x"', "'conf' is a table of Spark's properties, each one value, not 'x'"),
        ('trigger.every = "often"', "'every' is an interval such as '1 second', of at most 365 days, not 'often'"),
        ("trigger.every = 5", "'every' is an interval such as '1 second', of at most 365 days, not 5"),
        ('trigger.availableNow = "yes"', "'availableNow' is true or false, not 'yes'"),
    ],
)
def test_a_value_that_is_not_of_its_kind_is_named_before_spark_starts(line: str, problem: str, tmp_path: Path) -> None:
    rest = 'checkpoint = "c"\nsource.uri = "mongodb://localhost"\nsink = [{kind = "changes", path = "p"}]\n'
    with pytest.raises(ValueError, match=problem):
        parse_job(tomllib.loads(f"{line}\n{rest}"), "job", tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("checkpoint", 5, "'checkpoint' is a path, not 5"),
        ("source", "mongodb://h", r"'source' is a table, not 'mongodb://h'"),
        ("sink", {"kind": "changes", "path": "p"}, r"'sink' is an array of tables: \[\[sink\]\], not"),
        ("sink", [{"kind": ["changes"], "path": "p"}], "kind is one of changes, .*, not .'changes'."),
        ("sink", [{"kind": "changes", "path": {"a": 1}}], "the sink 'changes': 'path' is a path, not .'a': 1."),
        ("sink", [{"kind": "mongodb", "uri": ["mongodb://h"]}], "'uri' is a text, not"),
        (
            "sink",
            [{"kind": "mirror", "path": "p", "schema": "infer", "flatten": 5}],
            "'flatten' is true, false, a path",
        ),
    ],
)
def test_a_table_or_a_path_that_is_none_is_named(key: str, value: Any, problem: str, tmp_path: Path) -> None:
    given = {"checkpoint": "c", "source": {"uri": "mongodb://h", "database": "d", "collection": "c"}}
    given["sink"] = [{"kind": "changes", "path": "p"}]  # type: ignore[assignment]
    with pytest.raises(ValueError, match=problem):
        parse_job(given | {key: value}, "job", tmp_path)


@pytest.mark.parametrize(
    "every",
    ["1 second", "0 seconds", "1 minute 30 seconds", "interval 5 Minutes", "0.5 seconds", "365 days", "1 day 2 HOURS "],
)
def test_intervals_are_those_of_spark(every: str) -> None:
    assert Trigger.of({"every": every}, "[trigger]").every == every


def test_a_file_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        read_job(tmp_path / "none.toml")
    assert str(caught.value) == f"{tmp_path / 'none.toml'}: No such file or directory"


def test_what_would_be_one_file_or_no_array_is_refused(tmp_path: Path) -> None:
    source = {"uri": "mongodb://h", "database": "d", "startingPosition": "snapshot"}
    one = {"kind": "mirror", "path": "m/{collection}", "schema": "infer", "schema_file": "columns"}

    def job(*sinks: dict[str, Any], **source_: Any) -> Job:
        return parse_job({"checkpoint": "c", "source": source | source_, "sink": list(sinks)}, "job", tmp_path)

    with pytest.raises(JobError, match=r"columns' needs \{collection\}"):
        job(one)
    named = [{**one, "path": name, "schema_file": "columns"} for name in ("m", "n")]
    with pytest.raises(SinkError, match=r"schema_file of .* have one path"):
        job(*named, collection="c")
    with pytest.raises(FileError, match="'omit' is an array of paths"):
        job({**one, "schema_file": "{collection}.columns", "omit": "card"})
    sink = job({**one, "schema_file": "{collection}.columns", "cluster": "city"}).sinks[0]
    assert sink.options["cluster"] == ["city"]


def test_an_address_in_use_for_metrics_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(AddressRefused, match="Address already in use"), serve(JobMetrics("job"), address):
            pass


def test_missing_jars_and_catalogs_are_named_before_spark_starts(tmp_path: Path) -> None:
    jars = f"{tmp_path / 'none.jar'},https://example.com/other.jar"
    conf = {"spark.jars": jars, "spark.sql.catalog.ice": "a.Missing"}
    source = {"uri": "mongodb://h", "database": "d", "collection": "c", "startingPosition": "snapshot"}
    sinks = [{"kind": "mirror", "table": table} for table in ("lake.d.c", "ice.d.c", "d.c")]
    given = {"checkpoint": "c", "source": source, "sink": sinks, "spark": {"conf": conf}}
    lines = machine_problems(parse_job(given, "job", tmp_path))
    assert lines == [
        f"the jar {tmp_path / 'none.jar'} is not there",
        "mirror lake.d.c: there is no catalog 'lake': the file's [spark] conf has no spark.sql.catalog.lake",
        "mirror ice.d.c: no jar has the class a.Missing of the catalog 'ice': add it to spark.jars",
    ]
    conf["spark.sql.catalog.ice"] = "org.apache.spark.sql.SparkSession"
    conf["spark.sql.catalog.lake"] = conf["spark.sql.catalog.ice"]
    del conf["spark.jars"]
    assert machine_problems(parse_job(given, "job", tmp_path)) == []
