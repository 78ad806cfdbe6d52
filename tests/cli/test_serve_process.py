"""`headrace serve` as a process: it says where it listens, drivers connect, signals end it cleanly."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote_plus

import pymongo
import pytest

from tests.waiting import until

pytestmark = pytest.mark.process

LINE = [sys.executable, "-m", "headrace.cli.main", "serve", "--port", "0"]


@contextmanager
def served(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running server and the one line it said."""
    with subprocess.Popen([*LINE, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with served("--dbpath", str(tmp_path), "--unixSocketPrefix", str(tmp_path)) as (process, line):
        assert re.fullmatch(r"headrace listens on 127\.0\.0\.1:\d+, .*\.sock, data in .*\n", line)
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
        assert process.stdout is not None and process.stdout.read() == ""
    assert not list(tmp_path.glob("*.sock"))


def test_drivers_connect_by_every_way_with_no_option(tmp_path: Path) -> None:
    with served("--dbpath", str(tmp_path), "--unixSocketPrefix", str(tmp_path)) as (_, line):
        address, path = re.findall(r"(127\.0\.0\.1:\d+), (/.*\.sock)", line)[0]
        for count, uri in enumerate(
            [
                f"mongodb://{address}/",
                f"mongodb://{address}/?replicaSet=rs0",
                f"mongodb://{address}/?directConnection=true",
                f"mongodb://{address}/?compressors=snappy",
                f"mongodb://{address}/?compressors=zlib",
                f"mongodb://{quote_plus(path)}",
                f"mongodb://{quote_plus(path)}/?replicaSet=rs0",
            ]
        ):
            with pymongo.MongoClient(uri) as client:
                client.t.c.insert_one({"text": "x" * 1000})
                assert client.t.c.estimated_document_count() == count + 1


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with served("--dbpath", str(tmp_path), "--nounixsocket"):
        second = subprocess.run(
            [*LINE, "--dbpath", str(tmp_path), "--nounixsocket"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 100 and "in use" in second.stderr and second.stdout == ""


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with served("--dbpath", str(tmp_path / "a"), "--nounixsocket") as (_, line):
        port = re.findall(r":(\d+)", line)[0]
        words = ["--dbpath", str(tmp_path / "b"), "--nounixsocket", "--port", port]
        second = subprocess.run([*LINE, *words], capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 48 and second.stdout == ""


def test_in_the_background_it_listens_when_the_command_returns(tmp_path: Path) -> None:
    log, pid = tmp_path / "log", tmp_path / "pid"
    words = ["--dbpath", str(tmp_path), "--nounixsocket", "--fork", "--logpath", str(log), "--pidfilepath", str(pid)]
    done = subprocess.run([*LINE, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    process = int(pid.read_text())
    assert f"forked process: {process}" in done.stdout
    address = re.findall(r"127\.0\.0\.1:\d+", log.read_text())[0]
    with pymongo.MongoClient(f"mongodb://{address}/") as client:
        assert client.admin.command("ping")["ok"] == 1.0
    os.kill(process, signal.SIGTERM)
    until(lambda: not pid.exists())


def test_without_an_oplog_it_is_a_standalone(tmp_path: Path) -> None:
    with served("--dbpath", str(tmp_path), "--nounixsocket", "--no-oplog") as (_, line):
        address = re.findall(r"127\.0\.0\.1:\d+", line)[0]
        with pymongo.MongoClient(f"mongodb://{address}/") as client:
            assert "setName" not in client.admin.command("hello")
            with pytest.raises(pymongo.errors.OperationFailure) as refused:
                client.admin.command("replSetGetStatus")
            assert refused.value.code == 76
