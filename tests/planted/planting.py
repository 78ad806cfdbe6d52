"""A bug planted on purpose: a patch of the package, which is applied to a copy of it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PATCHES: Final = sorted(Path(__file__).parent.glob("patches/*.patch"))
FINDERS: Final = {
    "differential": [["tests.differential", "--quick", "--from", first] for first in ("0", "1000000")],
    "simulation": [["tests.simulation", "--shrink", "0", "--seed", first] for first in ("0", "1000000")],
}
"""How each machine is started, on two cores. It exits with 1 for a finding."""


@dataclass(frozen=True)
class Planted:
    """A patch, the bug that it plants, and the machine that is to find it."""

    path: Path
    title: str
    finder: str

    @classmethod
    def read(cls, path: Path) -> Planted:
        """Read a patch, whose first lines say what it is."""
        title, finder = path.read_text("utf-8").splitlines()[:2]
        return cls(path, title, finder.removeprefix("found by: "))


class Found(NamedTuple):
    """After how many seconds of processor time, on each of two cores, a bug was found; None: it was not."""

    seconds: float | None
    output: str


def find(planted: Planted, seconds: float) -> Found:
    """Look for a bug in a copy of the package, for this many seconds of processor time at most.

    Raises `CalledProcessError` for a patch that does not apply.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-planted-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "headrace", folder / "headrace", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "tests").symlink_to(ROOT / "tests")
        apply = ["git", "apply", "--whitespace=nowarn", str(planted.path)]
        subprocess.run(apply, cwd=folder, check=True, env=dict(os.environ, GIT_CEILING_DIRECTORIES=name))
        return _first(FINDERS[planted.finder], folder, seconds)


def _processor_seconds() -> float:
    """Return the processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _first(commands: list[list[str]], folder: Path, seconds: float) -> Found:
    """Run commands at once until one of them finds something, or all have ended."""
    began, outputs = _processor_seconds(), []
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *command, "--minutes", str(seconds / 60)], cwd=folder, text=True,
            env={**os.environ, "PYTHONPATH": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for command in commands
    ]  # fmt: skip
    with ThreadPoolExecutor() as threads:
        try:
            waiting = {threads.submit(process.communicate): process for process in started}
            for done in as_completed(waiting):
                output = done.result()[0]
                if waiting[done].returncode == 1 and "seed" in output:
                    for process in started:
                        process.kill()
                        process.wait()
                    return Found((_processor_seconds() - began) / len(commands), output)
                if waiting[done].returncode:
                    raise RuntimeError(output)
                outputs.append(output)
            return Found(None, "".join(outputs))
        finally:
            for process in started:
                process.kill()
