"""A table of events that reaches back further than the server's oplog: events that have left the oplog are read from
it.

The sink `changes` wrote the table, from the same stream without a pipeline. Rules:

- A range of events gives the same rows whether they come from the table, from the server or from both. The server is
asked first. If it has pruned the position, the events come from the table, and after the table's last event from the
server. So there is no gap and no duplicate, whenever the oplog is pruned or the table grows.
- Only complete spans of the table are read, see `archive_table.py`.
- A position that is in neither raises PositionLost, as without an archive.

Not detected: a job without snapshots that was restarted at `latest` and so skipped events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp

from headrace.spark.mongodb.event_ranges import read_range
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.mongodb.source_options import BatchEnd, BatchLimits, SourceOptions, StreamPosition
from headrace.spark.mongodb.stream_fingerprint import difference
from headrace.spark.rows.tokens import TIME_END, Token
from headrace.spark.timetravel.archive_table import (
    ArchiveContents,
    ArchiveTable,
    ArchiveUnfit,
    EventSpan,
    mark_at,
)
from headrace.values import bson
from headrace.values.arrow import in_slice

if TYPE_CHECKING:
    import pyarrow as pa


class Archive:
    """The table that the options name, in its latest version at each call."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._path = options.archive
        self.table = ArchiveTable(options.archive)

    def contents(self) -> ArchiveContents:
        """Return its spans and snapshots; none if the table does not exist. Raise ArchiveUnfit if its job had other
        options."""
        contents = self.table.contents()
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
        rows = self.table.events(start.text, span.last.text, names).sort_by("token")
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
        for table in self.table.windows(start.text, end.text, names):
            self.check(table)
            yield table

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
