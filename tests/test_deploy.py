"""The files of `deploy/`: systemd takes the unit, and the commands of unit and container start a server."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.background import notify_ready
from headrace.cli.configuration import expanded
from headrace.cli.main import build_parser
from headrace.cli.serve import EXIT_BAD_OPTIONS, EXIT_DIRECTORY_IN_USE, options_of
from tests.ports import free_port

DEPLOY = Path(__file__).parents[1] / "deploy"
UNIT = DEPLOY / "headrace.service"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text("utf-8")


def service() -> dict[str, str]:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text("utf-8"))
    return dict(unit["Service"])


def words_of_unit() -> list[str]:
    """The words after `headrace`, with the settings of `deploy/`."""
    return shlex.split(service()["ExecStart"].replace("/etc/headrace.yaml", str(DEPLOY / "headrace.yaml")))[1:]


def from_container(instruction: str) -> list[str]:
    found = re.search(rf"^{instruction} .*?(\[.*\])$", CONTAINERFILE, re.MULTILINE)
    assert found is not None
    words: list[str] = json.loads(found[1])
    return words


@pytest.mark.parametrize("words", [words_of_unit(), from_container("CMD")], ids=["systemd", "container"])
def test_the_command_is_one_that_headrace_takes_and_asks_clients_to_log_in(words: list[str]) -> None:
    flags = expanded(words)
    assert options_of(build_parser().parse_args(flags), flags).auth


def test_the_unit_does_not_restart_what_a_restart_cannot_help() -> None:
    statuses = service()["RestartPreventExitStatus"].split()
    assert statuses == [str(EXIT_BAD_OPTIONS), str(EXIT_DIRECTORY_IN_USE)]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit_and_finds_little_exposed(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(
        UNIT.read_text("utf-8").replace("/usr/local/lib/headrace/bin/headrace", shutil.which("true") or "/bin/true")
    )
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    said = [line for line in verified.stderr.splitlines() if UNIT.name in line]
    assert verified.returncode == 0 and not said
    graded = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=25", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert graded.returncode == 0, graded.stdout + graded.stderr


@pytest.mark.process
@pytest.mark.parametrize("kind", ["a path", "an abstract name"])
def test_the_server_says_that_it_is_ready_when_clients_can_connect(kind: str, tmp_path: Path) -> None:
    name = str(tmp_path / "notify") if kind == "a path" else f"\0headrace-{os.getpid()}"
    port = str(free_port())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name)
        systemd.settimeout(60)
        environment = {**os.environ, "NOTIFY_SOCKET": name.replace("\0", "@"), "PORT": port}
        command = [sys.executable, "-m", "headrace", "serve", "--dbpath", str(tmp_path / "data"), "--port", port,
                   "--nounixsocket"]  # fmt: skip
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
            try:
                assert systemd.recv(100) == b"READY=1"
                health = from_container("HEALTHCHECK")
                asked = [sys.executable, *(word.replace("27017", port) for word in health[1:])]
                subprocess.run(asked, check=True, timeout=60)
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            finally:
                process.kill()


@pytest.mark.parametrize("address", ["", "vsock:2:1", "/no/such/socket"])
def test_without_systemd_nothing_is_said(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify_ready()


def test_the_container_has_a_python_that_headrace_supports() -> None:
    text = DEPLOY.parent.joinpath("pyproject.toml").read_text("utf-8")
    versions = set(re.findall(r"^FROM docker\.io/library/python:([\d.]+)-slim", CONTAINERFILE, re.MULTILINE))
    assert len(versions) == 1 and f"Programming Language :: Python :: {versions.pop()}" in text


def test_podman_keeps_the_health_check_of_the_container() -> None:
    """Podman's own format of images has none."""
    assert "podman build --format docker " in CONTAINERFILE


def test_the_container_has_no_system_user_beyond_their_range() -> None:
    found = re.search(r"useradd (.*?)--uid (\d+)", CONTAINERFILE)
    assert found is not None and ("--system" not in found[1] or int(found[2]) <= 999)
