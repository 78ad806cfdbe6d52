"""Suites of Python projects: pytest runs them where they were unpacked, and writes what became of each test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

TIMEOUT_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Selection:
    """The tests of a suite to run.

    `not_run`: what names of tests contain (for Go: match) that are left out. `only`: names as in outcomes, or nothing
    for all; others may be run besides.
    """

    not_run: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


def python_outcomes(
    suite: Path, chosen: Sequence[str], selection: Selection, environ: Mapping[str, str], folder: Path
) -> dict[str, str]:
    """Return the outcome of each test, by its id: `passed`, `failed` or `skipped`.

    `chosen`: files and options for pytest. `folder`: for the report.
    """
    report = folder / "report.xml"
    options = [
        f"--rootdir={suite}",
        "-q",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:headrace",
        "--tb=short",
    ]
    terms = [f"not {part}" for part in selection.not_run]
    if selection.only:
        terms.append(f"({' or '.join(sorted({name.rpartition('.')[2] for name in selection.only}))})")
    by_name = ["-k", " and ".join(terms)] if terms else []
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *by_name, f"--junitxml={report}", *chosen],
        cwd=suite, env=clean_environment() | environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    (folder / "output.txt").write_text(run.stdout + run.stderr)
    assert run.returncode in (0, 1), run.stdout[-20000:] + run.stderr[-2000:]
    return _read(report)


def clean_environment() -> dict[str, str]:
    """The variables of this process that a suite needs, and none by which it would find out where it runs."""
    return {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}


def _read(report: Path) -> dict[str, str]:
    """The outcomes of a report in JUnit's form; a test with parts has failed if one of them has."""
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        parts = {part.tag for part in case}
        if parts & {"failure", "error"}:
            outcomes[name] = "failed"
        elif outcomes.get(name) != "failed":
            outcomes[name] = "skipped" if "skipped" in parts else "passed"
    return outcomes
