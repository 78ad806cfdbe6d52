"""A standby is what its archive says; promoted, it resumes the old server's tokens, or says 280."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.backup.archive import BackupArchive, DamagedArchive, Sealer, checksum
from headrace.backup.places import ArchiveInUse, Folder
from headrace.backup.restore import Moment, restore
from headrace.backup.standby import NoStandby, Standby, followed_by
from headrace.cli.main import main
from headrace.commands.server_info.parameters import first_parameters
from headrace.commands.table import commands_for
from headrace.dispatch.engine import Engine
from headrace.store.check.directory import check
from headrace.store.data_file import UnusableDirectory
from headrace.store.store import Store
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.position import seconds, to_timestamp
from headrace.values.token import high_water_mark
from tests.backup.random_history import RandomHistory, seen
from tests.backup.test_archive import insert, numbers_of
from tests.backup.test_moments import ship


@pytest.fixture
def archive(tmp_path: Path) -> BackupArchive:
    return BackupArchive(Folder(tmp_path / "archive"), Sealer())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    insert(tmp_path / "data", 0)
    return tmp_path / "data"


@pytest.fixture
def standby(tmp_path: Path, data: Path, archive: BackupArchive) -> Iterator[Standby]:
    ship(data, archive)
    restore(archive, tmp_path / "standby", standby_of=str(tmp_path / "archive"))
    following = Standby(archive, tmp_path / "standby")
    yield following
    following.close()


def promoted(standby: Standby) -> Path:
    """End following, and return the directory."""
    path = standby.store.environment.path
    standby.promote()
    standby.close()
    return Path(path)


def token_of_last_event(path: Path) -> dict[str, Any]:
    """The resume token of the newest event in a directory."""
    with DrivenServer(path) as server:
        begins = server.store.pruned_through
        assert begins == -1
        pipeline = [{"$changeStream": {"startAtOperationTime": timestamp(1)}}]
        opened = server.must("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {"batchSize": 1000}})
        token: dict[str, Any] = opened["cursor"]["firstBatch"][-1]["_id"]
        return token


def timestamp(at: int) -> Any:
    return to_timestamp(at << 32)


def resumed(path: Path, token: dict[str, Any]) -> Any:
    """The `_id`s of the events after a token, or the code of the error."""
    with DrivenServer(path) as server:
        pipeline = [{"$changeStream": {"resumeAfter": token}}]
        answer = server.run("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {"batchSize": 1000}})
        assert isinstance(answer, dict)
        if not answer["ok"]:
            return answer["code"]
        return [event["documentKey"]["_id"] for event in answer["cursor"]["firstBatch"]]


def test_a_standby_applies_what_is_shipped(
    tmp_path: Path, data: Path, archive: BackupArchive, standby: Standby
) -> None:
    assert standby.apply() == 0
    last = insert(data, 1, 2)[-1]
    assert standby.apply() == 0
    ship(data, archive)
    assert standby.apply() == 2 and standby.position == last
    assert standby.apply() == 0
    assert numbers_of(promoted(standby)) == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 12])
def test_a_standby_is_what_the_server_was_after_each_piece(tmp_path: Path, archive: BackupArchive, seed: int) -> None:
    server = DrivenServer(tmp_path / "data")
    history = RandomHistory(server, seed)
    history.step()
    server.close()
    ship(tmp_path / "data", archive)
    restore(archive, tmp_path / "standby", standby_of="archive")
    draw = random.Random(seed)
    for _ in range(5):
        server._open()
        for _ in range(draw.randrange(1, 25)):
            history.step()
        expected, position = seen(server), server.store.last_position
        server.close()
        ship(tmp_path / "data", archive)
        following = Standby(archive, tmp_path / "standby")
        following.apply()
        following.tend()
        assert following.position == position
        actual = seen_of(following.store)
        following.close()
        for name in sorted({*expected, *actual}):
            assert actual.get(name) == expected.get(name), name
    assert check(tmp_path / "standby").problems == []


def seen_of(store: Store) -> dict[str, Any]:
    """As `seen`, of an open standby."""
    server = DrivenServer()
    server.close()
    server.store = store
    server.engine = Engine(store, server.options, commands_for(server.options), first_parameters(server.options))
    return seen(server)


@pytest.mark.long
def test_a_transaction_whose_chain_is_shipped_in_parts_is_applied_at_its_end(
    tmp_path: Path, data: Path, archive: BackupArchive, standby: Standby
) -> None:
    before = standby.position
    with DrivenServer(data) as server:
        RandomHistory(server, 1).long_transaction()
        with server.store.reading() as view:
            entries = [(at, bytes(raw)) for at, raw in view.entries(before + 1)]
    links = [entry for entry in entries if b"partialTxn" in entry[1]]
    assert links
    (first, *rest) = entries[entries.index(links[0]) :]
    earlier = entries[: entries.index(links[0])]
    with standby.store.reading() as view:
        last = view.entry(before)
    assert last is not None
    archive.put_segment(before, checksum(last), [*earlier, first])
    assert standby.apply() == len(earlier)
    assert standby.apply() == 0
    archive.put_segment(first[0], checksum(first[1]), rest)
    assert standby.apply() == 1 + len(rest)
    assert standby.position == entries[-1][0]
    with DrivenServer(promoted(standby)) as server:
        assert server.must("shop", {"count": "long"})["n"] == 3


def test_no_server_opens_a_standby_until_it_is_promoted(
    tmp_path: Path, standby: Standby, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_PASSWORD", "secret")
    path = tmp_path / "standby"
    standby.close()
    for line in (["serve", "--dbpath", str(path), "--port", "0"], ["user", "add", "ann", "--dbpath", str(path)]):
        assert main(line) == 1
        error = capsys.readouterr().err
        assert f"{path} is a standby, which follows {tmp_path / 'archive'}" in error and "headrace promote" in error
    with pytest.raises(UnusableDirectory, match="is a standby"):
        headrace.open(path)
    assert followed_by(path) == str(tmp_path / "archive")
    assert main(["promote", str(path)]) == 0
    assert "promoted, with all up to 20" in capsys.readouterr().out
    assert numbers_of(path) == [0]
    assert main(["promote", str(path)]) == 1
    assert "is no standby; it may have been promoted" in capsys.readouterr().err


def test_the_old_servers_tokens_resume_where_the_history_has_their_position(
    tmp_path: Path, data: Path, archive: BackupArchive, standby: Standby
) -> None:
    insert(data, 1)
    known = token_of_last_event(data)
    insert(data, 2)
    ship(data, archive)
    shipped = token_of_last_event(data)
    unshipped_position = insert(data, 3)[0]
    unshipped = token_of_last_event(data)
    path = promoted(standby)
    mark = {"_data": high_water_mark(unshipped_position)}
    assert resumed(path, known) == [2]
    assert resumed(path, shipped) == []
    assert resumed(path, unshipped) == 280
    assert resumed(path, mark) == 280
    insert(path, 30)
    assert resumed(path, known) == [2, 30]
    assert resumed(path, shipped) == [30]
    assert resumed(path, unshipped) == 280
    assert resumed(path, mark) == 280
    own = token_of_last_event(path)
    insert(path, 31)
    assert resumed(path, own) == [31]


def test_a_promoted_directory_goes_on_with_its_archive_and_its_gap_is_restored(
    tmp_path: Path, data: Path, archive: BackupArchive, standby: Standby
) -> None:
    insert(data, 1)
    mark = {"_data": high_water_mark(insert(data, 2)[0])}
    last = standby.position
    path = promoted(standby)
    insert(path, 10)
    ship(path, archive)
    restore(archive, tmp_path / "restored")
    assert resumed(tmp_path / "restored", mark) == 280
    assert numbers_of(tmp_path / "restored") == [0, 10]
    with DrivenServer(path) as one, DrivenServer(tmp_path / "restored") as other:
        assert one.store.gaps == other.store.gaps and one.store.gaps[0][0] == last
        assert seconds(one.store.gaps[0][1]) > seconds(last)
        assert one.store.history_id == other.store.history_id
    assert restore(archive, tmp_path / "before", Moment(last)).position == last
    with DrivenServer(tmp_path / "before") as before:
        assert before.store.gaps == ()


def test_nobody_may_write_to_the_archive_while_a_standby_is_promoted(standby: Standby, archive: BackupArchive) -> None:
    with archive.place.lock(), pytest.raises(ArchiveInUse):
        standby.promote()
    assert standby.promote().begins == standby.position


def test_a_standby_is_promoted_without_an_archive_that_is_lost(
    tmp_path: Path, standby: Standby, capsys: pytest.CaptureFixture[str]
) -> None:
    standby.close()
    (tmp_path / "archive").rename(tmp_path / "moved")
    assert main(["promote", str(tmp_path / "standby")]) == 1
    assert "is not an archive of `headrace backup`" in capsys.readouterr().err
    assert main(["promote", str(tmp_path / "standby"), "--withoutArchive"]) == 0
    assert numbers_of(tmp_path / "standby") == [0]


def test_a_standby_follows_its_own_archive_only(tmp_path: Path, standby: Standby) -> None:
    standby.close()
    insert(tmp_path / "other", 1)
    other = BackupArchive(Folder(tmp_path / "others"), Sealer())
    ship(tmp_path / "other", other)
    with pytest.raises(NoStandby, match="a standby of another history"):
        Standby(other, tmp_path / "standby")
    with pytest.raises(NoStandby, match="is no standby"):
        Standby(other, tmp_path / "other")


def test_a_standby_that_the_archive_has_left_behind_is_an_error_and_merging_is_none(
    data: Path, archive: BackupArchive, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(data, 1)
    ship(data, archive)
    insert(data, 2)
    ship(data, archive)
    first, second = archive.segments()
    read, calls = archive.read_segment, []

    def read_while_merged(segment: Any) -> Any:
        if not calls:
            calls.append(segment)
            check, entries = read(first)
            archive.put_segment(first.after, check, entries + read(second)[1])
            archive.remove_segment(first)
            archive.remove_segment(second)
        return read(segment)

    monkeypatch.setattr(archive, "read_segment", read_while_merged)
    assert standby.apply() == 0
    assert standby.apply() == 2
    insert(data, 3)
    ship(data, archive)
    insert(data, 4)
    ship(data, archive)
    archive.remove_segment(archive.segments()[-2])
    with pytest.raises(DamagedArchive, match="the log has no segment from"):
        standby.apply()


def test_a_standby_waits_for_an_archive_that_cannot_be_reached(
    data: Path, archive: BackupArchive, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(data, 1)
    ship(data, archive)
    names, failures, said = archive.place.names, [True, True, False], []

    def fail(prefix: str) -> list[str]:
        if failures and failures.pop(0):
            raise OSError("the network is down")
        return names(prefix)

    monkeypatch.setattr(archive.place, "names", fail)
    looks = iter([True, True, True, False])
    standby.follow(lambda _: next(looks), said.append)
    assert said == ["the standby waits: the network is down", "the standby goes on"]
    with standby.store.reading() as view:
        assert view.count(view.catalog.collections["t.c"]) == 2


def test_a_standby_prunes_its_oplog_as_a_server_does(data: Path, archive: BackupArchive, tmp_path: Path) -> None:
    clock = FakeClock()
    with DrivenServer(tmp_path / "old", clock=clock) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 0}]})
    ship(tmp_path / "old", archive)
    restore(archive, tmp_path / "standby", standby_of="archive")
    clock.advance(25 * 3_600_000)
    with DrivenServer(tmp_path / "old", clock=clock) as server:
        server.must("t", {"insert": "d", "documents": [{"_id": 1}]})
        server.must("t", {"drop": "c"})
        kept = server.store.last_position
    ship(tmp_path / "old", archive)
    standby = Standby(archive, tmp_path / "standby")
    standby.apply()
    standby.tend()
    with standby.store.reading() as view:
        oldest = view.oldest_position()
        assert oldest is not None and seconds(oldest) == seconds(kept)
        assert view.kv.stat(view.tables["documents"])["entries"] == 1
    standby.close()
    assert check(tmp_path / "standby").problems == []


def test_a_backup_of_a_standby_is_restored_as_a_servers_directory(tmp_path: Path, standby: Standby) -> None:
    standby.close()
    second = BackupArchive(Folder(tmp_path / "second"), Sealer())
    ship(tmp_path / "standby", second)
    restore(second, tmp_path / "restored")
    assert numbers_of(tmp_path / "restored") == [0]


def test_an_archive_that_is_a_file_is_named_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    assert main(["standby", str(tmp_path / "file"), str(tmp_path / "standby")]) == 1
    assert capsys.readouterr().err == f"headrace: {tmp_path / 'file' / 'archive'}: Not a directory\n"
