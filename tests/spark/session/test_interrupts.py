"""Ctrl-C: a job, and a program with a query, end in order, and nobody is shown a trace of Java or of a worker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import headrace
from headrace.spark.jobs.job_file import read_job
from headrace.spark.jobs.run_reports import read_state
from headrace.spark.session import interrupts
from headrace.spark.sinks.folding_sink import mirror_sink
from tests.spark.support.distribution import java_options

PROGRAM = Path(__file__).with_name("interrupted.py")
JOB = """
checkpoint = "checkpoint"
report_seconds = 0.1
[source]
uri = "{uri}"
database = "d"
collection = "c"
startingPosition = "snapshot"
[spark]
quick = true
[[sink]]
kind = "mirror"
path = "table"
"""
SHOWN = re.compile(r"^\s+at (org|java|jdk|scala|py4j)\.|BrokenPipe|Exception|\d ERROR ", re.MULTILINE)
"""Traces of Java, errors of its log, and of workers that lost it. (Py4J logs the KeyboardInterrupt.)"""
LEFT = re.compile(
    r"^ERROR:py4j\.clientserver:[^\n]* shutting down connection$.*?^BrokenPipeError: [^\n]*$", re.M | re.S
)
"""What Py4J logs besides, if Java has closed the interrupted connection first."""


TERMINAL = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
"""As a terminal starts a program: the tests may run in the background of a shell, where SIGINT is ignored."""


@pytest.fixture
def server() -> Iterator[Any]:
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        client.d.c.insert_many([{"_id": number} for number in range(100)])
        yield server


@contextmanager
def writing(uri: str) -> Iterator[None]:
    """Inside, there is always something to be followed."""
    stop = threading.Event()

    def write() -> None:
        with MongoClient[dict[str, Any]](uri) as client:
            while not stop.wait(0.05):  # a snapshot comes to an end between two writes
                client.d.c.update_one({"_id": 1}, {"$inc": {"n": 1}})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def shown(errors: str) -> re.Match[str] | None:
    """What of standard error is for nobody's eyes."""
    return SHOWN.search(LEFT.sub("", errors))


def started(command: list[str], **environ: str) -> subprocess.Popen[str]:
    """Python with these arguments, in a process group of its own."""
    command = [sys.executable, "-c", TERMINAL, sys.executable, *command]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, env=os.environ | environ, text=True, start_new_session=True)


def interrupted(command: list[str], server: Any, until: str, **environ: str) -> tuple[int, str]:
    """Ctrl-C at a terminal, amid batches: SIGINT for the whole process group. The exit status, and standard error."""
    with started(command, **environ) as process:
        assert process.stdout and process.stderr
        seen: set[str] = set()

        def read_until(count: int) -> None:
            assert process.stdout and process.stderr
            while len(seen) < count:
                line = process.stdout.readline()
                assert line, process.stderr.read()
                seen.update(re.findall(until, line))

        read_until(1)  # the snapshot
        with writing(server.uri):
            read_until(3)
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.mark.process
@pytest.mark.spark
def test_a_job_finishes_its_batch_and_says_that_it_was_stopped(server: Any, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(uri=server.uri), encoding="utf-8")
    status, errors = interrupted(["-m", "headrace.cli.main", "pipeline", "run", str(job)], server, r": batch (\d+),")
    assert (status, errors) == (0, "")
    state = read_state(read_job(job).checkpoint)
    assert state and (state.phase, state.error) == ("stopped", "")
    assert mirror_sink(tmp_path / "table").table.read().num_rows == 100


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.parametrize("made_by", ["headrace", "builder"])
def test_a_program_is_interrupted_as_python_is(server: Any, tmp_path: Path, made_by: str) -> None:
    # A JVM of PySpark's own starts as soon as Headrace's with these.
    environ = {"JDK_JAVA_OPTIONS": java_options()} if made_by == "builder" else {}
    command = [str(PROGRAM), server.uri, str(tmp_path), made_by]
    status, errors = interrupted(command, server, r"^batch (\d+)$", **environ)
    assert status == -signal.SIGINT
    print(errors)
    assert errors.rstrip().endswith("KeyboardInterrupt") and "reentrant call" not in errors
    # What a JVM of PySpark's own prints goes to the terminal as it is.
    assert made_by == "builder" or not shown(errors)
    assert mirror_sink(tmp_path / "table").table.read().num_rows == 100


@pytest.mark.process
@pytest.mark.spark
def test_a_batch_whose_rows_are_on_their_way_to_the_sink_is_finished(server: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with started([str(PROGRAM), server.uri, str(tmp_path), "headrace", str(pipe)]) as process:
        with pipe.open("wb"):  # a worker reads
            pipe.unlink()
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)  # a batch that is cancelled ends it
        printed, errors = process.communicate(timeout=120)
    assert (process.returncode, printed) == (-signal.SIGINT, "batch 0\n")
    assert errors.rstrip().endswith("KeyboardInterrupt") and not shown(errors)
    assert mirror_sink(tmp_path / "table").position().batch == 0


@pytest.fixture
def pythons_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class SparkContext:
    """As PySpark's, whose handler is a function within a method."""

    def set_handler(self) -> None:
        def signal_handler(*_: object) -> None:
            raise AssertionError("all jobs are cancelled")

        signal.signal(signal.SIGINT, signal_handler)


@pytest.mark.usefixtures("pythons_handler")
def test_a_handler_of_the_program_stays_and_pysparks_does_not() -> None:
    def mine(*_: object) -> None: ...

    signal.signal(signal.SIGINT, mine)
    with interrupts.handler_restored():
        SparkContext().set_handler()
    interrupts.replace_handler()
    assert signal.getsignal(signal.SIGINT) is mine
    SparkContext().set_handler()
    interrupts.replace_handler()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with interrupts.handler_restored():
        SparkContext().set_handler()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
