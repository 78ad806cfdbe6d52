"""A collection at a past token: from its present documents and pre-images, or from an archive.

The result is exact, or PastUnknown is raised.

From images: if a document was changed since, the first event after the token shows what it was: nothing, if the event
is an insert, otherwise its pre-image. Other documents are unchanged. The collection is read in chunks (`snapshot.py`);
with each chunk, the events are read up to the token of its rows. The oplog must reach back to the token. The collection
must have had pre-images enabled (`changeStreamPreAndPostImages`) when it was changed, and must not have been dropped or
renamed.

From an archive: a complete snapshot in the table, and the events since, from the table up to its end, and then from the
server. It needs no images. For several workers, the documents are divided into slices by a hash of their key's identity
(1 and 1.0 are one key). A slice is held in memory. The table must have a complete snapshot from before the token, and
every later event must be in the table or on the server. No other collection may have been renamed onto this one since,
and update descriptions must be unambiguous (`showRawUpdateDescription`, `showExpandedEvents`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from bson.raw_bson import RawBSONDocument

from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.events import DOCUMENT_OPERATIONS, Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity
from headrace.spark.rows.not_held import NOT_HELD, NotHeld, held_or_marked, reason_of
from headrace.spark.rows.tokens import Token
from headrace.spark.tables.fold import MirrorDiverged, MirrorRow, MirrorState, fold, key_of, keys_to_read
from headrace.spark.timetravel.archive import Archive, ArchivedSnapshot, has_events, read_events
from headrace.spark.timetravel.snapshot import Snapshot, StoredDocument
from headrace.values.arrow.event_columns import EventRow
from headrace.values.bson import encode_in_order, find_element
from headrace.values.keystring.encoding import encode_value

if TYPE_CHECKING:
    import pyarrow as pa


class PastUnknown(RuntimeError):
    """The documents at the token cannot be determined."""


class _ChangesSince:
    """The documents at a token, computed from the events after it, for keys that were not returned yet."""

    def __init__(self, mongodb: MongoDBStream, token: Token) -> None:
        self._mongodb = mongodb
        self._read_to = token
        self._taken_upto = b""
        self._before: dict[bytes, StoredDocument | None] = {}

    def read(self, end: Token) -> None:
        """Read the events up to `end`."""
        for batch in self._mongodb.read_raw(self._read_to, end):
            for event in batch:
                self._note(StoredDocument.of(event))
        self._read_to = max(self._read_to, end)

    def touched(self, key: Any) -> bool:
        """Whether an event read so far is of this `_id`."""
        return encode_value(key) in self._before

    def take(self, upto: bytes | None) -> Iterator[StoredDocument]:
        """Yield the earlier documents of changed keys up to and including `upto` (None: all); each is yielded once."""
        for key in sorted(key for key in self._before if upto is None or key <= upto):
            document = self._before.pop(key)
            if document is not None:
                yield document
        if upto is not None:
            self._taken_upto = upto

    def _note(self, event: StoredDocument) -> None:
        kind = event["operationType"]
        if "documentKey" not in event:
            raise PastUnknown(f"an event since then is of the whole collection: {kind}")
        key = encode_value(event["documentKey"]["_id"])
        if key in self._before or key <= self._taken_upto:
            return
        image = find_element(event.raw, b"fullDocumentBeforeChange")
        before = (
            None if event.get("fullDocumentBeforeChange") is None or image is None else event.raw[image[1] : image[2]]
        )
        if before is None and kind != "insert":
            raise PastUnknown(
                f"a document was changed since then ({kind}) and has no pre-image: "
                "collMod with changeStreamPreAndPostImages: {enabled: true} keeps them from now on"
            )
        self._before[key] = StoredDocument.of(before) if before else None


def documents_by_images(snapshot: Snapshot, token: Token) -> Iterator[EventRow]:
    """Yield the documents at `token` as rows with that token. Raise PastUnknown and PositionLost."""
    since = _ChangesSince(snapshot.stream_with({"fullDocumentBeforeChange": "whenAvailable"}), token)
    for chunk in snapshot.chunks(10_000):
        documents, _ = snapshot.consistent_read(chunk)
        since.read(snapshot.now())  # further than the chunk requires, which does no harm
        for document in documents:
            if not since.touched(document["_id"]):
                yield snapshot.row(token, document)
        for document in since.take(encode_value(chunk.last_key)):
            yield snapshot.row(token, document)
    since.read(snapshot.now())
    for document in since.take(None):
        yield snapshot.row(token, document)


_NAMES: Final = (
    "token", "operationType", "database", "collection", "documentKey", "fullDocument", "updateDescription", "other",
)  # fmt: skip
_ROWS: Final = 10_000

Documents = dict[str, MirrorRow]


def base_at(options: SourceOptions, token: Token) -> ArchivedSnapshot:
    """Return the latest snapshot from which the collection at `token` can be computed. Raise PastUnknown."""
    archive = Archive(options)
    base = next((base for base in reversed(archive.contents().snapshots) if base.end.text <= token.text), None)
    if base is None:
        raise PastUnknown(f"the archive {options.archive} has no complete snapshot from before {token.text}")
    if not has_events(MongoDBStream(options), base.begin, token):
        raise PastUnknown(f"events between {base.begin.text} and {token.text} are missing. {archive.description()}")
    names = ("operationType", "other")
    for row in archive.events(base.begin.text, token.text, names).to_pylist():
        if row["operationType"] == "rename":
            check_rename(options, row["other"])
    return base


def documents_by_archive(
    options: SourceOptions, token: Token, base: ArchivedSnapshot, slice_: int = 0, slices: int = 1
) -> Iterator[EventRow]:
    """Yield the documents of a slice as rows with `token`, in the order of their keys.

    The rows are the same at each call, even if the table has grown. Raise PastUnknown, PositionLost, ArchiveUnfit.
    """
    documents: Documents = {}
    marked: set[str] = set()
    state = MirrorState(token=base.begin.text, snapshot_token=base.end.text)
    for rows in _base_rows(options, base, slice_, slices):
        for row in rows:
            stored = documents.get(key := key_of(row))
            if stored is None or stored.token < row.token:
                documents[key] = MirrorRow(row.fullDocument or "", row.token)
    try:
        for rows in _events(options, base.begin, token, slice_, slices):
            state = _folded(_without_updates_of_marks(rows, marked), state, documents)
    except MirrorDiverged as error:
        raise PastUnknown(f"the archive {options.archive} does not tell all: {error}") from error
    snapshot = Snapshot(options)
    by_key = sorted((encode_value(loads(key)), stored.document) for key, stored in documents.items())
    for _, document in by_key:
        # A mark is recognized by its first field, but `encode` would put `_id` before it.
        marked_document = reason_of(document) and RawBSONDocument(encode_in_order(loads(document)))
        yield snapshot.row(token, marked_document or loads(document))


def _without_updates_of_marks(rows: list[Row], marked: set[str]) -> list[Row]:
    """Return the rows without updates of documents replaced by a mark; update `marked`, the keys of these documents."""
    kept = []
    for row in rows:
        if row.operationType in DOCUMENT_OPERATIONS and row.documentKey:
            key = key_identity(key_of(row))
            if row.operationType == "update" and key in marked:
                continue
            if reason_of(row.fullDocument):
                marked.add(key)
            elif row.operationType != "update":
                marked.discard(key)
        kept.append(row)
    return kept


def _folded(rows: list[Row], state: MirrorState, documents: Documents) -> MirrorState:
    """Return the state after the rows; `documents` is changed."""
    changes = fold(rows, state, {key: documents[key] for key in keys_to_read(rows) if key in documents})
    if changes.clear:
        documents.clear()
    for key in changes.deletes:
        documents.pop(key, None)
    documents.update(changes.upserts)
    return changes.state


def _base_rows(options: SourceOptions, base: ArchivedSnapshot, slice_: int, slices: int) -> Iterator[list[Row]]:
    archive = Archive(options)
    for batch in archive.base_rows(base, _NAMES):
        archive.check(batch)
        yield _sliced(_rows(batch), slice_, slices)


def _events(options: SourceOptions, start: Token, end: Token, slice_: int, slices: int) -> Iterator[list[Row]]:
    """Yield the events of the slice after `start` up to `end`: first from the table, then from the server."""
    # With updateLookup, an update's document is from a later time.
    looked_up = options.stream.get("fullDocument") == "updateLookup"
    for batch in _event_batches(options, start, end):
        rows = _sliced(_rows(batch), slice_, slices)
        for row in rows:
            if row.operationType == "rename":
                check_rename(options, row.other)
        yield [row._replace(fullDocument=None) if looked_up and row.operationType == "update" else row for row in rows]


def _event_batches(options: SourceOptions, start: Token, end: Token) -> Iterator[pa.RecordBatch]:
    archive, at = Archive(options), start
    span = archive.span(start)
    if span is not None and start < span.last:
        at = min(end, span.last)
        for table in archive.windows(start, at, _NAMES):
            yield from table.to_batches(max_chunksize=_ROWS)
    if at < end:
        yield from read_events(replace(options, pipeline=(), reader=()), at, end, _NAMES)


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yield the rows of a batch, whose documents are text (from the table) or BSON (from the server).

    A mark replaces a document that has no text, also after an update without a text. It is refused if it is still there
    at the token. Raise NotHeld for a key without a text.
    """
    columns = [batch.column(name).to_pylist() for name in _NAMES]
    for values in zip(*columns, strict=True):
        texts: list[Any] = [dumps(held_or_marked(value)) if type(value) is bytes else value for value in values]
        row = Row(**dict(zip(_NAMES, texts, strict=True)))
        if reason := reason_of(row.documentKey):
            raise NotHeld(f"{row.database}.{row.collection}: the event {row.token} has a key without a text: {reason}")
        if reason := reason_of(row.updateDescription) or reason_of(row.fullDocument):
            mark = dumps({NOT_HELD: reason, **loads(row.documentKey or "{}")})
            kind = "replace" if row.operationType == "update" else row.operationType
            row = row._replace(operationType=kind, fullDocument=mark, updateDescription=None)
        yield row


def _sliced(rows: Iterable[Row], slice_: int, slices: int) -> list[Row]:
    """Return the rows of the slice, and the rows without a document key."""
    return [
        row
        for row in rows
        if row.operationType not in DOCUMENT_OPERATIONS or crc32(key_identity(key_of(row)).encode()) % slices == slice_
    ]


def check_rename(options: SourceOptions, other: str | None) -> None:
    """Raise PastUnknown for a rename onto this collection, because no event describes the documents that it brought."""
    to = loads(other or "{}").get("to")
    if to == {"db": options.database, "coll": options.collection}:
        raise PastUnknown(f"another collection was renamed to {options.database}.{options.collection} since then")
