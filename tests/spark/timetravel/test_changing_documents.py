"""Snapshots of documents that change faster than they are read: rows and token fit together, event by event.

What proves it are images: each event behind the token must have as its document before what the rows and the events
until then came to. An event too many or too few is one that does not fit.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from bson import Timestamp
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import PyMongoError

from headrace import limits
from headrace.dispatch.concerns import read_concern
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, ResumingCursor
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel import snapshot as snapshots
from headrace.spark.timetravel.snapshot import Chunk, Snapshot, SnapshotUnsettled
from headrace.values.bson import OPTIONS

Document = dict[str, Any]
Rows = Collection[Document]
_ALL = Chunk("")


@pytest.fixture
def collection(database: Database[Document]) -> Rows:
    made = database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    made.insert_many([{"_id": number, "n": 0} for number in range(6)])
    return made


@pytest.fixture
def options(uri: str, collection: Rows) -> SourceOptions:
    images = dict.fromkeys(("fullDocument", "fullDocumentBeforeChange"), "whenAvailable")
    return SourceOptions(uri, collection.database.name, "c", stream=images)


def begin(options: SourceOptions) -> Token:
    return MongoDBStream(options).resolve(StreamPosition("latest"))


def write_between_reads(monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]) -> None:
    """A write before the server's time is asked for and before each reply, of a stream or of a read at one time."""
    next_batch, now, read = ResumingCursor.next_batch, MongoDBStream.now, snapshots.batches_at

    def now_behind_a_write(self: MongoDBStream) -> Timestamp:
        write()
        return now(self)

    def asked_behind_a_write(self: ResumingCursor, *, wait_ms: int) -> list[Document]:
        write()
        return next_batch(self, wait_ms=wait_ms)

    def read_between_writes(*given: Any, **fields: Any) -> Iterator[Any]:
        write()
        for each in read(*given, batchSize=2, **fields):
            write()
            yield each

    monkeypatch.setattr(ResumingCursor, "next_batch", asked_behind_a_write)
    monkeypatch.setattr(MongoDBStream, "now", now_behind_a_write)
    monkeypatch.setattr(snapshots, "batches_at", read_between_writes)


def check_exact(options: SourceOptions, start: Token, documents: list[Document], token: Token) -> None:
    """The documents, valid at the token, and all events from `start` on give what the collection has now."""
    mirror = {dumps(document["_id"]): document for document in documents}
    assert len(mirror) == len(documents)
    of_rows = set(mirror)
    stream = MongoDBStream(options)
    for event in stream.read(start, stream.end_at(stream.now())):
        key, behind = dumps(event["documentKey"]["_id"]), Token.of(event["_id"]) > token
        if key in of_rows and not behind:
            continue
        if behind:
            assert mirror.get(key) == event.get("fullDocumentBeforeChange")
        if event["operationType"] == "delete":
            mirror.pop(key, None)
        elif key in mirror or event["operationType"] == "insert":
            mirror[key] = event["fullDocument"]
    assert options.database
    now = stream.client.get_database(options.database, codec_options=OPTIONS)["c"].find()
    assert {dumps(document["_id"]): document for document in now} == mirror


