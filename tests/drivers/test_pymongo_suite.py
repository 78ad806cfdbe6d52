"""pymongo's own tests, unmodified, against Headrace: none may fail.

What they skip they skip by their own conditions (sharded clusters, older servers). Those of TLS: `test_pymongo_tls.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.drivers.serving import serving

pytestmark = [pytest.mark.network, pytest.mark.process]

SUITES = {
    "test/test_client_bulk_write.py": 15,
    "test/test_crud_unified.py": 300,
    "test/test_transactions_unified.py": 140,
    "test/test_change_stream.py": 125,
    "test/test_retryable_writes_unified.py": 105,
    "test/asynchronous/test_change_stream.py": 120,
    "test/test_auth_spec.py": 55,
    "test/test_sessions_unified.py": 20,
    "test/test_auth.py": 6,
}
"""Files of tests, longest first, and how many tests must have been run in each: one that skips itself shows nothing."""
WITH_USERS = frozenset({"test/test_auth.py", "test/test_sessions_unified.py"})
"""Files whose server has `--auth`: the suite creates its user by the localhost exception."""
NOT_RUN = {
    "scram_threaded": "waits by JavaScript",
    "secondary_read": "needs a set with a secondary",
}
"""Tests left out, by a part of their names, and why."""
ALONE_MAX = 8
"""So many that failed may pass alone: some give the server 100 ms for an answer that waits for the disk."""
AT_A_TIME = 3
"""So many files are run side by side."""


def _run(folder: Path, suite: Path, name: str) -> str:
    """What a file of tests printed, run against a server of its own; raises AssertionError if one of them failed."""
    with serving(folder, *(["--auth"] if name in WITH_USERS else [])) as address:
        host, _, port = address.rpartition(":")
        pytest_line = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "--tb=short"]
        left_out = " and ".join(f"not {part}" for part in NOT_RUN)

        def run_tests(*chosen: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*pytest_line, *chosen],
                cwd=suite,
                env={**os.environ, "DB_IP": host, "DB_PORT": port, "PYTEST_ADDOPTS": ""},
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )

        run = run_tests("-k", left_out, name)
        failed = re.findall(r"^FAILED (\S+)", run.stdout, re.MULTILINE)
        if 0 < len(failed) <= ALONE_MAX:
            again = run_tests(*failed)
            assert again.returncode == 0, run.stdout[-20000:] + again.stdout[-20000:]
        else:
            assert run.returncode == 0, run.stdout[-20000:] + run.stderr[-2000:]
        return run.stdout


@pytest.fixture(scope="module")
def runs(
    suite: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[str]]]:
    """The runs of all files that were asked for, some at a time: most of their time is the driver's waiting."""
    chosen = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in chosen if isinstance(item, pytest.Function)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {name: pool.submit(_run, tmp_path_factory.mktemp("data"), suite, name) for name in names}


@pytest.mark.parametrize("name", SUITES)
def test_none_of_pymongos_tests_fails(name: str, runs: Mapping[str, Future[str]]) -> None:
    """The first two take a minute each: they wait for their files, beside which others are run."""
    summary = runs[name].result()
    passed = re.search(r"(\d+) passed", summary)
    assert passed is not None and int(passed[1]) >= SUITES[name], summary[-2000:]
