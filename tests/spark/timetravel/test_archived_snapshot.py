"""A stream that begins with the collection as an archive has it: the server is not asked for it, nothing is missing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import headrace
from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.rows.extjson import dumps
from headrace.spark.source.readers import StreamReader
from headrace.spark.stream.offsets import Offset
from headrace.spark.timetravel.snapshot import Snapshot
from tests.spark.support.archives import ArchivedServer, MirroredCollection, Row, advance, batches, run

pytestmark = pytest.mark.process


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[ArchivedServer]:
    """The archive has most of the events, the server the newest, and some in both."""
    with headrace.Server() as server:
        archived = ArchivedServer(server, tmp_path / "the changes")
        archived.write(random.Random(1), 10)
        archived.begin(startingPosition="snapshot")
        archived.write(random.Random(2), 30)
        archived.archive()
        archived.write(random.Random(3), 3)
        archived.prune()
        yield archived
        archived.client.close()


@pytest.fixture
def unread(archived: ArchivedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may ask the server for the collection any more."""
    assert archived.path.exists()

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the collection was read from the server")

    monkeypatch.setattr(Snapshot, "next_chunk", refuse)
    monkeypatch.setattr(Snapshot, "consistent_read", refuse)


def contents(archived: ArchivedServer) -> list[str]:
    return sorted(dumps(document) for document in archived.collection.find())


def snapshot_of(archived: ArchivedServer, **more: str) -> StreamReader:
    return archived.stream(startingPosition="snapshot", **more)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("more", [{}, {"maxRowsPerTrigger": "3"}, {"maxRowsPerTrigger": "4", "partitions": "2"}])
def test_the_collection_comes_from_the_archive_and_goes_on_from_the_server(
    archived: ArchivedServer, more: dict[str, str]
) -> None:
    reader = snapshot_of(archived, **more)
    batches_read = run(reader, reader.initialOffset())
    mirrored = MirroredCollection()
    for batch in batches_read:
        mirrored.take(batch)
    assert mirrored.contents() == contents(archived)
    rows = [row for batch in batches_read for row in batch]
    kinds = [row["operationType"] for row in rows]
    snapshot = kinds.index(SNAPSHOT_END) + 1
    assert kinds[0] == SNAPSHOT_BEGIN and set(kinds[1 : snapshot - 1]) == {SNAPSHOT}
    keys = [row["documentKey"] for row in rows[1 : snapshot - 1]]
    assert len(set(keys)) == len(keys) > 4
    assert len({row["token"] for row in rows[:snapshot]}) == 1
    assert len(rows) > snapshot and all(row["token"] > rows[0]["token"] for row in rows[snapshot:])
    assert not more or len([batch for batch in batches_read if batch[0]["operationType"].startswith(SNAPSHOT)]) > 1


@pytest.mark.usefixtures("unread")
def test_a_crash_anywhere_in_it_goes_on_although_the_archive_has_grown(archived: ArchivedServer) -> None:
    """Each batch is read, thrown away and read again by another process, with writers and the archive at work."""
    more = {"maxRowsPerTrigger": "3", "partitions": "2"}
    random_ = random.Random(4)
    at: Offset = snapshot_of(archived, **more).initialOffset()
    mirrored = MirroredCollection()
    thrown_away = 0
    for step in range(12):
        reader = snapshot_of(archived, **more)
        end = advance(reader, at)
        before_crash = rows_between(reader, at, end)
        reader.stop()
        archived.write(random_, 3)
        archived.archive()
        if step == 2:
            DeltaTable(archived.path).optimize.compact()
        archived.prune()
        again = rows_between(snapshot_of(archived, **more), at, end)
        assert again == before_crash
        thrown_away += len(before_crash)
        mirrored.take(again)
        at = end
    for batch in run(snapshot_of(archived, **more), at):
        mirrored.take(batch)
    assert mirrored.contents() == contents(archived)
    assert thrown_away > 20


def test_the_server_is_read_where_the_archive_does_not_go_on(
    archived: ArchivedServer, caplog: pytest.LogCaptureFixture
) -> None:
    archived.write(random.Random(5), 20)
    archived.prune()
    reader = snapshot_of(archived)
    batches_read = run(reader, reader.initialOffset())
    assert "where the archive ends. The snapshot is the server's" in caplog.text
    rows = [row for batch in batches_read for row in batch if row["operationType"] == SNAPSHOT]
    assert sorted(row["fullDocument"] for row in rows) == contents(archived)


def test_without_a_complete_snapshot_in_the_archive_the_server_is_read(
    archived: ArchivedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = snapshot_of(archived, archive=str(tmp_path / "nothing"))
    assert "archive" not in nothing.initialOffset()
    other = ArchivedServer(archived.server, tmp_path / "other")
    other.begin()
    other.write(random.Random(6), 4)
    other.archive()
    assert "archive" not in snapshot_of(other).initialOffset()
    assert "no complete snapshot" in caplog.text
    other.client.close()


def rows_between(reader: StreamReader, start: Offset, end: Offset) -> list[Row]:
    return [row for batch in batches(reader, start, end) for row in batch.to_pylist()]
