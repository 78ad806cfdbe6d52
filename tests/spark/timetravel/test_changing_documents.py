"""Snapshots of documents that change faster than they are read: rows and token fit together, event by event.

What proves it are images: each event behind the token must have as its document before what the rows and the events
until then came to. An event too many or too few is one that does not fit.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
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
from headrace.spark.timetravel.snapshot import Chunk, Snapshot, SnapshotUnsettled, TimedDocuments, find_at
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
    """A write behind each read, before its time is asked for, and one before each getMore of a stream."""
    next_batch, now = ResumingCursor.next_batch, MongoDBStream.now

    def now_behind_a_write(self: MongoDBStream) -> Timestamp:
        write()
        return now(self)

    def asked_behind_a_write(self: ResumingCursor, *, wait_ms: int) -> list[Document]:
        write()
        return next_batch(self, wait_ms=wait_ms)

    monkeypatch.setattr(ResumingCursor, "next_batch", asked_behind_a_write)
    monkeypatch.setattr(MongoDBStream, "now", now_behind_a_write)


def write_around_timed_reads(
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[], object],
    refused: Callable[[Timestamp | None], bool] = lambda _: False,
) -> list[Timestamp | None]:
    """Writes before and after each read at one time; refuses some. The times, as they are asked for."""
    asked: list[Timestamp | None] = []

    def find(collection: Any, keys: list[Any], time: Timestamp | None = None) -> TimedDocuments | None:
        asked.append(time)
        write()
        documents = None if refused(time) else find_at(collection, keys, time)
        write()
        return documents

    monkeypatch.setattr(snapshots, "find_at", find)
    return asked


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
    """With those that change until then, and without those that change later."""
    start, others = begin(options), iter([2, 3, 4, 5])

    def write() -> None:
        collection.update_one({"_id": 0}, {"$inc": {"n": 1}})
        collection.update_one({"_id": next(others, 1)}, {"$inc": {"n": 1}})

    with monkeypatch.context() as patch:
        write_between_reads(patch, lambda: collection.update_one({"_id": 0}, {"$inc": {"n": 1}}))
        asked = write_around_timed_reads(patch, write)
        documents, token = Snapshot(options).consistent_read(_ALL)
    assert len(asked) == 2 and asked[0] is None and asked[1] is not None
    rows = list(documents)
    assert sorted(row["_id"] for row in rows) == list(range(6))
    check_exact(options, start, rows, token)


def test_what_is_deleted_or_comes_with_a_key_of_another_type_meanwhile(
    collection: Rows, options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, numbers = begin(options), iter(range(100))

    def write() -> None:
        collection.update_one({"_id": 0}, {"$inc": {"n": 1}})
        number = next(numbers)
        collection.delete_one({"_id": 1})
        collection.insert_one({"_id": 1.0 if number % 2 else 1, "n": number})
        collection.delete_one({"_id": 2 + number % 4})
        collection.insert_one({"_id": 100 + number})

    with monkeypatch.context() as patch:
        write_between_reads(patch, write)
        asked = write_around_timed_reads(patch, write)
        documents, token = Snapshot(options).consistent_read(_ALL)
    assert asked
    check_exact(options, start, list(documents), token)


def test_a_time_that_is_no_longer_to_be_read_at_is_followed_by_another(
    collection: Rows, options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, numbers = begin(options), iter(range(100))
    refusals = iter([True, True])

    def write() -> None:
        collection.update_one({"_id": 0}, {"$inc": {"n": 1}})
        collection.update_one({"_id": next(numbers) % 6}, {"$inc": {"n": 1}})

    with monkeypatch.context() as patch:
        write_between_reads(patch, write)
        asked = write_around_timed_reads(patch, write, lambda time: time is not None and next(refusals, False))
        documents, token = Snapshot(options).consistent_read(_ALL)
    assert len(asked) > 2
    rows = list(documents)
    assert sorted(row["_id"] for row in rows) == list(range(6))
    check_exact(options, start, rows, token)


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


def test_large_documents_are_read_at_one_time_in_several_replies(collection: Rows) -> None:
    collection.insert_many([{"_id": 10 + number, "text": "x" * 9_000_000} for number in range(3)])
    read = find_at(collection, [10, 11, 12, 13])
    assert read and [len(document["text"]) for document in read.documents.values()] == [9_000_000] * 3
    collection.update_many({}, {"$set": {"text": ""}})
    again = find_at(collection, [0, 12], read.time)
    assert again and again.time == read.time
    assert [len(document.get("text", "")) for document in again.documents.values()] == [0, 9_000_000]


@pytest.mark.long
@pytest.mark.parametrize("rounds", [0, limits.SNAPSHOT_FREE_ROUND_COUNT])
def test_snapshots_during_writes_and_transactions_fit_the_events(
    uri: str, collection: Rows, options: SourceOptions, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Twenty of them, or as many as it takes to read at one time, beside four writers of few keys."""
    monkeypatch.setattr(limits, "SNAPSHOT_FREE_ROUND_COUNT", rounds)
    timed = write_around_timed_reads(monkeypatch, lambda: None)
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
        while len(read) < 20 or (not timed and len(read) < 200):
            read.append(snapshot.consistent_read(_ALL))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not failures and timed
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
