"""A table of events that reaches back further than the server's oplog: events that have left the oplog are read from
it.

The sink `changes` wrote the table, from the same stream without a pipeline. Rules:

- A range of events gives the same rows whether they come from the table, from the server or from both. The server is
asked first. If it has pruned the position, the events come from the table, and after the table's last event from the
server. So there is no gap and no duplicate, whenever the oplog is pruned or the table grows.
- Only complete spans of the table are read: a span has every event between two tokens. It begins with a
snapshot (or with the table), and ends where a later snapshot shows that events are missing. The table's progress says
which snapshots are complete.
- A position that is in neither raises PositionLost, as without an archive.

Not detected: a job without snapshots that was restarted at `latest` and so skipped events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from bson import Timestamp

from headrace.spark.mongodb.event_ranges import read_range
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.mongodb.source_options import BatchEnd, BatchLimits, SourceOptions, StreamPosition, difference
from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_KINDS
from headrace.spark.rows.tokens import MASKED_KEY, TIME_END, Token
from headrace.spark.tables.progress import Progress
from headrace.values import bson
from headrace.values.arrow.event_columns import COLUMNS, in_slice
from headrace.values.position import from_timestamp
from headrace.values.token import high_water_mark

if TYPE_CHECKING:
    from deltalake import DeltaTable


class Archive:
    """The table that the options name, in its latest version at each call."""

    def __init__(self, options: SourceOptions) -> None:
        # Imported here, because readers without an archive need no Delta.
        from headrace.spark.tables.delta_files import OpenDeltaTable
        from headrace.spark.tables.table_location import location_of

        self._options = options
        self._path = options.archive
        self._open_table = OpenDeltaTable(location_of(options.archive))

    def contents(self) -> ArchiveContents:
        """Return its spans and snapshots; none if the table does not exist. Raise ArchiveUnfit if its job had other
        options."""
        table = self._open_table.now()
        contents = ArchiveContents() if table is None else _contents(self._path, table.version())
        other = difference(contents.source, self._options) if contents.source else None
        if other:
            raise ArchiveUnfit(f"the table {self._path} is of another stream: {other}")
        if contents.masked:
            raise ArchiveUnfit(f"the tokens of the table {self._path} are masked: the server knows none of them")
        return contents

    def span(self, token: Token) -> EventSpan | None:
        """Return the span that contains the position; None if none does."""
        return next((span for span in self.contents().spans if span.first.text <= token.text <= span.last.text), None)

    def batch_end(self, start: Token, bounds: BatchLimits, until: Timestamp | None) -> BatchEnd | None:
        """Return the end of a micro-batch after `start`, by the rules of `read_ahead.py`; None if no events follow.

        Bytes are counted as text, as the table stores them: slightly more than as BSON.
        """
        span = self.span(start)
        if span is None or span.last.text <= start.text:
            return None
        names = ("token", "operationType", *(_LONG if bounds.bytes else ()))
        rows = self.events(start.text, span.last.text, names).sort_by("token")
        last, count, size = start.text, 0, 0
        for row in _row_dicts(rows):
            token = row["token"]
            size += sum(len(row[name] or "") for name in _LONG) if bounds.bytes else 0
            full = count and ((bounds.rows and count >= bounds.rows) or (bounds.bytes and size > bounds.bytes))
            if full and token[:TIME_END] != last[:TIME_END]:
                break
            if until and Token(token).time > until:
                break
            last, count = token, count + 1
            if row["operationType"] == "invalidate":
                return BatchEnd(Token(last), count, closed=True)
        else:
            # Nothing happened between the last event and the span's end.
            if until is None or span.last.time <= until:
                last = span.last.text
        return BatchEnd(Token(last), count)

    def read(
        self, start: Token, end: Token, columns: Sequence[str], slice_: int, slices: int
    ) -> Iterator[tuple[pa.RecordBatch | None, Token]]:
        """Yield batches of the rows after `start` up to `end` or the span's end, each with the token that it reaches.

        Yield nothing if `start` is in no span, or at the end of one. Raise ArchiveUnfit.
        """
        from headrace.spark.pipelines.reader import rewritten_batches
        from headrace.values.arrow.batches import events_batch

        span = self.span(start)
        if span is None or span.last.text <= start.text:
            return
        stop = min(end, span.last)
        stages = (*self._options.pipeline, *self._options.reader)
        for table in self.windows(start, stop):
            events = in_slice(_encoded_events(table), slice_, slices)
            upto = Token(table["token"][-1].as_py())
            if events and stages:
                batches = list(rewritten_batches(stages, [events_batch(events)], columns))
                yield from ((batch, upto) for batch in batches)
            elif events:
                yield events_batch(events, columns), upto
        yield None, stop

    def windows(self, start: Token, end: Token, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the events after `start` up to `end`, in order, in tables of up to WINDOW_ROWS; all columns, or
        `names`.

        Raise ArchiveUnfit.
        """
        after, tokens = start.text, self.events(start.text, end.text, ("token",)).sort_by("token")["token"]
        for number in range(WINDOW_ROWS, len(tokens) + WINDOW_ROWS, WINDOW_ROWS):
            last = tokens[min(number, len(tokens)) - 1].as_py()
            table = self.events(after, last, names).sort_by("token")
            self.check(table)
            yield table
            after = last

    def description(self) -> str:
        """Return a sentence that says which events the archive has, for errors about missing ones."""
        spans = [f"after {span.first.text} up to {span.last.text}" for span in self.contents().spans]
        return f"The archive {self._path} has the events {' and '.join(spans) or 'of no time'}."

    def check(self, table: pa.Table | pa.RecordBatch) -> None:
        """Raise ArchiveUnfit if the table has events of another collection: then it is not of this stream."""
        given = (self._options.database, self._options.collection)
        for *names, kind in set(zip(*(table[name].to_pylist() for name in _NAMES), strict=True)):
            strange = any(want and name and name != want for want, name in zip(given, names, strict=True))
            if strange and kind != "rename":
                raise ArchiveUnfit(f"the table {self._path} is of a wider stream: it has events of {'.'.join(names)}")

    def events(self, after: str, upto: str, names: Sequence[str] | None = None) -> pa.Table:
        """Return the events after `after` up to and including `upto`, in any order. Raise ArchiveUnfit."""
        import pyarrow.dataset as ds

        return self._rows(after, upto, ~_is_snapshot(ds.field("operationType")), names)

    def base_rows(self, base: ArchivedSnapshot, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a snapshot, in any order. Raise ArchiveUnfit if they were removed from the table."""
        import pyarrow.dataset as ds

        kind = ds.field("operationType").cast(pa.string())
        begins = self._rows("", base.begin.text, kind == SNAPSHOT_BEGIN, ("token",))["token"]
        if base.begin.text not in begins.to_pylist():
            raise ArchiveUnfit(f"the table {self._path} has no longer its snapshot of {base.begin.text}")
        scanned = self._dataset("", base.end.text)
        if scanned is not None:
            wanted = (kind == SNAPSHOT) & (_token() >= base.begin.text) & (_token() <= base.end.text)
            yield from scanned.to_batches(columns=list(names), filter=wanted, batch_size=WINDOW_ROWS)

    def count(self, base: ArchivedSnapshot, upto: Token) -> int:
        """Return an upper bound of the documents at `upto`: those of the snapshot, and the inserts since."""
        documents: int = sum(batch.num_rows for batch in self.base_rows(base, ("token",)))
        kinds = self.events(base.begin.text, upto.text, ("operationType",))["operationType"]
        return documents + len(kinds.filter(pc.equal(kinds, "insert")))

    def _rows(self, after: str, upto: str, kind: pc.Expression, names: Sequence[str] | None) -> pa.Table:
        wanted = (_token() > after) & (_token() <= upto) & kind
        scanned = self._dataset(after, upto)
        if scanned is None:
            return pa.table(_schema(self._existing_table()).empty_table()).select(list(names or COLUMNS))
        return scanned.to_table(columns=list(names or COLUMNS), filter=wanted)

    def _dataset(self, after: str, upto: str) -> Any:
        """Return a dataset of the files that may have these tokens; None if no file has."""
        from headrace.spark.tables.delta_files import files_between

        table = self._existing_table()
        schema = _schema(table)
        if missing := sorted(set(COLUMNS) - set(schema.names)):
            raise ArchiveUnfit(f"the table {self._path} has no column {missing[0]!r}: it is not one of events")
        files = files_between(table, after, upto)
        return self._open_table.location.dataset(files, schema) if files else None

    def _existing_table(self) -> DeltaTable:
        table = self._open_table.now()
        if table is None:
            raise ArchiveUnfit(f"there is no table at {self._path}")
        return table


_NAMES: Final = ("database", "collection", "operationType")
_LONG: Final = ("documentKey", "fullDocument", "fullDocumentBeforeChange", "updateDescription", "other")


def read_events(
    options: SourceOptions, start: Token, end: Token, columns: Sequence[str], *, slice_: int = 0, slices: int = 1
) -> Iterator[pa.RecordBatch]:
    """Yield the rows after `start` up to and including `end`, from the server or from the table.

    Raise PositionLost if neither has them, and ArchiveUnfit.
    """
    mongodb, archive = MongoDBStream(options), Archive(options)
    wanted = tuple(columns) if "token" in columns else ("token", *columns)
    at = start
    while at < end:
        try:
            for batch in read_range(mongodb, at, end, wanted, slice_=slice_, slices=slices):
                yield batch.select(columns)
                if batch.num_rows:
                    at = Token(batch.column("token")[-1].as_py())
            return
        except PositionLost as error:
            if not error.pruned:
                raise
            before = at
            for archived, upto in archive.read(at, end, wanted, slice_, slices):
                if archived is not None:
                    yield archived.select(columns)
                at = upto
            if at.text <= before.text:
                raise PositionLost(f"{error} {archive.description()}", pruned=True) from error


def has_events(mongodb: MongoDBStream, start: Token, end: Token) -> bool:
    """Whether the server and the archive together have all events between two positions."""
    while error := _why_gone(mongodb, start):
        span = Archive(mongodb.options).span(start) if mongodb.options.archive and error.pruned else None
        if span is None or span.last.text <= start.text:
            return False
        if span.last.text >= end.text:
            return True
        start = span.last
    return True


def resolve(mongodb: MongoDBStream, position: StreamPosition) -> Token:
    """Return the token of a position as `MongoDBStream.resolve` does; `earliest` and a time may be in the archive."""
    if not mongodb.options.archive:
        return mongodb.resolve(position)
    archive = Archive(mongodb.options)
    if position.kind == "earliest":
        live, spans = mongodb.resolve(position), archive.contents().spans
        # If the archive ends before the oplog begins, there is a gap, so the earliest position is the oplog's.
        return min(live, spans[-1].first) if spans and not _why_gone(mongodb, spans[-1].last) else live
    try:
        return mongodb.resolve(position)
    except PositionLost as error:
        assert position.time is not None
        return _archived_token(archive, position.time, error)


def end_at(mongodb: MongoDBStream, moment: Timestamp) -> Token:
    """Return the token as `MongoDBStream.end_at` does, also if only the archive reaches back so far."""
    try:
        return mongodb.end_at(moment)
    except PositionLost as error:
        if not mongodb.options.archive:
            raise
        return _archived_token(Archive(mongodb.options), Timestamp(moment.time, moment.inc + 1), error)


def _archived_token(archive: Archive, moment: Timestamp, error: PositionLost) -> Token:
    """Return the token before all events of that time. Raise PositionLost, with `error`, if the token is in no span."""
    token = mark_at(moment)
    if archive.span(token) is None:
        raise PositionLost(f"{error} {archive.description()}", pruned=True) from error
    return token


def _why_gone(mongodb: MongoDBStream, token: Token) -> PositionLost | None:
    """Return why the server cannot continue at the token; None if it can."""
    try:
        mongodb.try_open(StreamPosition("token", token=token))
    except PositionLost as error:
        return error
    return None


def _row_dicts(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _encoded_events(table: pa.Table) -> list[bytes]:
    """Return the events of the table's rows as BSON."""
    from headrace.spark.pipelines import row_events

    return [bson.encode(event) for batch in table.to_batches() for event in row_events.events(batch)]


WINDOW_ROWS: Final = 50_000
"""The most rows of the table in memory at a time."""


class ArchiveUnfit(RuntimeError):
    """The table does not have this stream's events."""


@dataclass(frozen=True, slots=True)
class EventSpan:
    """Every event after `first`, up to and including `last`, is in the table."""

    first: Token
    last: Token


@dataclass(frozen=True, slots=True)
class ArchivedSnapshot:
    """A complete snapshot. Each row is a document at the row's token, between `begin` and `end`."""

    begin: Token
    end: Token


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """The contents of one version of the table; spans and snapshots are in order."""

    spans: tuple[EventSpan, ...] = ()
    snapshots: tuple[ArchivedSnapshot, ...] = ()
    source: str = ""
    """The fingerprint of the table's stream (`stream_fingerprint`); empty if none was recorded."""
    masked: bool = False
    """Whether the tokens of its events are masked (`rows/tokens.py`)."""


def _schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def mark_at(moment: Timestamp) -> Token:
    """Return the high-water mark of a cluster time: the token before everything of that time."""
    return Token(high_water_mark(from_timestamp(moment)))


@lru_cache(maxsize=8)
def _contents(path: str, version: int) -> ArchiveContents:
    from headrace.spark.tables.delta_files import committed_progress, files_between
    from headrace.spark.tables.table_location import location_of

    location = location_of(path)
    table = location.table(version)
    assert table is not None
    names = [pa.field("token", pa.string()), pa.field("operationType", pa.string())]
    rows = location.dataset(files_between(table, "", None), pa.schema(names)).to_table()
    kind = pc.field("operationType")
    events = rows.filter(~_is_snapshot(kind))["token"]
    begins = pc.unique(rows.filter(kind == SNAPSHOT_BEGIN)["token"]).sort().to_pylist()
    documents = rows.filter(kind == SNAPSHOT)["token"]
    progress = committed_progress(table) or Progress()
    spans = _spans(events, begins)
    if spans and Token(progress.token) > spans[-1].last:
        # The position of a quiet stream has advanced without rows.
        spans = (*spans[:-1], EventSpan(spans[-1].first, Token(progress.token)))
    marked = events.filter(pc.match_substring(events, MASKED_KEY))
    masked = any(Token(text).is_masked for text in marked.to_pylist())
    return ArchiveContents(spans, _snapshots(documents, begins, progress), progress.source, masked)


def _spans(events: pa.ChunkedArray, begins: list[str]) -> tuple[EventSpan, ...]:
    if not len(events):
        return (EventSpan(Token(begins[-1]), Token(begins[-1])),) if begins else ()
    first, last = pc.min(events).as_py(), pc.max(events).as_py()
    spans: list[EventSpan] = []
    at = mark_at(Token(first).time) if not begins or first <= begins[0] else None
    for begin in begins:
        before = pc.max(events.filter(pc.less_equal(events, begin))).as_py()
        # A snapshot that begins at the last event, an invalidate, leaves no gap.
        if at is None or before != begin:
            if at is not None:
                spans.append(EventSpan(at, max(Token(before or ""), at)))
            at = Token(begin)
    assert at is not None
    return (*spans, EventSpan(at, max(Token(last), at)))


def _snapshots(documents: pa.ChunkedArray, begins: list[str], progress: Progress) -> tuple[ArchivedSnapshot, ...]:
    """Return the complete snapshots; `documents` are the tokens of the rows of all snapshots."""
    complete = []
    for begin, end in progress.snapshots():
        if begin in begins:
            following = next((later for later in begins if later > begin), None)
            tokens = documents.filter(pc.greater_equal(documents, begin))
            tokens = tokens if following is None else tokens.filter(pc.less(tokens, following))
            # A row's token may be just after the last event, and so after the end.
            complete.append(ArchivedSnapshot(Token(begin), Token(max(begin, end, pc.max(tokens).as_py() or ""))))
    return tuple(complete)


def _token() -> pc.Expression:
    import pyarrow.dataset as ds

    return ds.field("token").cast(pa.large_string())


def _is_snapshot(kind: pc.Expression) -> pc.Expression:
    # `isin` alone is not enough, because a pipeline may leave events without an operation type.
    return kind.is_valid() & kind.cast(pa.string()).isin(SNAPSHOT_KINDS)
