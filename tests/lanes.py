"""Runs the lanes of `make check`, `make test` and `make soak`, side by side where that is safe, and times each.

    python tests/lanes.py check|test|soak

A lane is a list of commands run one after the other. Its output goes to `.venv/lanes/NAME.log`, which is printed in
full if the lane fails. At the end each lane has a line: its time, and the last line of its last command, which for
pytest is its summary. The exit status is 0 only if every lane passed; the lanes behind a failed group are not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOGS: Final = ROOT / ".venv" / "lanes"
BIN: Final = Path(sys.executable).parent
HEARTBEAT_S: Final = 60
PERCENT: Final = re.compile(r"\[ *(\d+%)\]")
PASSED: Final = re.compile(r"(\d+) (passed|skipped|failed|errors?)\b")


@dataclass(frozen=True)
class Lane:
    name: str
    commands: tuple[tuple[str, ...], ...]
    environment: tuple[tuple[str, str], ...] = ()


def tests(name: str, marks: str, processes: int = 1) -> Lane:
    """A lane of pytest; more than one process take whole files from one list, and the lane ends if one dies."""
    workers = (
        ("--numprocesses", str(processes), "--dist", "loadfile", "--max-worker-restart", "0")
        if processes > 1
        else ("-p", "no:xdist")
    )
    return Lane(name, ((sys.executable, "-m", "pytest", *workers, "-m", marks),))


STATIC: Final = Lane(
    "static",
    (
        (str(BIN / "ruff"), "check", "--quiet", "."),
        (str(BIN / "ruff"), "format", "--check", "--quiet", "."),
        (str(BIN / "lint-imports"),),
        (str(BIN / "mypy"), "headrace"),
    ),
)
PROCESSES: Final = int(os.environ.get("PROCESSES", "2"))
FAST: Final = tests("fast", "not slow", PROCESSES)
QUICK: Final = replace(tests("fast", "not slow and not long", PROCESSES), environment=(("HEADRACE_FEW_EXAMPLES", "1"),))
# One process with one session of Spark, and what needs another Spark, so that both lanes take about as long.
SPARK: Final = tests("spark", "spark and not process and not soak")
PROCESS: Final = tests("process", "(process or network and not spark) and not soak")
GROUPS: Final = {
    "check": ((STATIC, QUICK),),
    "soak": ((tests("soak", "soak"),),),
    "test": ((STATIC, FAST), (SPARK, PROCESS)),
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

    @classmethod
    def of(cls, lane: Lane) -> Run:
        LOGS.mkdir(parents=True, exist_ok=True)
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
        seen: list[str] = PERCENT.findall(self.text())
        return seen[-1] if seen else "begun"

    def summary(self) -> str:
        lines = [line for line in self.text().splitlines() if line.strip()]
        ended = "FAILED: " if self.failed else ""
        return f"{self.lane.name:8} {self.seconds or 0:5.0f} s  {ended}{lines[-1] if lines else 'passed'}"


def run_group(lanes: tuple[Lane, ...]) -> list[Run]:
    """The lanes, once all have ended; each minute a line says how far they are."""
    runs = [Run.of(lane) for lane in lanes]
    start = beat = time.monotonic()
    try:
        while running := [run for run in runs if run.seconds is None]:
            time.sleep(0.1)
            for run in running:
                run.go_on()
                if run.seconds is not None:
                    print(run.summary(), flush=True)
            if time.monotonic() - beat >= HEARTBEAT_S:
                beat = time.monotonic()
                states = ", ".join(f"{run.lane.name} {run.progress()}" for run in runs if run.seconds is None)
                print(f"{(beat - start) / 60:.0f} min: {states}", flush=True)
    finally:
        for run in runs:
            if run.process and run.process.poll() is None:
                run.process.terminate()
                run.process.wait()
    return runs


def main(target: str) -> int:
    start = time.monotonic()
    done: list[Run] = []
    for lanes in GROUPS[target]:
        print(f"side by side: {', '.join(lane.name for lane in lanes)}; logs in {LOGS.relative_to(ROOT)}", flush=True)
        done += run_group(lanes)
        if any(run.failed for run in done):
            break
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
