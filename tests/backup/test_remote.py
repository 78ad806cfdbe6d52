"""A server elsewhere is backed up and followed by its address, with the privileges of the role `backup`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest

import headrace
from headrace import limits
from headrace.backup.archive import BackupArchive, Sealer, checksum
from headrace.backup.places import Folder
from headrace.backup.remote_source import FollowedServer, RemoteSource, ServerGone
from headrace.backup.replay import DivergedHistory
from headrace.backup.restore import copy_of, problems, restore
from headrace.backup.source import DirectorySource, NoOplog
from headrace.backup.standby import Standby
from headrace.backup.writer import ArchiveWriter, Schedule, follow
from headrace.cli.main import main
from headrace.clock import SystemClock
from headrace.dispatch.wait import Wait
from headrace.store.check.directory import check
from headrace.store.retention import prune_entries
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.backup.random_history import RandomHistory, seen
from tests.backup.test_archive import numbers_of
from tests.backup.test_standby import resumed, seen_of, token_of_last_event


class Driven:
    """A client of a driven server, for `RemoteSource`: each command is answered at once, or the connection breaks."""

    def __init__(self, server: DrivenServer) -> None:
        self.server = server
        self.breaks = 0

    @property
    def admin(self) -> Driven:
        return self

    def command(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.breaks:
            self.breaks -= 1
            raise pymongo.errors.AutoReconnect("[Errno 104] broken (configured timeouts: 5 s)")
        answer = self.server.run("admin", body)
        if isinstance(answer, Wait):
            answer = self.server.run("admin", body, time_is_up=True)
        assert isinstance(answer, dict)
        if not answer["ok"]:
            raise pymongo.errors.OperationFailure(answer["errmsg"], answer["code"], answer)
        return answer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DrivenServer]:
    with DrivenServer(tmp_path / "data") as server:
        insert(server, 0)
        yield server


@pytest.fixture
def client(server: DrivenServer) -> Driven:
    return Driven(server)


@pytest.fixture
def source(client: Driven) -> RemoteSource:
    return RemoteSource(client, "the server")  # type: ignore[arg-type]


@pytest.fixture
def standby(tmp_path: Path, source: RemoteSource) -> Iterator[Standby]:
    copy_of(source, tmp_path / "standby", standby_of="mongodb://server")
    following = Standby(FollowedServer(source), tmp_path / "standby")
    yield following
    following.close()


def insert(server: DrivenServer, *numbers: int) -> None:
    for number in numbers:
        server.must("t", {"insert": "c", "documents": [{"_id": number}]})


def beside(tmp_path: Path) -> DirectorySource:
    """A copy of the server's directory, which this process can open beside it."""
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "data" / "data.mdb", tmp_path / "copy")
    return DirectorySource(tmp_path / "copy")


def test_a_look_at_a_server_is_that_at_its_directory(
    tmp_path: Path, server: DrivenServer, source: RemoteSource
) -> None:
    insert(server, 1, 2)
    directory = beside(tmp_path)
    for after in (0, directory.look(0).entries[1][0], server.store.last_position, 1):
        assert source.look(after) == directory.look(after)
    with source.copied() as ours, directory.copied() as theirs:
        assert len(b"".join(ours.pieces)) == len(b"".join(theirs.pieces))
        assert (ours.history, ours.newest, ours.checksum) == (theirs.history, theirs.newest, theirs.checksum)


def test_long_entries_and_a_long_file_come_in_pieces(
    server: DrivenServer, source: RemoteSource, tmp_path: Path
) -> None:
    for number in range(1, 8):
        server.must("t", {"insert": "c", "documents": [{"_id": number, "x": os.urandom(2_000_000)}]})
    found: list[tuple[int, bytes]] = []
    while entries := source.look(found[-1][0] if found else 0).entries:
        assert sum(len(entry) for _, entry in entries[:-1]) < 4 << 20
        found += entries
    with server.store.reading() as view:
        assert found == list(view.entries(0))
    archive = BackupArchive(Folder(tmp_path / "archive"), Sealer())
    ArchiveWriter(archive, source, SystemClock()).begin()
    assert archive.snapshots()[0].pieces > 1 and list(problems(archive)) == []
    restore(archive, tmp_path / "restored")
    assert numbers_of(tmp_path / "restored") == list(range(8))


