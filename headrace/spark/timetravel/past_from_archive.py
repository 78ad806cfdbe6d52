"""A collection at a past token, computed from an archive: a complete snapshot in the table, and the events since.

It needs no pre- and post-images. The events come from the table up to its end, and then from the server. For several
workers, the documents are divided into slices by a hash of their key's identity (1 and 1.0 are one key). A slice is
held in memory.

The result is exact, or PastUnknown is raised. The table must have a complete snapshot from before the token, and every
later event must be in the table or on the server. No other collection may have been renamed onto this one since, and
update descriptions must be unambiguous (`showRawUpdateDescription`, `showExpandedEvents`).
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
from headrace.spark.timetravel.past_from_images import PastUnknown
from headrace.spark.timetravel.snapshot import Snapshot
from headrace.values.arrow.event_columns import EventRow
from headrace.values.bson import encode_in_order
from headrace.values.keystring.encoding import encode_value

if TYPE_CHECKING:
    import pyarrow as pa

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


def documents_at(
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
