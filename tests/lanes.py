"""Runs the lanes of `make check`, `test`, `soak` and `clients`, side by side where that is safe, and times each.

    python tests/lanes.py check|test|soak|clients

A lane is a list of commands run one after the other; lanes of pytest that run the same tests take their files from one
list (`file_queue.py`). Its output goes to `.venv/lanes/NAME.log`, which is printed in
full if the lane fails. At the end each lane has a line: its time, and the last line of its last command, which for
pytest is its summary. All lanes run, whether another has failed or not. The exit status is 0 if all have passed.
A test that takes too long ends its lane, with the stacks of all threads. Lanes that are terminated, or take longer
than `TARGET_S`, have failed and are printed as far as they are.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.file_queue import FileQueue  # noqa: E402

LOGS: Final = ROOT / ".venv" / "lanes"
BIN: Final = Path(sys.executable).parent
HEARTBEAT_S: Final = 60
TARGET_S: Final = 85 * 60
"""For all lanes: what continuous integration ends after 90 minutes says what it was doing."""
TERMINATION_S: Final = 30
TEST_S: Final = 240
"""For a fast test, which takes a second where nothing hangs, on a machine that is ten times slower."""
LONG_TEST_S: Final = 1200
"""For a test that kills servers or Spark again and again, which takes some minutes."""
LONGEST: Final = (
    "tests/spark/sinks/test_spark_table.py",
    "tests/spark/jobs/test_servers_killed.py",
    "tests/spark/jobs/test_job_killed.py",
    "tests/spark/sinks/test_sinks.py",
    "tests/spark/session/test_interrupts.py",
    "tests/drivers/test_pymongo_suite.py",
    "tests/spark/jobs/test_collections_killed.py",
    "tests/conformance/test_recorded_with_indexes.py",
    "tests/spark/jobs/test_schedulers.py",
    "tests/backup/test_kills.py",
    "tests/store/test_check.py",
    "tests/test_style.py",
)
"""The files that take longest. What begins last should be short, or one core waits for it."""
MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES: Final = 8 << 30
"""Free bytes that memory needs to hold the temporary directory: the tests leave up to 1.1 GB there."""
PERCENT: Final = re.compile(r"\[ *(\d+%)\]")
PASSED: Final = re.compile(r"(\d+) (passed|skipped|failed|errors?)\b")


@dataclass(frozen=True)
class Lane:
    name: str
    commands: tuple[tuple[str, ...], ...]
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    """Files of tests that it shares with the lanes of the same `queue`."""
    queue: str = ""


def tests(name: str, marks: str, test_s: int, paths: tuple[str, ...] = ()) -> Lane:
    """A lane of pytest, in one process.

    `test_s`: seconds that a test may take, 0 for any. `paths`: where the tests are, if not everywhere.
    """
    timeout = ("-o", f"faulthandler_timeout={test_s}", "-o", "faulthandler_exit_on_timeout=true") if test_s else ()
    return Lane(name, ((sys.executable, "-m", "pytest", *timeout, "-m", marks, *paths),))


def shared(name: str, marks: str, test_s: int, files: tuple[str, ...], **environment: str) -> tuple[Lane, ...]:
    """Lanes of pytest, `PROCESSES` of them, that take these files from one list."""
    queue = str(LOGS / f"{name}.files")
    (command,) = tests(name, marks, test_s).commands
    command = (*command, "-p", "tests.file_queue", f"--file-queue={queue}", "-o", "console_output_style=classic")
    lane = Lane(name, (command,), tuple(environment.items()), files, queue)
    return tuple(replace(lane, name=f"{name}-{number + 1}") for number in range(PROCESSES))


def files_with(*marks: str) -> tuple[str, ...]:
    """The files with tests of one of these marks, all without a mark; those that take longest come first, then large
    ones.

    `conftest.py` refuses a test with a mark that its file does not name.
    """
    named = re.compile(rf"mark\.({'|'.join(marks)})\b")
    files = [path for path in ROOT.glob("tests/**/test_*.py") if not marks or named.search(path.read_text("utf-8"))]
    sizes = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in files}
    order = {name: number for number, name in enumerate(LONGEST)}
    return tuple(sorted(sizes, key=lambda name: (order.get(name, len(order)), -sizes[name], name)))


STATIC: Final = Lane(
    "static",
    (
        (str(BIN / "ruff"), "check", "--quiet", "."),
        (str(BIN / "ruff"), "format", "--check", "--quiet", "."),
        (str(BIN / "lint-imports"),),
        (str(BIN / "mypy"), "headrace"),
    ),
)
PROCESSES: Final = int(os.environ.get("PROCESSES", "3"))
"""Lanes that share a list of files: one more than CI has cores, as tests wait for a fifth of their time."""
WHOLE: Final = shared("fast", "not slow", TEST_S, files_with())
FAST: Final = shared("fast", "not slow", TEST_S, files_with(), HEADRACE_EXAMPLES_DIVISOR="2")
QUICK: Final = shared("fast", "not slow and not long", TEST_S, files_with(), HEADRACE_EXAMPLES_DIVISOR="4")
# One process with one session of Spark. The tests of the other lanes start processes, and wait for them often.
SPARK: Final = tests("spark", "spark and not process and not soak", LONG_TEST_S, files_with("spark"))
PROCESS: Final = shared(
    "process", "(process or network and not spark) and not soak", LONG_TEST_S, files_with("process", "network")
)
GROUPS: Final = {
    "check": ((STATIC, *QUICK),),
    "clients": ((tests("clients", "soak", 0, paths=("tests/clients",)),),),
    "soak": (WHOLE, (tests("soak", "soak", 0),)),
    "test": ((STATIC, *FAST), (SPARK, *PROCESS)),
}


@dataclass
class Run:
    """A lane under way: the command that runs now, and those to come."""

    lane: Lane
    log: IO[str]
    start: float = field(default_factory=time.monotonic)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    seconds: float | None = None
    failed: bool = False

    def stop(self) -> None:
        """End it where it is, as failed."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(TERMINATION_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.seconds is None:
            self.seconds, self.failed = time.monotonic() - self.start, True

    @classmethod
    def of(cls, lane: Lane) -> Run:
        run = cls(lane, (LOGS / f"{lane.name}.log").open("w+", encoding="utf-8"), commands=list(lane.commands))
        run.go_on()
        return run

    def go_on(self) -> None:
        """Starts the next command once the one before has ended; a failed one is the lane's last."""
        if self.process and self.process.poll() is None:
            return
        self.failed = self.process is not None and self.process.returncode != 0
        if self.failed or not self.commands:
            self.seconds = time.monotonic() - self.start
            return
        environ = os.environ | dict(self.lane.environment) | {"PYTHONUNBUFFERED": "1"}
        environ.setdefault("TMPDIR", temporary_directory())
        # Tests start hundreds of processes: without its bytecode each would compile the package anew.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self.process = subprocess.Popen(
            self.commands.pop(0), cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def text(self) -> str:
        self.log.flush()
        return Path(self.log.name).read_text("utf-8", errors="replace")

    def progress(self) -> str:
        if self.lane.queue:
            return f"{len(FileQueue(Path(self.lane.queue)).names())} of {len(self.lane.files)} files left"
        seen: list[str] = PERCENT.findall(self.text())
        return seen[-1] if seen else "begun"

    def summary(self) -> str:
        lines = [line for line in self.text().splitlines() if line.strip()]
        ended = "FAILED: " if self.failed else ""
        return f"{self.lane.name:9} {self.seconds or 0:5.0f} s  {ended}{lines[-1] if lines else 'passed'}"


