"""`headrace serve --backup`: the flags, and the backup as a part of the server."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pymongo
import pytest

from headrace.backup.archive import BackupArchive, Sealer
from headrace.backup.places import Folder
from headrace.backup.restore import restore
from headrace.backup.source import DirectorySource
from headrace.cli.configuration import expanded
from headrace.cli.main import build_parser, main
from headrace.cli.serve_beside import backup_words
from headrace.testing.driven import DrivenServer
from tests.backup.kills import run
from tests.ports import free_port


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(expanded(["serve", *words]))


def test_the_flags_are_those_of_headrace_backup(tmp_path: Path) -> None:
    words = backup_words(
        parsed("--backup", "archive", "--backupRetain", "7d", "--backupSnapshotEvery", "12h"), Path("/data")
    )
    assert words is not None
    arguments = build_parser().parse_args(words)
    assert arguments.follow and arguments.while_stdin and arguments.source == "/data"
    assert arguments.archive == str(Path("archive").absolute())
    assert (arguments.retain, arguments.snapshotEvery) == (7 * 86_400_000, 12 * 3_600_000)
    url = backup_words(parsed("--backup", "s3://bucket/a", "--backupKeyFile", "key"), Path("/data"))
    assert url is not None and "s3://bucket/a" in url and str(Path("key").absolute()) in url
    assert backup_words(parsed(), Path("/data")) is None


def test_a_configuration_file_has_the_same_flags(tmp_path: Path) -> None:
    path = tmp_path / "headrace.yaml"
    path.write_text("headrace: {backup: /archive, backupRetain: 7d, metricsPort: 9216}\n")
    arguments = parsed("--config", str(path))
    assert (arguments.backup, arguments.backupRetain, arguments.metricsPort) == ("/archive", "7d", 9216)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--backupRetain", "7d"], "--backupRetain needs --backup"),
        (["--backupKeyFile", "key"], "--backupKeyFile needs --backup"),
        (["--backup", "a", "--no-oplog"], "--backup goes by the oplog, and cannot be given with --no-oplog"),
        (["--metricsAddress", "::1"], "--metricsAddress needs --metricsPort"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    assert reason in capsys.readouterr().err


def test_the_copy_of_a_backup_that_was_killed_is_removed_and_one_in_use_is_not(tmp_path: Path) -> None:
    with DrivenServer(tmp_path / "data") as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1}]})
    left = tmp_path / ".data-backup-killed"
    left.mkdir()
    (left / "data.mdb").write_bytes(b"a part")
    source = DirectorySource(tmp_path / "data")
    with source.copied():
        assert not left.exists()
        with source.copied():
            assert len(list(tmp_path.glob(".data-backup-*/data.mdb"))) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_copy_is_in_the_directory_where_nothing_can_be_written_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DrivenServer(tmp_path / "data") as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1}]})
    monkeypatch.setattr(os, "access", lambda path, mode, **_: path != tmp_path.resolve())
    with DirectorySource(tmp_path / "data").copied():
        assert len(list((tmp_path / "data").glob(".backup-*/data.mdb"))) == 1


@pytest.mark.process
def test_a_server_that_is_ended_has_shipped_everything_and_a_wrong_archive_is_said(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    archive = BackupArchive(Folder(tmp_path / "archive"), Sealer())
    words = ["--dbpath", str(data), "--port", str(port), "--nounixsocket", "--backup", str(tmp_path / "archive")]
    command = [sys.executable, "-m", "headrace", "serve", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stderr is not None
        server.stdout.readline()
        with pymongo.MongoClient(f"mongodb://127.0.0.1:{port}/?directConnection=true") as client:
            client.t.c.insert_many([{"_id": number} for number in range(100)])
            while "stored 1 snapshot" not in server.stderr.readline():
                pass
            client.t.c.insert_one({"_id": 100})
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
        assert server.wait(60) == 0
    restore(archive, tmp_path / "restored")
    with DrivenServer(tmp_path / "restored") as restored:
        assert restored.must("t", {"count": "c"})["n"] == 101
    # Another directory: the server serves, and says why there is no backup.
    words[1] = str(tmp_path / "other")
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        killer = threading.Timer(120, server.kill)
        killer.start()
        line = ""
        while line is not None and "the archive is that of another directory" not in line:
            line = server.stderr.readline()
            assert line, "the server has ended"
        assert "the backup has ended (status 1)" in server.stderr.readline()
        killer.cancel()
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
        assert server.wait(60) == 0


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="children of a process are found in /proc")
def test_after_kills_of_server_and_backup_the_archive_has_what_was_acknowledged(tmp_path: Path) -> None:
    assert run(3, 5, tmp_path, in_server=True) == 3
