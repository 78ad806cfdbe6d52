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
from headrace.spark.source.data_source import StreamReader
from headrace.spark.stream.server_stream import Offset
from headrace.spark.timetravel.snapshot import Snapshot
from tests.spark.support.archives import Kept, MirroredCollection, Row, advance, batches, run

pytestmark = pytest.mark.process


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """The archive has most of the events, the server the newest, and some in both."""
    with headrace.Server() as server:
        kept = Kept(server, tmp_path / "the changes")
        kept.write(random.Random(1), 10)
        kept.begin(startingPosition="snapshot")
        kept.write(random.Random(2), 30)
        kept.archive()
        kept.write(random.Random(3), 3)
        kept.prune()
        yield kept
        kept.client.close()


@pytest.fixture
def unread(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may ask the server for the collection any more."""
    assert kept.path.exists()

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the collection was read from the server")

    monkeypatch.setattr(Snapshot, "next_chunk", refuse)
    monkeypatch.setattr(Snapshot, "consistent_read", refuse)


def contents(kept: Kept) -> list[str]:
    return sorted(dumps(document) for document in kept.collection.find())


def snapshot_of(kept: Kept, **more: str) -> StreamReader:
    return kept.stream(startingPosition="snapshot", **more)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("more", [{}, {"maxRowsPerTrigger": "3"}, {"maxRowsPerTrigger": "4", "partitions": "2"}])
def test_the_collection_comes_from_the_archive_and_goes_on_from_the_server(kept: Kept, more: dict[str, str]) -> None:
    reader = snapshot_of(kept, **more)
    told = run(reader, reader.initialOffset())
    mirrored = MirroredCollection()
    for batch in told:
        mirrored.take(batch)
    assert mirrored.contents() == contents(kept)
    rows = [row for batch in told for row in batch]
    kinds = [row["operationType"] for row in rows]
    snapshot = kinds.index(SNAPSHOT_END) + 1
    assert kinds[0] == SNAPSHOT_BEGIN and set(kinds[1 : snapshot - 1]) == {SNAPSHOT}
    keys = [row["documentKey"] for row in rows[1 : snapshot - 1]]
    assert len(set(keys)) == len(keys) > 4
    assert len({row["token"] for row in rows[:snapshot]}) == 1
    assert len(rows) > snapshot and all(row["token"] > rows[0]["token"] for row in rows[snapshot:])
    assert not more or len([batch for batch in told if batch[0]["operationType"].startswith(SNAPSHOT)]) > 1


@pytest.mark.usefixtures("unread")
def test_a_crash_anywhere_in_it_goes_on_although_the_archive_has_grown(kept: Kept) -> None:
    """Each batch is read, thrown away and read again by another process, with writers and the archive at work."""
    more = {"maxRowsPerTrigger": "3", "partitions": "2"}
    random_ = random.Random(4)
    at: Offset = snapshot_of(kept, **more).initialOffset()
    mirrored = MirroredCollection()
    thrown_away = 0
    for step in range(12):
        reader = snapshot_of(kept, **more)
        end = advance(reader, at)
        lost = rows_between(reader, at, end)
        reader.stop()
        kept.write(random_, 3)
        kept.archive()
        if step == 2:
            DeltaTable(kept.path).optimize.compact()
        kept.prune()
        again = rows_between(snapshot_of(kept, **more), at, end)
        assert again == lost
        thrown_away += len(lost)
        mirrored.take(again)
        at = end
    for batch in run(snapshot_of(kept, **more), at):
        mirrored.take(batch)
    assert mirrored.contents() == contents(kept)
    assert thrown_away > 20


def test_the_server_is_read_where_the_archive_does_not_go_on(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.write(random.Random(5), 20)
    kept.prune()
    reader = snapshot_of(kept)
    told = run(reader, reader.initialOffset())
    assert "where the archive ends. The snapshot is the server's" in caplog.text
    rows = [row for batch in told for row in batch if row["operationType"] == SNAPSHOT]
    assert sorted(row["fullDocument"] for row in rows) == contents(kept)


def test_without_a_whole_snapshot_in_the_archive_the_server_is_read(
    kept: Kept, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = snapshot_of(kept, archive=str(tmp_path / "nothing"))
    assert "archive" not in nothing.initialOffset()
    other = Kept(kept.server, tmp_path / "other")
    other.begin()
    other.write(random.Random(6), 4)
    other.archive()
    assert "archive" not in snapshot_of(other).initialOffset()
    assert "no complete snapshot" in caplog.text
    other.client.close()


def rows_between(reader: StreamReader, start: Offset, end: Offset) -> list[Row]:
    return [row for batch in batches(reader, start, end) for row in batch.to_pylist()]