def temporary_directory() -> str:
    """Return the directory for the tests' files if `TMPDIR` is not set: in memory, if enough is free.

    Tests sync most of what they store. They kill processes, not machines, and that needs no disk.
    """
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
    return str(MEMORY) if in_memory else tempfile.gettempdir()


def run_group(lanes: tuple[Lane, ...], deadline: float) -> list[Run]:
    """The lanes, once all have ended or been stopped; each minute a line says how far they are."""
    LOGS.mkdir(parents=True, exist_ok=True)
    for lane in lanes:
        if lane.queue:
            FileQueue(Path(lane.queue)).write(lane.files)
    runs = [Run.of(lane) for lane in lanes]
    start = beat = time.monotonic()
    try:
        while (running := [run for run in runs if run.seconds is None]) and beat < deadline:
            time.sleep(0.1)
            for run in running:
                run.go_on()
                if run.seconds is not None:
                    print(run.summary(), flush=True)
            if time.monotonic() - beat >= HEARTBEAT_S:
                beat = time.monotonic()
                states = ", ".join(f"{run.lane.name} {run.progress()}" for run in runs if run.seconds is None)
                print(f"{(beat - start) / 60:.0f} min: {states}", flush=True)
    except Terminated:
        print("terminated", flush=True)
    finally:
        for run in runs:
            run.stop()
    return runs


class Terminated(Exception):
    pass


def raise_terminated(*_: object) -> None:
    raise Terminated


def main(target: str) -> int:
    start = time.monotonic()
    signal.signal(signal.SIGTERM, raise_terminated)
    deadline = start + (TARGET_S if target == "test" else float("inf"))
    done: list[Run] = []
    for lanes in GROUPS[target]:
        print(f"side by side: {', '.join(lane.name for lane in lanes)}; logs in {LOGS.relative_to(ROOT)}", flush=True)
        done += run_group(lanes, deadline)
    for run in done:
        if run.failed:
            print(f"\n===== {run.lane.name} failed =====\n{run.text()}", flush=True)
    print("", *(run.summary() for run in done), sep="\n")
    counts: dict[str, int] = {}
    for run in done:
        for count, what in PASSED.findall(run.summary()):
            counts[what] = counts.get(what, 0) + int(count)
    total = ", ".join(f"{count} {what}" for what, count in counts.items())
    print(f"{total} in {time.monotonic() - start:.0f} s")
    return int(any(run.failed for run in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
