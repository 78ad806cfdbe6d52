"""Events of over 16 MB, as Arrow and in fragments: whole rows at the tokens of whole events; a mirror is equal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from bson import Int64
from pymongo.database import Database
from pymongo.errors import OperationFailure

from headrace.spark.mirror import Mirror, catch_up
from headrace.spark.mongodb.event_ranges import read_range
from headrace.spark.mongodb.fragments import SERVERS_WITHOUT_SPLIT, has_split_stage
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import BatchLimits, SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.read_ahead import read_ahead
from headrace.spark.timetravel.past import documents_by_images
from headrace.spark.timetravel.snapshot import Snapshot
from headrace.spark.verify.comparison import compare
from headrace.values.arrow.event_columns import COLUMNS
from headrace.values.bson import decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Db = Database[dict[str, Any]]
IMAGES = {"fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable"}
MB = 1024 * 1024
KEYS = [Int64(1), {"two": 2.5}]  # of which tokens need type bits


def way(uri: str, database: Db, transport: str, **more: Any) -> MongoDBStream:
    return MongoDBStream(SourceOptions(uri, database.name, "c", transport=transport, **({"stream": IMAGES} | more)))


def history(database: Db) -> None:
    """A small event, one of 18 MB for each key, and a small one in a transaction with a large one."""
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    database.c.insert_one({"_id": "small"})
    for key in KEYS:
        database.c.insert_one({"_id": key, "text": "x" * (9 * MB)})
        database.c.update_one({"_id": key}, {"$set": {"n": 1}})
    with database.client.start_session() as session, session.start_transaction():
        database.c.update_one({"_id": "small"}, {"$set": {"n": 1}}, session=session)
        database.c.update_one({"_id": Int64(1)}, {"$set": {"n": 2}}, session=session)
    database.c.delete_one({"_id": "small"})


COUNT = 2 * len(KEYS) + 4


def reach(feed: MongoDBStream, start: Token) -> Token:
    return read_ahead(feed).advance(start, BatchLimits(), until=feed.now(), wait_ms=20).token


def table(feed: MongoDBStream, start: Token, end: Token, **slices: int) -> pa.Table:
    return pa.Table.from_batches(list(read_range(feed, start, end, COLUMNS, **slices)), read_schema())


def read_schema() -> pa.Schema:
    from headrace.values.arrow.batches import SCHEMA

    return SCHEMA


def tokens(uri: str, database: Db, start: Token) -> list[Token]:
    """Those of the events, from a stream that leaves everything else out."""
    feed = way(uri, database, "bson", stream={})
    with feed.open(StreamPosition("token", token=start), stages=({"$project": {"_id": 1}},)) as cursor:
        collected: list[Token] = []
        while len(collected) < COUNT:
            collected += [Token.of(event["_id"]) for event in cursor.next_batch(wait_ms=20)]
    return collected


@pytest.mark.process
def test_both_transports_give_the_same_complete_rows_at_the_tokens_of_unsplit_events(uri: str, database: Db) -> None:
    feeds = [way(uri, database, transport) for transport in ("arrow", "bson")]
    start = feeds[0].resolve(StreamPosition("latest"))
    history(database)
    end = reach(feeds[1], start)
    first, second = (table(feed, start, end) for feed in feeds)
    assert first.equals(second)
    assert first["token"].to_pylist() == [token.text for token in tokens(uri, database, start)]
    row = first.slice(2, 1).to_pylist()[0]
    assert decode(row["updateDescription"])["updatedFields"] == {"n": 1}
    before, after = decode(row["fullDocumentBeforeChange"]), decode(row["fullDocument"])
    assert after == before | {"n": 1} and len(before["text"]) == 9 * MB and row["other"] is None


@pytest.mark.process
def test_slices_have_each_large_event_once(uri: str, database: Db, transport: str) -> None:
    feed = way(uri, database, transport)
    start = feed.resolve(StreamPosition("latest"))
    history(database)
    end = reach(feed, start)
    slices = [table(feed, start, end, slice_=number, slices=5)["token"].to_pylist() for number in range(5)]
    assert (
        sorted(token for slice_tokens in slices for token in slice_tokens)
        == table(feed, start, end)["token"].to_pylist()
    )
    assert sum(map(bool, slices)) > 1


@pytest.mark.process
def test_ranges_end_at_complete_events_and_can_be_continued(uri: str, database: Db, transport: str) -> None:
    feed = way(uri, database, transport)
    last = feed.resolve(StreamPosition("latest"))
    collected: list[str] = []
    ends: list[str] = []
    history(database)
    known = [token.text for token in tokens(uri, database, last)]
    ahead = read_ahead(feed, sizes=True)
    while len(collected) < COUNT:
        end = ahead.advance(last, BatchLimits(bytes=10 * MB), until=None, wait_ms=20).token
        collected += table(feed, last, end)["token"].to_pylist()
        ends.append(end.text)
        last = end
    assert collected == known
    assert set(ends[:-1]) <= set(known) and len(ends) >= 2 * len(KEYS)


@pytest.mark.process
def test_a_cursors_token_is_that_of_a_complete_event_with_its_type_bits(uri: str, database: Db) -> None:
    feed = way(uri, database, "bson", batch_rows=3)
    start = feed.resolve(StreamPosition("latest"))
    history(database)
    collected: list[Token] = []
    with feed.open(StreamPosition("token", token=start)) as cursor:
        while len(collected) < COUNT:
            events = cursor.next_batch(wait_ms=20)
            collected += [Token.of(event["_id"]) for event in events]
            if events and len(collected) < COUNT:
                assert cursor.token == collected[-1]
            assert not any("splitEvent" in event for event in events)
    assert collected == tokens(uri, database, start)


@pytest.mark.process
@pytest.mark.parametrize("raw", [False, True])
def test_a_cursor_that_is_killed_between_fragments_reads_the_event_again(
    uri: str, database: Db, monkeypatch: pytest.MonkeyPatch, raw: bool
) -> None:
    get_more, killed = MongoDBStream.get_more, set()

    def killed_at_first(feed: MongoDBStream, cursor: Any, *more: Any, **named: Any) -> Any:
        reply = get_more(feed, cursor, *more, **named)
        for event in reply["cursor"]["nextBatch"]:
            if "splitEvent" in event and event["_id"]["_data"] not in killed:
                killed.add(event["_id"]["_data"])
                database.command("killCursors", "c", cursors=[cursor["id"]])
        return reply

    monkeypatch.setattr(MongoDBStream, "get_more", killed_at_first)
    feed = way(uri, database, "bson")
    start = feed.resolve(StreamPosition("latest"))
    history(database)
    collected: list[str] = []
    with feed.open(StreamPosition("token", token=start), raw=raw) as cursor:
        while len(collected) < COUNT:
            collected += [event["_id"]["_data"] for event in cursor.next_batch(wait_ms=20)]
    assert collected == [token.text for token in tokens(uri, database, start)]
    assert killed


@pytest.mark.process
def test_an_event_that_no_message_holds_comes_all_the_same(uri: str, database: Db, transport: str) -> None:
    feed = way(uri, database, transport)
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    start = feed.resolve(StreamPosition("latest"))
    size = 16 * MB - 100
    database.c.insert_one({"_id": 1, "text": "x" * size})
    database.c.update_one({"_id": 1}, {"$set": {"text": "y" * size}})
    database.c.insert_one({"_id": 2})
    rows = table(feed, start, reach(feed, start))
    assert rows["operationType"].to_pylist() == ["insert", "update", "insert"]
    large = rows.slice(1, 1).to_pylist()[0]
    assert decode(large["updateDescription"])["updatedFields"]["text"] == decode(large["fullDocument"])["text"]
    assert decode(large["fullDocumentBeforeChange"])["text"] == "x" * size


@pytest.mark.process
def test_what_a_pipeline_adds_comes_in_the_same_order_both_ways(uri: str, database: Db) -> None:
    pipeline = ({"$set": {"z": 1, "more": "$fullDocument.text", "a": 2}},)
    feeds = [way(uri, database, transport, pipeline=pipeline) for transport in ("arrow", "bson")]
    start = feeds[0].resolve(StreamPosition("latest"))
    history(database)
    end = reach(feeds[0], start)
    first, second = (table(feed, start, end) for feed in feeds)
    assert first.equals(second)
    assert decode(first["other"][2].as_py())["z"] == 1


@pytest.mark.process
def test_fragments_that_the_user_asks_for_stay_fragments(uri: str, database: Db, transport: str) -> None:
    feed = way(uri, database, transport, pipeline=({"$changeStreamSplitLargeEvent": {}},))
    start = feed.resolve(StreamPosition("latest"))
    history(database)
    rows = table(feed, start, feed.end_at(feed.now())).to_pylist()
    split = [decode(row["other"])["splitEvent"] for row in rows if row["other"]]
    assert split == [{"fragment": number, "of": 2} for number in (1, 2)] * (len(KEYS) + 1)


@pytest.mark.process
def test_a_position_in_time_is_resolved_past_large_events(uri: str, database: Db, transport: str) -> None:
    feed = way(uri, database, transport)
    start = feed.resolve(StreamPosition("latest"))
    history(database)
    end = feed.end_at(feed.now())
    assert table(feed, start, end).num_rows == COUNT
    assert table(feed, feed.resolve(StreamPosition("time", time=start.time)), end).num_rows == COUNT


@pytest.mark.process
def test_a_past_collection_has_large_documents(uri: str, database: Db) -> None:
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    for key in (1, 2):
        database.c.insert_one({"_id": key, "text": "x" * (16 * MB - 100)})
    feed = way(uri, database, "bson")
    then = feed.end_at(feed.now())
    database.c.update_one({"_id": 1}, {"$set": {"text": "y" * (16 * MB - 100)}})
    database.c.delete_one({"_id": 2})
    rows = list(documents_by_images(Snapshot(SourceOptions(uri, database.name, "c")), then))
    assert [decode(row[7])["text"][0] for row in rows] == ["x", "x"]


@pytest.mark.process
def test_a_server_that_knows_no_fragments_is_read_without(
    uri: str, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MongoDB before 6.0.9 answers error 40324 to the stage; what else has that error stays one."""
    aggregate = MongoDBStream.aggregate
    asked: list[list[Any]] = []

    def old(feed: MongoDBStream, stream: Any, *, pipeline: list[Any], **more: Any) -> Any:
        asked.append([*pipeline])
        if has_split_stage(pipeline):
            raise OperationFailure("Unrecognized pipeline stage name: '$changeStreamSplitLargeEvent'", 40324)
        return aggregate(feed, stream, pipeline=pipeline, **more)

    SERVERS_WITHOUT_SPLIT.discard(uri)
    monkeypatch.setattr(MongoDBStream, "aggregate", old)
    feed = way(uri, database, "bson")
    start = feed.resolve(StreamPosition("latest"))
    database.c.insert_one({"_id": 1})
    assert table(feed, start, reach(feed, start)).num_rows == 1
    assert [has_split_stage(pipeline) for pipeline in asked] == [True] + [False] * (len(asked) - 1)
    SERVERS_WITHOUT_SPLIT.discard(uri)
    monkeypatch.setattr(MongoDBStream, "aggregate", aggregate)
    with pytest.raises(OperationFailure, match="nothing"):
        way(uri, database, "bson", pipeline=({"$nothing": 1},)).resolve(StreamPosition("latest"))


