"""A job's stages: which the server runs, which Spark runs, whether they make documents, and the tables they look into.

Rule: what a job's stages cannot do, or its sinks cannot take, is reported with the stage's name before Spark starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.clock import SystemClock
from headrace.errors import CommandError
from headrace.spark.pipelines.refusals import IN_STREAM, StageRefused
from headrace.spark.rows.events import SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.tables.delta_files import files_between
from headrace.spark.tables.table_location import location_of, resolved_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.jobs.job_file import Job
    from headrace.spark.pipelines.explain import Explanation

Document = dict[str, Any]

_MAKING: Final = frozenset({"$group", "$lookup"})
"""Stages that make no events of events."""


def document_maker(job: Job) -> str | None:
    """The stage or the sink by which the job's rows are documents; None if they are events."""
    stage = next((name for stage in job.stages if (name := next(iter(stage), "")) in _MAKING), None)
    return stage or next((f"the sink {sink.kind!r}" for sink in job.sinks if sink.takes == "documents"), None)


def server_stages(job: Job) -> tuple[Document, ...]:
    """The stages of the job's pipeline that the server runs: as many as a change stream allows.

    Only filters, when the rest makes documents, which need not keep an event's `_id`. None when the job begins with a
    snapshot, whose documents do not come by the stream.
    """
    if job.options.start.kind == "snapshot":
        return ()
    # What is masked is masked behind the server: a stage there could give it another name. One that fails there ends
    # the stream, whatever row it was.
    only_filters = document_maker(job) or "mask" in job.source or reports_failures(job)
    allowed = {"$match"} if only_filters else IN_STREAM
    cannot = reports_failures(job)
    return tuple(
        takewhile(
            lambda stage: next(iter(stage), "") in allowed and not (cannot and "'$expr'" in repr(stage)), job.stages
        )
    )


def pipeline_text(job: Job) -> str:
    """Settings, as JSON, that decide which rows the job makes of events: stages of job and source, window, tables."""
    window = asdict(job.window) if job.window else None
    stages = [*loads(job.source.get("pipeline", "[]")), *job.stages]
    tables = {name: dict(table) for name, table in sorted(job.tables.items())}
    return dumps({"stages": stages, "window": window, "delay": job.delay, "tables": tables})


def reports_failures(job: Job) -> bool:
    """Whether rows on which the stages fail go to the dead letters: those of groups are not of one event."""
    return bool(job.deadletter) and not any("$group" in stage for stage in job.stages)


def spark_stages(job: Job) -> list[Document]:
    """The rest of them, run by Spark; filters let the first and the last row of a snapshot pass."""
    rest = job.stages[len(server_stages(job)) :]
    if job.options.start.kind != "snapshot":
        return list(rest)
    marks = {"operationType": {"$in": [SNAPSHOT_BEGIN, SNAPSHOT_END]}}
    return [{"$match": {"$or": [marks, stage["$match"]]}} if "$match" in stage else stage for stage in rest]


def explained(job: Job) -> Explanation:
    """Where each stage runs. Raises StageRefused, `CommandError`."""
    from headrace.spark import explain

    source_stages = loads(job.source.get("pipeline", "[]"))
    source = {"pipeline": [*source_stages, *server_stages(job)], "documents": job.options.documents}
    return explain(spark_stages(job), source, tables=tuple(job.tables), window=job.window, delay=job.delay)