def test_a_document_that_changes_between_all_reads_is_read_at_one_time(
    collection: Rows, options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, numbers = begin(options), iter(range(1000))

    def write() -> None:
        number = next(numbers)
        collection.update_one({"_id": 0}, {"$inc": {"n": 1}})
        collection.update_one({"_id": number % 6}, {"$inc": {"n": 1}})

    with monkeypatch.context() as patch:
        write_between_reads(patch, write)
        documents, token = Snapshot(options).consistent_read(_ALL)
    rows = list(documents)
    assert sorted(row["_id"] for row in rows) == list(range(6))
    check_exact(options, start, rows, token)


@pytest.mark.parametrize("at_one_time", [True, False])
def test_what_is_deleted_or_comes_with_a_key_of_another_type_meanwhile(
    collection: Rows, options: SourceOptions, monkeypatch: pytest.MonkeyPatch, at_one_time: bool
) -> None:
    if not at_one_time:
        monkeypatch.setitem(read_concern.TAKEN_BY, "snapshot", frozenset())
    start, numbers = begin(options), iter(range(40))

    def write() -> None:
        if (number := next(numbers, None)) is not None:
            collection.delete_one({"_id": 1})
            collection.insert_one({"_id": 1.0 if number % 2 else 1, "n": number})
            collection.delete_one({"_id": 2 + number % 4})
            collection.insert_one({"_id": 100 + number})

    with monkeypatch.context() as patch:
        write_between_reads(patch, write)
        documents, token = Snapshot(options).consistent_read(_ALL)
    check_exact(options, start, list(documents), token)


def test_a_time_before_what_was_acknowledged_is_not_taken(
    collection: Rows, options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, read = list[Timestamp](), snapshots.batches_at
    (early,) = [time for time, _ in read(collection, limit=1)]
    collection.update_one({"_id": 0}, {"$set": {"n": 1}})

    def old_at_first(*given: Any, **fields: Any) -> Iterator[Any]:
        for time, batch in read(*given, early if len(times) < 2 else None, **fields):
            times.append(time)
            yield time, batch

    monkeypatch.setattr(snapshots, "batches_at", old_at_first)
    documents, _ = Snapshot(options).consistent_read(_ALL)
    assert [document["n"] for document in documents] == [1, 0, 0, 0, 0, 0]
    assert times[:2] == [early, early] and times[2] > early


@pytest.mark.parametrize("writes", [20, 1000])
def test_a_server_without_reads_at_one_time_is_left_with_the_rounds(
    collection: Rows, options: SourceOptions, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    monkeypatch.setitem(read_concern.TAKEN_BY, "snapshot", frozenset())
    monkeypatch.setattr(limits, "SNAPSHOT_ROUND_COUNT_MAX", 60)
    start, numbers = begin(options), iter(range(writes))

    def write() -> None:
        if next(numbers, None) is not None:
            collection.update_one({"_id": 0}, {"$inc": {"n": 1}})

    with monkeypatch.context() as patch:
        write_between_reads(patch, write)
        if writes == 1000:
            with pytest.raises(SnapshotUnsettled, match="1 documents changed each of the 60 times"):
                Snapshot(options).consistent_read(_ALL)
            return
        documents, token = Snapshot(options).consistent_read(_ALL)
    check_exact(options, start, list(documents), token)


@pytest.mark.long
@pytest.mark.parametrize("at_one_time", [True, False])
def test_snapshots_during_writes_and_transactions_fit_the_events(
    uri: str, collection: Rows, options: SourceOptions, monkeypatch: pytest.MonkeyPatch, at_one_time: bool
) -> None:
    """Twenty of them, beside four writers of few keys."""
    if not at_one_time:
        monkeypatch.setitem(read_concern.TAKEN_BY, "snapshot", frozenset())
    stop, writes_done, failures = threading.Event(), threading.Semaphore(0), list[BaseException]()

    def write(seed: int) -> None:
        random_ = random.Random(seed)
        with MongoClient[Document](uri) as client:
            rows = client[collection.database.name]["c"]
            while not stop.is_set():
                try:
                    _write(rows, random_)
                except PyMongoError as error:
                    if not error.has_error_label("TransientTransactionError"):
                        failures.append(error)
                        return
                writes_done.release()

    start = begin(options)
    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for writer in writers:
        writer.start()
    try:
        assert all(writes_done.acquire(timeout=60) for _ in range(40))
        snapshot, read = Snapshot(options), list[tuple[Iterable[Document], Token]]()
        while len(read) < 20:
            read.append(snapshot.consistent_read(_ALL))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not failures
    for documents, token in read:
        check_exact(options, start, list(documents), token)


def _write(rows: Rows, random_: random.Random) -> None:
    """A step of a writer: an update, a document that goes or comes, or a transaction of several."""
    key, kind = random_.randrange(12), random_.random()
    if kind < 0.5:
        rows.update_one({"_id": key % 3}, {"$inc": {"n": 1}})
    elif kind < 0.6:
        rows.delete_one({"_id": key})
    elif kind < 0.7:
        rows.replace_one({"_id": random_.choice([key, float(key)])}, {"n": random_.random()}, upsert=True)
    else:
        with rows.database.client.start_session() as session, session.start_transaction():
            for number in random_.sample(range(12), 4):
                rows.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True, session=session)
