"""A table of events that goes back further than the server's oplog: what the oplog no longer has is read from it.

The table is one that the sink `changes` wrote, of the same stream without a pipeline. What must hold:

- A range of events gives the same rows whether they come from the table, from the server or from both. The server is
  asked first; where it has lost the position, the table's events up to its last one follow, then the server again,
  behind that one. So there is no gap and no duplicate, whenever the oplog is pruned or the table grows.
- Only what the table can vouch for is read: it has every event of a span. A span begins with a snapshot (or the
  table), and ends where a later snapshot says that events are missing.
- A position that neither has is lost, as without an archive.

What it does not know: whether a job without snapshots was begun again at `latest`, and so left events out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.rows.tokens import Token
from headrace.spark.source.feed import Feed, PositionLost
from headrace.spark.source.options import Position, SourceOptions
from headrace.spark.source.ranges import read_range
from headrace.spark.source.readahead import Bounds, Reach
from headrace.values import bson
from headrace.values.event_columns import COLUMNS, in_slice
from headrace.values.token import high_water_mark

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    from headrace.spark.source.parts import EventRange

WINDOW_ROWS: Final = 50_000
"""So many events of the table are held at a time."""
_TIME_END: Final = 18
"""Where a token's time ends: before that no bound of a file's tokens is cut short."""


class ArchiveUnfit(RuntimeError):
    """The table is not one of this stream's events."""


@dataclass(frozen=True, slots=True)
class Span:
    """Every event after `first`, up to and including `last`, is in the table."""

    first: Token
    last: Token


