"""The sink `history`: every version of every document, see `tables/history_table.py`.

A drop, a rename, an invalidate end every version (`follow`), are ignored (`keep`), or stop the job (`fail`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.clock import SystemClock
from headrace.spark.masks.mask import Mask
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.tables.drop_policy import checked_policy
from headrace.spark.tables.fold import document_keys
from headrace.spark.tables.history_table import HistoryTable
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.table_owner import TableOwner, check_owner
from headrace.spark.tables.typed.table_schema import TypedOptions, rest_count_of
from headrace.spark.tables.typed.typed_history import TypedHistory
from headrace.spark.tables.versions import VersionChanges


class HistorySink:
    """See `contract.Sink`."""

    def __init__(self, path: str | Path, *, policy: str = "follow", typed: TypedOptions | None = None) -> None:
        self.table: HistoryTable | TypedHistory = HistoryTable(path) if typed is None else TypedHistory(path, typed)
        self._policy = checked_policy(policy)
        self.owner: TableOwner | None = None
        self.omit: Mask | None = None
        """The fields that the table does not have."""

    def position(self) -> Progress:
        return self.table.progress()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        before = self.table.progress()
        check_owner(before.owner, self.owner, self.table)
        if before.has(batch.query, batch.number) or not batch.table.num_rows:
            return None
        rows = batch.masked(self.omit).rows_of_one_server()
        rest_before = rest_count_of(self.table)
        versions = VersionChanges(before, self.table.current(document_keys(rows)), self.table.current, self._policy)
        for row in rows:
            versions.take(row)
        after = replace(versions.progress, query=batch.query, batch=batch.number)
        after = replace(after, owner=self.owner.text() if self.owner else after.owner)
        self.table.commit(list(versions.changed.values()), after)
        return BatchReport(
            batch.number, len(rows), versions.event_count, after.token, batch.first_event_ms(), SystemClock().now_ms(),
            rest_count_of(self.table) - rest_before,
        )  # fmt: skip
