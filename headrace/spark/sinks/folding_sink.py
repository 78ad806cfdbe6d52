"""The base of the sinks `mirror` and `history`. It decides who folds a batch.

Spark's tasks fold a large batch of a Delta table (`fold_tasks.py`). The driver folds any other batch: a small one, one
with a drop or with the beginning or end of a snapshot, one of several servers, and any batch with the policy `keep`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.masks.mask import Mask
from headrace.spark.rows.arrow_schema import arrow_schema
from headrace.spark.rows.events import SERVER
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.sinks.fetched_rows import were_fetched
from headrace.spark.sinks.fold_tasks import Fold, FoldTask, is_cluster
from headrace.spark.sinks.paused_collector import paused_collector
from headrace.spark.sinks.stage_files import slot_count, stage
from headrace.spark.tables.delta_documents import DeltaDocuments
from headrace.spark.tables.drop_policy import checked_policy
from headrace.spark.tables.leftover_keys import KeyedTable, LeftoverKeys
from headrace.spark.tables.slots import Slots
from headrace.spark.tables.staged_files import StagedBatch, merged_batches, read_staged, remove_files, staged_prefix
from headrace.spark.tables.staged_rows import staged_batches
from headrace.spark.tables.table_owner import TableOwner, check_owner, check_servers
from headrace.spark.tables.typed.table_schema import rest_count_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark.rows.events import Row


def _active_session() -> Any:
    """Return the thread's Spark session; None without one, as in tests of a sink alone."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


class FoldingSink:
    """See `contract.FrameSink`. `several`: rows may be of several servers. `shared`: tasks can write its files."""

    def __init__(self, table: KeyedTable, policy: str, *, several: bool, shared: bool) -> None:
        self.folded_by_tasks = table if shared and policy != "keep" and isinstance(table, DeltaDocuments) else None
        """The table, if tasks may write its files."""
        self.staged_by_source = False
        """Whether the source was told to stage rows into the table's folder."""
        self.table: Any = table
        self._leftover_keys = LeftoverKeys(table, policy)
        self._several = several
        self._policy = checked_policy(policy)
        self._slots: Slots | None = None
        self.owner: TableOwner | None = None
        self.omit: Mask | None = None
        """The fields that the table omits."""

    def position(self) -> Any:
        """See `contract.Sink`."""
        return self.table.position()

    def _fold(self, state: Any) -> Fold:
        """Return how tasks fold into a table in this state."""
        raise NotImplementedError

    def _apply_rows(self, rows: list[Row], query: str, batch: int, state: Any) -> tuple[Any, int]:
        """Commit the rows. Return the state after them, and the number of new events."""
        raise NotImplementedError

    @property
    def takes_frames(self) -> bool:
        """Whether `apply_frame` may be called. The driver must see the first rows of a new table."""
        if self.folded_by_tasks is None or not is_cluster(_active_session()):
            return False
        return self.staged_by_source or bool(self.position().token)

    def slots(self, spark: Any) -> Slots:
        """Return the slots that divide the rows; they are fixed from the first batch on."""
        assert self.folded_by_tasks is not None
        self._slots = self._slots or self.folded_by_tasks.slots(slot_count(spark))
        return self._slots

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        """See `contract.Sink`."""
        with paused_collector():
            return self._apply(batch)

    def apply_frame(self, frame: DataFrame, query: str, number: int) -> BatchReport | None:
        """Apply the frame as `apply` does, but let tasks fold the rows of a large batch. Raise FilesNotShared."""
        table, state = self.folded_by_tasks, self.position()
        assert table is not None
        check_owner(state.owner, self.owner, table)
        if state.has(query, number):
            return None
        prefix, staged = staged_prefix(query, number), None
        if self.staged_by_source:
            table.location.create()
            rows = frame.toArrow()
            if (batches := staged_batches(rows, prefix)) is not None:
                staged = merged_batches(batches, table.location, exact=False)
        else:
            schema = arrow_schema(frame.schema)
            if SERVER in schema.names or "documentKey" not in schema.names or were_fetched(frame):
                rows = frame.toArrow()
            else:
                staged = stage(frame, table.location, prefix, schema, "", self.slots(frame.sparkSession))
        if staged is None:
            return self.apply(MicroBatch(query, number, rows))
        try:
            return self._apply_staged(frame, staged, state, query, number)
        finally:
            remove_files(table.location, prefix)

    def _apply_staged(
        self, frame: DataFrame, staged: StagedBatch, state: Any, query: str, number: int
    ) -> BatchReport | None:
        table, stats = self.folded_by_tasks, staged.stats
        assert table is not None
        if not staged.files:
            return None
        about_many = stats.begins or stats.ends or stats.invalidated or state.leftovers or state.servers
        few = stats.row_count < limits.FOLD_ROW_COUNT_MIN
        files = None if about_many or few else table.files(self.slots(frame.sparkSession))
        task = FoldTask(files, staged.files, self._fold(state), self.omit) if files else None
        result = task.run(frame.sparkSession, table) if task else None
        if result is None:
            return self.apply(MicroBatch(query, number, read_staged(staged.files, table.location)))
        files, folded = result
        token = max([state.token, *(each.token for each in folded)])
        owner = self.owner.text() if self.owner else state.owner
        after = replace(state, token=token, query=query, batch=number, owner=owner)
        added, removed = ([file for each in folded for file in getattr(each, name)] for name in ("added", "removed"))
        count, rest_count = (sum(getattr(each, name) for each in folded) for name in ("event_count", "rest_count"))
        table.commit_files(files, added, removed, after, rest_count)
        return BatchReport(
            number, staged.seen_count, count, token, stats.first_event_ms, SystemClock().now_ms(), rest_count
        )

    def _apply(self, batch: MicroBatch) -> BatchReport | None:
        state = self.position()
        check_owner(state.owner, self.owner, self.table)
        if state.has(batch.query, batch.number) or not batch.table.num_rows:
            return None
        masked = batch.masked(self.omit)
        rows = masked.rows() if self._several else masked.rows_of_one_server()
        check_servers(
            has_several=bool(state.servers), has_rows=bool(state.token),
            reads_several=SERVER in batch.table.column_names, table=self.table,
        )  # fmt: skip
        before = rest_count_of(self.table)
        after, count = self._apply_rows(rows, batch.query, batch.number, state)
        return batch.report(count, after.token, rest_count_of(self.table) - before)
