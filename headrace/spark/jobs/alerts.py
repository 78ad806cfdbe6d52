"""Runs a command when a job falls behind: once, and again only after the job has caught up in between.

    [on_lag]
    seconds = 60                  # the age of the first event that is not committed; or events = 10000
    run = "notify-send 'orders'"  # words as a shell splits them, or an array; no shell runs it

The command has the figures in its environment, as `HEADRACE_LAG_SECONDS` and so on. If it takes too long, it is killed
with its child processes. A failure is reported in a line, and changes nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from headrace import limits
from headrace.spark.jobs.job_model import OnLag
from headrace.spark.jobs.metrics import JobMetrics

_FIGURES: Final = ("batch", "lag_events", "lag_seconds", "position", "rows_total")


class LagWatch:
    """Compares a job's lag with the alert. `late`: whether the job is late; it may be late when it starts."""

    def __init__(self, alert: OnLag | None, report: Callable[[str], None], *, late: bool = False) -> None:
        self._alert = alert
        self._report = report
        self.late = late
        self._running: threading.Thread | None = None

    def look(self, metrics: JobMetrics) -> None:
        """Start the command if the job has just become late. Do not wait for it."""
        if self._alert is None or metrics.lag_seconds is None:
            return
        before, self.late = self.late, self._alert.is_late(metrics.lag_seconds, metrics.lag_events)
        if not self.late or before:
            return
        events = "" if metrics.lag_events is None else f"{metrics.lag_events} events, "
        lag = f"{events}{metrics.lag_seconds:.0f} s"
        self._report(f"{metrics.job}: late: {lag}")
        if self._alert.run and not (self._running and self._running.is_alive()):
            arguments = (metrics.job, self._alert.run, environment(metrics))
            self._running = threading.Thread(target=self._run, args=arguments, name="on-lag", daemon=True)
            self._running.start()

    def wait(self) -> None:
        """Wait for a running command, at most until its time limit."""
        if self._running:
            self._running.join(limits.ALERT_SECONDS_MAX + 1)

    def _run(self, job: str, command: Sequence[str], environ: dict[str, str]) -> None:
        problem = run_command(command, environ)
        if problem:
            self._report(f"{job}: on_lag: {problem}")


def environment(metrics: JobMetrics) -> dict[str, str]:
    """Return the process's environment with the figures; an unknown figure is empty."""
    figures = {f"HEADRACE_{name.upper()}": getattr(metrics, name) for name in _FIGURES}
    named = {name: "" if value is None else str(value) for name, value in figures.items()}
    return dict(os.environ, HEADRACE_JOB=metrics.job, HEADRACE_ALERT="lag", **named)


def run_command(
    command: Sequence[str], environ: dict[str, str], *, seconds_max: float = limits.ALERT_SECONDS_MAX
) -> str:
    """Run the command, or kill it with its children after `seconds_max`. Return what went wrong, or ""."""
    try:
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    try:
        status = process.wait(seconds_max)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"{command[0]}: killed after {seconds_max:g} s"
    return f"{command[0]}: status {status}" if status else ""