@pytest.mark.spark
@pytest.mark.parametrize("trigger", ["batch", "stream"])
def test_spark_reads_large_events(spark: SparkSession, uri: str, database: Db, transport: str, trigger: str) -> None:
    from headrace.spark.session import register

    options = {"uri": uri, "database": database.name, "collection": "c", "transport": transport, "columns": "token"}
    start = way(uri, database, transport).resolve(StreamPosition("latest"))
    history(database)
    known = [token.text for token in tokens(uri, database, start)]
    options |= IMAGES | {"startingPosition": start.text, "columns": "token,fullDocument", "documents": "bson"}
    register(spark)
    collected: list[Any] = []

    def keep(batch: Any, _: int) -> None:
        collected.extend(row["token"] for row in batch.select("token", "fullDocument").collect())

    if trigger == "batch":
        keep(spark.read.format("headrace").options(**options).load(), 0)
    else:
        rows = spark.readStream.format("headrace").options(**options, maxBytesPerTrigger=str(40 * MB)).load()
        rows.writeStream.foreachBatch(keep).trigger(availableNow=True).start().awaitTermination()
    assert collected == known


@pytest.mark.spark
def test_a_mirror_of_large_documents_is_equal(spark: SparkSession, uri: str, database: Db, tmp_path: Path) -> None:
    """A mirror asks for no images: an event is over 16 MB where a large field is set beside a large key."""
    mirror = Mirror(uri, database.name, "c", tmp_path / "mirror")
    key = "k" * 20_000
    database.c.insert_one({"_id": key, "text": "x"})
    catch_up(mirror, session=spark)
    database.c.update_one({"_id": key}, {"$set": {"text": "y" * (16 * MB - 21_000)}})
    database.c.insert_one({"_id": 2, "text": "z" * (16 * MB - 100)})
    catch_up(mirror, session=spark)
    assert compare(mirror).equal and compare(mirror).row_count == 2
