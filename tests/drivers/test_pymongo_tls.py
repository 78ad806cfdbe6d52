"""pymongo's own tests of TLS and X.509, unmodified and with its own certificates: none fails, and each skip is known.

Each file is run twice, as some tests want a server with users and some one without.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.drivers import host_named_server
from tests.drivers.serving import serving
from tests.ports import free_port

pytestmark = [pytest.mark.network, pytest.mark.process]

FILES: Final = ("test/test_ssl.py", "test/asynchronous/test_ssl.py")
SKIPPED: Final = {
    r"Authentication is not enabled on the server": "the run with --auth runs it",
    r"Authentication must not be enabled on the server": "the run without --auth runs it",
    r"Can't test when SSLContext available\.": "for Python 2.6",
    r"Can't test when system CA certificates are loadable\.": "for systems without any",
    r"Only valid on Windows\.": "for Windows",
    r"PyOpenSSL is not available\.": "PyOpenSSL is no dependency of ours",
    r"TLS session reuse is (not supported on Python 3\.11|enabled on Python 3\.12\+)": "for another Python",
    r"Tests async .* only": "the file for asyncio runs it",
    r"Tests sync .* path only": "the file for threads runs it",
    r"The ssl module is available, can't test what happens without it\.": "for Python without ssl",
    r"This test only works with the (a?)synchronous API": "the other file runs it",
}
"""Why pymongo skips a test of these files, as a pattern, and what that means here."""


@pytest.mark.parametrize(("flags", "passed"), [((), 33), (("--auth",), 29)], ids=["without users", "with users"])
def test_none_of_pymongos_tests_of_tls_fails(flags: tuple[str, ...], passed: int, suite: Path, tmp_path: Path) -> None:
    certificates = suite / "test" / "certificates"
    key_file = Path(shutil.copy(certificates / "server.pem", tmp_path / "server.pem"))
    key_file.chmod(0o600)
    port, host = free_port(), "localhost"
    tls = [
        "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(key_file),
        "--tlsCAFile", str(certificates / "ca.pem"), "--tlsAllowConnectionsWithoutCertificates",
        "--advertise", f"{host}:{port}",
    ]  # fmt: skip
    with serving(tmp_path / "data", *tls, *flags, port=port):
        run = _run(suite, certificates, host, port)
        if run.returncode == 1 and "ServerSelectionTimeoutError" in run.stdout:
            run = _run(suite, certificates, host, port)  # these tests wait half a second, which a busy machine may take
    assert run.returncode == 0, run.stdout[-20000:] + run.stderr[-2000:]
    reasons = re.findall(r"^SKIPPED \[\d+\] \S+: (.*)$", run.stdout, re.MULTILINE)
    unknown = [reason for reason in reasons if not any(re.fullmatch(known, reason) for known in SKIPPED)]
    assert not unknown, Counter(unknown)
    counted = re.search(r"(\d+) passed", run.stdout)
    assert counted is not None and int(counted[1]) >= passed, run.stdout[-2000:]


def _run(suite: Path, certificates: Path, host: str, port: int) -> subprocess.CompletedProcess[str]:
    """pymongo's tests against the server."""
    plugin = Path(host_named_server.__file__)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-o", "addopts=", "-p", "no:cacheprovider", "--tb=short",
         "-p", plugin.stem, *FILES],
        cwd=suite,
        env=os.environ | {
            "CA_PEM": str(certificates / "ca.pem"), "CLIENT_PEM": str(certificates / "client.pem"),
            "DB_IP": host, "DB_PORT": str(port), "PYTEST_ADDOPTS": "", "PYTHONPATH": str(plugin.parent),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
