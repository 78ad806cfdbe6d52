"""Addresses that other machines reach need consent while nobody has to log in; files are their owner's only."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.server.protection import OpenKeyFile, UnprotectedAddress, make_directory_private, require_private_key_file
from tests.server.raw import RawClient


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_exposed_server_does_not_start_without_consent(host: str) -> None:
    with pytest.raises(UnprotectedAddress, match="allowUnauthenticated"):
        headrace.Server(host=host).start()


def test_a_server_that_others_can_reach_by_consent_warns_once_at_its_start(caplog: pytest.LogCaptureFixture) -> None:
    for host, count in (("127.0.0.1", 0), ("0.0.0.0", 1)):
        caplog.clear()
        with (
            headrace.Server(host=host, allow_unauthenticated=True) as server,
            RawClient(f"127.0.0.1:{server.address.rpartition(':')[2]}") as client,
        ):
            warnings = client.ask({"getLog": "startupWarnings"}, "admin")["log"]
            assert len(warnings) == sum("not enabled" in record.message for record in caplog.records) == count
            assert all(f"listens on {host}" in line for line in warnings)


@pytest.mark.process
def test_the_command_refuses_all_addresses_with_the_status_of_bad_options(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "headrace", "serve", "--bind_ip_all", "--port", "0", "--nounixsocket"]
    ended = subprocess.run([*words, "--dbpath", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2 and "--allowUnauthenticated" in ended.stderr and ended.stdout == ""


@pytest.mark.parametrize(("wanted", "expected"), [(None, 0o700), (0o777, 0o777)])
def test_a_unix_socket_is_its_owners_only_by_default(tmp_path: Path, wanted: int | None, expected: int) -> None:
    options = {} if wanted is None else {"unix_socket_mode": wanted}
    with headrace.Server(unix_socket_prefix=tmp_path, **options):
        (path,) = tmp_path.glob("*.sock")
        assert mode(path) == expected


def test_a_data_directory_that_was_open_to_others_is_mended_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "data"
    headrace.Server(path).start().close()
    path.chmod(0o755)
    with headrace.Server(path) as server, RawClient(server.address) as client:
        (warning,) = client.ask({"getLog": "startupWarnings"}, "admin")["log"]
    assert "was open to others (mode 0755)" in warning and mode(path) == 0o700
    assert {mode(path / name) for name in os.listdir(path)} <= {0o600, 0o700}


def test_a_directory_that_holds_anything_else_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    tmp_path.chmod(0o755)
    assert make_directory_private(tmp_path) is None
    tmp_path.chmod(0o775)
    assert "chmod go-w" in str(make_directory_private(tmp_path)) and mode(tmp_path) == 0o775


def test_a_log_that_was_open_to_others_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    path.chmod(0o644)
    code = "import sys, pathlib; "
    code += "from headrace.cli.background import open_log as o; print(o(pathlib.Path(sys.argv[1]), append=True))"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
    assert re.search(r"was open to others \(mode 0644\)", path.read_text()) and mode(path) == 0o600


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    path.touch(mode=0o600)
    require_private_key_file(path)
    for bits in (0o640, 0o604, 0o660):
        path.chmod(bits)
        if bits == 0o640 and path.stat().st_uid == 0:
            require_private_key_file(path)
            continue
        with pytest.raises(OpenKeyFile, match="too open"):
            require_private_key_file(path)
