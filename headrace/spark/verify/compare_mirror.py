"""Checks that a mirror and its collection are equal at one token, and finds the documents that are not.

Rule: both sides are brought to the same token, so the answer is right while clients write, however far the mirror lags.
The mirror's rows are valid at its own token. The collection is read in chunks, each row with the token at which it is
valid (`timetravel/snapshot.py`). Then the events up to one last token are applied to both sides, to each row those that
are newer than it.

Limit: the table's documents are in memory, once where both sides are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from headrace import limits
from headrace.spark.masks.mask import Mask
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, description_option, position_before
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.events import DOCUMENT_OPERATIONS, INVALIDATING, Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity
from headrace.spark.rows.not_held import held_event, reason_not_held, reason_of
from headrace.spark.rows.tokens import Token
from headrace.spark.tables.fold import MirrorDiverged, MirrorRow, MirrorState, fold, key_of
from headrace.spark.tables.mirror_table import ReadMirror, stored_rows
from headrace.spark.tables.position import NotAMirror
from headrace.spark.timetravel.snapshot import Snapshot
from headrace.spark.verify.compare_log import Counted, ignored
from headrace.values.arrow.event_columns import COLUMNS
from headrace.values.bson import decode
from headrace.values.order import sort_key

CHUNK_ROWS: Final = 10_000
_ATTEMPTS: Final = 3
# The positions of these columns in a row of the source.
_TOKEN: Final = COLUMNS.index("token")
_DOCUMENT: Final = COLUMNS.index("fullDocument")
_DIVERGED: Final = "(diverged)"
_NOT_HELD: Final = "(not held)"
"""The text for a collection's document that a table cannot hold; it equals no text in a table."""

Document = dict[str, Any]
DocumentTexts = dict[str, str]


class CollectionUnstable(RuntimeError):
    """The collection was dropped or renamed each time it was compared."""


class MirroredCollection(Protocol):
    """The pair to compare: a collection of the server at `uri`, and the table that should equal it."""

    @property
    def uri(self) -> str: ...
    @property
    def database(self) -> str: ...
    @property
    def collection(self) -> str: ...
    def table(self) -> ReadMirror: ...


@dataclass(frozen=True, slots=True)
class MirrorComparison:
    """Counts of both sides and of unequal documents, at `token`, with the first few keys of each kind."""

    document_count: int
    row_count: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    duplicate_count: int = 0
    unequal_count: int = 0
    token: str = ""

    @property
    def equal(self) -> bool:
        """Whether both sides have the same documents."""
        return self.unequal_count == 0 and self.document_count == self.row_count

    def __str__(self) -> str:
        if self.equal:
            return f"{self.row_count} rows, {self.document_count} documents"
        kinds = (("missing", self.missing), ("extra", self.extra), ("different", self.different))
        listed = "; ".join(f"{name} {', '.join(keys)}" for name, keys in kinds if keys)
        return f"{self.unequal_count} unequal of {self.row_count} rows and {self.document_count} documents: {listed}"


def compare(mirror: MirroredCollection, masks: Sequence[Mask] = (), counted: Counted = ignored) -> MirrorComparison:
    """Compare at the server's present time; two documents are equal if their BSON is, type by type.

    A mirror that lags is compared as it will be when it has caught up. Raise CollectionUnstable if a drop or a rename
    is in between, or if the mirror is written to all the time; NotAMirror if nothing was mirrored yet. `masks` are the
    masks of the mirror's documents; the collection's documents are masked in the same way. `counted` is called with the
    number of documents read so far, and the number of rows.
    """
    return compare_table(mirror.uri, mirror.database, mirror.collection, mirror.table(), masks, counted)


def compare_table(
    uri: str, database: str, collection: str, mirror: ReadMirror, masks: Sequence[Mask] = (),
    counted: Counted = ignored,
) -> MirrorComparison:  # fmt: skip
    """Compare as `compare` does: a collection of the server at `uri`, and the table that should equal it."""
    described = description_option(uri, database, collection)
    options = SourceOptions(uri, database, collection)
    feed = MongoDBStream(replace(options, stream=dict.fromkeys(described, True)))
    for _ in range(_ATTEMPTS):
        state = mirror.position()
        if not state.token:
            raise NotAMirror(f"nothing of {database}.{collection} was mirrored yet")
        table = mirror.read()
        if mirror.position() != state:
            # A commit came in between: the rows may be of another token than the state.
            continue
        rows = stored_rows(table)
        documents = _collection(Snapshot(options), rows, masks, counted)
        end = feed.end_at(feed.now())
        batches = feed.read_raw(position_before(Token(state.token)), end)
        read = (held_event(event) for batch in batches for event in batch)
        events = [row for event in read if (row := _row(_masked_event(event, masks))).token > state.token]
        if not any(row.operationType in INVALIDATING for row in events):
            left = _advanced(rows, events, MirrorState(state.token, state.snapshot_token), _DIVERGED)
            right = _advanced(documents, events, MirrorState(snapshot_token=end.text), _NOT_HELD)
            return _compared(left, right, table.num_rows - len(rows), end.text)
    raise CollectionUnstable(f"{database}.{collection}: the mirror is before a drop or a rename, or it moves")


