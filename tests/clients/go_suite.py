"""The Go driver's integration tests: compiled once, run where the module's sources are."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tests.clients.packages import go_driver, go_tests
from tests.clients.python_suites import Selection, clean_environment

TIMEOUT_S: Final = 3600
SPECIFICATIONS: Final = {
    "causal-consistency/tests": "causal_consistency",
    "change-streams/tests/unified": "change_streams/unified",
    "client-backpressure/tests": "client-backpressure",
    "client-side-encryption/tests/legacy": "client-side-encryption/spec/legacy",
    "client-side-encryption/tests/unified": "client-side-encryption/spec/unified",
    "client-side-operations-timeout/tests": "csot",
    "collection-management/tests": "collection_management",
    "command-logging-and-monitoring/tests/logging": "command_logging",
    "command-logging-and-monitoring/tests/monitoring": "command_monitoring",
    "connection-monitoring-and-pooling/tests/logging": "connection_logging",
    "crud/tests/unified": "crud/unified",
    "gridfs/tests": "gridfs",
    "index-management/tests": "index_management",
    "load-balancers/tests": "load_balancer",
    "mongodb-handshake/tests/unified": "handshake/unified",
    "read-write-concern/tests/operation": "read_write_concern/operation",
    "retryable-reads/tests/unified": "retryable_reads/unified",
    "retryable-writes/tests/unified": "retryable_writes/unified",
    "run-command/tests/unified": "run_command/unified",
    "server-discovery-and-monitoring/tests/unified": "discovery_and_monitoring/unified",
    "server-selection/tests/logging": "server_selection_logging",
    "sessions/tests": "sessions",
    "transactions-convenient-api/tests/unified": "transactions-convenient-api/unified",
    "transactions/tests/unified": "transactions/unified",
    "unified-test-format/tests/valid-fail": "unified-test-format/valid-fail",
    "unified-test-format/tests/valid-pass": "unified-test-format/valid-pass",
    "versioned-api/tests": "versioned-api",
}
"""Folders of the drivers' specifications, which the module lacks, and where pymongo's source package has them."""
_RESULT: Final = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)
_OUTCOMES: Final = {"FAIL": "failed", "PASS": "passed", "SKIP": "skipped"}


def go_outcomes(
    package: str, pymongo: Path, selection: Selection, uri: str, folder: Path, more: dict[str, str]
) -> dict[str, str]:
    """Return the outcome of each test of a package of the module, by its name: `passed`, `failed` or `skipped`.

    `pymongo`: its unpacked source package. `folder`: for what is written. `more`: variables of the environment.
    """
    module = go_driver()
    program = go_tests(module, package)
    project = _project(pymongo, folder)
    line = [str(program), "-test.v", f"-test.timeout={TIMEOUT_S}s"]
    if selection.not_run:
        line.append(f"-test.skip={'|'.join(selection.not_run)}")
    if selection.only:
        line.append(f"-test.run={_pattern(selection.only)}")
    environ = clean_environment() | {"MONGODB_URI": uri, "PROJECT_DIRECTORY": str(project)} | more
    run = subprocess.run(
        line, cwd=module / package, env=environ, capture_output=True, text=True, errors="replace", check=False
    )
    (folder / "output.txt").write_text(run.stdout + run.stderr)
    assert "\npanic: " not in run.stderr + run.stdout, run.stderr[-20000:]
    return read_outcomes(run.stdout)


def read_outcomes(output: str) -> dict[str, str]:
    """The outcome of each test without parts, and of those that failed though no part of theirs has."""
    seen = {name: _OUTCOMES[outcome] for outcome, name in _RESULT.findall(output)}
    parents = {parent for name in seen for parent in _parents(name)}
    blamed = {parent for name, outcome in seen.items() if outcome == "failed" for parent in _parents(name)}
    return {
        name: outcome
        for name, outcome in seen.items()
        if name not in parents or (outcome == "failed" and name not in blamed)
    }


def _pattern(names: Collection[str]) -> str:
    """The pattern of these tests. It matches each part of a name by itself, and so some other tests, too."""
    levels: list[set[str]] = []
    for name in names:
        for depth, part in enumerate(name.split("/")):
            if depth == len(levels):
                levels.append(set())
            levels[depth].add(re.escape(part))
    shortest = min(name.count("/") for name in names) + 1
    return "/".join(f"^({'|'.join(sorted(parts))})$" for parts in levels[:shortest])


def _parents(name: str) -> list[str]:
    return [name[:at] for at, letter in enumerate(name) if letter == "/"]


def _project(pymongo: Path, folder: Path) -> Path:
    """A folder in which the tests find the specifications."""
    for name, source in SPECIFICATIONS.items():
        place = folder / "project" / "testdata" / "specifications" / "source" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(pymongo / "test" / source)
    return folder / "project"
