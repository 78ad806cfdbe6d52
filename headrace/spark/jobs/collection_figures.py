"""Figures of each of several collections: its rows in this run of the job, its lag, and the size of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.jobs.job_tables import table_files, tables_of
from headrace.spark.mongodb.collection_selection import namespace_of
from headrace.spark.sinks.contract import BatchReport

if TYPE_CHECKING:
    from headrace.spark.jobs.job_file import Job
    from headrace.spark.jobs.metrics import JobMetrics


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