def _collection(
    snapshot: Snapshot, rows: Mapping[str, MirrorRow], masks: Sequence[Mask], counted: Counted
) -> dict[str, MirrorRow]:
    """Return the documents, each with its token. Equal texts share memory."""
    documents: dict[str, MirrorRow] = {}
    for chunk in snapshot.chunks(CHUNK_ROWS):
        for read in snapshot.read(chunk):
            token, data = read[_TOKEN], read[_DOCUMENT]
            document = decode(data)
            held = reason_not_held(data, document) is None
            for mask in masks:
                token, document = mask.token(token), mask.document(document)
            key, text = dumps(document["_id"]), dumps(document) if held else _NOT_HELD
            same = rows.get(key)
            documents[key] = MirrorRow(same.document if same and same.document == text else text, token)
        counted(len(documents), len(rows))
    return documents


def _masked_event(event: Document, masks: Sequence[Mask]) -> Document:
    for mask in masks:
        event = mask.event(event)
    return event


def _advanced(rows: Mapping[str, MirrorRow], events: Iterable[Row], state: MirrorState, not_held: str) -> DocumentTexts:
    """Return the documents' texts by key after the events; `_DIVERGED` if an event does not apply.

    `not_held` is the text of a document whose last events have BSON that a table cannot hold.
    """
    advanced = {key: stored.document for key, stored in rows.items()}
    by_key: dict[str, list[Row]] = {}
    for row in events:
        if row.operationType in DOCUMENT_OPERATIONS:
            by_key.setdefault(key_identity(key_of(row)), []).append(row)
    for some in by_key.values():
        keys = dict.fromkeys(map(key_of, some))
        stored = {key: rows[key] for key in keys if key in rows}
        later = _since_marks(some)
        if later is None:
            advanced |= dict.fromkeys(keys, not_held)
            continue
        if later is not some:
            advanced, stored = {key: text for key, text in advanced.items() if key not in keys}, {}
        try:
            changes = fold(later, state, stored)
        except MirrorDiverged:
            advanced |= dict.fromkeys(keys, _DIVERGED)
            continue
        advanced |= {name: row.document for name, row in changes.upserts.items()}
        for name in changes.deletes:
            del advanced[name]
    return advanced


def _since_marks(rows: list[Row]) -> list[Row] | None:
    """Return a document's rows, after an unheld row only from the next row that brings the document; None without one.

    Return the same list if all rows are held, and an empty one if the document was deleted.
    """
    later: list[Row] | None = rows
    for number, row in enumerate(rows):
        if reason_of(row.fullDocument) or reason_of(row.updateDescription):
            later = None
        elif later is not rows and row.operationType == "delete":
            later = []
        elif not later and row.fullDocument is not None:
            later = [row._replace(operationType="insert"), *rows[number + 1 :]]
    return later


def _compared(left: DocumentTexts, right: DocumentTexts, duplicates: int, token: str) -> MirrorComparison:
    missing = [key for key in right if key not in left]
    extra = [key for key in left if key not in right]
    different = [key for key, text in left.items() if key in right and right[key] != text]
    return MirrorComparison(
        document_count=len(right),
        row_count=len(left) + duplicates,
        missing=_first(missing),
        extra=_first(extra),
        different=_first(different),
        duplicate_count=duplicates,
        unequal_count=len(missing) + len(extra) + len(different) + duplicates,
        token=token,
    )


def _first(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the first few keys, in MongoDB's order."""
    return tuple(sorted(keys, key=lambda key: sort_key(loads(key)))[: limits.DIFFERENCE_COUNT_MAX])


def _row(event: Document) -> Row:
    """Return the fields of an event that `fold` reads."""
    described = event.get("rawUpdateDescription", event.get("updateDescription"))
    document = event.get("fullDocument")
    return Row(
        event["_id"]["_data"],
        operationType=event["operationType"],
        documentKey=dumps(event["documentKey"]) if "documentKey" in event else None,
        fullDocument=None if document is None else dumps(document),
        updateDescription=None if described is None else dumps(described),
    )