def test_a_piece_is_asked_for_again_where_the_connection_breaks(client: Driven, source: RemoteSource) -> None:
    with source.copied() as copy:
        whole = b"".join(copy.pieces)
    with source.copied() as copy:
        client.breaks = 3
        assert b"".join(copy.pieces) == whole
    client.breaks = 1
    with pytest.raises(ServerGone, match=r"the server cannot be reached: broken$"):
        source.look(0)


def test_a_snapshot_ends_with_its_reader_after_ten_minutes_and_where_there_are_many(tmp_path: Path) -> None:
    clock = FakeClock()
    with DrivenServer(tmp_path / "data", clock=clock) as server:
        copies = server.store.snapshot_copies
        numbers = [server.must("admin", {"headraceBackup": 1, "snapshot": 0})["snapshot"]]
        clock.advance(limits.CURSOR_IDLE_MS_MAX - 1)
        for _ in range(limits.SNAPSHOT_COPY_COUNT):
            numbers.append(server.must("admin", {"headraceBackup": 1, "snapshot": 0})["snapshot"])
        for number in numbers[1:]:
            copies.get(number, clock.monotonic_ms())._thread.wait()
        assert list((tmp_path / "data" / "_tmp").iterdir()) == []
        assert code(server, numbers[0]) == 43
        assert code(server, numbers[1]) is None
        server.must("admin", {"headraceBackup": 1, "snapshot": numbers[1], "end": True})
        server.must("admin", {"headraceBackup": 1, "snapshot": numbers[1], "end": True})
        assert code(server, numbers[1]) == 43
        clock.advance(limits.CURSOR_IDLE_MS_MAX)
        copies.remove_idle(clock.monotonic_ms())
        assert code(server, numbers[2]) is None
        clock.advance(limits.CURSOR_IDLE_MS_MAX)
        copies.remove_idle(clock.monotonic_ms())
        assert code(server, numbers[2]) is None
        clock.advance(1)
        copies.remove_idle(clock.monotonic_ms())
        assert code(server, numbers[3]) == 43


def code(server: DrivenServer, number: int) -> Any:
    """The error of a read of a snapshot; None: it succeeds."""
    answer = server.run("admin", {"headraceBackup": 1, "snapshot": number})
    assert isinstance(answer, dict)
    return answer.get("code")


def test_a_store_is_closed_while_it_is_copied(tmp_path: Path) -> None:
    with DrivenServer(tmp_path / "data") as server:
        for _ in range(4):
            server.must("t", {"insert": "c", "documents": [{"x": os.urandom(8_000_000)}]})
        server.must("admin", {"headraceBackup": 1, "snapshot": 0})
    assert list((tmp_path / "data" / "_tmp").iterdir()) == []
    assert check(tmp_path / "data").problems == []


def test_a_copy_that_the_disk_has_no_room_for_is_an_error(server: DrivenServer) -> None:
    server.store.spill_folder.free_bytes_min = 1 << 60
    failed = server.run("admin", {"headraceBackup": 1, "snapshot": 0})
    assert isinstance(failed, dict) and failed["code"] == 14031


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, 2), ({"after": 1}, 14), ({"snapshot": -1}, 51024), ({"snapshot": 7}, 43), ({"position": 1}, 40415)],
)
def test_what_the_command_does_not_take(server: DrivenServer, fields: dict[str, Any], expected: int) -> None:
    failed = server.run("admin", {"headraceBackup": 1, **fields})
    assert isinstance(failed, dict) and failed["code"] == expected


@pytest.mark.long
@pytest.mark.parametrize("seed", [21, 22])
def test_a_standby_of_a_server_is_what_that_was(tmp_path: Path, seed: int) -> None:
    with DrivenServer(tmp_path / "data") as server:
        history = RandomHistory(server, seed)
        history.step()
        source = RemoteSource(Driven(server), "the server")  # type: ignore[arg-type]
        copy_of(source, tmp_path / "standby", standby_of="mongodb://server")
        standby = Standby(FollowedServer(source), tmp_path / "standby")
        for _ in range(5):
            for _ in range(20):
                history.step()
            standby.apply()
            standby.tend()
            assert standby.position == server.store.last_position
            expected, actual = seen(server), seen_of(standby.store)
            for name in sorted({*expected, *actual}):
                assert actual.get(name) == expected.get(name), name
        standby.close()
    assert check(tmp_path / "standby").problems == []


