"""Reports of a running job: lines for people, its state for other processes, and the command of an alert.

    <checkpoint>/headrace-run.json     the state, replaced every `report_seconds`, at the start and at the end

The state is not durable and decides nothing: a job that is killed leaves its last state, which says that it runs.

    [on_lag]
    seconds = 60                  # the age of the first event that is not committed; or events = 10000
    run = "notify-send 'orders'"  # words as a shell splits them, or an array; no shell runs it

The command runs once when a job falls behind, and again only after the job has caught up in between. It has the figures
in its environment, as `HEADRACE_LAG_SECONDS` and so on. If it takes too long, it is killed with its child processes. A
failure is reported in a line, and changes nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.job_model import OnLag
from headrace.spark.jobs.metrics import FIGURES, JobMetrics, TableLooks

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


NAME: Final = "headrace-run.json"
FAILED: Final = "failed"
ENDED: Final = frozenset({"ended", FAILED, "stopped"})
"""The phases of a run that recorded its end."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The recorded state of the last run. `figures` come from `JobMetrics`; `alerted`: the lag was above its bound.

    `collections` has the figures of each of several collections, as in `CollectionFigures`.
    """

    process: int
    phase: str
    updated_ms: int
    started_ms: int
    error: str = ""
    alerted: bool = False
    figures: dict[str, Any] | None = None
    collections: dict[str, dict[str, Any]] | None = None


def read_state(checkpoint: Path) -> RunState | None:
    """Return the state of the last run; None if there is none, or if its file cannot be read."""
    try:
        given = json.loads((checkpoint / NAME).read_text("utf-8"))
        known = {field.name for field in fields(RunState)}
        return RunState(**{name: value for name, value in given.items() if name in known})
    except (OSError, ValueError, TypeError):
        return None


def write_state(checkpoint: Path, state: RunState) -> None:
    """Replace the file. Ignore an OSError: a full disk must not stop a job because of this file."""
    writing = checkpoint / f"_{NAME}.writing"
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        writing.write_text(json.dumps(asdict(state)) + "\n", "utf-8")
        os.replace(writing, checkpoint / NAME)
    except OSError:
        return


def state_of(
    metrics: JobMetrics, *, started_ms: int, now_ms: int, error: str = "", alerted: bool = False
) -> RunState:  # fmt: skip
    """Return the state of this process's run, with the present figures."""
    with metrics.lock:
        figures = {name: getattr(metrics, name) for name in FIGURES}
        collections = {name: asdict(each) for name, each in metrics.collections.items()}
        phase = FAILED if error else metrics.phase
        return RunState(os.getpid(), phase, now_ms, started_ms, error, alerted, figures, collections or None)


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
