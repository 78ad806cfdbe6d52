"""Reports of a running job: lines for people, its state for other processes, and the command of an alert."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.clock import SystemClock
from headrace.spark.jobs.alerts import LagWatch
from headrace.spark.jobs.collection_figures import TableLooks
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.metrics import JobMetrics
from headrace.spark.jobs.run_state import read_state, state_of, write_state

if TYPE_CHECKING:
    from headrace.spark.jobs.metrics_listener import MetricsListener


class RunReports:
    """The reports of one run of a job. `report` is called with lines for people."""

    def __init__(self, job: Job, metrics: JobMetrics, report: Callable[[str], None]) -> None:
        self._job = job
        self._metrics = metrics
        self.line = report
        """Reports a line unchanged."""
        self._tables = TableLooks(job, metrics)
        self._clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        before = read_state(job.checkpoint)
        self._watch = LagWatch(job.on_lag, report, late=before is not None and before.alerted)
        figures = before.figures or {} if before else {}
        self.snapshot_documents: int = figures.get("snapshot_documents") or 0
        """The documents of the snapshot that earlier runs read, if they were in one."""

    def say(self, line: str) -> None:
        """Report a line that begins with the job's name."""
        self.line(f"{self._job.name}: {line}")

    def look(self) -> None:
        """Report the present figures: a line, the state, and an alert if the job has become late."""
        self.line(self._metrics.line())
        self._watch.look(self._metrics)
        self.save()

    def measure(self, listener: MetricsListener, options: dict[str, str]) -> None:
        """Ask the servers for the lag, then call `look`."""
        listener.measure(options)
        if self._job.metrics is not None:
            self._tables.look()
        self.look()

    def save(self, error: str = "") -> None:
        """Write the state, with the error that ended the run if there is one."""
        state = state_of(
            self._metrics, started_ms=self._started_ms, now_ms=self._clock.now_ms(), error=error,
            alerted=self._watch.late,
        )  # fmt: skip
        write_state(self._job.checkpoint, state)

    def close(self) -> None:
        """Wait for the command of an alert, which has a time limit."""
        self._watch.wait()
