"""Spark's streaming listener that fills a query's metrics. Spark calls it on a separate thread.

Every job has one. It can also give these metrics to any other query of the source:

    metrics = JobMetrics("orders")
    spark.streams.addListener(MetricsListener(metrics, source=options))
    with serve(metrics, ("127.0.0.1", 9464)):
        ...

A batch of several collections may have events beside documents of a snapshot. If `snapshot_counted` is applied to the
source's rows, only the documents count as the snapshot's progress.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import ConnectionFailure, PyMongoError
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from headrace.clock import Clock, SystemClock
from headrace.spark.jobs.checkpoint import collections_offsets, server_positions
from headrace.spark.jobs.metrics import JobMetrics, documents_of, lag_of
from headrace.spark.masks.mask import Mask
from headrace.spark.mongodb.mongodb_stream import PositionLost
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.rows.events import SNAPSHOT
from headrace.spark.source.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MEASURE_MS: Final = 5000
_OBSERVED: Final = "headrace"
_DOCUMENTS: Final = "snapshotDocuments"
_RATES: Final = ("inputRowsPerSecond", "processedRowsPerSecond")
_OFFSETS: Final = ("startOffset", "endOffset", "latestOffset")


def snapshot_counted(rows: DataFrame) -> DataFrame:
    """Return the source's rows; Spark then counts in each batch the rows that are documents of a snapshot."""
    from pyspark.sql.functions import col, count_if

    return rows.observe(_OBSERVED, count_if(col("operationType") == SNAPSHOT).alias(_DOCUMENTS))


class JavaListener(JStreamingQueryListener):
    """The listener that Spark's JVM calls: reads a batch's progress as one JSON text.

    PySpark reads it in over a hundred calls to the JVM. Each map of the progress ends with an exception of Java, for
    which PySpark looks up its own classes in all of Spark's jars.
    """

    def onQueryProgress(self, jevent: Any) -> None:
        progress = json.loads(jevent.progress().json())
        for source in progress["sources"]:
            # PySpark 4.1 would turn each into the text that `str` gives, which is no JSON.
            source |= {name: json.dumps(source[name]) for name in _OFFSETS}
            # Java leaves out a rate that is infinite.
            source |= {name: source.get(name, math.inf) for name in _RATES}
        self.pylistener.onQueryProgress(QueryProgressEvent(StreamingQueryProgress.fromJson(progress)))


