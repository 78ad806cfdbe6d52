"""A job's stages: which of them the server or Spark runs, whether they make documents, and the tables they look up.

Rule: a stage that cannot run, or whose rows a sink cannot take, is reported by name before Spark starts.
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
from headrace.spark.sinks.file_values import FileError, Place
from headrace.spark.tables.checked_paths import LocationError
from headrace.spark.tables.delta_files import files_between
from headrace.spark.tables.table_location import location_of, resolved_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.jobs.job_file import Job
    from headrace.spark.pipelines.plan import Explanation

Document = dict[str, Any]

_MAKING: Final = frozenset({"$group", "$lookup"})
"""Stages whose output is not events."""


def document_maker(job: Job) -> str | None:
    """Return the stage or sink that makes the job's rows documents; None if the rows are events."""
    stage = next((name for stage in job.stages if (name := next(iter(stage), "")) in _MAKING), None)
    return stage or next((f"the sink {sink.kind!r}" for sink in job.sinks if sink.takes == "documents"), None)


def server_stages(job: Job) -> tuple[Document, ...]:
    """Return the stages that the server runs: the first ones, as many as a change stream allows.

    If the rest makes documents, only filters, because the other stages could drop an event's `_id`. If the job begins
    with a snapshot, none, because the snapshot's documents do not come through the stream.
    """
    if job.options.start.kind == "snapshot":
        return ()
    # Values are masked after they leave the server, and a stage there could move a value to another path. A stage that
    # fails there ends the stream, whichever row it failed on.
    only_filters = document_maker(job) or "mask" in job.source or reports_failures(job)
    allowed = {"$match"} if only_filters else IN_STREAM
    cannot = reports_failures(job)
    return tuple(
        takewhile(
            lambda stage: next(iter(stage), "") in allowed and not (cannot and "'$expr'" in repr(stage)), job.stages
        )
    )


def pipeline_text(job: Job) -> str:
    """Return, as JSON, the settings that decide which rows the job makes: stages, window, delay, tables."""
    window = asdict(job.window) if job.window else None
    stages = [*loads(job.source.get("pipeline", "[]")), *job.stages]
    tables = {name: dict(table) for name, table in sorted(job.tables.items())}
    return dumps({"stages": stages, "window": window, "delay": job.delay, "tables": tables})


def reports_failures(job: Job) -> bool:
    """Whether rows on which the stages fail go to the dead letters; not with `$group`, whose rows have many events."""
    return bool(job.deadletter) and not any("$group" in stage for stage in job.stages)


def spark_stages(job: Job) -> list[Document]:
    """Return the other stages, which Spark runs; filters let the first and last rows of a snapshot pass."""
    rest = job.stages[len(server_stages(job)) :]
    if job.options.start.kind != "snapshot":
        return list(rest)
    marks = {"operationType": {"$in": [SNAPSHOT_BEGIN, SNAPSHOT_END]}}
    return [{"$match": {"$or": [marks, stage["$match"]]}} if "$match" in stage else stage for stage in rest]


def explained(job: Job) -> Explanation:
    """Return where each stage runs. Raise StageRefused, `CommandError`."""
    from headrace.spark import explain

    source_stages = loads(job.source.get("pipeline", "[]"))
    source = {"pipeline": [*source_stages, *server_stages(job)], "documents": job.options.documents}
    return explain(spark_stages(job), source, tables=tuple(job.tables), window=job.window, delay=job.delay)


def refused_stages(job: Job) -> tuple[str, Place] | None:
    """Return why Spark or the job's sinks cannot take the stages, and where in the file; None if they can."""
    maker, stages = document_maker(job), ("pipeline", "stages")
    for number, sink in enumerate(job.sinks):
        if maker in _MAKING and sink.takes == "events":
            advice = "take the sink 'documents', or one of your own"
            return f"{maker} makes documents, and the sink {sink.kind!r} takes events: {advice}", stages
        if maker and sink.takes == "events":
            return f"{maker} takes documents, and the sink {sink.kind!r} events: split it into two jobs", (
                "sink",
                number,
                "kind",
            )
    if maker and job.options.start.kind == "snapshot":
        problem = f"{maker}: documents are made of events, and a snapshot's rows are none; begin at a position"
        return problem, ("source", "startingPosition")
    if maker and job.options.columns:
        problem = f"{maker}: documents are made of whole events; leave out the source's option columns"
        return problem, ("source", "columns")
    if maker and job.options.documents == "columns":
        problem = f"{maker}: documents are made of events as extjson or bson, not of typed columns"
        return problem, ("source", "documents")
    if not any("$group" in stage for stage in job.stages):
        for name, value in (("window", job.window), ("delay", job.delay)):
            if value:
                return f"[pipeline]: {name!r} is for $group, and no stage is one", ("pipeline", name)
    if not (job.stages or job.tables or job.delay or "pipeline" in job.source):
        # Planning stages imports the server's pipeline code, which takes longer than all other checks.
        return None
    try:
        explained(job)
    except (CommandError, StageRefused) as error:
        return f"[pipeline] {error}", stages if job.stages else ("source", "pipeline")
    return None


def apply_stages(job: Job, rows: DataFrame, session: SparkSession) -> DataFrame:
    """Return the rows after the stages that Spark runs."""
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
    """Apply the stages again to a row on which they failed, and return the result. Raise the stage's CommandError.

    Raise StageRefused for stages that join a table.
    """
    if any("$lookup" in stage for stage in job.stages):
        raise StageRefused("$lookup needs a table of Spark's, which a replay does not have")
    import pyarrow as pa

    from headrace.spark.pipelines.evaluate import FAILED, DocumentReader, MakeDocuments, RewriteEvents
    from headrace.spark.pipelines.program import Program, Setting, canonical

    given = {name: value for name, value in row.items() if name != FAILED}
    setting = Setting(canonical({"NOW": DatetimeMS(SystemClock().now_ms())}))
    program = Program(tuple(map(canonical, spark_stages(job))), setting)
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
    """Return the lookup tables of a job file; relative paths are in `folder`. Raise FileError."""
    for name, table in given.items():
        if not {"format", "path"} & table.keys():
            raise FileError(f"[pipeline.tables.{name}] needs 'path', or 'format'", ("pipeline", "tables", name))
        if table.get("format") == "delta":
            try:
                location_of(table["path"])
            except (KeyError, LocationError) as error:
                reason = "a Delta table needs 'path'" if isinstance(error, KeyError) else str(error)
                place = ("pipeline", "tables", name, "path")
                raise FileError(f"[pipeline.tables.{name}]: {reason}", place) from None
    return {
        name: table | ({"path": resolved_path(table["path"], folder)} if "path" in table else {})
        for name, table in given.items()
    }


def open_lookup_table(given: Mapping[str, Any], session: SparkSession) -> DataFrame:
    """Return a table as it is now. `deltalake` reads a Delta table, so Spark needs no Delta jars."""
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
        # Spark cannot read an object store without extra jars.
        return session.createDataFrame(table.to_pyarrow_table())
    return session.read.parquet(*(f"{location}/{name}" for name in files_between(table, "", None)))
