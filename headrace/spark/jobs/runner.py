"""Runs a job: the source's rows in micro-batches to every sink, until it is stopped or has caught up.

Rule: a job that ended, in whatever way, resumes when it is run again. Two never run at once on one checkpoint (a lock
that ends with the process). A stopped job finishes the current batch first.

This module does not decide what is right after a crash; the checkpoint and the sinks do (`sinks/contract.py`).
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.errors import error_line
from headrace.spark.jobs.checkpoint import JobRecord, ServerPosition, planned_ends, read_checkpoint, read_record
from headrace.spark.jobs.collection_checks import SeenCollections
from headrace.spark.jobs.dead_letter_jobs import dead_letter_locations, with_dead_letters
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.job_stages import apply_stages, server_stages
from headrace.spark.jobs.job_tables import open_sink, set_validators, tables_of
from headrace.spark.jobs.job_upkeep import JobUpkeep
from headrace.spark.jobs.machine_checks import CannotStart, machine_problems
from headrace.spark.jobs.metrics import JobMetrics, serve
from headrace.spark.jobs.run_reports import RunReports
from headrace.spark.jobs.sink_states import CheckpointGone, TablesThere
from headrace.spark.jobs.start_checks import CheckedJob, begin, noted
from headrace.spark.mongodb.collection_selection import namespace_of
from headrace.spark.mongodb.server_history import HistoryChanged
from headrace.spark.mongodb.source_options import stream_fingerprint
from headrace.spark.session.interrupts import QueryStopping
from headrace.spark.sinks.collections_sink import CollectionsSink
from headrace.spark.sinks.contract import FOLDED_COLUMNS, BatchReport, Sink
from headrace.spark.sinks.foreach_batch import Listener, for_each_batch, query_id, wait_for_sinks
from headrace.spark.sinks.log_sink import LogSink
from headrace.spark.sinks.mongodb_sink import PerCollectionSink
from headrace.spark.source.options import parse_options
from headrace.spark.tables.mirror_table import TableGone
from headrace.spark.tables.table_location import location_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S: Final = 0.1
_UNBOUNDED_POLL_S: Final = 0.5
"""The interval at which a job without an end checks whether its query has failed. A stop is noticed at once."""
_ASK_MS: Final = 2000
_LOCK_WAIT_MS: Final = 500
_LOCK_POLL_S: Final = 0.02

Document = dict[str, Any]
ReportLine = Callable[[str], None]


class JobRunning(RuntimeError):
    """Another process runs this job."""


class SparkEnded(RuntimeError):
    """Spark's JVM has ended: it was killed, or ran out of memory."""


def run_job(
    job: Job, *, stop: threading.Event | None = None, report: ReportLine = print, session: SparkSession | None = None,
    listener: Listener | None = None, on_batch: Callable[[JobMetrics], object] | None = None,
) -> JobMetrics:  # fmt: skip
    """Run the job to its end, or until `stop` is set. Return its metrics.

    `report` is called with a line for people every `report_seconds` and at the end, `listener` after each sink's
    commit, `on_batch` with the metrics after each micro-batch. Without a `session` the process's own is used, or one is
    started with the job's settings. Raise the error that stopped the job: a sink's error, CannotStart, JobRunning,
    SparkEnded, or Spark's StreamingQueryException.
    """
    stop = stop or threading.Event()
    metrics = JobMetrics(job.name, on_batch=on_batch)
    lines = machine_problems(job, starts_spark=session is None)
    if lines:
        raise CannotStart(lines)
    with job_lock(job), serve(metrics, job.metrics) as port:
        if port is not None:
            report(f"{job.name}: metrics at http://{(job.metrics or ('',))[0]}:{port}/metrics")
        reports = RunReports(job, metrics, report)
        try:
            while not _run_once(job, metrics, stop, reports, session, listener):
                reports.say("a server has another history; beginning again with a snapshot")
        except Exception as error:
            reports.save(error_line(error))
            raise
        finally:
            reports.close()
    return metrics


