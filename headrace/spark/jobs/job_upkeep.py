"""The upkeep of a job's tables: while it runs, between two batches, and by hand (`headrace pipeline upkeep`)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.errors import error_line
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.job_tables import tables_of
from headrace.spark.upkeep.delta_upkeep import CatalogUpkeep, DeltaUpkeep, UpkeepReport

TableUpkeep = CatalogUpkeep | DeltaUpkeep


class JobUpkeep:
    """The upkeep of all tables of a job. A failure is reported and tried again later: no batch depends on upkeep."""

    def __init__(self, job: Job) -> None:
        self._clock = SystemClock()
        self._name = job.name
        self._job = job
        self._tables: dict[str, TableUpkeep] = {}
        self._due: dict[str, float] = {}
        """The time of the next upkeep of each table, by its location."""
        # Spark need not run yet. Tables of several collections in its catalogs are added later.
        self._take_up_new(with_spark=False)
        # With several collections, tables may be added later.
        self._grows = any(sink.per_collection and sink.upkeep for sink in job.sinks)
        self._look_due = self._clock.monotonic_ms() + limits.TABLE_LOOK_SECONDS * 1000

    @property
    def is_due(self) -> bool:
        """Whether a table is due."""
        if self._grows and self._look_due <= self._clock.monotonic_ms():
            self._look_due = self._clock.monotonic_ms() + limits.TABLE_LOOK_SECONDS * 1000
            self._take_up_new(with_spark=True)
        return min(self._due.values(), default=math.inf) <= self._clock.monotonic_ms()

    def _take_up_new(self, *, with_spark: bool) -> None:
        """Add the tables that were created since the last look."""
        for table in _upkeep_of(self._job, with_spark=with_spark):
            if (name := str(table.location)) not in self._tables:
                self._tables[name], self._due[name] = table, self._next(table)

    def run_due(self, report: Callable[[str], None], stop: threading.Event, writing: threading.Lock) -> None:
        """Run the upkeep of each table that is due, while no batch is being written."""
        for name, table in self._tables.items():
            if self._due[name] <= self._clock.monotonic_ms() and not stop.is_set():
                with writing:
                    self._run(table, report, stop)
                self._due[name] = self._next(table)

    def run_all(self, report: Callable[[str], None], stop: threading.Event) -> None:
        """Run the upkeep of all tables, including new ones, at the end of a job that has caught up."""
        if self._grows:
            self._take_up_new(with_spark=True)
        for table in self._tables.values():
            self._run(table, report, stop)

    def _run(self, table: TableUpkeep, report: Callable[[str], None], stop: threading.Event) -> None:
        try:
            result = table.run(stop=stop.is_set)
        except Exception as error:
            report(f"{self._name}: upkeep failed, and will be tried again: {error_line(error)}")
            return
        if result.did_something:
            report(f"{self._name}: {result}")

    def _next(self, table: TableUpkeep) -> float:
        return self._clock.monotonic_ms() + table.options.every_seconds * 1000


def upkeep_by_hand(job: Job) -> list[UpkeepReport]:
    """Do all upkeep that is due, however long it takes. Raise JobRunning: a running job does its own upkeep."""
    from headrace.spark.jobs.runner import job_lock, job_session

    with job_lock(job):
        if any(sink.in_catalog and sink.upkeep for sink in job.sinks):
            job_session(job)
        return [table.run(thorough=True) for table in _upkeep_of(job, with_spark=True)]


def _upkeep_of(job: Job, *, with_spark: bool) -> list[TableUpkeep]:
    """Return the upkeep of each of the job's tables; with several collections, of the existing tables."""
    from headrace.spark.session import get_session

    sinks = [table.sink for table in tables_of(job, with_spark=with_spark)]
    of_catalogs = [
        CatalogUpkeep(str(sink.options["table"]), sink.upkeep, get_session)
        for sink in sinks
        if sink.in_catalog and sink.upkeep
    ]
    return of_catalogs + [
        DeltaUpkeep(sink.location, sink.kind, sink.upkeep, tuple(sink.options.get("cluster", ())))
        for sink in sinks
        if sink.location and sink.upkeep
    ]
