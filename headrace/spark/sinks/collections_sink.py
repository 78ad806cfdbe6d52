"""A sink of several tables, one for each collection: each row of a batch goes to the table of its collection.

The first row of a collection creates its table, unless the rows are drops and renames only. Each table stores its own
position with its rows. After a crash between two tables the batch is repeated, and the tables that have it skip it. A
rename is a row of both collections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.mongodb.collection_selection import CollectionSelection, Namespace, text_of
from headrace.spark.rows.events import INVALIDATING
from headrace.spark.rows.extjson import loads
from headrace.spark.sinks.contract import BatchReport, MicroBatch, Sink, take_rows
from headrace.spark.tables.catalog.catalog_table import TableMissing
from headrace.spark.tables.progress import TableOwner, TablePosition

if TYPE_CHECKING:
    import pyarrow as pa

OpenTable = Callable[[Namespace], Sink]
_KIND: Final = "operationType"
_SUMMED: Final = ("row_count", "event_count", "rest_count", "dead_letter_count")
"""The figures that are summed over the reports of the tables."""


class CollectionsSink:
    """See `contract.Sink`. `open_table` opens the sink of a collection; its table need not exist yet."""

    def __init__(self, open_table: OpenTable, selection: CollectionSelection) -> None:
        self._open_table, self._selection = open_table, selection
        self._open: OrderedDict[Namespace, Sink] = OrderedDict()
        self._last = TablePosition()
        self._clock = SystemClock()
        self._committed: dict[Namespace, bool] = {}
        self.owner: TableOwner | None = None
        """The owner of the tables; each table adds its collection."""
        self.fingerprint: Callable[[Namespace], str] | None = None
        """Returns the fingerprint of a collection's stream, for a log."""
        self.guard: Callable[[Namespace, Sink], Sink] | None = None
        """Wraps the sink of a collection, such as with dead letters."""
        self.listener: Callable[[str, BatchReport, float], None] | None = None
        """Called from several threads with a collection, the report on its commit, and the duration in seconds."""

    def position(self) -> TablePosition:
        return self._last

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        if not batch.table.num_rows:
            return None
        each = rows_by_collection(batch.table, self._selection)
        sinks = [(name, self._sink(name), rows) for name, rows in each]
        with ThreadPoolExecutor(limits.TABLE_WRITER_COUNT_MAX) as writers:
            coming = [
                writers.submit(self._apply_one, name, sink, replace(batch, table=rows)) for name, sink, rows in sinks
            ]
            failed = [error for one in coming if (error := one.exception())]
        while len(self._open) > limits.OPEN_TABLE_COUNT_MAX:
            self._open.popitem(last=False)
        if failed:
            raise failed[0]
        reports = [report for one in coming if (report := one.result())]
        if not reports:
            return None
        token = max(report.token for report in reports)
        self._last = TablePosition(token, query=batch.query, batch=batch.number)
        sums = {name: sum(getattr(report, name) for report in reports) for name in _SUMMED}
        return BatchReport(
            batch.number, token=token, first_event_ms=batch.first_event_ms(), committed_ms=self._clock.now_ms(), **sums
        )

    def _apply_one(self, name: Namespace, sink: Sink, batch: MicroBatch) -> BatchReport | None:
        if only_leaves(batch.table) and not _has_begun(sink):
            return None
        begun_ms = self._clock.monotonic_ms()
        report = sink.apply(batch)
        if report:
            ended = not INVALIDATING.isdisjoint(batch.table.column(_KIND).to_pylist())
            self._committed[name] = ended or self._committed.get(name, False)
            if self.listener:
                self.listener(text_of(name), report, (self._clock.monotonic_ms() - begun_ms) / 1000)
        return report

    def take_committed(self) -> dict[Namespace, bool]:
        """Return the collections committed to since the last call, and whether each was dropped or renamed."""
        committed, self._committed = self._committed, {}
        return dict(sorted(committed.items()))

    def _sink(self, name: Namespace) -> Sink:
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        sink: Any = self._open_table(name)
        if self.owner is not None:
            sink.owner = replace(self.owner, namespace=text_of(name))
        if self.fingerprint is not None and hasattr(sink, "source"):
            sink.source = self.fingerprint(name)
        self._open[name] = self.guard(name, sink) if self.guard else sink
        return self._open[name]


def _has_begun(sink: Sink) -> bool:
    """Whether the sink's table has a commit."""
    try:
        position = sink.position()
    except TableMissing:
        return False
    return position.batch >= 0 or bool(position.token)


def rows_by_collection(rows: pa.Table, selection: CollectionSelection) -> Iterator[tuple[Namespace, pa.Table]]:
    """Yield the selected collections that have rows, sorted, each with its rows. Omit rows without a collection."""
    names = [rows.column(name).to_pylist() for name in ("database", "collection", _KIND)]
    numbers: dict[Namespace, list[int]] = {}
    for number, (database, collection, kind) in enumerate(zip(*names, strict=True)):
        if database and collection:
            numbers.setdefault((database, collection), []).append(number)
        if kind == "rename":
            to = loads(rows.column("other")[number].as_py() or "{}").get("to", {})
            if to and (to["db"], to["coll"]) != (database, collection):
                numbers.setdefault((to["db"], to["coll"]), []).append(number)
    for name in sorted(numbers):
        if selection.matches(name):
            yield name, take_rows(rows, numbers[name])


def only_leaves(rows: pa.Table) -> bool:
    """Whether the rows are drops and renames only."""
    return set(rows.column(_KIND).to_pylist()) <= INVALIDATING
