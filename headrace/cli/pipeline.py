"""`headrace pipeline`: runs a job of the Spark pipeline from its file, and reports on it.

Spark is imported when a job is run, not before.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.arguments import add_command

if TYPE_CHECKING:
    from headrace.spark.jobs.job_file import Job

_CLEAR = "\x1b[H\x1b[2J"
EXIT_FAILED = 1
EXIT_RUNNING = 3
"""The job runs already."""

Action = Callable[["Job", argparse.Namespace], int]


def add_actions(parser: argparse.ArgumentParser) -> None:
    """The actions, each with the job's file as its argument."""
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")

    def add(name: str, action: Action, help_text: str, options: str = "") -> argparse.ArgumentParser:
        examples = [
            f"headrace pipeline {name} orders.toml",
            *([f"headrace pipeline {name} {options}"] if options else []),
        ]
        added = add_command(actions, name, _runner(action), help_text, examples=examples)
        added.add_argument("job", metavar="JOB.toml", type=Path, help="the job's file")
        return added

    add("check", _check, "say what is wrong with the job, one line each, without running it; the exit status is 1 then")
    add("explain", _explain, "show which stage runs where, without connecting")
    add("replay", _replay, "give the sinks again what they have refused, from the job's dead letters")
    about_reset = "remove the checkpoint, so that the next run begins at startingPosition"
    reset = add("reset", _reset, about_reset, "--data orders.toml")
    reset.add_argument("--data", action="store_true", help="also remove the tables of its sinks")
    run = add("run", _run, "run the job until SIGTERM or SIGINT, then finish the current batch", "--once orders.toml")
    run.add_argument(
        "--once", action="store_true", help="process what is there and end, whatever the file's trigger says"
    )
    about_status = "show whether the job runs, its position, its lag and its tables"
    status = add("status", _status, about_status, "orders.toml --json --max-lag 60")
    status.add_argument("--json", action="store_true", help="print it as a line of JSON")
    status.add_argument(
        "--watch", nargs="?", type=_seconds, const=2.0, metavar="SECONDS", help="show it again and again (default: 2)"
    )
    status.add_argument(
        "--max-lag", type=_seconds, metavar="SECONDS",
        help="the exit status is 4 if the job is further behind (default: the bound of [on_lag])",
    )  # fmt: skip
    add("upkeep", _upkeep, "join small files of its tables, and remove what is old; a job that runs does it itself")
    add("verify", _verify, "compare each sink with the source; the exit status is 1 if one differs")


def _runner(action: Action) -> Callable[[argparse.Namespace, Sequence[str]], int]:
    def run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
        try:
            from headrace.spark.errors import error_line
            from headrace.spark.jobs.job_file import JobError, read_job
        except ImportError as error:
            return _fail(f"the pipeline is not installed: pip install 'headrace[spark]' ({error})")
        try:
            return action(read_job(arguments.job), arguments)
        except JobError as error:
            return _fail(str(error))
        except Exception as error:
            # A server that is down, a lost position, no Java: one line, no traceback.
            return _fail(f"{arguments.job}: {error_line(error)}")

    return run


def _run(job: Job, arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from headrace.spark.errors import error_line
    from headrace.spark.jobs.machine_checks import CannotStart
    from headrace.spark.jobs.runner import JobRunning, run_job

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        run_job(replace(job, every=None) if arguments.once else job, stop=stop, report=_say)
    except JobRunning as error:
        return _fail(str(error), EXIT_RUNNING)
    except CannotStart as error:
        for line in error.lines:
            _fail(f"{job.name}: {line}")
        return EXIT_FAILED
    except Exception as error:
        # One line, no traceback; the job resumes when it is run again.
        return _fail(f"{job.name} stopped: {error_line(error)}")
    return 0


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise ValueError(text)
    return seconds


def _status(job: Job, arguments: argparse.Namespace) -> int:
    """The exit status says how the job is: 0 fine, 1 failed or unknown, 4 late."""
    import json

    from headrace.spark.jobs.status import job_status, lines_of

    status = job_status(job, lag_seconds_max=arguments.max_lag)
    try:
        while True:
            text = json.dumps(status.document()) if arguments.json else "\n".join(lines_of(status))
            _say(f"{_CLEAR}{text}" if arguments.watch and not arguments.json and sys.stdout.isatty() else text)
            if not arguments.watch:
                break
            time.sleep(arguments.watch)
            status = job_status(job, lag_seconds_max=arguments.max_lag)
    except KeyboardInterrupt:
        pass
    return status.exit_status


def _check(job: Job, arguments: argparse.Namespace) -> int:
    from headrace.spark.jobs.start_checks import problems

    lines = problems(job)
    for line in lines:
        _fail(f"{job.name}: {line}")
    if not lines:
        _say(f"{job.name}: nothing is wrong")
    return EXIT_FAILED if lines else 0


def _explain(job: Job, arguments: argparse.Namespace) -> int:
    from headrace.spark.jobs.report import explain_lines

    for line in explain_lines(job):
        _say(line)
    return 0


def _replay(job: Job, arguments: argparse.Namespace) -> int:
    from headrace.spark.jobs.dead_letter_jobs import replay
    from headrace.spark.jobs.runner import JobRunning, job_lock

    try:
        with job_lock(job):
            for line in replay(job):
                _say(line)
    except JobRunning as error:
        return _fail(str(error), EXIT_RUNNING)
    return 0


def _reset(job: Job, arguments: argparse.Namespace) -> int:
    from headrace.spark.jobs.runner import JobRunning, reset_job

    try:
        removed = reset_job(job, data=arguments.data).removed
    except JobRunning as error:
        return _fail(str(error), EXIT_RUNNING)
    _say(f"removed {', '.join(removed)}" if removed else "nothing to remove")
    return 0


def _upkeep(job: Job, arguments: argparse.Namespace) -> int:
    from headrace.spark.jobs.job_upkeep import upkeep_by_hand
    from headrace.spark.jobs.runner import JobRunning

    try:
        reports = upkeep_by_hand(job)
    except JobRunning as error:
        return _fail(str(error), EXIT_RUNNING)
    for report in reports:
        _say(str(report))
    return 0


def _verify(job: Job, arguments: argparse.Namespace) -> int:
    from headrace.spark.jobs.report import verify_job

    unequal = False
    for result in verify_job(job):
        word: Any = {True: "equal", False: "NOT EQUAL", None: "skipped"}[result.equal]
        _say(f"{result.sink}: {word}: {result.description}")
        unequal = unequal or result.equal is False
    return EXIT_FAILED if unequal else 0


def _say(line: str) -> None:
    print(line, flush=True)


def _fail(reason: str, status: int = EXIT_FAILED) -> int:
    print(f"headrace: {reason}", file=sys.stderr, flush=True)
    return status
