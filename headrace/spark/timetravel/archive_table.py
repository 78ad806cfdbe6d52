"""The table behind an archive: which events it can vouch for, which snapshots are whole in it, and its rows in order.

Only what the table can vouch for is given: it has every event of a span. A span begins with a snapshot (or the table),
and ends where a later snapshot says that events are missing. Which snapshots are whole the table's progress says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.rows.tokens import Token
from headrace.spark.tables.progress import Progress
from headrace.values.arrow import COLUMNS
from headrace.values.token import high_water_mark

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

WINDOW_ROWS: Final = 50_000
"""So many rows of the table are held at a time."""


class ArchiveUnfit(RuntimeError):
    """The table is not one of this stream's events."""


@dataclass(frozen=True, slots=True)
class EventSpan:
    """Every event after `first`, up to and including `last`, is in the table."""

    first: Token
    last: Token


@dataclass(frozen=True, slots=True)
class ArchivedSnapshot:
    """A whole snapshot that began at `begin`: every row of it is true at a token of its own, up to `end`."""

    begin: Token
    end: Token


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """What a version of a table has, in order."""

    spans: tuple[EventSpan, ...] = ()
    snapshots: tuple[ArchivedSnapshot, ...] = ()
    source: str = ""
    """Which stream it is of, by `stream_fingerprint.py`; empty where that was not kept."""


class ArchiveTable:
    """The table at a path, as it is when it is asked; there may be none yet."""

    def __init__(self, path: str) -> None:
        # Readers without an archive need no Delta.
        from headrace.spark.tables.open_table import OpenDeltaTable
        from headrace.spark.tables.table_location import location_of

        self._path = path
        self._kept = OpenDeltaTable(location_of(path))

    def contents(self) -> ArchiveContents:
        table = self._kept.now()
        return ArchiveContents() if table is None else _contents(self._path, table.version())

    def events(self, after: str, upto: str, names: Sequence[str] | None = None) -> pa.Table:
        """The events after one token, up to and including another; in no order. Raises ArchiveUnfit."""
        import pyarrow.dataset as ds

        return self._rows(after, upto, ~_is_snapshot(ds.field("operationType")), names)

    def windows(self, after: str, upto: str, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """These events in order, so many at a time."""
        tokens = self.events(after, upto, ("token",)).sort_by("token")["token"]
        for end in range(WINDOW_ROWS, len(tokens) + WINDOW_ROWS, WINDOW_ROWS):
            last = tokens[min(end, len(tokens)) - 1].as_py()
            yield self.events(after, last, names).sort_by("token")
            after = last

    def base_rows(self, base: ArchivedSnapshot, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a snapshot, in no order. Raises ArchiveUnfit if they have been removed from the table."""
        import pyarrow as pa
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
        """How many documents there are at most at `upto`: the snapshot's, and those that came since."""
        import pyarrow.compute as pc

        found: int = sum(batch.num_rows for batch in self.base_rows(base, ("token",)))
        kinds = self.events(base.begin.text, upto.text, ("operationType",))["operationType"]
        return found + len(kinds.filter(pc.equal(kinds, "insert")))

    def _rows(self, after: str, upto: str, kind: pc.Expression, names: Sequence[str] | None) -> pa.Table:
        import pyarrow as pa

        wanted = (_token() > after) & (_token() <= upto) & kind
        scanned = self._dataset(after, upto)
        if scanned is None:
            return pa.table(_schema(self._there()).empty_table()).select(list(names or COLUMNS))
        return scanned.to_table(columns=list(names or COLUMNS), filter=wanted)

    def _dataset(self, after: str, upto: str) -> Any:
        """The files in which these tokens may be; None if there is none."""
        from headrace.spark.tables.delta_files import files_between

        table = self._there()
        schema = _schema(table)
        if missing := sorted(set(COLUMNS) - set(schema.names)):
            raise ArchiveUnfit(f"the table {self._path} has no column {missing[0]!r}: it is not one of events")
        files = files_between(table, after, upto)
        return self._kept.location.dataset(table, files, schema) if files else None

    def _there(self) -> DeltaTable:
        table = self._kept.now()
        if table is None:
            raise ArchiveUnfit(f"there is no table at {self._path}")
        return table


def _schema(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def mark_at(moment: Timestamp) -> Token:
    """The position before everything of that time."""
    return Token(high_water_mark(moment.time << 32 | moment.inc))


@lru_cache(maxsize=8)
def _contents(path: str, version: int) -> ArchiveContents:
    import pyarrow as pa
    import pyarrow.compute as pc

    from headrace.spark.tables.delta_commits import committed_progress
    from headrace.spark.tables.table_location import location_of

    location = location_of(path)
    table = location.table(version)
    assert table is not None
    names = [pa.field("token", pa.string()), pa.field("operationType", pa.string())]
    rows = location.dataset(table, table.file_uris(), pa.schema(names)).to_table()
    kind = pc.field("operationType")
    events = rows.filter(~_is_snapshot(kind))["token"]
    begins = pc.unique(rows.filter(kind == SNAPSHOT_BEGIN)["token"]).sort().to_pylist()
    documents = rows.filter(kind == SNAPSHOT)["token"]
    progress = committed_progress(table) or Progress()
    spans = _spans(events, begins)
    if spans and Token(progress.token) > spans[-1].last:
        # A quiet stream went on without rows.
        spans = (*spans[:-1], EventSpan(spans[-1].first, Token(progress.token)))
    return ArchiveContents(spans, _snapshots(documents, begins, progress), progress.source)


def _spans(events: pa.ChunkedArray, begins: list[str]) -> tuple[EventSpan, ...]:
    import pyarrow.compute as pc

    if not len(events):
        return (EventSpan(Token(begins[-1]), Token(begins[-1])),) if begins else ()
    first, last = pc.min(events).as_py(), pc.max(events).as_py()
    found: list[EventSpan] = []
    at = mark_at(Token(first).time) if not begins or first <= begins[0] else None
    for begin in begins:
        before = pc.max(events.filter(pc.less_equal(events, begin))).as_py()
        # A snapshot that begins at the last event, an invalidate, leaves nothing out.
        if at is None or before != begin:
            if at is not None:
                found.append(EventSpan(at, max(Token(before or ""), at)))
            at = Token(begin)
    assert at is not None
    return (*found, EventSpan(at, max(Token(last), at)))


def _snapshots(documents: pa.ChunkedArray, begins: list[str], progress: Progress) -> tuple[ArchivedSnapshot, ...]:
    """The whole snapshots; `documents` are the tokens of all their rows."""
    import pyarrow.compute as pc

    found = []
    for begin, end in progress.snapshots():
        if begin in begins:
            following = next((later for later in begins if later > begin), None)
            own = documents.filter(pc.greater_equal(documents, begin))
            own = own if following is None else own.filter(pc.less(own, following))
            # A row's token may lie just behind the last event, and so behind the end.
            found.append(ArchivedSnapshot(Token(begin), Token(max(begin, end, pc.max(own).as_py() or ""))))
    return tuple(found)


def _token() -> pc.Expression:
    import pyarrow as pa
    import pyarrow.dataset as ds

    return ds.field("token").cast(pa.large_string())


def _is_snapshot(kind: pc.Expression) -> pc.Expression:
    import pyarrow as pa

    # Not `isin` alone: an event without an operation type (a pipeline's) is an event.
    return kind.is_valid() & kind.cast(pa.string()).isin([SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END])
