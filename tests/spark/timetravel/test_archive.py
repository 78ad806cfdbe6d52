"""What the oplog no longer has comes from the table of the sink `changes`, and no event is missing or repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.spark.errors import OptionError
from headrace.spark.mongodb.event_ranges import read_range
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.mongodb.source_options import StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.log_sink import changes_sink
from headrace.spark.source.options import parse_options
from headrace.spark.stream.offsets import Offset, in_snapshot
from headrace.spark.timetravel import archive as archive_module
from headrace.spark.timetravel.archive import Archive, ArchiveUnfit
from tests.spark.support.archives import ArchivedServer, Row, advance, batches, run, tokens

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def both_ways(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MongoDBStream, "arrow", transport == "arrow")


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[ArchivedServer]:
    with headrace.Server() as server:
        archived = ArchivedServer(server, tmp_path / "the changes")
        yield archived
        archived.client.close()


@pytest.fixture
def everything(archived: ArchivedServer) -> list[Row]:
    return archived.everything()


def test_from_every_event_on_the_same_rows_come_from_the_table_and_the_server(
    archived: ArchivedServer, everything: list[Row]
) -> None:
    with pytest.raises(PositionLost):
        archived.read(archive="", startingPosition=everything[0]["token"])
    for number, row in enumerate(everything):
        assert archived.read(startingPosition=row["token"]) == everything[number + 1 :]
        assert (
            archived.read(startingPosition=everything[0]["token"], endingPosition=row["token"])
            == (everything[1 : number + 1])
        )
    assert archived.read(startingPosition="earliest") == everything


@pytest.mark.parametrize("bounds", [{"maxRowsPerTrigger": "4"}, {"maxBytesPerTrigger": "600"}, {}])
def test_a_stream_goes_on_from_the_table_to_the_server(
    archived: ArchivedServer, everything: list[Row], bounds: dict[str, str]
) -> None:
    for number in range(0, len(everything), 5):
        batches_read = run(archived.stream(**bounds), {"token": everything[number]["token"]})
        assert [row for batch in batches_read for row in batch] == everything[number + 1 :]
        assert not bounds or max(map(len, batches_read), default=0) <= 7  # one less than fits, and the transaction
        # A transaction is never cut.
        times = [{row["token"][:18] for row in batch} for batch in batches_read]
        assert sum(map(len, times)) == len(set().union(*times))
    from_first = archived.stream(startingPosition="earliest")
    assert [row for batch in run(from_first, from_first.initialOffset()) for row in batch] == everything


def test_the_table_may_grow_and_the_oplog_be_pruned_between_any_two_batches(archived: ArchivedServer) -> None:
    random_ = random.Random(8)
    archived.begin(startingPosition="snapshot")
    start = archived.stream().initialOffset()
    archived.write(random_, 30)
    archived.archive()
    reader = archived.stream(maxRowsPerTrigger="3")
    rows_read: list[Row] = []
    at: Offset = start
    for _ in range(25):
        end = advance(reader, at)
        if random_.random() < 0.6:  # between what is planned and its reading
            archived.write(random_, 2)
            archived.archive()
            archived.prune()
        rows_read += [row for batch in batches(reader, at, end) for row in batch.to_pylist()]
        at = end
    rows_read += [row for batch in run(reader, at) for row in batch]
    table = changes_sink(archived.path).table.read().to_pylist()
    assert tokens(rows_read) == sorted(row["token"] for row in table if "snapshot" not in row["operationType"])
    assert len(rows_read) > 40


def test_the_oplog_may_be_pruned_while_a_range_is_read(
    archived: ArchivedServer, everything: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, end = Token(everything[0]["token"]), Token(everything[-1]["token"])
    for rows_before_loss in range(4):
        monkeypatch.setattr(archive_module, "read_range", losing(everything, rows_before_loss))
        read_batches = archive_module.read_events(parse_options(archived.options()), start, end, ["token"])
        assert [row["token"] for batch in read_batches for row in batch.to_pylist()] == tokens(everything)[1:]


def losing(events: list[Row], rows_before_loss: int) -> Callable[..., Iterator[pa.RecordBatch]]:
    """The range as a server gives it that loses the position, the first time, after so many batches of one row."""
    calls: list[Token] = []

    def read(feed: MongoDBStream, start: Token, end: Token, columns: Any, **rest: Any) -> Iterator[pa.RecordBatch]:
        calls.append(start)
        if len(calls) > 1:
            yield from read_range(feed, start, end, columns, **rest)
            return
        for row in [row for row in events if row["token"] > start.text][:rows_before_loss]:
            yield pa.RecordBatch.from_pylist([{"token": row["token"]}])
        raise PositionLost("pruned", pruned=True)

    return read


def test_slices_pipelines_and_columns_are_the_same_from_the_table(
    archived: ArchivedServer, everything: list[Row]
) -> None:
    start = everything[0]["token"]
    stages = (
        '[{"$match": {"operationType": {"$ne": "delete"}}}, {"$set": {"x": "$operationType"}},'
        ' {"$fill": {"output": {"y": {"value": 1}}}}]'
    )
    sliced = archived.read(startingPosition=start, partitions="3")
    assert sorted(sliced, key=lambda row: row["token"]) == everything[1:]
    by_key: dict[str, list[str]] = {}
    for row in sliced:
        by_key.setdefault(row["documentKey"], []).append(row["token"])
    assert all(key_tokens == sorted(key_tokens) for key_tokens in by_key.values())
    filtered = archived.read(startingPosition=start, pipeline=stages)
    assert tokens(filtered) == [row["token"] for row in everything[1:] if row["operationType"] != "delete"]
    assert len({row["other"] is None for row in filtered}) == 1


def test_a_time_before_the_oplog_is_read_from_the_table(archived: ArchivedServer, everything: list[Row]) -> None:
    first, third = (Token(everything[number]["token"]) for number in (0, 2))
    feed = MongoDBStream(parse_options(archived.options()))
    start = archive_module.resolve(feed, StreamPosition("time", time=third.time))
    end = archive_module.end_at(feed, third.time)
    assert tokens(archived.read(startingPosition=start.text)) == tokens(everything)[2:]
    assert tokens(archived.read(startingPosition=first.text, endingPosition=end.text)) == tokens(everything)[1:3]
    long_ago = "2013-01-01T00:00:00"
    with pytest.raises(PositionLost, match="The archive"):
        archived.read(startingPosition=long_ago)


def test_a_position_that_neither_has_follows_the_policy_for_missing_positions(
    archived: ArchivedServer, everything: list[Row]
) -> None:
    strange = Token(everything[0]["token"][:2] + "00000001" + everything[0]["token"][10:])
    with pytest.raises(PositionLost, match="The archive"):
        archived.read(startingPosition=strange.text)
    with pytest.raises(PositionLost):
        advance(archived.stream(), {"token": strange.text})
    again = advance(archived.stream(onPositionLost="resnapshot"), {"token": strange.text})
    assert in_snapshot(again)
    # The table is a third behind: when the oplog has gone past its end as well, there is a gap.
    archived.write(random.Random(1), 20)
    archived.prune()
    with pytest.raises(PositionLost, match="The archive"):
        archived.read(startingPosition=everything[0]["token"])
    assert tokens(archived.read(startingPosition="earliest"))[0] > everything[-1]["token"]


def test_a_range_pruned_after_it_was_planned_comes_from_the_table(archived: ArchivedServer) -> None:
    archived.begin(startingPosition="snapshot")
    reader = archived.stream(onPositionLost="resnapshot")
    start = reader.initialOffset()
    archived.write(random.Random(2), 8)
    end = advance(reader, start)
    archived.write(random.Random(3), 8)
    archived.archive()
    archived.prune()
    kinds = {row["operationType"] for batch in batches(reader, start, end) for row in batch.to_pylist()}
    assert kinds <= {"insert", "update", "delete"} and kinds


def test_a_snapshot_that_follows_missing_events_begins_a_new_span(archived: ArchivedServer) -> None:
    random_ = random.Random(4)
    archived.write(random_, 5)
    archived.begin(startingPosition="snapshot")
    archived.write(random_, 6)
    archived.archive()
    first = archive_of(archived).contents().spans
    assert len(first) == 1
    archived.write(random_, 9)
    archived.prune()
    archived.begin(startingPosition="snapshot")  # its checkpoint was lost
    archived.write(random_, 6)
    archived.archive()
    spans = archive_of(archived).contents().spans
    assert len(spans) == 2 and spans[0] == first[0]
    archived.prune()
    table = [
        row for row in changes_sink(archived.path).table.read().to_pylist() if "snapshot" not in row["operationType"]
    ]
    for span in spans:
        inside = sorted(row["token"] for row in table if span.first.text < row["token"] <= span.last.text)
        got = archived.read(startingPosition=span.first.text, endingPosition=span.last.text)
        assert tokens(got) == inside and inside
    with pytest.raises(PositionLost):
        archived.read(startingPosition=spans[0].first.text)
    assert archived.read(startingPosition="earliest")[0]["token"] > spans[0].last.text


def test_a_snapshot_behind_an_invalidate_leaves_nothing_out(archived: ArchivedServer) -> None:
    random_ = random.Random(6)
    archived.write(random_, 3)
    archived.begin(startingPosition="snapshot")
    archived.write(random_, 4)
    archived.collection.drop()
    archived.archive()
    archived.write(random_, 8)
    archived.archive()
    archived.prune()
    (span,) = archive_of(archived).contents().spans
    batches_read = run(
        archived.stream(startingPosition=span.first.text),
        archived.stream(startingPosition=span.first.text).initialOffset(),
    )
    kinds = [row["operationType"] for batch in batches_read for row in batch]
    assert kinds.count("invalidate") == 1 and len(kinds) > 8
    assert "invalidate" in {batch[-1]["operationType"] for batch in batches_read}


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"collection": "other"}, "collection is 'c' in the table, and 'other' is needed"),
        ({"fullDocument": "whenAvailable"}, "fullDocument is not given in the table, and 'whenAvailable' is needed"),
        ({"showExpandedEvents": "true"}, "showExpandedEvents is not given in the table, and True is needed"),
    ],
)
def test_a_table_of_a_stream_with_other_options_is_refused_by_their_name(
    archived: ArchivedServer, everything: list[Row], more: dict[str, str], named: str
) -> None:
    with pytest.raises(ArchiveUnfit, match=named):
        archived.read(startingPosition=everything[0]["token"], **more)
    with pytest.raises(ArchiveUnfit, match=named):
        advance(archived.stream(**more), {"token": everything[0]["token"]})


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"pipeline": '[{"$match": {"operationType": "insert"}}]'}, r"pipeline is '\[.*insert.*\]' in the table"),
        ({"showExpandedEvents": "true"}, "showExpandedEvents is True in the table, and not given is needed"),
    ],
)
def test_a_table_with_fewer_or_different_events_is_no_archive(
    archived: ArchivedServer, more: dict[str, str], named: str
) -> None:
    archived.begin(**more)
    archived.collection.insert_one({"_id": 1})
    archived.archive()
    with pytest.raises(ArchiveUnfit, match=named):
        archived.read(startingPosition="earliest")


def test_a_table_of_masked_tokens_is_no_archive(archived: ArchivedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_KEY", "a key of the test that is long enough")
    archived.begin(mask='{"hash": ["_id"], "key": "env:MASK_KEY"}')
    archived.collection.insert_one({"_id": 1})
    archived.archive()
    with pytest.raises(ArchiveUnfit, match=r"tokens of the table .* are masked"):
        archived.read(startingPosition="earliest")


def test_a_quiet_stretch_is_no_gap_once_an_empty_batch_was_noted(
    archived: ArchivedServer, everything: list[Row]
) -> None:
    archived.archive()
    archived.client.elsewhere.c.insert_many([{} for _ in range(12)])
    noted = archived.note()
    archived.client.elsewhere.c.insert_one({})
    archived.prune()
    with pytest.raises(PositionLost):
        archived.read(archive="", startingPosition=everything[-1]["token"])
    assert archive_of(archived).contents().spans[-1].last == noted
    archived.collection.insert_one({"_id": "last"})
    batches_read = [*tokens(everything)[1:], *tokens(archived.read(startingPosition=everything[-1]["token"]))]
    assert tokens(archived.read(startingPosition=everything[0]["token"])) == batches_read
    for start in (0, len(everything) - 1):
        rows = [row for batch in run(archived.stream(), {"token": everything[start]["token"]}) for row in batch]
        assert tokens(rows) == batches_read[start:]


def test_a_table_of_another_stream_is_refused(archived: ArchivedServer) -> None:
    archived.has_fingerprint = False
    everything = archived.everything()
    with pytest.raises(ArchiveUnfit, match=r"wider stream: it has events of d\.c"):
        archived.read(collection="other", startingPosition=everything[0]["token"])


def test_an_archive_that_is_not_there_yet_changes_nothing(archived: ArchivedServer) -> None:
    archived.collection.insert_one({"_id": 1})
    assert [row["operationType"] for row in archived.read(startingPosition="earliest")] == ["insert"]


def test_an_archive_is_for_one_server_and_unsplit_events() -> None:
    for more in ({"uri": "mongodb://a\nmongodb://b"}, {"pipeline": '[{"$changeStreamSplitLargeEvent": {}}]'}):
        with pytest.raises(OptionError, match="archive"):
            parse_options({"uri": "mongodb://a", "archive": "x"} | more)


def archive_of(archived: ArchivedServer) -> Archive:
    return Archive(parse_options(archived.options()))