def test_a_standby_follows_a_server_and_is_promoted_without_it(
    tmp_path: Path, server: DrivenServer, client: Driven, standby: Standby
) -> None:
    insert(server, 1, 2)
    assert standby.apply() == 2 and standby.apply() == 0
    said: list[str] = []
    client.breaks = 2
    looks = iter([True, True, True, False])
    insert(server, 3)
    standby.follow(lambda _: next(looks), said.append)
    assert said == ["the standby waits: the server cannot be reached: broken", "the standby goes on"]
    server.close()
    token = token_of_last_event(tmp_path / "data")
    standby.close()
    assert main(["promote", str(tmp_path / "standby"), "--withoutArchive"]) == 0
    assert numbers_of(tmp_path / "standby") == [0, 1, 2, 3]
    assert resumed(tmp_path / "standby", token) == []


def test_a_standby_that_the_oplog_has_left_behind_must_begin_anew(
    tmp_path: Path, server: DrivenServer, standby: Standby
) -> None:
    insert(server, 1, 2)
    txn = server.store.begin()
    prune_entries(txn, server.store.last_position, 1000)
    server.store.commit(txn)
    with pytest.raises(DivergedHistory, match=r"has pruned what follows .* begin anew"):
        standby.apply()


def test_a_server_with_another_entry_at_the_standbys_position_is_refused(
    server: DrivenServer, source: RemoteSource, standby: Standby
) -> None:
    insert(server, 1)
    assert standby.apply() == 1
    entries = FollowedServer(source).new_entries(standby.position, checksum(b"another"))
    with pytest.raises(DivergedHistory, match="another history than the standby"):
        list(entries)


def test_a_backup_waits_for_a_server_and_leaves_no_part_of_a_snapshot(
    tmp_path: Path, server: DrivenServer, client: Driven, source: RemoteSource
) -> None:
    archive = BackupArchive(Folder(tmp_path / "archive"), Sealer())
    writer = ArchiveWriter(archive, source, SystemClock())
    writer.begin()
    insert(server, 1)
    (tmp_path / "archive" / "snapshots" / f"{1:016x}").mkdir()
    (tmp_path / "archive" / "snapshots" / f"{1:016x}" / "000000").write_bytes(b"of a try that failed")
    client.breaks, said, looks = 1, [], iter([True, False])
    follow(writer, Schedule(0, None), lambda _: next(looks), said.append)
    assert said[0] == "the backup waits: the server cannot be reached: broken" and said[-1] == "the backup goes on"
    assert archive.unfinished_snapshots() == [] and list(problems(archive)) == []


def test_a_server_without_an_oplog_or_the_command_is_none_to_follow() -> None:
    with DrivenServer(oplog=False) as server, pytest.raises(NoOplog, match="has no oplog"):
        RemoteSource(Driven(server), "the server").look(0)  # type: ignore[arg-type]
    with DrivenServer() as server, pytest.raises(NoOplog, match="is no server of Headrace"):
        server.engine.commands = {}
        RemoteSource(Driven(server), "the server").look(0)  # type: ignore[arg-type]


@pytest.mark.long
def test_the_role_backup_is_what_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users = {
        "ann": {"pwd": "secret", "roles": ["backup"]},
        "bob": {"pwd": "secret", "roles": ["readAnyDatabase", "clusterMonitor", "dbAdminAnyDatabase"]},
    }
    archive, standby = str(tmp_path / "archive"), tmp_path / "standby"
    with headrace.Server(tmp_path / "data", users=users) as server:
        address = server.uri.partition("//")[2]
        uri = f"mongodb://ann:secret@{address}"
        assert main(["backup", uri, archive]) == 0
        assert "stored 1 snapshot and 0 oplog entries" in capsys.readouterr().out
        assert main(["backup", f"mongodb://bob:secret@{address}", archive]) == 1
        assert "error 13 (Unauthorized): not authorized on admin" in capsys.readouterr().err
        source = pymongo.MongoClient(uri)
        with source:
            copy_of(RemoteSource(source, "server"), standby, standby_of=f"mongodb://{address}")
        assert main(["promote", str(standby)]) == 1
        error = capsys.readouterr().err
        assert f"mongodb://{address}, which the standby follows, still answers: end that server first" in error
    assert main(["promote", str(standby)]) == 0
    assert "promoted, with all up to" in capsys.readouterr().out
