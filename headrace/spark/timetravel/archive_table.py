"""The Delta table of an archive: its spans without gaps, its complete snapshots, and its rows in order.

A span has every event between two tokens. It begins with a snapshot (or with the table), and ends where a later
snapshot shows that events are missing. The table's progress says which snapshots are complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_KINDS
from headrace.spark.rows.tokens import MASKED_KEY, Token
from headrace.spark.tables.progress import Progress
from headrace.values.arrow import COLUMNS
from headrace.values.position import from_timestamp
from headrace.values.token import high_water_mark

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

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
    """The fingerprint of the table's stream (`stream_fingerprint.py`); empty if none was recorded."""
    masked: bool = False
    """Whether the tokens of its events are masked (`rows/tokens.py`)."""


class ArchiveTable:
    """The table at a path, in its latest version at each call; it need not exist yet."""

    def __init__(self, path: str) -> None:
        # Imported here, because readers without an archive need no Delta.
        from headrace.spark.tables.delta_files import OpenDeltaTable
        from headrace.spark.tables.table_location import location_of

        self._path = path
        self._open_table = OpenDeltaTable(location_of(path))

    def contents(self) -> ArchiveContents:
        """Return the contents of the latest version; empty if the table does not exist."""
        table = self._open_table.now()
        return ArchiveContents() if table is None else _contents(self._path, table.version())

    def events(self, after: str, upto: str, names: Sequence[str] | None = None) -> pa.Table:
        """Return the events after `after` up to and including `upto`, in any order. Raise ArchiveUnfit."""
        import pyarrow.dataset as ds

        return self._rows(after, upto, ~_is_snapshot(ds.field("operationType")), names)

    def windows(self, after: str, upto: str, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the same events in order, in tables of up to WINDOW_ROWS. Raise ArchiveUnfit."""
        tokens = self.events(after, upto, ("token",)).sort_by("token")["token"]
        for end in range(WINDOW_ROWS, len(tokens) + WINDOW_ROWS, WINDOW_ROWS):
            last = tokens[min(end, len(tokens)) - 1].as_py()
            yield self.events(after, last, names).sort_by("token")
            after = last

    def base_rows(self, base: ArchivedSnapshot, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a snapshot, in any order. Raise ArchiveUnfit if they were removed from the table."""
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
        """Return an upper bound of the documents at `upto`: those of the snapshot, and the inserts since."""
        import pyarrow.compute as pc

        documents: int = sum(batch.num_rows for batch in self.base_rows(base, ("token",)))
        kinds = self.events(base.begin.text, upto.text, ("operationType",))["operationType"]
        return documents + len(kinds.filter(pc.equal(kinds, "insert")))

    def _rows(self, after: str, upto: str, kind: pc.Expression, names: Sequence[str] | None) -> pa.Table:
        import pyarrow as pa

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


def _schema(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def mark_at(moment: Timestamp) -> Token:
    """Return the high-water mark of a cluster time: the token before everything of that time."""
    return Token(high_water_mark(from_timestamp(moment)))


@lru_cache(maxsize=8)
def _contents(path: str, version: int) -> ArchiveContents:
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow.compute as pc

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
    import pyarrow.compute as pc

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
    import pyarrow as pa
    import pyarrow.dataset as ds

    return ds.field("token").cast(pa.large_string())


def _is_snapshot(kind: pc.Expression) -> pc.Expression:
    import pyarrow as pa

    # `isin` alone is not enough, because a pipeline may leave events without an operation type.
    return kind.is_valid() & kind.cast(pa.string()).isin(SNAPSHOT_KINDS)