def check_stages(job: Job) -> None:
    """Raises ValueError for stages that Spark or the job's sinks cannot take."""
    maker = document_maker(job)
    for sink in job.sinks:
        if maker in _MAKING and sink.takes == "events":
            advice = "take the sink 'documents', or one of your own"
            raise ValueError(f"{maker} makes documents, and the sink {sink.kind!r} takes events: {advice}")
        if maker and sink.takes == "events":
            raise ValueError(f"{maker} takes documents, and the sink {sink.kind!r} events: split it into two jobs")
    if maker and job.options.start.kind == "snapshot":
        raise ValueError(f"{maker}: documents are made of events, and a snapshot's rows are none; begin at a position")
    if maker and job.options.columns:
        raise ValueError(f"{maker}: documents are made of whole events; leave out the source's option columns")
    if maker and job.options.documents == "columns":
        raise ValueError(f"{maker}: documents are made of events as extjson or bson, not of typed columns")
    if not (job.stages or job.tables or job.window or job.delay or "pipeline" in job.source):
        # Planning stages imports the server's, which takes longer than all else that is checked.
        return
    try:
        explained(job)
    except (CommandError, StageRefused) as error:
        raise ValueError(f"[pipeline] {error}") from None


def apply_stages(job: Job, rows: DataFrame, session: SparkSession) -> DataFrame:
    """The rows after the stages that Spark runs."""
    from headrace.spark import pipeline

    stages = spark_stages(job)
    if not document_maker(job):
        return pipeline(rows, stages, output="events", failures=reports_failures(job)) if stages else rows
    tables = {
        name: (open_lookup_table(given, session), given.get("document", "document"))
        for name, given in job.tables.items()
    }
    failures = reports_failures(job)
    return pipeline(rows, stages, tables=tables, window=job.window, delay=job.delay, failures=failures)


def stages_again(job: Job, row: dict[str, Any]) -> pa.Table:
    """Return what the stages make now of a row on which they have failed. Raises the stage's CommandError.

    Raises StageRefused for stages that join a table.
    """
    if any("$lookup" in stage for stage in job.stages):
        raise StageRefused("$lookup needs a table of Spark's, which a replay does not have")
    import pyarrow as pa

    from headrace.spark.pipelines.evaluate import FAILED, DocumentReader, MakeDocuments, RewriteEvents
    from headrace.spark.pipelines.program import Program, Setting, canonical

    given = {name: value for name, value in row.items() if name != FAILED}
    setting = Setting(canonical({"NOW": DatetimeMS(SystemClock().now_ms())}))
    program = Program.of([canonical(stage) for stage in spark_stages(job)], setting)
    columns = tuple(given)
    run: MakeDocuments | RewriteEvents
    if "document" in given:
        carried = tuple(name for name in columns if name != "document")
        run = MakeDocuments(DocumentReader("document"), program, carried, "document")
    else:
        run = RewriteEvents(DocumentReader(), program, columns)
    moment, number = pa.timestamp("us", "UTC"), pa.int64()
    kinds = {"clusterTime": moment, "wallTime": moment, "clusterTimeIncrement": number, "txnNumber": number}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in columns])
    return pa.Table.from_batches(list(run(iter(pa.Table.from_pylist([given], schema=schema).to_batches()))))


def checked_lookup_tables(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The tables of a job's file; relative paths are in `folder`. Raises ValueError."""
    if nowhere := [name for name, table in given.items() if not {"format", "path"} & table.keys()]:
        raise ValueError(f"[pipeline.tables.{nowhere[0]}] needs 'path', or 'format'")
    return {
        name: table | ({"path": resolved_path(table["path"], folder)} if "path" in table else {})
        for name, table in given.items()
    }


def open_lookup_table(given: Mapping[str, Any], session: SparkSession) -> DataFrame:
    """A table as it is now; a Delta table is read by `deltalake`, so Spark needs no Delta jars."""
    if given.get("format") == "delta":
        return _delta_table(given["path"], session)
    reader = session.read.format(given.get("format", "parquet")).options(**given.get("options", {}))
    return reader.load(given["path"]) if "path" in given else reader.load()


def _delta_table(path: str, session: SparkSession) -> DataFrame:
    location = location_of(path)
    table = location.table()
    if table is None:
        raise ValueError(f"there is no Delta table at {path}")
    if location.in_store:
        # Spark cannot read an object store without jars.
        return session.createDataFrame(table.to_pyarrow_table())
    return session.read.parquet(*(f"{location}/{name}" for name in files_between(table, "", None)))
