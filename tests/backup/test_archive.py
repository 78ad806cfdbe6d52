"""An archive refuses what does not fit, resumes after a crash, and removes what is old."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.backup import writer as writers
from headrace.backup.archive import BackupArchive, DamagedArchive, Sealer, WrongKey, key_of
from headrace.backup.places import ArchiveInUse, Folder, place_of
from headrace.backup.restore import Moment, NotCovered, problems, restore
from headrace.backup.source import DirectorySource
from headrace.backup.writer import ArchiveWriter, OtherHistory, Schedule, follow
from headrace.store.retention import prune_entries
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.backup.random_history import RandomHistory, seen
from tests.backup.test_moments import compare, ship

KEY = bytes(range(32))


def insert(path: Path, *numbers: int) -> list[int]:
    """Insert documents one by one, and return the position of each."""
    made = []
    with DrivenServer(path) as server:
        for number in numbers:
            server.must("t", {"insert": "c", "documents": [{"_id": number}]})
            made.append(server.store.last_position)
    return made


def numbers_of(path: Path) -> list[int]:
    """The numbers in a directory."""
    with DrivenServer(path) as server:
        found = server.must("t", {"find": "c", "batchSize": 1000})
    return [item["_id"] for item in found["cursor"]["firstBatch"]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    insert(tmp_path / "data", 0)
    return tmp_path / "data"


@pytest.fixture(params=["folder", "encrypted", "objects"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackupArchive]:
    """An archive in a folder, an encrypted one, and one in an object store."""
    if request.param != "objects":
        yield BackupArchive(Folder(tmp_path / "archive"), Sealer(KEY if request.param == "encrypted" else None))
        return
    pytest.importorskip("fsspec")
    place = place_of(f"memory://{tmp_path.name}/archive")
    yield BackupArchive(place, Sealer())
    for name in place.names(""):
        place.remove(name)


@pytest.mark.parametrize("url", ["nothing://bucket/backup", "s4://bucket/backup"])
def test_a_url_that_no_package_serves_is_an_error_that_names_it(url: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(OSError, match=rf"^{url} cannot be used: "):
        place_of(url)


def test_a_backup_adds_only_what_the_oplog_has_since(tmp_path: Path, data: Path, archive: BackupArchive) -> None:
    assert ship(data, archive).shipped.snapshots == 1
    positions = insert(data, 1, 2)
    shipped = ship(data, archive).shipped
    assert (shipped.snapshots, shipped.entries) == (0, 2)
    assert restore(archive, tmp_path / "first", Moment(positions[0])).position == positions[0]
    assert numbers_of(tmp_path / "first") == [0, 1]
    restore(archive, tmp_path / "all")
    assert numbers_of(tmp_path / "all") == [0, 1, 2]
    assert list(problems(archive)) == []


def damaged_names(archive: BackupArchive) -> list[str]:
    """The names of all files that a restore needs."""
    return [*archive.place.names("snapshots/"), *archive.place.names("log/"), "archive"]


@pytest.mark.parametrize("how", ["missing", "torn", "altered", "empty"])
def test_a_damaged_piece_is_found_and_no_restore_is_made_of_it(
    tmp_path: Path, data: Path, archive: BackupArchive, how: str
) -> None:
    ship(data, archive)
    for number in (1, 2):
        insert(data, number)
        ship(data, archive)
    names = damaged_names(archive)
    assert len(names) >= 5
    for number, name in enumerate(names):
        whole = archive.place.get(name)
        assert whole is not None
        if name == archive.place.names("log/")[-1] and how == "missing":
            continue  # then the archive ends there
        if how == "missing":
            archive.place.remove(name)
        else:
            middle = len(whole) // 2
            altered = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
            archive.place.put(name, {"torn": whole[:-1], "altered": altered, "empty": b""}[how])
        with pytest.raises((DamagedArchive, NotCovered)):
            restore(archive, tmp_path / f"restored-{number}")
        assert not (tmp_path / f"restored-{number}").exists()
        try:
            assert list(problems(archive)), name
        except DamagedArchive:
            assert name == "archive"
        archive.place.put(name, whole)
    assert list(problems(archive)) == []


def test_pieces_that_change_places_are_found(data: Path, archive: BackupArchive, tmp_path: Path) -> None:
    ship(data, archive)
    for number in (1, 2):
        insert(data, number)
        ship(data, archive)
    first, second = archive.place.names("log/")
    one, other = archive.place.get(first), archive.place.get(second)
    assert one is not None and other is not None
    archive.place.put(first, other)
    archive.place.put(second, one)
    with pytest.raises(DamagedArchive):
        restore(archive, tmp_path / "restored")


def test_an_encrypted_archive_shows_nothing_and_needs_its_key(tmp_path: Path, data: Path) -> None:
    archive = BackupArchive(Folder(tmp_path / "archive"), Sealer(KEY))
    with DrivenServer(data) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1, "text": "the secret text"}]})
    ship(data, archive)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "archive").rglob("*") if path.is_file())
    assert b"secret" not in stored
    with pytest.raises(WrongKey):
        restore(BackupArchive(Folder(tmp_path / "archive"), Sealer()), tmp_path / "restored")
    with pytest.raises(DamagedArchive, match="another key"):
        restore(BackupArchive(Folder(tmp_path / "archive"), Sealer(bytes(32))), tmp_path / "restored")


@pytest.mark.parametrize("text", ["", "00", "z" * 64, "00" * 33])
def test_a_key_is_64_hexadecimal_digits(text: str) -> None:
    with pytest.raises(WrongKey):
        key_of(text)
    assert key_of(f"{KEY.hex()}\n") == KEY


def test_another_directory_is_refused(tmp_path: Path, data: Path, archive: BackupArchive) -> None:
    ship(data, archive)
    insert(tmp_path / "other", 1)
    with pytest.raises(OtherHistory, match="another directory"):
        ship(tmp_path / "other", archive)


def test_a_directory_that_was_restored_and_then_written_is_refused(
    tmp_path: Path, data: Path, archive: BackupArchive
) -> None:
    ship(data, archive)
    positions = insert(data, 1, 2)
    ship(data, archive)
    restore(archive, tmp_path / "back", Moment(positions[0]))
    with pytest.raises(OtherHistory, match="another history"):
        ship(tmp_path / "back", archive)
    insert(tmp_path / "back", 3, 4, 5)
    with pytest.raises(OtherHistory, match="another history"):
        ship(tmp_path / "back", archive)
    assert list(problems(archive)) == []


def test_a_restored_directory_goes_on_with_its_archive(tmp_path: Path, data: Path, archive: BackupArchive) -> None:
    ship(data, archive)
    insert(data, 1)
    ship(data, archive)
    restore(archive, tmp_path / "moved")
    insert(tmp_path / "moved", 2)
    assert ship(tmp_path / "moved", archive).shipped.entries == 1
    assert list(problems(archive)) == []


def test_entries_that_left_the_oplog_unshipped_are_a_gap_that_is_said(
    tmp_path: Path, data: Path, archive: BackupArchive
) -> None:
    ship(data, archive)
    positions = insert(data, 1, 2, 3)
    with DrivenServer(data) as server:
        txn = server.store.begin()
        prune_entries(txn, positions[2], 100)
        server.store.commit(txn)
    shipped = ship(data, archive).shipped
    assert shipped.lost[0][1] == positions[2] and shipped.snapshots == 1
    restore(archive, tmp_path / "all")
    assert numbers_of(tmp_path / "all") == [0, 1, 2, 3]
    insert(data, 4)
    ship(data, archive)
    restore(archive, tmp_path / "more")
    assert numbers_of(tmp_path / "more") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("at", [Moment(1), Moment((1 << 63) - 1), Moment((1 << 63) - 1, is_second=True)])
def test_a_moment_that_the_archive_does_not_have_is_refused(
    tmp_path: Path, data: Path, archive: BackupArchive, at: Moment
) -> None:
    ship(data, archive)
    with pytest.raises(NotCovered, match="that moment"):
        restore(archive, tmp_path / "restored", at)


def test_only_an_empty_directory_is_restored_to(tmp_path: Path, data: Path, archive: BackupArchive) -> None:
    ship(data, archive)
    with pytest.raises(NotCovered, match="not empty"):
        restore(archive, data)
    (tmp_path / "empty").mkdir()
    restore(archive, tmp_path / "empty")
    assert numbers_of(tmp_path / "empty") == [0]


def test_a_restore_that_was_cut_off_is_begun_anew(tmp_path: Path, data: Path, archive: BackupArchive) -> None:
    ship(data, archive)
    (tmp_path / "restored.restoring").mkdir()
    (tmp_path / "restored.restoring" / "data.mdb").write_bytes(b"half")
    restore(archive, tmp_path / "restored")
    assert numbers_of(tmp_path / "restored") == [0]


def test_a_snapshot_that_was_cut_off_does_not_count_and_is_removed(data: Path, archive: BackupArchive) -> None:
    ship(data, archive)
    archive.put_snapshot_piece(1 << 40, 0, b"half")
    assert any("no manifest" in problem for problem in problems(archive))
    ship(data, archive)
    assert list(problems(archive)) == []


def test_short_segments_are_merged(
    tmp_path: Path, data: Path, archive: BackupArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_MERGE_COUNT", 3)
    writer = ship(data, archive)
    positions = []
    for number in range(1, 8):
        positions += insert(data, number)
        writer.ship()
    assert len(archive.segments()) == 3
    for number, position in enumerate(positions, 1):
        restore(archive, tmp_path / f"{number}", Moment(position))
        assert numbers_of(tmp_path / f"{number}") == list(range(number + 1))


def test_a_merge_that_was_cut_off_leaves_both_and_that_is_right(
    tmp_path: Path, data: Path, archive: BackupArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_MERGE_COUNT", 3)
    monkeypatch.setattr(archive, "remove_segment", lambda segment: None)
    writer = ship(data, archive)
    for number in range(1, 5):
        insert(data, number)
        writer.ship()
    assert len(archive.segments()) == 5
    assert list(problems(archive)) == []
    restore(archive, tmp_path / "restored")
    assert numbers_of(tmp_path / "restored") == [0, 1, 2, 3, 4]


def test_what_no_moment_within_the_retention_requires_is_gone(
    tmp_path: Path, data: Path, archive: BackupArchive
) -> None:
    clock = FakeClock()
    writer = ArchiveWriter(archive, DirectorySource(data), clock)
    writer.begin()
    looks = iter(range(1, 9))
    positions: list[int] = []

    def wait(seconds: float) -> bool:
        number = next(looks, 0)
        positions.extend(insert(data, number))
        clock.advance(1000)
        return number < 8

    said: list[str] = []
    follow(writer, Schedule(2000, 3000), wait, said.append)
    writer.ship()
    assert len(archive.snapshots()) == 3 and sum("snapshot" in text for text in said) == 3
    assert list(problems(archive)) == []
    with pytest.raises(NotCovered):
        restore(archive, tmp_path / "old", Moment(positions[0]))
    for number in (5, 6, 7, 8):
        restore(archive, tmp_path / f"{number}", Moment(positions[number - 1]))
        assert numbers_of(tmp_path / f"{number}") == list(range(number + 1))


def test_a_place_that_fails_is_tried_again(data: Path, archive: BackupArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ship(data, archive)
    insert(data, 1)
    said: list[str] = []
    put, failures = archive.place.put, iter([OSError("no route"), OSError("no route")])

    def failing(name: str, content: bytes) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        put(name, content)

    monkeypatch.setattr(archive.place, "put", failing)
    looks = iter([True, True, True, False])
    follow(writer, Schedule(1 << 40, None), lambda seconds: next(looks), said.append)
    assert said == ["the backup waits: no route", "the backup goes on"]
    assert writer.shipped.entries == 1


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with Folder(tmp_path / "archive").lock(), pytest.raises(ArchiveInUse), Folder(tmp_path / "archive").lock():
        pass


@pytest.mark.long
def test_a_transaction_of_several_entries_is_there_completely_or_not_at_all(tmp_path: Path) -> None:
    path, archive = tmp_path / "data", BackupArchive(Folder(tmp_path / "archive"), Sealer())
    insert(path, 0)
    ship(path, archive)
    with DrivenServer(path) as server:
        RandomHistory(server, 1).long_transaction()
        last, expected = server.store.last_position, seen(server)
    ship(path, archive)
    for position in (last - 2, last - 1):
        assert restore(archive, tmp_path / f"{position:x}", Moment(position)).position < last - 2
        with DrivenServer(tmp_path / f"{position:x}") as server:
            assert "shop.long" not in seen(server)
    compare(tmp_path, archive, last, expected)


def test_a_token_resumes_on_the_restored_directory(tmp_path: Path, data: Path) -> None:
    archive = BackupArchive(Folder(tmp_path / "archive"), Sealer())
    ship(data, archive)
    insert(data, 1, 2, 3)
    streams: list[Any] = []
    for path in (data, tmp_path / "restored"):
        if path != data:
            ship(data, archive)
            restore(archive, path)
        with DrivenServer(path) as server:
            after = streams[0][0]["_id"] if streams else None
            stage = {"resumeAfter": after} if after else {"startAtOperationTime": _first_time(server)}
            reply = server.must("t", {"aggregate": "c", "pipeline": [{"$changeStream": stage}], "cursor": {}})
            streams.append(reply["cursor"]["firstBatch"])
    assert streams[0][1:] == streams[1]
    assert [event["documentKey"]["_id"] for event in streams[1]] == [1, 2, 3]


def _first_time(server: DrivenServer) -> object:
    from headrace.values.position import to_timestamp

    with server.store.reading() as view, view.kv.cursor(server.store.tables["oplog"]) as cursor:
        cursor.first()
        return to_timestamp(int.from_bytes(cursor.key(), "big"))