def _run_once(
    job: Job, metrics: JobMetrics, stop: threading.Event, reports: RunReports, session: SparkSession | None,
    listener: Listener | None,
) -> bool:  # fmt: skip
    """Run the job to its end. Return False if it must begin again, because the server was replaced."""
    checked = begin(job)
    running = _Run(job, checked, metrics, stop, listener)
    for notice in checked.notices:
        reports.say(notice)
    try:
        reports.save()
        running.snapshot_documents = reports.snapshot_documents
        session = session or _started_session(job, reports)
        running.check_catalogs()
        running.follow(session, reports)
        running.tidy(reports.line)
    except _no_answer() as error:
        if running.failure is error:
            raise
        raise SparkEnded("Spark's JVM has ended; run the job again to resume") from error
    except Exception as error:
        running.explain(error)
        if HistoryChanged.__name__ in str(error) and job.options.on_position_lost == "resnapshot":
            return False
        raise
    finally:
        metrics.running = 0
        running.settle()
    return True


class _Run:
    """One query from its start to its end."""

    def __init__(
        self, job: Job, checked: CheckedJob, metrics: JobMetrics, stop: threading.Event,
        listener: Listener | None = None,
    ) -> None:  # fmt: skip
        self._job = job
        self._set_checked(checked)
        self._batch_listener = listener
        self._metrics = metrics
        self._stop = stop
        self._upkeep = JobUpkeep(job)
        self._writing = threading.Lock()
        self._tables_there = TablesThere(job)
        self.failure: Exception | None = None
        """The error that a sink raised."""
        self.snapshot_documents = 0
        """The documents that earlier runs read of the checkpoint's snapshot."""
        self._query: StreamingQuery
        self._started = threading.Event()
        """Set while `_query` is the running query."""
        self._query_id = ""

    def _set_checked(self, checked: CheckedJob) -> None:
        self._checked = checked
        self._record = checked.record
        self._seen = SeenCollections(parse_options(self._job.source), checked.record)
        self._options = source_options(self._job) | checked.source_options()
        self._mask = parse_options(self._options).mask

    def check_catalogs(self) -> None:
        """Check the job again, including tables in Spark's catalogs, if it has any. Raise what `begin` raises."""
        if any(sink.in_catalog for sink in self._job.sinks):
            self._set_checked(begin(self._job, with_spark=True))

    def follow(self, session: SparkSession, reports: RunReports) -> None:
        """Run a query to its end, and again while there is more. Raise WorkerKilled, or the error that stopped the
        query.

        A batch whose Python worker was killed runs again, a few times in a row, as Spark does for a lost executor.
        """
        kill_count = 0
        while True:
            before = self._metrics.batches_total
            try:
                self.start(session)
                self.watch(reports)
            except Exception as error:
                if not is_worker_killed(error):
                    raise
                kill_count = kill_count + 1 if self._metrics.batches_total == before else 1
                if kill_count > limits.WORKER_KILL_COUNT_MAX:
                    raise WorkerKilled(kill_count) from error
                reports.say("a Python worker of Spark was killed; running its batch again")
                continue
            if not self.has_more:
                return

    def start(self, session: SparkSession) -> None:
        from headrace.spark.jobs.metrics_listener import MetricsListener, snapshot_counted
        from headrace.spark.session import in_this_process, register

        job = self._job
        self._started.clear()
        self.failure = None
        register(in_this_process(session, "a job"))
        sinks = [open_sink(job, sink, parse_options(self._options)) for sink in job.sinks]
        staging = staging_options(job, sinks, session)
        self._staged = bool(staging)
        rows = session.readStream.format("headrace").options(**self._options, **staging).load()
        if job.options.several:
            rows = snapshot_counted(rows)
        rows = apply_stages(job, rows, session)
        if all(sink.folds for sink in job.sinks):
            rows = rows.select(*(name for name in rows.columns if name in FOLDED_COLUMNS))
        self._listener = MetricsListener(self._metrics, mask=self._mask)
        self._listener.resume(read_checkpoint(job.checkpoint).offset, self.snapshot_documents)
        self._session = session
        session.streams.addListener(self._listener)
        self._fans = [
            (options, sink) for options, sink in zip(job.sinks, sinks, strict=True)
            if isinstance(sink, CollectionsSink | PerCollectionSink)
        ]  # fmt: skip
        for _, fan in self._fans:
            if isinstance(fan, CollectionsSink):
                fan.listener = self._metrics.collection_committed
        for options, opened in zip(job.sinks, sinks, strict=True):
            if options.kind != "own":
                opened.owner = self._checked.owner_of(options)  # type: ignore[attr-defined]
        set_validators(sinks, parse_options(self._options))
        self._logs = [sink for sink in sinks if isinstance(sink, LogSink)]
        for log in self._logs:
            log.source = stream_fingerprint(parse_options(self._options), job.stages)
        sinks = with_dead_letters(job, sinks)
        writer = rows.writeStream.foreachBatch(self._gated(for_each_batch(*sinks, listener=self._committed)))
        writer = writer.option("checkpointLocation", str(job.checkpoint)).queryName(job.name)
        self._query = writer.trigger(**job.trigger).start()
        self._query_id = str(self._query.id)
        self._started.set()
        self._listener.follow(self._query_id, str(self._query.runId))

    def watch(self, reports: RunReports) -> None:
        """Report every `report_seconds` until the query ends. Stop the query when the job must stop."""
        clock = SystemClock()
        due = clock.monotonic_ms() + self._job.report_seconds * 1000
        # Spark tells its listener that a query ended. A JVM that has died tells nothing, so the query is polled as
        # well.
        ask_due = 0.0
        poll_s = _POLL_S if self._job.every is None else _UNBOUNDED_POLL_S
        try:
            while not (self._stop.wait(poll_s) or self._listener.ended.is_set()):
                now = clock.monotonic_ms()
                if self.failure:
                    break
                if now >= ask_due:
                    if not self._query.isActive:
                        break
                    ask_due = now + _ASK_MS
                if now >= due:
                    reports.measure(self._listener, self._options)
                    due = clock.monotonic_ms() + self._job.report_seconds * 1000
                if self._upkeep.is_due:
                    self._upkeep.run_due(reports.line, self._stop, self._writing)
            self._end()
            # Spark calls its listeners asynchronously; wait until the last batch is counted.
            self._listener.ended.wait(limits.LISTENER_SECONDS_MAX)
        finally:
            self._session.streams.removeListener(self._listener)
        self._metrics.phase = "stopped" if self._stop.is_set() else "ended"
        reports.look()

    @property
    def has_more(self) -> bool:
        """Whether a run with availableNow left events unread, so that it must run again."""
        from headrace.spark.source.admission import took_all

        return self._job.every is None and not self._stop.is_set() and not took_all(self._query)

    def tidy(self, report: ReportLine) -> None:
        """Do the upkeep of a job that ends when it has caught up, because it may always end before upkeep is due."""
        if self._job.every is None and not self._stop.is_set():
            self._upkeep.run_all(report, self._stop)

    def settle(self) -> None:
        """Wait for the sink that is writing: the job's lock must not be released before it has finished."""
        if self._query_id:
            wait_for_sinks(query=self._query_id)

    def explain(self, error: Exception) -> None:
        """Raise CheckpointGone or TableGone if that is why the query has failed."""
        if not isinstance(error, CheckpointGone | TableGone):
            try:
                self._tables_there.check_thoroughly(self._record)
            except (CheckpointGone, TableGone) as gone:
                raise gone from error

    def _gated(self, apply: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Return `apply` wrapped: it does not begin once the job must stop, and a stop never interrupts it.

        After an error the query is stopped instead of failing, so that Spark prints no Java stack trace.
        """

        def call(frame: DataFrame, number: int) -> None:
            with self._writing:
                if not self._stop.is_set():
                    try:
                        self._tables_there.check(self._record)
                        apply(frame, number)
                        ends = planned_ends(self._job.checkpoint, number)
                        self._note(frame, number, ends)
                        self._record = noted(self._job, self._record, self._seen, self._fans, ends)
                    except Exception as error:
                        self.failure = error
                    else:
                        return
            self._wait_for_stop()
            raise QueryStopping

        return call

    def _wait_for_stop(self) -> None:
        """Wait until `_end` has stopped the query in Spark. A batch that ended earlier would fail with an error."""
        clock, pause = SystemClock(), threading.Event()
        end_ms = clock.monotonic_ms() + limits.SINK_EXIT_SECONDS_MAX * 1000
        if self._started.wait(limits.SINK_EXIT_SECONDS_MAX):
            while self._query.isActive and clock.monotonic_ms() < end_ms:
                pause.wait(_POLL_S)

    def _committed(self, report: BatchReport) -> None:
        self._metrics.committed(report.rest_count, report.dead_letter_count)
        if self._staged:
            self._listener.row_counts[report.batch] = report.row_count
        if self._batch_listener:
            self._batch_listener(report)

    def _note(self, frame: DataFrame, number: int, ends: Sequence[ServerPosition]) -> None:
        """Record in the logs how far a quiet stream has come without rows; otherwise their position would leave the
        oplog.

        Logs of several servers are not updated.
        """
        if self._logs and ends and not ends[0].server:
            token = ends[0].token.text
            for log in self._logs:
                log.note(query_id(frame, None), number, self._mask.token(token) if self._mask else token)

    def _end(self) -> None:
        with self._writing:
            # The current batch is committed, and no other begins.
            pass
        try:
            if self._query.isActive:
                self._query.stop()
            self._query.awaitTermination()
        except Exception:
            if not self.failure and not self._stop.is_set():
                raise
        if self.failure:
            raise self.failure


def staging_options(job: Job, sinks: Sequence[Sink], session: SparkSession) -> dict[str, str]:
    """Return the source's options that let its workers write the rows into the folder of the only table.

    Empty if the rows are also needed elsewhere.
    """
    from headrace.spark.sinks.folding_sink import FoldingSink, is_cluster

    (sink,) = sinks if len(sinks) == 1 else (None,)
    if job.stages or job.deadletter or job.options.others:
        return {}
    if isinstance(sink, LogSink) and sink.takes_frames and not sink.omit:
        sink.staged_by_source = True
        return {"stageinto": sink.table.location.url}
    if isinstance(sink, FoldingSink) and (table := sink.folded_by_tasks) and is_cluster(session):
        sink.staged_by_source = True
        return {"stageinto": table.location.url, "stageslots": sink.slots(session).text()}
    return {}


def source_options(job: Job) -> dict[str, str]:
    """Return the source's options for the job: those given, the pipeline, and the most exact description of updates."""
    from headrace.spark.mongodb.mongodb_stream import description_option
    from headrace.spark.rows.extjson import dumps, loads

    options = dict(job.source)
    if job.folds and job.options.several:
        options["cappedcollections"] = "skip"
    if job.deadletter and not job.stages and all(sink.folds for sink in job.sinks):
        options["notheld"] = "mark"
    pushed = server_stages(job)
    if pushed:
        options["pipeline"] = dumps([*loads(options.get("pipeline", "[]")), *pushed])
    if not job.stages:
        # Headrace's sinks sort rows by token themselves.
        options.setdefault("partitionby", "time")
    if job.folds and not {"showrawupdatedescription", "showexpandedevents"} & options.keys():
        parsed = job.options
        options |= description_option(parsed.uri, parsed.database, parsed.collection)
    return options


def _no_answer() -> tuple[type[Exception], ...]:
    """Return the errors that Py4J raises when the JVM does not answer."""
    from py4j.protocol import Py4JNetworkError

    return ConnectionError, Py4JNetworkError


def _started_session(job: Job, reports: RunReports) -> SparkSession:
    """Return `job_session(job)`; report how long the start takes, which may be many seconds."""
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    reports.say("starting Spark")
    session = job_session(job)
    taken = (clock.monotonic_ms() - began_ms) / 1000
    reports.say(f"Spark started after {taken:.1f} s, the first batch follows")
    return session


def job_session(job: Job) -> SparkSession:
    """Return the process's Spark session; start one with the job's settings if there is none."""
    from headrace.spark.session import get_session

    settings: dict[str, Any] = dict(job.spark)
    return get_session(app=f"headrace {job.name}", **settings)


def start_for_catalogs(job: Job) -> None:
    """Start Spark with the job's settings if a sink is a table that only Spark can read."""
    if any(sink.in_catalog for sink in job.sinks):
        job_session(job)


@contextmanager
def job_lock(job: Job, wait_ms: float = _LOCK_WAIT_MS) -> Iterator[None]:
    """Hold the job's lock, which the kernel releases with the process. Raise JobRunning if another process has it.

    Wait for the lock up to `wait_ms`, because a process that checks whether the job runs holds it for a moment.
    """
    path = lock_path(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _locked(file, wait_ms):
            raise JobRunning(_running_message(job))
        os.truncate(file, 0)
        os.write(file, f"{os.getpid()}\n{job.name}\n".encode())
        yield
    finally:
        os.close(file)


def _locked(file: int, wait_ms: float) -> bool:
    clock, pause = SystemClock(), threading.Event()
    end_ms = clock.monotonic_ms() + wait_ms
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if clock.monotonic_ms() >= end_ms:
                return False
            pause.wait(_LOCK_POLL_S)
        else:
            return True


def lock_path(job: Job) -> Path:
    """Return the job's lock file, next to its checkpoint: the id of the process that runs it, and the job's name."""
    return job.checkpoint.with_name(f"{job.checkpoint.name}.lock")


def running_process(job: Job) -> int | None:
    """Return the id of the process that runs the job; None if none does."""
    try:
        with job_lock(job, 0):
            return None
    except JobRunning:
        return int(_locked_by(job)[0] or 0)


def _running_message(job: Job) -> str:
    process, name = _locked_by(job)
    if name in {"", job.name}:
        return f"the job {job.name} runs in process {process}"
    return (
        f"the checkpoint {job.checkpoint} is another job's: {name} runs on it in process {process}; give {job.name} a "
        "checkpoint of its own"
    )


def _locked_by(job: Job) -> tuple[str, str]:
    """Return the process that has the lock and the name of its job; empty until the process has written them."""
    process, _, name = lock_path(job).read_text().partition("\n")
    return process.strip(), name.strip()


def reset_job(job: Job, *, data: bool = False) -> tuple[str, ...]:
    """Forget the job's position; with `data` also remove the sinks' tables (never documents on another server).

    Return the paths and URLs that were removed. The next run begins at `startingPosition`; sinks whose tables remain
    skip the rows that they have. Raise JobRunning.
    """
    locations = [location_of(job.checkpoint)]
    tables = tables_of(job, with_spark=False)
    locations += [table.sink.location for table in tables if table.sink.location] if data else []
    locations += dead_letter_locations(job) if data else []
    with job_lock(job):
        record = read_record(job.checkpoint)
        removed = tuple(location.url for location in locations if location.remove())
        if data:
            _forget_positions(job, record)
    return removed


def _forget_positions(job: Job, record: JobRecord | None) -> None:
    from headrace.spark.sinks.folding_sink import MirrorSink
    from headrace.spark.sinks.kafka_sink import KafkaSink
    from headrace.spark.tables.mongodb.mongodb_mirror import MongoMirror
    from headrace.spark.tables.sql.sql_mirror import SqlMirror

    for sink in job.sinks:
        if sink.kind in {"kafka", "mongodb", "sql"}:
            opened = sink.open()
            if isinstance(opened, KafkaSink):
                opened.forget()
            elif isinstance(opened, MirrorSink) and isinstance(opened.table, MongoMirror | SqlMirror):
                opened.table.forget()
            elif isinstance(opened, PerCollectionSink) and record and not job.options.others:
                opened.forget(map(namespace_of, record.collections))


_TASK: Final = re.compile(r"Python worker (exited unexpectedly|process terminated)")
_SOCKET: Final = re.compile(
    r"java\.(?:io\.EOFException|io\.IOException|net\.SocketException)[^\n]*(?:\n\s+at java[^\n]*)*"
    r"\n\s+at org\.apache\.spark\.[\w.]*\bPython"
)
"""An error of a socket or a pipe in one of Spark's classes for Python."""


class WorkerKilled(RuntimeError):
    """A Python process of Spark's was killed again and again, without a batch in between."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"a Python worker of Spark was killed {count} times in the same batch, perhaps for its memory: set "
            "maxBytesPerTrigger in [source] to less, or give the machine more; run the job again to resume"
        )


def is_worker_killed(error: Exception) -> bool:
    """Whether the query ended because a Python process of Spark's was killed: a worker, or the planner of batches.

    On a cluster Spark runs a task again, up to `spark.task.maxFailures` times. It does not with `local[N]`, and never
    for the process that plans. Then the query ends, and a job starts it again: the checkpoint has the batch, which is
    the same. (`local[N, F]` would also repeat a task F times if its source raises an error, which recurs each time.)
    """
    text = f"{error}\n{getattr(error, '_stackTrace', '')}"
    return _TASK.search(text) is not None or _SOCKET.search(text) is not None
