"""A running job's metrics: counts, rates and lag; for people, and for Prometheus.

`JobMetrics` is written by the job's threads and read by others. prometheus-client collects and serves them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

import pymongo
from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.jobs.checkpoint import ServerPosition
from headrace.spark.jobs.job_tables import table_files, tables_of
from headrace.spark.mongodb.collection_selection import namespace_of
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, client_of
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition, server_name
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.contract import BatchReport

if TYPE_CHECKING:
    from headrace.spark.jobs.job_file import Job

_PREFIX: Final = "headrace_pipeline_"
_KINDS: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


def snapshot_text(documents: int, total: int | None, seconds_left: float | None) -> str:
    """Return a snapshot's progress for a person: "snapshot of 500 of 2000 documents (25 %), 12 s left"."""
    if not total:
        return f"snapshot of {documents} documents so far"
    # The total is an estimate, and clients continue to write.
    share = min(documents * 100 // total, 100)
    left = "" if seconds_left is None else f", {seconds_left:.0f} s left"
    return f"snapshot of {documents} of {total} documents ({share} %){left}"


def gauge(meaning: str, default: Any = None) -> Any:
    """Return a field that Prometheus gets as a gauge, with its meaning."""
    return field(default=default, metadata={"kind": "gauge", "meaning": meaning})


def counter(meaning: str) -> Any:
    """Return a field that Prometheus gets as a counter, with its meaning."""
    return field(default=0, metadata={"kind": "counter", "meaning": meaning})


def exported(figures: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, kind and meaning of each field that Prometheus gets."""
    for each in fields(figures):
        if each.metadata:
            yield each.name, each.metadata["kind"], each.metadata["meaning"]


@dataclass(slots=True)
class CollectionFigures:
    """The figures of one collection, summed over all sinks; None if unknown."""

    rows_total: int = counter("Rows of a collection, by sinks.")
    rest_values_total: int = counter("Values of a collection that typed tables have in `_rest`.")
    dead_letters_total: int = counter("Rows of a collection that sinks have refused.")
    batches_total: int = 0
    batch: int = -1
    batch_seconds: float = gauge("Time that the tables of a collection took in its last micro-batch.", 0.0)
    lag_events: int | None = gauge("Events of a collection that the server has and the job has not committed.")
    lag_seconds: int | None = gauge("Age of the first of these events, by the server's clock.")
    table_files: int | None = gauge("Files of the collection's tables.")
    table_bytes: int | None = gauge("Size of these files.")

    def committed(self, report: BatchReport, seconds: float) -> None:
        """Count the report of a sink's commit to the collection's table; it took `seconds`."""
        if report.batch != self.batch:
            self.batch, self.batch_seconds = report.batch, 0.0
            self.batches_total += 1
        self.batch_seconds = round(self.batch_seconds + seconds, 6)
        self.rows_total += report.row_count
        self.rest_values_total += report.rest_count
        self.dead_letters_total += report.dead_letter_count


class AddressRefused(RuntimeError):
    """Metrics cannot be served at this address: it is in use, or it is not an address of this machine."""


@dataclass(slots=True, eq=False)
class JobMetrics:
    """The metrics of one job; None if not known yet. Threads share them under `lock`."""

    job: str
    batch: int | None = gauge("Number of the last micro-batch.")
    batch_seconds: float | None = gauge("Time that the last micro-batch took.")
    batches_total: int = counter("Micro-batches ended by this process.")
    dead_letters_total: int = counter("Rows that sinks have refused, written to the dead letters by this process.")
    lag_events: int | None = gauge(
        "Events that the server has and the job has not committed; a lower bound at the maximum."
    )
    lag_seconds: float | None = gauge("Age of the first of these events, by the server's clock.")
    position: str = ""
    position_seconds: int | None = gauge("Cluster time of the committed position.")
    rest_values_total: int = counter("Values that typed tables have in `_rest`, written by this process.")
    rows_per_second: float | None = gauge("Rows of the last micro-batch by the time it took.")
    rows_total: int = counter("Rows read by this process.")
    running: int = gauge("1 while the job runs.", 0)
    snapshot_documents: int | None = gauge("Documents of the initial snapshot that were read.")
    snapshot_documents_total: int | None = gauge("Documents that the collection has, as estimatedDocumentCount says.")
    snapshot_seconds_left: float | None = gauge("Time that the rest of the snapshot takes at this run's rate.")
    collections: dict[str, CollectionFigures] = field(default_factory=dict)
    """The figures of each of several collections; if there are too many, only of the first ones."""
    phase: str = "starting"
    lock: threading.Lock = field(default_factory=threading.Lock)
    on_batch: Callable[[JobMetrics], object] | None = None
    """Called without the lock after a micro-batch was counted."""

    def ended(self, batch: int, rows: int, seconds: float) -> None:
        """Count a micro-batch that has ended: its number, its rows, and the seconds that it took."""
        with self.lock:
            self.batch, self.batch_seconds = batch, seconds
            self.batches_total += 1
            self.rows_total += rows
            self.rows_per_second = rows / seconds if seconds > 0 else 0.0
        if self.on_batch is not None:
            self.on_batch(self)

    def committed(self, rest_count: int, dead_letter_count: int) -> None:
        """Count the values that a sink's commit put into the rest of a table, and the rows that the sink refused."""
        with self.lock:
            self.rest_values_total += rest_count
            self.dead_letters_total += dead_letter_count

    def snapshot_read(self, documents: int, documents_in_run: int, seconds: float) -> None:
        """Record a snapshot's progress: all documents read so far, and those that this run read in `seconds`."""
        with self.lock:
            self.snapshot_documents = documents
            total = self.snapshot_documents_total
            if total is not None and documents_in_run and seconds > 0:
                self.snapshot_seconds_left = round(max(total - documents, 0) * seconds / documents_in_run, 1)

    def collection_committed(self, collection: str, report: BatchReport, seconds: float) -> None:
        """Count a sink's commit of one of several collections, and the seconds that it took."""
        with self.lock:
            if figures := self._figures_of(collection):
                figures.committed(report, seconds)

    def collections_behind(self, lags: Mapping[str, Lag]) -> None:
        """Record the lag of several collections; a collection that is not in `lags` has none."""
        with self.lock:
            for collection in lags:
                self._figures_of(collection)
            for collection, figures in self.collections.items():
                lag = lags.get(collection)
                figures.lag_events, figures.lag_seconds = (lag.event_count, lag.seconds) if lag else (0, 0)

    def tables_have(self, collection: str, files: int, size: int) -> None:
        """Record the files of one collection's tables, and their bytes."""
        with self.lock:
            if figures := self._figures_of(collection):
                figures.table_files, figures.table_bytes = files, size

    def collection_batches(self) -> dict[str, int]:
        """Return how many batches of each of several collections were committed."""
        with self.lock:
            return {name: figures.batches_total for name, figures in self.collections.items()}

    def _figures_of(self, collection: str) -> CollectionFigures | None:
        """Return the collection's figures; None if too many collections have figures already."""
        if collection in self.collections or len(self.collections) < limits.METRIC_COLLECTION_COUNT_MAX:
            return self.collections.setdefault(collection, CollectionFigures())
        return None

    def line(self) -> str:
        """Return one line for a person."""
        with self.lock:
            if self.batch is None:
                return f"{self.job}: {self.phase}" + (", no batch yet" if self.phase == "running" else "")
            behind = "" if self.lag_events is None else f", {self.lag_events} events ({self.lag_seconds:.0f} s) behind"
            rate = f"{self.rows_total} rows, {self.rows_per_second or 0:.0f} rows/s"
            rate += f", {self.rest_values_total} values in _rest" if self.rest_values_total else ""
            rate += f", {self.dead_letters_total} dead letters" if self.dead_letters_total else ""
            position = f" at {self.position}" if self.position else ""
            return f"{self.job}: batch {self.batch}, {rate}{behind}, {self._phase()}{position}"

    def _phase(self) -> str:
        if self.phase != "snapshot" or self.snapshot_documents is None:
            return self.phase
        return snapshot_text(self.snapshot_documents, self.snapshot_documents_total, self.snapshot_seconds_left)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are known, for a registry of prometheus-client."""
        with self.lock:
            by_name = {(self.job, name): figures for name, figures in sorted(self.collections.items())}
            families = [
                *_families(JobMetrics, _PREFIX, {(self.job,): self}),
                *_families(CollectionFigures, f"{_PREFIX}collection_", by_name),
            ]
        yield from families

    def registry(self) -> CollectorRegistry:
        """Return a registry that has these metrics only."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry


def _families(figures: type, prefix: str, by_labels: Mapping[Any, Any]) -> Iterator[Metric]:
    """Yield each exported field as a metric, with its known values by labels: the job, and perhaps the collection."""
    for name, kind, meaning in exported(figures):
        known = {labels: value for labels, each in by_labels.items() if (value := getattr(each, name)) is not None}
        if known:
            names = ("job", "collection")[: len(next(iter(known)))]
            family = _KINDS[kind](prefix + name, meaning, labels=names)
            for labels, value in known.items():
                family.add_metric(labels, value)
            yield family


FIGURES: Final = ("position", *(name for name, _, _ in exported(JobMetrics) if name != "running"))
"""The figures that are stored for other processes (`run_reports.py`)."""


@contextmanager
def serve(metrics: JobMetrics, address: tuple[str, int] | None) -> Iterator[int | None]:
    """Serve the metrics over HTTP inside the context, which yields the port; without an address do nothing.

    Raise AddressRefused.
    """
    if address is None:
        yield None
        return
    try:
        server, thread = start_http_server(address[1], address[0], metrics.registry())
    except OSError as error:
        raise AddressRefused(f"metrics cannot be served at {address[0]}:{address[1]}: {error.strerror}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class TableLooks:
    """Counts the files of tables of a job's collections: a few collections at a time, those with changed tables first.

    A table changes with commits and with upkeep, so each table is also counted from time to time.
    """

    def __init__(self, job: Job, metrics: JobMetrics) -> None:
        self._sinks = [sink for sink in job.sinks if sink.per_collection and sink.location]
        self._job, self._metrics = job, metrics
        self._clock = SystemClock()
        self._names: set[str] = set()
        self._turn = -1
        self._looked: dict[str, tuple[int, int]] = {}
        """The turn and the batch count at the last look, by collection; the latest looks come last."""

    def look(self) -> None:
        """Count the tables of up to `TABLE_LOOK_COUNT_MAX` collections, those not counted for longest first."""
        if not self._sinks:
            return
        turn = int(self._clock.monotonic_ms() // (limits.TABLE_LOOK_SECONDS * 1000))
        if turn != self._turn:
            self._turn = turn
            self._names |= {table.collection for table in tables_of(self._job, with_spark=False) if table.collection}
        batches = self._metrics.collection_batches()
        at = {name: (turn, batches.get(name, 0)) for name in sorted(self._names | batches.keys())}
        new = [name for name in at if name not in self._looked]
        due = new + [name for name, last in self._looked.items() if last != at[name]]
        for name in due[: limits.TABLE_LOOK_COUNT_MAX]:
            self._looked.pop(name, None)
            self._looked[name] = at[name]
            self._count(name)

    def _count(self, name: str) -> None:
        try:
            tables = [table_files(sink.of_collection(namespace_of(name))) for sink in self._sinks]
        except Exception:
            return  # an error of a table is reported by its sink, or by `status`
        files = [table for table in tables if table]
        self._metrics.tables_have(name, sum(each.file_count for each in files), sum(each.byte_count for each in files))


_TOKENS_ONLY: Final = ({"$project": {"_id": 1}},)
_NAMES: Final = ({"$project": {"_id": 1, "ns": 1}},)


@dataclass(frozen=True, slots=True)
class Lag:
    """`event_count` events wait (at the limit: or more); the first is `seconds` old by the server's clock."""

    event_count: int
    seconds: int
    collections: Mapping[str, Lag] = field(default_factory=dict)
    """The lag of each of several collections; a collection without waiting events is omitted."""


def lag_of(options: SourceOptions, positions: Sequence[ServerPosition]) -> Lag:
    """Ask each server for its lag. Raise PositionLost, or pymongo's errors if a server does not answer in time."""
    by_name = {server_name(one.uri): one for one in options.servers}
    lags = [_lag_of(by_name.get(position.server, options), position.token) for position in positions]
    collections: dict[str, Lag] = {}
    for name, one in (item for lag in lags for item in lag.collections.items()):
        before = collections.get(name, Lag(0, 0))
        collections[name] = Lag(before.event_count + one.event_count, max(before.seconds, one.seconds))
    return Lag(sum(lag.event_count for lag in lags), max((lag.seconds for lag in lags), default=0), collections)


def documents_of(options: SourceOptions, names: Iterable[str]) -> int:
    """Return the server's estimate of the documents in these collections."""
    client = client_of(options.uri)
    namespaces = map(namespace_of, names)
    return sum(client[database][collection].estimated_document_count() for database, collection in namespaces)


def _lag_of(options: SourceOptions, token: Token) -> Lag:
    feed = MongoDBStream(replace(options, rows_max=None))
    with pymongo.timeout(limits.START_CHECK_SECONDS_MAX):
        now = feed.now()
    count = 0
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    with feed.open(
        StreamPosition("token", token=token), stages=_NAMES if options.several else _TOKENS_ONLY,
        batch_rows=limits.LAG_EVENT_COUNT_MAX,
    ) as cursor:  # fmt: skip
        while count < limits.LAG_EVENT_COUNT_MAX and not cursor.covers(now) and not cursor.closed:
            for event in cursor.next_batch(wait_ms=1):
                reached = Token.of(event["_id"]).time
                if reached <= now and count < limits.LAG_EVENT_COUNT_MAX:
                    name = ".".join(event.get("ns", {}).values())
                    counts[name] += 1
                    first.setdefault(name, reached.time)
                    count += 1
    waiting = {name: Lag(number, max(now.time - first[name], 0)) for name, number in counts.items()}
    seconds = max((each.seconds for each in waiting.values()), default=0)
    return Lag(count, seconds, waiting if options.several else {})
