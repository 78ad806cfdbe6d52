"""Compares a job's tables with their source: a mirror, a history or a copy, and a log of events.

Rule: both sides are brought to the same token, so the answer is right while clients write, however far the table lags.
A mirror's rows are valid at its own token. The collection is read in chunks, each row with the token at which it is
valid (`timetravel/snapshot.py`). Then the events up to one last token are applied to both sides, to each row those that
are newer than it.

Limit: the table's documents are in memory, once where both sides are equal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.masks.mask import Mask
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, description_option, position_after, position_before
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.rows.events import DOCUMENT_OPERATIONS, INVALIDATING, SERVER, SNAPSHOT, SNAPSHOT_KINDS, Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity, of_server
from headrace.spark.rows.not_held import held_event, reason_not_held, reason_of
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.tables.event_log import EventLog
from headrace.spark.tables.fold import MirrorDiverged, MirrorRow, MirrorState, fold, key_of
from headrace.spark.tables.history_table import VersionTable
from headrace.spark.tables.mirror_table import ReadMirror, stored_rows
from headrace.spark.tables.mongodb.mongodb_mirror import MongoMirror
from headrace.spark.tables.progress import NotAMirror, Progress
from headrace.spark.timetravel.snapshot import Snapshot
from headrace.values.arrow.event_columns import COLUMNS
from headrace.values.bson import decode
from headrace.values.order import sort_key

Counted = Callable[[int, int], object]
"""Called with the number of documents or events read so far, and the number of rows in the table."""


def ignored(done: int, total: int) -> None:
    """Do nothing: the `Counted` of a caller that needs no counts."""


@dataclass(frozen=True, slots=True)
class LogComparison:
    """Counts of both sides in the range, and the tokens that the log lacks, has in addition, or has twice.

    `other_count` counts rows that are not compared because they are outside the range: rows of a snapshot, and rows
    before it.
    """

    event_count: int
    row_count: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    other_count: int = 0
    compared: bool = True
    """False if the range is empty: the log has only the beginning of a snapshot."""

    @property
    def equal(self) -> bool:
        """Whether the log has each event exactly once."""
        return not (self.missing or self.extra or self.duplicates)

    def __str__(self) -> str:
        counts = f"{self.row_count} rows of events, {self.event_count} events"
        kinds = (("missing", self.missing), ("extra", self.extra), ("twice", self.duplicates))
        others = [f"{self.other_count} rows of a snapshot or before it not compared"] if self.other_count else []
        return "; ".join(
            [counts, *others, *(f"{len(tokens)} {name}, first {tokens[0]}" for name, tokens in kinds if tokens)]
        )


def compare_log(log: EventLog, options: SourceOptions, counted: Counted = ignored) -> LogComparison:
    """Check that a log of events has every event of its range once, as the server reports them now.

    Only events that are still in the server's oplog can be compared. So the range goes from the log's last snapshot, or
    its first event, to the log's position. With several servers, the events of each are compared separately. Raise
    PositionLost if the server no longer has all of the range.
    """
    progress, table = log.position(), log.read()
    if not options.others:
        return _compared_events(table, progress, options, progress.removed, counted)
    named = [(server_name(one.uri), one) for one in options.servers]
    each = [
        _compared_events(
            table.filter(pc.equal(table[SERVER], name)), progress.of_server(name), one, progress.removed, counted
        )
        for name, one in named
        if progress.of_server(name).token
    ]
    return LogComparison(
        sum(comparison.event_count for comparison in each),
        sum(comparison.row_count for comparison in each),
        tuple(token for comparison in each for token in comparison.missing),
        tuple(token for comparison in each for token in comparison.extra),
        tuple(token for comparison in each for token in comparison.duplicates),
        sum(comparison.other_count for comparison in each),
        any(comparison.compared for comparison in each),
    )


def _compared_events(
    table: pa.Table, progress: Progress, options: SourceOptions, removed: str, counted: Counted
) -> LogComparison:
    """Compare one server; rows before `removed` have left the log. Tokens are compared in masked form."""
    masked = options.mask.token if options.mask else str
    kinds, tokens = (column.to_pylist() for column in table.select(["operationType", "token"]).columns)
    events = sorted(masked(token) for kind, token in zip(kinds, tokens, strict=True) if kind not in SNAPSHOT_KINDS)
    start = max(progress.begun or (events[0] if events else progress.token), removed)
    row_tokens = [token for token in events if token > start]
    # The log of one of several collections has only events of that collection.
    of_collection = bool(options.collections)
    mongodb, last = MongoDBStream(options), Token(progress.token)
    end = mongodb.end_at(last.time) if last.is_masked else last
    server_tokens = [
        token
        for event in _counting(mongodb.read(position_before(Token(start)), end), counted, len(row_tokens))
        if start < (token := masked(event["_id"]["_data"])) <= progress.token
        and (not of_collection or "coll" in event.get("ns", {}))
    ]
    duplicates = [after for before, after in pairwise(row_tokens) if before == after]
    missing, extra = sorted(set(server_tokens) - set(row_tokens)), sorted(set(row_tokens) - set(server_tokens))
    return LogComparison(
        len(server_tokens), len(row_tokens), tuple(missing), tuple(extra), tuple(duplicates),
        len(tokens) - len(row_tokens), start < progress.token or bool(events),
    )  # fmt: skip


def _counting(events: Iterable[Document], counted: Counted, total: int) -> Iterator[Document]:
    for number, event in enumerate(events, 1):
        counted(number, total)
        yield event


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


_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ReadTable:
    """See `mirror_table.ReadMirror`."""

    position: Callable[[], MirrorState]
    read: Callable[[], pa.Table]


def rows_of_server(mirror: ReadMirror, server: str) -> ReadTable:
    """Return the rows of one server in a mirror of several."""

    def read() -> pa.Table:
        rows = mirror.read()
        return rows.filter(pc.equal(rows.column(SERVER), server)).drop_columns([SERVER])

    return ReadTable(lambda: mirror.position().of_server(server), read)


def current_versions(history: VersionTable, server: str = "") -> ReadTable:
    """Return a history's current versions; with several servers, those of one server."""

    def state() -> MirrorState:
        progress = history.position().of_server(server)
        return MirrorState(progress.token, progress.ended, query=progress.query, batch=progress.batch)

    def read() -> pa.Table:
        versions = of_server(server, history.rows()) if server else history.rows()
        return _table((key, version.document, version.confirmed) for key, version in versions.items())

    return ReadTable(state, read)


