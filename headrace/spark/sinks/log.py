"""What the append-only sinks share: the new rows of a batch go to the end of a table of events, in one commit.

The columns are the source's own, all of them. A drop, a rename and an invalidate are rows like any other: they are
what happened. With the policy `fail` they stop the job instead; `keep` and `follow` are the same here.

After a new snapshot (a lost checkpoint, a collection of that name made again) a row `snapshotBegin` says that what
lies between it and the event before is not in the log.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from headrace.clock import SystemClock
from headrace.spark.rows.events import Row
from headrace.spark.sinks.batch import Batch, BatchReport, CollectionGone, checked_policy, taken
from headrace.spark.tables.fold import EMPTYING
from headrace.spark.tables.progress import Identity, Progress, Sieve, may_be_present

if TYPE_CHECKING:
    import pyarrow as pa


class Log(Protocol):
    """A table that grows at its end, with the progress kept in the same commit. One writer at a time."""

    def progress(self) -> Progress:
        """As last committed; `Progress()` if there is no table yet."""

    def append(self, rows: pa.Table, progress: Progress) -> None:
        """Adds rows (there may be none) and keeps the progress: both, durably, or neither."""

    def snapshot_rows(self, since: str) -> Collection[Identity]:
        """The rows of snapshots with tokens from `since` on, which is rarely asked."""

    def read(self) -> pa.Table:
        """All rows, in no order."""


class LogSink:
    """See `batch.Sink`."""

    def __init__(self, log: Log, policy: str = "follow") -> None:
        self.log = log
        self._policy = checked_policy(policy)

    def position(self) -> Progress:
        return self.log.progress()

    def apply(self, batch: Batch) -> BatchReport | None:
        before = self.log.progress()
        if before.has(batch.query, batch.number) or not batch.table.num_rows:
            return None
        ordered = batch.table.sort_by("token")
        rows = replace(batch, table=ordered).rows()
        present = self.log.snapshot_rows(before.begun) if may_be_present(rows, before) else ()
        sieve = Sieve(before, present)
        new = [number for number, row in enumerate(rows) if sieve.is_new(row)]
        self._check([rows[number] for number in new])
        after = replace(sieve.progress, query=batch.query, batch=batch.number)
        self.log.append(taken(ordered, new), after)
        return BatchReport(
            batch.number, len(rows), sieve.event_count, after.token, batch.first_event_ms(), SystemClock().now_ms()
        )

    def _check(self, rows: list[Row]) -> None:
        gone = next((row for row in rows if row.operationType in EMPTYING), None)
        if gone and self._policy == "fail":
            raise CollectionGone(f"{gone.operationType} of {gone.database}.{gone.collection} at {gone.token}")