class Archive:
    """The table that the options name, as it is when it is asked."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._path = options.archive

    def spans(self) -> tuple[Span, ...]:
        """In order; none if there is no table yet."""
        table = self._table()
        return () if table is None else _spans(self._path, table.version())

    def span(self, token: Token) -> Span | None:
        """The one in which the position is."""
        return next((span for span in self.spans() if span.first.text <= token.text <= span.last.text), None)

    def reach(self, start: Token, bounds: Bounds, until: Timestamp | None) -> Reach | None:
        """The end of a micro-batch after `start`, by the rules of `readahead.py`; None: nothing comes after it here.

        Bytes are counted as the table has them, as text, which is somewhat more than as BSON.
        """
        span = self.span(start)
        if span is None or span.last.text <= start.text:
            return None
        names = ("token", "operationType", *(_LONG if bounds.bytes else ()))
        rows = self._events(start.text, span.last.text, names).sort_by("token")
        last, count, size = start.text, 0, 0
        for row in _each(rows):
            token = row["token"]
            size += sum(len(row[name] or "") for name in _LONG) if bounds.bytes else 0
            full = count and ((bounds.rows and count >= bounds.rows) or (bounds.bytes and size > bounds.bytes))
            if full and token[:_TIME_END] != last[:_TIME_END]:
                break
            if until and Token(token).time > until:
                break
            last, count = token, count + 1
            if row["operationType"] == "invalidate":
                return Reach(Token(last), count, closed=True)
        return Reach(Token(last), count)

    def read(
        self, start: Token, end: Token, columns: Sequence[str], slice_: int, slices: int
    ) -> Iterator[tuple[pa.RecordBatch | None, Token]]:
        """The rows after `start` up to `end` or the span's end, and after each batch how far that is.

        Nothing if `start` is in no span, or at the end of one. Raises ArchiveUnfit.
        """
        from headrace.spark.pipelines.reader import retold
        from headrace.values.arrow import events_batch

        span = self.span(start)
        if span is None or span.last.text <= start.text:
            return
        stop = min(end, span.last)
        stages = (*self._options.pipeline, *self._options.reader)
        for table in self._windows(start.text, stop.text):
            self._check(table)
            events = in_slice(_told(table), slice_, slices)
            upto = Token(table["token"][-1].as_py())
            if events and stages:
                batches = list(retold(stages, [events_batch(events)], columns))
                yield from ((batch, upto) for batch in batches)
            elif events:
                yield events_batch(events, columns), upto
        yield None, stop

    def told(self) -> str:
        """What it has, for whoever looks for something that it has not."""
        spans = [f"after {span.first.text} up to {span.last.text}" for span in self.spans()]
        return f"The archive {self._path} has the events {' and '.join(spans) or 'of no time'}."

    def _windows(self, after: str, upto: str) -> Iterator[pa.Table]:
        """All columns of the events, in order, so many at a time."""
        tokens = self._events(after, upto, ("token",)).sort_by("token")["token"]
        for end in range(WINDOW_ROWS, len(tokens) + WINDOW_ROWS, WINDOW_ROWS):
            last = tokens[min(end, len(tokens)) - 1].as_py()
            yield self._events(after, last, None).sort_by("token")
            after = last

    def _events(self, after: str, upto: str, names: Sequence[str] | None) -> pa.Table:
        """The events of the table after one token, up to and including another; in no order."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        from headrace.spark.tables.delta_log import dataset

        table = self._table()
        assert table is not None
        schema = pa.schema(table.schema().to_arrow())
        if missing := sorted(set(COLUMNS) - set(schema.names)):
            raise ArchiveUnfit(f"the table {self._path} has no column {missing[0]!r}: it is not one of events")
        token = ds.field("token").cast(pa.large_string())
        wanted = (token > after) & (token <= upto) & ~_is_snapshot(ds.field("operationType"))
        files = _files(table, after, upto)
        if not files:
            return pa.table(schema.empty_table()).select(names or COLUMNS)
        return dataset(files, schema).to_table(columns=list(names or COLUMNS), filter=wanted)

    def _check(self, table: pa.Table) -> None:
        """An event of another collection shows that the table is of another stream, which lacks some of this one's."""
        given = (self._options.database, self._options.collection)
        for *names, kind in set(zip(*(table[name].to_pylist() for name in _NAMES), strict=True)):
            strange = any(want and name and name != want for want, name in zip(given, names, strict=True))
            if strange and kind != "rename":
                raise ArchiveUnfit(f"the table {self._path} is of a wider stream: it has events of {'.'.join(names)}")

    def _table(self) -> DeltaTable | None:
        from deltalake import DeltaTable

        return DeltaTable(self._path) if DeltaTable.is_deltatable(self._path) else None


_NAMES: Final = ("database", "collection", "operationType")
_LONG: Final = ("documentKey", "fullDocument", "fullDocumentBeforeChange", "updateDescription", "other")