def snapshot_of(log: EventLog) -> ReadTable:
    """Return the snapshot at the end of a log that has no later events."""

    def state() -> MirrorState:
        token = log.position().token
        return MirrorState(token, token)

    def read() -> pa.Table:
        begun = log.position().begun
        rows = MicroBatch("", 0, log.read()).rows()
        kept = (row for row in rows if row.operationType == SNAPSHOT and row.token >= begun)
        return _table((key_of(row), row.fullDocument, row.token) for row in kept)

    return ReadTable(state, read)


def complete_copy(copy: MongoMirror) -> ReadTable:
    """Return a copy on a server; its state waits until no commit is running. Raise CollectionUnstable."""

    def state() -> MirrorState:
        clock, pause = SystemClock(), threading.Event()
        end_ms = clock.monotonic_ms() + limits.SINK_EXIT_SECONDS_MAX * 1000
        while not copy.is_complete():
            if clock.monotonic_ms() > end_ms:
                raise CollectionUnstable(f"a commit to {copy} takes too long to wait for")
            pause.wait(_POLL_S)
        return copy.position()

    return ReadTable(state, copy.read)


def at_position(table: ReadMirror, token: str) -> ReadTable:
    """Return the table of one of several collections, without events from its own position to the job's, `token`.

    Its state has the job's position; a stream of the collection can be opened after that position.
    """

    def state() -> MirrorState:
        state = table.position()
        if not state.token:
            return state
        return replace(state, token=position_after(Token(max(state.token, token))).text)

    return ReadTable(state, table.read)


def _table(rows: Iterable[tuple[str, str | None, str]]) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    return pa.table(dict(zip(("_id", "document", "token"), columns, strict=True)))
