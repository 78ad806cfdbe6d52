"""A start that fails touches nothing: neither the log, the pid file nor the directory of whoever runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pymongo
import pytest

from tests.cli.test_serve_process import LINE, served

pytestmark = pytest.mark.process


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LINE, *words], capture_output=True, text=True, timeout=60, check=False)


def test_a_second_start_leaves_log_and_pid_file_to_the_first(tmp_path: Path) -> None:
    log, pid = tmp_path / "log", tmp_path / "pid"
    words = [
        "--dbpath", str(tmp_path / "data"), "--nounixsocket", "--fork", "--logpath", str(log), "--pidfilepath",
        str(pid),
    ]  # fmt: skip
    assert run(*words).returncode == 0
    process, text = pid.read_text(), log.read_text()
    second = run(*words)
    assert second.returncode == 100 and "in use" in second.stderr and f"exited with {100}" in second.stderr
    port = re.findall(r"127\.0\.0\.1:(\d+)", text)[0]
    third = run(*words, "--dbpath", str(tmp_path / "other"), "--port", port)
    assert third.returncode == 48 and not (tmp_path / "other").exists()
    assert pid.read_text() == process and log.read_text() == text
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("log")] == ["log"]
    ended = run("--dbpath", str(tmp_path / "data"), "--shutdown")
    assert ended.returncode == 0 and process.strip() in ended.stdout and not pid.exists()
    again = run("--dbpath", str(tmp_path / "data"), "--shutdown")
    assert again.returncode == 1 and "no server has" in again.stderr


def test_a_port_in_use_leaves_no_directory_behind(tmp_path: Path) -> None:
    with served("--dbpath", str(tmp_path / "a"), "--nounixsocket") as (_, line):
        port = re.findall(r":(\d+)", line)[0]
        second = run("--dbpath", str(tmp_path / "b"), "--nounixsocket", "--port", port)
    assert second.returncode == 48 and len(second.stderr.splitlines()) == 1
    assert not (tmp_path / "b").exists()


def test_a_log_that_is_a_directory_is_refused_and_stays(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    done = run("--dbpath", str(tmp_path / "a"), "--nounixsocket", "--logpath", str(folder))
    assert done.returncode == 1 and "is a directory" in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("hosts", ["localhost,127.0.0.1", "127.0.0.1,localhost", "127.0.0.1,127.0.0.1"])
def test_an_address_that_is_named_twice_is_listened_on_once(tmp_path: Path, hosts: str) -> None:
    with served("--dbpath", str(tmp_path), "--nounixsocket", "--bind_ip", hosts) as (_, line):
        assert line.count("127.0.0.1:") == 1


def test_quiet_servers_say_where_they_listen(tmp_path: Path) -> None:
    words = ["--dbpath", str(tmp_path), "--nounixsocket", "--quiet"]
    with served(*words) as (_, line):
        address = re.findall(r"127\.0\.0\.1:\d+", line)[0]
        with pymongo.MongoClient(f"mongodb://{address}/") as client:
            assert client.admin.command("ping")["ok"] == 1.0


def test_a_server_that_nobody_closes_leaves_no_directory(tmp_path: Path) -> None:
    script = "import headrace\nserver = headrace.Server().start()\nprint(server.uri)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mongodb://")
    assert list(tmp_path.iterdir()) == []
