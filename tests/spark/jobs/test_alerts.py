"""An alert runs its command once, with the figures, without a shell, and not for ever."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import limits
from headrace.spark.jobs.job_model import OnLag
from headrace.spark.jobs.metrics import JobMetrics
from headrace.spark.jobs.metrics_listener import MetricsListener
from headrace.spark.jobs.run_reports import LagWatch, environment, run_command
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.sinks.file_values import FileError
from headrace.spark.source.options import parse_options
from headrace.testing.clock import FakeClock

WRITE = """
import os, sys
with open(sys.argv[1], 'a') as out:
    print(os.environ['HEADRACE_LAG_SECONDS'], *sys.argv[2:], file=out)
"""


def late_by(seconds: float | None, events: int = 7) -> JobMetrics:
    return JobMetrics("orders; rm -rf /", lag_seconds=seconds, lag_events=events, position="82")


def watch_of(given: dict[str, Any], lines: list[str], *, late: bool = False) -> LagWatch:
    return LagWatch(OnLag.of(given, "[on_lag]"), lines.append, late=late)


def test_the_command_runs_once_while_the_lag_lasts_and_again_after_it(tmp_path: Path) -> None:
    lines: list[str] = []
    out = tmp_path / "out"
    watch = watch_of({"seconds": 60, "run": [sys.executable, "-c", WRITE, str(out), "$HOME; ls"]}, lines)
    for seconds in (None, 59.0, 60.0, 90.0, 61.0, 3.0, 75.0):
        watch.look(late_by(seconds))
        watch.wait()
    assert out.read_text() == "60.0 $HOME; ls\n75.0 $HOME; ls\n"
    assert lines == ["orders; rm -rf /: late: 7 events, 60 s", "orders; rm -rf /: late: 7 events, 75 s"]


def test_a_job_that_was_late_before_it_was_started_again_says_so_once(tmp_path: Path) -> None:
    lines: list[str] = []
    watch = watch_of({"events": 5}, lines, late=True)
    watch.look(late_by(1.0))
    assert watch.late and not lines
    watch.look(late_by(1.0, events=0))
    watch.look(late_by(1.0))
    assert lines == ["orders; rm -rf /: late: 7 events, 1 s"]


@pytest.mark.process
def test_the_lag_grows_while_the_server_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    clock, metrics = FakeClock(), JobMetrics("orders")
    listener, watch = MetricsListener(metrics, clock=clock), watch_of({"seconds": 60}, lines)
    source, port = dict[str, str](), 0
    for answers, seconds, lag in ((True, 500, 0), (False, 0, 0), (False, 59, 59), (False, 1, 60), (True, 5, 0)):
        clock.advance(seconds * 1000)
        monkeypatch.setattr(limits, "START_CHECK_SECONDS_MAX", 30.0 if answers else 0.1)
        with headrace.Server(port=port) if answers else nullcontext() as server:
            if server:
                port = int(server.address.rpartition(":")[2])
                source = {"uri": server.uri, "database": "d", "collection": "c"}
                mongodb = MongoDBStream(parse_options(source))
                listener.resume({"token": mongodb.end_at(mongodb.now()).text})
            listener.measure(source)
        watch.look(metrics)
        assert (metrics.lag_events, metrics.lag_seconds, watch.late) == (0, lag, lag >= 60)
    assert lines == ["orders: late: 0 events, 60 s"]


def test_the_environment_has_the_figures_and_nothing_is_a_shells() -> None:
    environ = environment(late_by(60.0))
    named = {name: value for name, value in environ.items() if name.startswith("HEADRACE_") and name not in os.environ}
    assert named == {
        "HEADRACE_ALERT": "lag", "HEADRACE_BATCH": "", "HEADRACE_JOB": "orders; rm -rf /", "HEADRACE_LAG_EVENTS": "7",
        "HEADRACE_LAG_SECONDS": "60.0", "HEADRACE_POSITION": "82", "HEADRACE_ROWS_TOTAL": "0",
    }  # fmt: skip


@pytest.mark.process
def test_a_command_that_fails_or_takes_too_long_is_said() -> None:
    environ = dict(os.environ)
    assert run_command((sys.executable, "-c", "raise SystemExit(3)"), environ) == f"{sys.executable}: status 3"
    assert run_command(("/nowhere/command",), environ) == "/nowhere/command: No such file or directory"
    endless = ("sh", "-c", "sleep 600 & wait")
    assert run_command(endless, environ, seconds_max=0.2) == "sh: killed after 0.2 s"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "needs 'seconds' or 'events'"),
        ({"run": "true"}, "needs 'seconds' or 'events'"),
        ({"seconds": 0}, "'seconds' is a number above 0, not 0"),
        ({"seconds": "60"}, "a number above 0, not '60'"),
        ({"events": 1.5}, "'events' is a whole number from 1 to 10000, not 1"),
        ({"events": 10**6}, "'events' is a whole number from 1 to 10000, not 1"),
        ({"seconds": 1, "run": "echo 'a"}, "cannot be split into words: No closing quotation"),
        ({"seconds": 1, "run": [1]}, "is a command, or an array of its words"),
    ],
)
def test_a_table_that_is_no_alert_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(FileError, match=problem):
        OnLag.of(given, "[on_lag]")


def test_a_command_is_split_as_a_shell_does() -> None:
    alert = OnLag.of({"seconds": 1, "run": "mail -s 'orders are late' ann"}, "[on_lag]")
    assert alert.run == ["mail", "-s", "orders are late", "ann"]
