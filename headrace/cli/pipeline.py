"""`headrace pipeline`: run a job of the Spark pipeline from its file, and report on it.

Spark is imported only when a job runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.arguments import add_command, number_argument
from headrace.cli.progress import Bar, progress

if TYPE_CHECKING:
    from headrace.spark.jobs.job_file import Job
    from headrace.spark.jobs.metrics import JobMetrics

_MISSING = "the pipeline is not installed: pip install 'headrace[spark]'"
_CLEAR = "\x1b[H\x1b[2J"
EXIT_FAILED = 1
EXIT_RUNNING = 3
"""The job is running already."""
EXIT_NOT_COMPARED = 6
"""`verify` found no difference, but could not compare everything."""

Action = Callable[["Job", argparse.Namespace], int]

_SECONDS: Final = number_argument(float, sys.float_info.min, sys.float_info.max, "a number of seconds above 0")


def add_actions(parser: argparse.ArgumentParser) -> None:
    """Add the actions; each takes the job's file as its argument."""
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
    about_schema = "print the JSON schema of a job's file, by which editors complete and check it"
    examples = ["headrace pipeline schema > job-file.schema.json"]
    add_command(actions, "schema", _schema, about_schema, examples=examples)
    about_status = "show whether the job runs, its position, its lag and its tables"
    status = add("status", _status, about_status, "orders.toml --json --max-lag 60")
    status.add_argument("--json", action="store_true", help="print it as a line of JSON")
    status.add_argument(
        "--watch", nargs="?", type=_SECONDS, const=2.0, metavar="SECONDS", help="show it again and again (default: 2)"
    )
    status.add_argument(
        "--max-lag", type=_SECONDS, metavar="SECONDS",
        help="the exit status is 4 if the job's lag is longer (default: the bound of [on_lag])",
    )  # fmt: skip
    add("upkeep", _upkeep, "join small files of its tables, and remove what is old; a job that runs does it itself")
    verify = add("verify", _verify, "compare each sink with the source; the exit status is 1 if one differs")
    verify.add_argument(
        "--allow-not-compared", action="store_true",
        help="the exit status is 0, not 6, although something could not be compared",
    )  # fmt: skip


def _runner(action: Action) -> Callable[[argparse.Namespace, Sequence[str]], int]:
    def run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
        try:
            from headrace.spark.errors import error_line
            from headrace.spark.jobs.job_file import JobError, read_job
        except ImportError as error:
            return _fail(f"{_MISSING} ({error})")
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
        with progress("snapshot", None, "documents") as bar:

            def show(metrics: JobMetrics) -> None:
                if metrics.phase == "snapshot":
                    bar.set(metrics.snapshot_documents or 0, metrics.snapshot_documents_total)
                else:
                    bar.close()

            run_job(replace(job, every=None) if arguments.once else job, stop=stop, report=bar.say, on_batch=show)
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


def _status(job: Job, arguments: argparse.Namespace) -> int:
    """Print the status; return 0 if the job is fine, 1 if it failed or is unknown, 4 if it is late."""
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
        removed = reset_job(job, data=arguments.data)
    except JobRunning as error:
        return _fail(str(error), EXIT_RUNNING)
    _say(f"removed {', '.join(removed)}" if removed else "nothing to remove")
    return 0


def _schema(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    import json

    try:
        from headrace.spark.jobs.job_model import json_schema
    except ImportError as error:
        return _fail(f"{_MISSING} ({error})")
    _say(json.dumps(json_schema(), indent=1, ensure_ascii=False))
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

    words: Any = {True: "equal", False: "NOT EQUAL", None: "not compared"}
    found = set()
    bars = [Bar()]

    def counted(done: int, total: int) -> None:
        bars[0].set(done, total)

    results = verify_job(job, counted)
    while True:
        with progress("verify", None, "documents") as bars[0]:
            result = next(results, None)
        if result is None:
            break
        found.add(result.equal)
        _say(f"{result.sink}: {words[result.equal]}: {result.description}")
    if not found:
        _say("not compared: the job has no table yet")
    if False in found:
        return EXIT_FAILED
    compared = bool(found) and None not in found
    return 0 if compared or arguments.allow_not_compared else EXIT_NOT_COMPARED


def _say(line: str) -> None:
    print(line, flush=True)


def _fail(reason: str, status: int = EXIT_FAILED) -> int:
    print(f"headrace: {reason}", file=sys.stderr, flush=True)
    return status
