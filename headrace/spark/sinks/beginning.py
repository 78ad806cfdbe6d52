"""Checks, in a program without a job file, that a table of state begins with all documents.

The start checks of a job ask the server (`jobs/beginning_checks.py`). In a program only the rows show how the stream
begins: the first row of a new table must be the beginning of a snapshot or the creation of the collection.
"""

from __future__ import annotations

from typing import Final

from headrace.spark.rows.events import SERVER, SNAPSHOT_BEGIN, Row
from headrace.spark.sinks.contract import MicroBatch, Sink
from headrace.spark.sinks.history_sink import HistorySink
from headrace.spark.sinks.mirror_sink import MirrorSink
from headrace.spark.sinks.mongodb_sink import PerCollectionSink

_BEGINNINGS: Final = frozenset({SNAPSHOT_BEGIN, "create"})


class NoBeginning(ValueError):
    """A new table of state would get events, but not the documents that existed before them."""


def check_beginning(sink: Sink, batch: MicroBatch) -> None:
    """Raise NoBeginning if a table of state has no rows, and the batch begins with neither snapshot nor creation."""
    if not isinstance(sink, HistorySink | MirrorSink | PerCollectionSink) or sink.owner is not None:
        return
    each = isinstance(sink, PerCollectionSink)
    if not each and SERVER not in batch.table.column_names and sink.position().token:
        return  # the table has rows, so no row has to be checked
    first: dict[tuple[str | None, ...], Row] = {}
    for row in batch.rows():
        if not each or row.collection:
            first.setdefault((row.database, row.collection) if each else (row.server,), row)
    for row in first.values():
        if row.operationType not in _BEGINNINGS and not _reached(sink, row):
            raise NoBeginning(
                f"the first row for {row.database}.{row.collection} is an event, {row.operationType!r}: documents of "
                "before it would be missing; read the source with startingPosition 'snapshot', or with "
                "showExpandedEvents from before the collection's creation"
            )


def _reached(sink: HistorySink | MirrorSink | PerCollectionSink, row: Row) -> str:
    """Return the token that the table of the row has reached; empty for a new table."""
    if isinstance(sink, PerCollectionSink):
        assert row.database
        assert row.collection
        return sink.reached((row.database, row.collection))
    return sink.table.position().of_server(row.server).token
