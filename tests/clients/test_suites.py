"""Each suite, without and with users and TLS, fails what `expected.py` lists, and nothing more or less.

    make clients
    python -m pytest -m soak tests/clients -k "mongosh and not secure"

A suite takes from seconds to an hour. Its output is `output.txt` in a temporary folder, which a failure names.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pymongo import MongoClient

from tests.clients.expected import NOT_RUN, differences, expected
from tests.clients.python_suites import Selection
from tests.clients.suites import PASSWORD, SUITES, USER, Suite, Target, pymongo_package
from tests.drivers.serving import serving
from tests.ports import free_port, is_free

pytestmark = [pytest.mark.network, pytest.mark.soak]
AGAIN_MAX = 40
"""So many tests that fail unexpectedly are run once more: some give the server a few milliseconds."""
RUNS = [
    pytest.param(name, secure, id=f"{name}{', secure' if secure else ''}")
    for name, suite in SUITES.items()
    for secure in (False, True)
    if suite.passed[secure]
]


@contextmanager
def _target(folder: Path, suite: Suite, secure: bool) -> Iterator[Target]:
    """A server for a suite, as the drivers' makers set up theirs: with fail points and a set that is named `rs`."""
    port = suite.port or free_port()
    if not is_free(port):
        pytest.skip(f"the suite knows the port {port} only, which another server has")
    target = Target(port, secure, pymongo_package() / "test" / "certificates")
    flags = ["--replSet", "rs", "--advertise", f"localhost:{port}"]
    if secure:
        key_file = Path(shutil.copy(target.certificates / "server.pem", folder / "server.pem"))
        key_file.chmod(0o600)
        flags += [
            "--auth", "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(key_file),
            "--tlsCAFile", str(target.certificates / "ca.pem"), "--tlsAllowConnectionsWithoutCertificates",
        ]  # fmt: skip
    with serving(folder / "data", *flags, port=port):
        if secure:
            authority = str(target.certificates / "ca.pem")
            with MongoClient[object]("localhost", port, tls=True, tlsCAFile=authority) as client:
                client.admin.command("createUser", USER, pwd=PASSWORD, roles=["root"])
        yield target


@pytest.mark.parametrize(("name", "secure"), RUNS)
def test_a_suite_fails_what_is_expected(name: str, secure: bool, tmp_path: Path) -> None:
    suite = SUITES[name]
    with _target(tmp_path, suite, secure) as target:
        not_run, patterns = tuple(NOT_RUN.get(name, {})), expected(name, secure)
        outcomes = dict(suite.run(target, Selection(not_run), tmp_path))
        new, _ = differences(outcomes, patterns)
        if 0 < len(new) <= AGAIN_MAX:
            (tmp_path / "again").mkdir()
            again = suite.run(target, Selection(not_run, only=tuple(new)), tmp_path / "again")
            outcomes |= {name: again[name] for name in new if name in again}
    counts = {outcome: list(outcomes.values()).count(outcome) for outcome in ("passed", "failed", "skipped")}
    print(name, "secure" if secure else "plain", counts)
    new, cured = differences(outcomes, patterns)
    assert not new and not cured, f"{counts}; new failures: {new}; unexpected passes: {cured}; {tmp_path}/output.txt"
    assert counts["passed"] >= suite.passed[secure], counts