class MetricsListener(StreamingQueryListener):
    """Records the events of the query with Spark's id `query`; of every query if it is empty.

    `source` has the options of the query's source: with them the listener measures the lag, at most every five seconds.
    Without them call `measure`. With `mask`, the mask of the source's rows, the position is shown masked.
    """

    def __init__(
        self, metrics: JobMetrics, query: str = "", source: Mapping[str, str] | None = None, mask: Mask | None = None,
        *, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._metrics = metrics
        self.query = query
        self._source = source
        self._mask = mask
        self._due_ms = 0.0
        self._clock = clock or SystemClock()
        self._answered_ms = self._clock.monotonic_ms()
        self._answered_lag = 0.0
        """The lag in seconds at `_answered_ms`, when all servers last answered."""
        self._offset: dict[str, Any] | None = None
        self._snapshot_before = 0
        self._snapshot_rows = 0
        self._snapshot_since_ms: float | None = None
        self._waiting: dict[str, list[str]] | None = None
        """With several collections: those that were to be read, by server, when the snapshot was first measured."""
        self._read_before = 0
        self.row_counts: dict[int, int] = {}
        """The row counts of batches whose rows workers wrote while reading, so that Spark counts fewer."""
        self.ended = threading.Event()
        """Set when Spark has reported the query's end, and so all its batches; after `follow`, the end of that run."""
        self._run = ""
        self._java_listener: Any = None
        self._ended_runs: set[str] = set()
        self._lock = threading.Lock()

    @property
    def _jlistener(self) -> Any:
        """The listener that PySpark registers: its own property, with another class."""
        if self._java_listener is None:
            from pyspark import SparkContext

            wrapper: Any = SparkContext._jvm.PythonStreamingQueryListenerWrapper  # type: ignore[union-attr]
            self._java_listener = wrapper(JavaListener(self))
        return self._java_listener

    def resume(self, offset: dict[str, Any] | None, snapshot_documents: int = 0) -> None:
        """Begin at the checkpoint's offset, with the documents that earlier runs read of the current snapshot."""
        self._offset = offset
        positions = server_positions(offset)
        self._snapshot_before = snapshot_documents if positions and positions[0].in_snapshot else 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if self._concerns(event.id):
            self._metrics.running = 1
            self._metrics.phase = "running"

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if self._concerns(progress.id):
            end = progress.sources[0].endOffset if progress.sources else None
            self._offset = json.loads(end) if isinstance(end, str) else end
            self._set_position()
            taken_ms = progress.durationMs.get("triggerExecution", 0)
            rows = self.row_counts.pop(progress.batchId, progress.numInputRows)
            observed = progress.observedMetrics.get(_OBSERVED)
            self._count_snapshot(rows, observed[_DOCUMENTS] if observed else None, taken_ms)
            self._metrics.ended(progress.batchId, rows, taken_ms / 1000)
            self._measure_when_due()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if self._concerns(event.id):
            self._measure_when_due()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Handle an end that Spark reports late: the end of an earlier query may come after the next one has begun."""
        if not self._concerns(event.id):
            return
        run = str(event.runId)
        with self._lock:
            self._ended_runs.add(run)
            if self._run in {"", run}:
                self._metrics.running = 0
                self.ended.set()

    def follow(self, query: str, run: str) -> None:
        """Record this query only, from now on. Only the end of `run` sets `ended`, even if it has already ended."""
        with self._lock:
            self.query, self._run = query, run
            if run not in self._ended_runs:
                self.ended.clear()

    def measure(self, source: Mapping[str, str]) -> None:
        """Ask the servers for the lag of the last committed position.

        While a server does not answer, the lag in seconds grows with time: events there are not committed meanwhile.
        """
        positions, metrics = server_positions(self._offset), self._metrics
        if not positions:
            return
        try:
            if positions[0].in_snapshot:
                metrics.snapshot_documents_total = self._documents_total(parse_options(source))
                return
            options = parse_options(source)
            lag = lag_of(options, positions)
            metrics.lag_events, metrics.lag_seconds = lag.event_count, float(lag.seconds)
            self._answered_ms, self._answered_lag = self._clock.monotonic_ms(), float(lag.seconds)
            if options.several:
                metrics.collections_behind(lag.collections)
        except ConnectionFailure:
            if not positions[0].in_snapshot:
                metrics.lag_seconds = self._answered_lag + (self._clock.monotonic_ms() - self._answered_ms) / 1000
        except (PyMongoError, PositionLost):
            # The source handles the error; the metrics keep their values.
            return

    def _documents_total(self, options: SourceOptions) -> int:
        """Return how many documents the snapshot has; with several collections, those read and those yet to be read."""
        if not options.several:
            name = f"{options.database}.{options.collection}"
            return sum(documents_of(one, [name]) for one in options.servers)
        if self._waiting is None:
            self._waiting = {
                server: [*offset.waiting, *([offset.reading.name] if offset.reading else [])]
                for server, offset in collections_offsets(self._offset).items()
            }
            self._read_before = self._snapshot_before + self._snapshot_rows
        names = [self._waiting.get(server_name(one.uri) if options.others else "", []) for one in options.servers]
        return self._read_before + sum(map(documents_of, options.servers, names))

    def _count_snapshot(self, rows: int, documents: int | None, taken_ms: float) -> None:
        """Count a batch's documents of the snapshot: by default all rows of a batch that does not end the snapshot.

        The snapshot's time begins with the first such batch.
        """
        if not documents and self._metrics.phase != "snapshot":
            return
        now_ms = self._clock.monotonic_ms()
        self._snapshot_since_ms = now_ms - taken_ms if self._snapshot_since_ms is None else self._snapshot_since_ms
        if documents is None:
            begins = not self._snapshot_before and not self._snapshot_rows
            documents = max(rows - begins, 0)  # the first row is snapshotBegin
        self._snapshot_rows += documents
        seconds = (now_ms - self._snapshot_since_ms) / 1000
        self._metrics.snapshot_read(self._snapshot_before + self._snapshot_rows, self._snapshot_rows, seconds)

    def _set_position(self) -> None:
        """Set the position of the server that is furthest behind; in a snapshot, the token from which events follow."""
        positions, metrics = server_positions(self._offset), self._metrics
        if positions:
            token = positions[0].token
            metrics.phase = "snapshot" if positions[0].in_snapshot else "streaming"
            self._waiting = self._waiting if positions[0].in_snapshot else None
            metrics.position = self._mask.token(token.text) if self._mask else token.text
            metrics.position_seconds = token.time.time

    def _concerns(self, query: Any) -> bool:
        return not self.query or str(query) == self.query

    def _measure_when_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._source is not None and now_ms >= self._due_ms:
            self._due_ms = now_ms + MEASURE_MS
            self.measure(self._source)
