"""`documents`: an append-only table of a pipeline's output: documents of events, or groups of closed windows.

    Delta     each batch is a commit that also records the query and the batch's number
    Parquet   the same, with the list of valid files as in the sink `parquet`

Rule: exactly once. The query and number identify a repeated batch. If the checkpoint was lost and a new query repeats
earlier events, documents of events are recognized by their tokens, and groups by their window and `_id`. A group that
is in the table stays unchanged: it was complete when it was written, and the repeated group may lack events that have
left the oplog.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.sinks.table_sink import TableSink
from headrace.spark.tables.event_log import DeltaLog, EventLog, ParquetLog
from headrace.spark.tables.progress import Progress

_DOCUMENT, _TOKEN, _WINDOW = "document", "token", "window"
_AGAIN: Final = "groups"
"""The value of `Progress.again` for a table whose groups came from more than one query."""

GroupIdentity = tuple[str, str]


def documents_sink(path: str | Path, *, table: str = "delta") -> DocumentsSink:
    """Return the sink whose `delta` or `parquet` table is at `path`; the first batch creates the table."""
    return DocumentsSink(DeltaLog(path) if table == "delta" else ParquetLog(path))


class DocumentsSink(TableSink):
    """See `TableSink`; the driver applies every batch."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(log)
        self._present: set[GroupIdentity] | None = None

    def _apply(self, batch: MicroBatch, before: Progress) -> BatchReport | None:
        if before.has(batch.query, batch.number) or not batch.table.num_rows:
            return None
        groups = _TOKEN not in batch.table.column_names
        new, after = self._new_groups(batch, before) if groups else _new_documents(batch.table, before)
        after = self._after(after, batch.query, batch.number)
        self.table.append(new, after)
        return batch.report(new.num_rows, after.token)

    def _new_groups(self, batch: MicroBatch, before: Progress) -> tuple[pa.Table, Progress]:
        if not before.again and before.query in ("", batch.query):
            return batch.table, before
        if self._present is None:
            self._present = set(map(_identity, self.table.read().to_pylist()))
        rows = [_identity(row) for row in batch.table.to_pylist()]
        new = batch.table.filter(pa.array([row not in self._present for row in rows], pa.bool_()))
        self._present.update(rows)
        return new, replace(before, again=_AGAIN)


def _new_documents(table: pa.Table, before: Progress) -> tuple[pa.Table, Progress]:
    """Return the documents of new events, sorted by token, and the progress after them."""
    new = table.filter(pc.greater(table.column(_TOKEN).cast(pa.string()), before.token)).sort_by(_TOKEN)
    return new, replace(before, token=max(before.token, pc.max(table.column(_TOKEN)).as_py()))


def _identity(row: dict[str, object]) -> GroupIdentity:
    """Return the identity of a group; a document without `_id` is identified by all its fields."""
    document = loads(str(row[_DOCUMENT]))
    return repr(row.get(_WINDOW)), key_identity(dumps(document.get("_id", document)))
