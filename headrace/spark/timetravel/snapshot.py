"""A collection as rows, in chunks of its `_id`s: each row is a document at the row's token.

Rule: a row says exactly "at `token` the document with this key was this one", also with concurrent writers. So an event
of a key applies to its row exactly if the event's token is greater, and no event is applied twice or missed.

How: a chunk is read at one cluster time, with read concern `snapshot`, and is valid at the token after that time. Where
the server cannot (MongoDB, of a capped collection): (1) open a stream on the collection; (2) read the chunk;
(3) read the stream past the time of that read. A document of (2) without an event in (3) did not change in between, so
it is valid at the stream's present token. Documents with an event are read again, followed by (3), until none has an
event.

A key that is in no chunk needs no row. If its document is created later, the insert comes after the snapshot's first
token. If it was deleted, events from before the snapshot's end may have no row to change: they are expected up to the
token of `snapshotEnd`; after it they are an error.

Chunks are ranges of `_id` in MongoDB's order. `$gt` compares within one type only, so a chunk never spans two types:
the first key of each type is a chunk by itself. The snapshot ends with the chunk that has the greatest key at that
time. Documents inserted after it come as events; otherwise a snapshot would never end while a client inserts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from bson import Decimal128, MinKey, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection
from pymongo.errors import ConnectionFailure, OperationFailure
from pymongo.read_concern import ReadConcern

from headrace import limits
from headrace.spark.mongodb.mongodb_stream import RAW, MongoDBStream, ResumingCursor
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.not_held import NotHeld
from headrace.spark.rows.tokens import Token
from headrace.values.arrow.event_columns import COLUMNS, EventRow
from headrace.values.bson import OPTIONS, decode, encode, type_number

# The BSON types of a key, by number, in MongoDB's order; types in one tuple are compared with each other.
_TYPE_ORDER: Final = (
    (-1,), (10,), (1, 16, 18, 19), (2, 14), (3,), (5,), (7,), (8,), (9,), (17,), (13,), (15,), (127,),
)  # fmt: skip
_CHUNK_ROWS: Final = 10_000
_KEY, _DOCUMENT = COLUMNS.index("documentKey"), COLUMNS.index("fullDocument")
_KEYS_ONLY: Final = (
    {"$match": {"operationType": {"$in": ["delete", "insert", "replace", "update"]}}},
    {"$project": {"documentKey": 1}},
)


class SnapshotUnsettled(RuntimeError):
    """Some documents changed each time they were read, and the server does not read them at one time."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The keys after `after` up to and including `upto`, as text of {"_id": key}; without `after`, only `upto`.

    Without either, it is the whole collection. `last`: no key was greater when the chunk was planned.
    """

    upto: str
    after: str = ""
    last: bool = False

    @property
    def last_key(self) -> Any:
        """The greatest `_id` of the chunk, decoded."""
        return loads(self.upto)["_id"]

    def filter(self) -> dict[str, Any]:
        """Return the filter for its documents."""
        if not self.upto:
            return {}
        upper = self.last_key
        if not self.after:
            return {"_id": {"$eq": upper}}
        return {"_id": {"$gt": loads(self.after)["_id"], "$lte": upper}}


class Snapshot:
    """Reads the collection that the options name."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.database and options.collection
        # This stream must have every change of the collection, so it omits the user's pipeline.
        self._options = replace(options, pipeline=(), stream={}, others=(), collections=())
        self._mongodb = MongoDBStream(self._options)
        self._collection: Collection[dict[str, Any]] = self._mongodb.client.get_database(
            options.database, codec_options=OPTIONS, read_concern=ReadConcern("majority")
        )[options.collection]
        self._raw = self._collection.with_options(codec_options=RAW)

    def next_chunk(self, after: str, rows_max: int, bytes_max: int | None = None) -> Chunk | None:
        """Return the next chunk of at most `rows_max` keys after the key `after` (`""`: from the first); None at the
        end.

        By the documents' average size it has about `bytes_max` bytes (default: those of a batch), and at least one
        document.
        """
        if not after:
            return self._single({})
        rows_max = min(rows_max, self._rows_within(self.batch_bytes if bytes_max is None else bytes_max))
        key = loads(after)["_id"]
        # `$gt: NaN` matches nothing, although NaN sorts before all numbers.
        if not _is_nan(key) and not isinstance(key, MinKey):
            within = {"_id": {"$gt": key}}
            if upto := self._key(within, 1, skip=rows_max - 1):
                return Chunk(upto, after)
            if upto := self._key(within, -1):
                return Chunk(upto, after, last=self._key(_beyond(loads(upto)["_id"]), 1) is None)
        return self._single(_beyond(key))

    def chunks(self, rows_max: int) -> Iterator[Chunk]:
        """Yield the chunks of the collection; each is planned when it is requested. See `next_chunk`."""
        chunk = self.next_chunk("", rows_max)
        while chunk:
            yield chunk
            chunk = None if chunk.last else self.next_chunk(chunk.upto, rows_max)

    @property
    def batch_bytes(self) -> int:
        """The bytes of documents that a batch may have."""
        return self._options.bytes_max or limits.SNAPSHOT_CHUNK_BYTES

    def batch_rows(self, rows_max: int) -> int:
        """Return how many of the `rows_max` rows of a batch the collection takes: about its count of documents.

        Documents that fill the batch's bytes before its rows count as more rows.
        """
        count = self._collection.estimated_document_count()
        within = self._rows_within(self.batch_bytes) if count else rows_max
        return max(count, count * rows_max // within)

    def _rows_within(self, bytes_max: int) -> int:
        """Return how many documents of the present average size have `bytes_max` together, at least one."""
        size = self._document_bytes
        return limits.ROW_COUNT_UNBOUNDED if size is None else max(bytes_max // size, 1)

    @cached_property
    def _document_bytes(self) -> int | None:
        """The present average size of a document; None without the privilege to read it."""
        try:
            stats = list(self._collection.aggregate([{"$collStats": {"storageStats": {}}}]))
        except OperationFailure:
            return None
        # A sharded collection has statistics of each shard.
        return max([1, *(int(each.get("storageStats", {}).get("avgObjSize", 0)) for each in stats)])

    def split(self, chunk: Chunk, rows: int, chunks_max: int) -> list[Chunk]:
        """Return a chunk of about `rows` rows as at most `chunks_max` smaller ones, in order."""
        chunks: list[Chunk] = []
        after, last = chunk.after, chunk.last_key
        while after and len(chunks) < chunks_max - 1:
            within = {"_id": {"$gt": loads(after)["_id"], "$lte": last}}
            upto = self._key(within, 1, skip=max(rows // chunks_max, 1) - 1)
            if upto is None or upto == chunk.upto:
                break
            chunks.append(Chunk(upto, after))
            after = upto
        return [*chunks, Chunk(chunk.upto, after)]

    def is_within(self, chunk: Chunk, rows_max: int, bytes_max: int) -> bool:
        """Whether the chunk now has at most `rows_max` documents and, by their average size, at most `bytes_max`."""
        if chunk.upto and not chunk.after:
            return rows_max >= 1
        rows_max = min(rows_max, self._rows_within(bytes_max))
        return self._collection.count_documents(chunk.filter(), limit=rows_max + 1) <= rows_max

    def read(self, chunk: Chunk) -> Iterator[EventRow]:
        """Return the chunk's documents as rows; raise SnapshotUnsettled."""
        documents, token = self.consistent_read(chunk)
        return (self.row(token, document) for document in documents)

    def read_all(self) -> Iterator[EventRow]:
        """Yield the rows of all documents, chunk by chunk; raise SnapshotUnsettled."""
        for chunk in self.chunks(_CHUNK_ROWS):
            yield from self.read(chunk)

    def stream_with(self, stream: dict[str, Any]) -> MongoDBStream:
        """Return the collection's change stream with these options of $changeStream."""
        return MongoDBStream(replace(self._options, stream=stream))

    def now(self) -> Token:
        """Return a token that is not before anything acknowledged before the call."""
        return self._mongodb.end_at(self._mongodb.now())

    def consistent_read(self, chunk: Chunk) -> tuple[Iterable[StoredDocument], Token]:
        """Return the chunk's documents and a token at which all of them are valid; raise SnapshotUnsettled."""
        with suppress(ConnectionFailure, NoSnapshotRead):
            # On a quiet server a snapshot began one tick after the time of the read.
            with self._mongodb.open(StreamPosition("latest")) as cursor:
                begun = cursor.token
            since = self._mongodb.now()
            for _ in range(limits.SNAPSHOT_READ_COUNT_MAX):
                batches = list(batches_at(self._collection, filter=chunk.filter()))
                time, _ = batches[-1]
                if time >= since:
                    found = by_key(document for _, batch in batches for document in batch)
                    return found.values(), max(begun, self._mongodb.end_at(time))
        return self._read_in_rounds(chunk)

    def _read_in_rounds(self, chunk: Chunk) -> tuple[Iterable[StoredDocument], Token]:
        """Read the chunk without a cluster time; see the module."""
        with self._mongodb.open(StreamPosition("latest"), stages=_KEYS_ONLY) as cursor:
            documents, moment = self._find(chunk.filter(), _before(cursor.token.time))
            for _ in range(limits.SNAPSHOT_ROUND_COUNT_MAX):
                stale = dict.fromkeys(key for key in _changed(cursor, moment) if key in documents)
                if not stale or cursor.closed:
                    return documents.values(), cursor.token
                keys = [documents.pop(key)["_id"] for key in stale]
                again, moment = self._find({"_id": {"$in": keys}}, cursor.token.time)
                documents |= again
        raise SnapshotUnsettled(
            f"{len(stale)} documents changed each of the {limits.SNAPSHOT_ROUND_COUNT_MAX} times they were read, and "
            'the server does not read them with {readConcern: {level: "snapshot"}}'
        )

    def begin_row(self, token: Token) -> EventRow:
        """Return the row `snapshotBegin`: earlier rows are obsolete, and the rows of a snapshot begun at `token`
        follow."""
        return self._row(SNAPSHOT_BEGIN, token)

    def end_row(self, begun: Token) -> EventRow:
        """Return the row `snapshotEnd` of the snapshot that began at `begun`: none of its rows is later than now."""
        # On a quiet server the last event is older than the position at which the snapshot began.
        return self.end_row_at(max(self.now(), begun))

    def end_row_at(self, token: Token) -> EventRow:
        """Return the row `snapshotEnd` of a snapshot whose rows are valid at `token`."""
        return self._row(SNAPSHOT_END, token)

    def row(self, token: Token, document: Mapping[str, Any]) -> EventRow:
        """Return the row of a document at `token`; a `StoredDocument` or a raw document keeps its bytes."""
        row = self._row(SNAPSHOT, token)
        row[_KEY] = encode({"_id": document["_id"]})
        row[_DOCUMENT] = document.raw if isinstance(document, RawBSONDocument | StoredDocument) else encode(document)
        return row

    def _single(self, query: dict[str, Any]) -> Chunk | None:
        key = self._key(query, 1)
        return Chunk(key) if key else None

    def _key(self, query: dict[str, Any], direction: int, *, skip: int = 0) -> str | None:
        first = list(self._collection.find(query, {"_id": 1}, sort=[("_id", direction)], skip=skip, limit=1))
        return dumps({"_id": first[0]["_id"]}) if first else None

    def _find(self, query: dict[str, Any], since: Timestamp) -> tuple[dict[str, StoredDocument], Timestamp]:
        """Return the documents by the text of their key, not older than `since`, and a time after the read."""
        with self._mongodb.client.start_session(causal_consistency=True) as session:
            session.advance_operation_time(since)
            documents = by_key(self._raw.find(query, session=session))
        return documents, self._mongodb.now()

    def _row(self, kind: str, token: Token) -> EventRow:
        head = [token.text, token.time.time * 1_000_000, token.time.inc, kind]
        head += [self._options.database, self._options.collection]
        return head + [None] * (len(COLUMNS) - len(head))


def _changed(cursor: ResumingCursor, moment: Timestamp) -> Iterator[str]:
    """Yield the keys of the events up to `moment` and some later ones; stop at an invalidate.

    When the iterator is exhausted, it has yielded all events that the cursor has passed.
    """
    # A getMore from before the read says nothing about events of the same time.
    cursor.drained = False
    while not cursor.covers(moment) and not cursor.closed:
        for event in cursor.next_batch(wait_ms=20):
            yield dumps(event["documentKey"]["_id"])


def _before(moment: Timestamp) -> Timestamp:
    # A newly opened stream is one tick after the oplog; nothing has that time yet.
    return Timestamp(moment.time, moment.inc - 1) if moment.inc else moment


def _beyond(key: Any) -> dict[str, Any]:
    """Return the filter for keys of types that sort after this key's type; after NaN, also for other numbers."""
    rank = next(rank for rank, types in enumerate(_TYPE_ORDER) if type_number(key) in types)
    later = [number for types in _TYPE_ORDER[rank + (0 if _is_nan(key) else 1) :] for number in types]
    # Without later types: a filter that matches nothing.
    return {"_id": {"$type": later, "$ne": key}} if later else {"_id": {"$in": []}}


def _is_nan(key: Any) -> bool:
    return key.to_decimal().is_nan() if isinstance(key, Decimal128) else isinstance(key, float) and math.isnan(key)


class NoSnapshotRead(RuntimeError):
    """The server does not read a collection at one cluster time, or no longer at this one."""


class StoredDocument(dict[str, Any]):
    """A decoded document, with its bytes in `raw`, because decoding changes some values."""

    raw: bytes

    @classmethod
    def of(cls, raw: bytes) -> StoredDocument:
        """Return the document of these bytes."""
        stored = cls(decode(raw))
        stored.raw = raw
        return stored


def by_key(documents: Iterable[RawBSONDocument]) -> dict[str, StoredDocument]:
    """Return the documents by the text of their key. Raise NotHeld if two keys have the same text."""
    found: dict[str, StoredDocument] = {}
    for document in documents:
        stored = StoredDocument.of(bytes(document.raw))
        key = dumps(stored["_id"])
        if key in found:
            raise NotHeld(f"two documents of the collection have the _id {key} in Extended JSON, and differ as BSON")
        found[key] = stored
    return found


def batches_at(
    collection: Collection[dict[str, Any]], time: Timestamp | None = None, **fields: Any
) -> Iterator[tuple[Timestamp, list[RawBSONDocument]]]:
    """Yield the batches of a `find` with read concern `snapshot`, at `time` or at a time that the server chooses, each
    with that time: for MongoDB from 5.0 on, and Headrace.

    It is sent as a command, because pymongo's snapshot sessions do not report their time. Raise NoSnapshotRead.
    """
    concern: dict[str, Any] = {"level": "snapshot"} | ({"atClusterTime": time} if time else {})
    database, name = collection.database, collection.name
    with database.client.start_session(causal_consistency=False) as session:
        given: dict[str, Any] = {"codec_options": RAW, "session": session}
        try:
            cursor = database.command("find", name, **fields, readConcern=concern, **given)["cursor"]
            read_at: Timestamp | None = cursor.get("atClusterTime")
            if read_at is None:
                raise NoSnapshotRead("the server does not say at which cluster time it reads: it is no replica set")
            yield read_at, cursor["firstBatch"]
            while cursor["id"]:
                cursor = database.command("getMore", cursor["id"], collection=name, **given)["cursor"]
                yield read_at, cursor["nextBatch"]
        except OperationFailure as error:
            raise NoSnapshotRead(f"{collection.full_name} cannot be read at one cluster time: {error}") from error