def read_events(options: SourceOptions, part: EventRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a range, from where they are. Raises PositionLost where neither has them, and ArchiveUnfit."""
    feed, archive = Feed(options), Archive(options)
    wanted = tuple(columns) if "token" in columns else ("token", *columns)
    at = part.start
    while at < part.end:
        try:
            for batch in read_range(feed, at, part.end, wanted, slice_=part.slice, slices=part.slices):
                yield batch.select(columns)
                if batch.num_rows:
                    at = Token(batch.column("token")[-1].as_py())
            return
        except PositionLost as lost:
            before = at
            for found, upto in archive.read(at, part.end, wanted, part.slice, part.slices):
                if found is not None:
                    yield found.select(columns)
                at = upto
            if at.text <= before.text:
                raise PositionLost(f"{lost} {archive.told()}") from lost


def has(feed: Feed, start: Token, end: Token) -> bool:
    """Whether the events between two positions can be read, from wherever they are."""
    while _lost(feed, start):
        span = Archive(feed.options).span(start) if feed.options.archive else None
        if span is None or span.last.text <= start.text:
            return False
        if span.last.text >= end.text:
            return True
        start = span.last
    return True


def resolve(feed: Feed, position: Position) -> Token:
    """As `feed.resolve`; the earliest position, and a time, may be one of the archive's."""
    if not feed.options.archive:
        return feed.resolve(position)
    archive = Archive(feed.options)
    if position.kind == "earliest":
        live, spans = feed.resolve(position), archive.spans()
        # An archive that ends before the oplog begins leaves a gap: then the oplog is all there is without one.
        return min(live, spans[-1].first) if spans and not _lost(feed, spans[-1].last) else live
    try:
        return feed.resolve(position)
    except PositionLost as lost:
        assert position.time is not None
        return _archived(archive, position.time, lost)


def end_at(feed: Feed, moment: Timestamp) -> Token:
    """As `feed.end_at`, also where only the archive goes back so far."""
    try:
        return feed.end_at(moment)
    except PositionLost as lost:
        if not feed.options.archive:
            raise
        return _archived(Archive(feed.options), Timestamp(moment.time, moment.inc + 1), lost)


def _archived(archive: Archive, moment: Timestamp, lost: PositionLost) -> Token:
    """The position before everything of that time."""
    token = _mark(moment)
    if archive.span(token) is None:
        raise PositionLost(f"{lost} {archive.told()}") from lost
    return token


def _lost(feed: Feed, token: Token) -> bool:
    try:
        with feed.open(Position("token", token=token), batch_rows=1):
            return False
    except PositionLost:
        return True


def _mark(moment: Timestamp) -> Token:
    return Token(high_water_mark(moment.time << 32 | moment.inc))


@lru_cache(maxsize=8)
def _spans(path: str, version: int) -> tuple[Span, ...]:
    """Those of a version of the table."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    from headrace.spark.tables.delta_log import dataset

    names = [pa.field("token", pa.string()), pa.field("operationType", pa.string())]
    rows = dataset(DeltaTable(path, version=version).file_uris(), pa.schema(names)).to_table()
    begins = pc.unique(rows.filter(pc.field("operationType") == SNAPSHOT_BEGIN)["token"]).sort().to_pylist()
    events = rows.filter(~_is_snapshot(pc.field("operationType")))["token"]
    if not len(events):
        return (Span(Token(begins[-1]), Token(begins[-1])),) if begins else ()
    first, last = pc.min(events).as_py(), pc.max(events).as_py()
    found: list[Span] = []
    at = _mark(Token(first).time) if not begins or first <= begins[0] else None
    for begin in begins:
        before = pc.max(events.filter(pc.less_equal(events, begin))).as_py()
        # A snapshot that begins at the last event, an invalidate, leaves nothing out.
        if at is None or before != begin:
            if at is not None:
                found.append(Span(at, max(Token(before or ""), at)))
            at = Token(begin)
    assert at is not None
    return (*found, Span(at, max(Token(last), at)))


def _is_snapshot(kind: pc.Expression) -> pc.Expression:
    import pyarrow as pa

    # Not `isin` alone: an event without an operation type (a pipeline's) is an event.
    return kind.is_valid() & kind.cast(pa.string()).isin([SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END])


def _files(table: DeltaTable, after: str, upto: str) -> list[str]:
    """The files in which tokens of the range may be, by the bounds that the table's log keeps of most of them."""
    import pyarrow as pa

    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    wanted = {action["path"].rpartition("/")[2] for action in actions if _overlaps(action, after, upto)}
    return [uri for uri in table.file_uris() if uri.rpartition("/")[2] in wanted]


def _overlaps(action: dict[str, Any], after: str, upto: str) -> bool:
    least, most = action.get("min.token"), action.get("max.token")
    if not least or not most:
        return True
    return bool(least[:_TIME_END] <= upto[:_TIME_END] and most[:_TIME_END] >= after[:_TIME_END])


def _each(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _told(table: pa.Table) -> list[bytes]:
    """The events of the rows, as BSON."""
    from headrace.spark.pipelines import rows

    return [bson.encode(event) for batch in table.to_batches() for event in rows.events(batch)]
