"""`mirror`: a table equal to the collection, in Delta (in buckets when large), Parquet, or a catalog of Spark's.

Rows are folded into the final state of each document (`tables/fold.py`) and committed together with the position.

A drop, a rename, an invalidate empty the mirror, and what the collection of that name holds then comes by its own
rows (`follow`); or the rows stay, also when a new snapshot begins, and are replaced as their keys come again (`keep`);
or the job stops and nothing of the batch is written (`fail`).

Spark's tasks fold a large batch of a Delta table (`fold_tasks.py`), the driver any other: a small batch, one with a
drop or with the beginning or end of a snapshot, one of several servers, and any batch with the policy `keep`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.masks.mask import Mask
from headrace.spark.rows.events import SERVER, Row
from headrace.spark.rows.tokens import TIME_END
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.sinks.fetched_rows import were_fetched
from headrace.spark.sinks.fold_tasks import FoldTask, is_cluster, slot_count, state_after
from headrace.spark.sinks.log_sink import checked_writers
from headrace.spark.sinks.paused_collector import paused_collector
from headrace.spark.sinks.stage_files import schema_of, stage
from headrace.spark.tables.delta_mirror import DeltaMirror
from headrace.spark.tables.drop_policy import CollectionGone, checked_policy
from headrace.spark.tables.fold import INVALIDATING, MirrorState, fold_servers, server_keys_to_read
from headrace.spark.tables.leftover_keys import LeftoverKeys
from headrace.spark.tables.mirror_table import MirrorTable, open_mirror_table
from headrace.spark.tables.staged_files import StagedBatch, merged_batches, read_staged, remove_files, staged_prefix
from headrace.spark.tables.staged_rows import staged_batches
from headrace.spark.tables.table_owner import TableOwner, check_owner, check_servers
from headrace.spark.tables.typed.table_schema import TypedOptions, rest_count_of
from headrace.spark.tables.typed.typed_mirror import TypedMirror

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNBOUNDED: Final = 1 << 62


def mirror_sink(
    path: str | Path, *, kind: str = "delta", buckets: int = 0, policy: str = "follow",
    typed: TypedOptions | None = None, using: str = "", writers: str = "tasks",
) -> MirrorSink:  # fmt: skip
    """The sink whose table is at `path`; created by its first batch. For `buckets` see `delta_mirror.DeltaMirror`.

    A kind with a dot names a table in one of Spark's catalogs, made `using` a format, see `tables/catalog/`; `path` is
    then empty.
    A table with typed columns is a Delta table with a path. For `writers` see `log_sink.checked_writers`.
    """
    if typed is not None:
        return MirrorSink(TypedMirror(path, typed, buckets), policy, several=True)
    if "." not in kind:
        shared = checked_writers(writers) == "tasks"
        return MirrorSink(open_mirror_table(path, kind, buckets=buckets), policy, several=True, shared=shared)
    from headrace.spark.session import get_session
    from headrace.spark.tables.catalog.catalog_mirror import CatalogMirror

    if buckets or path:
        raise ValueError(f"a table of Spark's catalogs, {kind}, has neither a path nor buckets of ours")
    return MirrorSink(CatalogMirror(kind, get_session, using), policy, several=True)


def _active_session() -> Any:
    """The session of the thread; None without one, as in tests of a sink alone."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


class MirrorSink:
    """See `contract.FrameSink`. `rows_max` bounds one commit; a transaction is never cut. `several`: of servers.

    `shared`: tasks can write the table's files.
    """

    def __init__(
        self, table: MirrorTable, policy: str = "follow", rows_max: int = _UNBOUNDED, *, several: bool = False,
        shared: bool = False,
    ) -> None:  # fmt: skip
        self.table = table
        self.folded_by_tasks = table if shared and policy != "keep" and isinstance(table, DeltaMirror) else None
        """The table, if tasks may write its files."""
        self.staged_by_source = False
        """Whether the source was told to stage rows into the table's folder."""
        self._leftover_keys = LeftoverKeys(table, policy)
        self._several = several
        self._policy = checked_policy(policy)
        self._rows_max = rows_max
        self.owner: TableOwner | None = None
        self.omit: Mask | None = None
        """The fields that the table does not have."""

    def position(self) -> MirrorState:
        return self.table.state()

    @property
    def takes_frames(self) -> bool:
        """Whether `apply_frame` may be called. The driver looks at the first rows of a new table."""
        if self.folded_by_tasks is None or not is_cluster(_active_session()):
            return False
        return self.staged_by_source or bool(self.table.state().token)

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        with paused_collector():
            return self._apply(batch)

    def apply_frame(self, frame: DataFrame, query: str, number: int) -> BatchReport | None:
        """As `apply`, but tasks fold the rows of a large batch. Raises FilesNotShared."""
        table, state = self.folded_by_tasks, self.table.state()
        assert table is not None
        check_owner(state.owner, self.owner, table)
        if state.has(query, number):
            return None
        prefix, staged = staged_prefix(query, number), None
        slots = table.slots(slot_count(frame.sparkSession))
        if self.staged_by_source:
            table.location.create()
            rows = frame.toArrow()
            if (batches := staged_batches(rows, prefix)) is not None:
                staged = merged_batches(batches, table.location, exact=False)
        else:
            schema = schema_of(frame)
            if SERVER in schema.names or "documentKey" not in schema.names or were_fetched(frame):
                rows = frame.toArrow()
            else:
                staged = stage(frame, table.location, prefix, schema, "", slots)
        if staged is None:
            return self.apply(MicroBatch(query, number, rows))
        try:
            return self._apply_staged(frame, staged, state, query, number)
        finally:
            remove_files(table.location, prefix)

    def _apply_staged(
        self, frame: DataFrame, staged: StagedBatch, state: MirrorState, query: str, number: int
    ) -> BatchReport | None:
        table, stats = self.folded_by_tasks, staged.stats
        assert table is not None
        if not staged.files:
            return None
        about_many = stats.begins or stats.ends or stats.invalidated or state.leftovers or state.servers
        slots = table.slots(slot_count(frame.sparkSession))
        files = None if about_many or stats.row_count < limits.FOLD_ROW_COUNT_MIN else table.files(slots)
        folded = FoldTask(files, staged.files, state, self.omit).run(frame.sparkSession) if files else None
        if folded is None:
            return self.apply(MicroBatch(query, number, read_staged(staged.files, table.location)))
        owner = self.owner.text() if self.owner else state.owner
        after = replace(state_after(state, folded), query=query, batch=number, owner=owner)
        added, removed = ([file for each in folded for file in getattr(each, name)] for name in ("added", "removed"))
        table.commit_files(added, removed, after)
        count = sum(each.event_count for each in folded)
        return BatchReport(number, staged.seen_count, count, after.token, stats.first_event_ms, SystemClock().now_ms())

    def _apply(self, batch: MicroBatch) -> BatchReport | None:
        state = self.table.state()
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
        return BatchReport(
            batch.number, len(rows), count, after.token, batch.first_event_ms(), SystemClock().now_ms(),
            rest_count_of(self.table) - before,
        )  # fmt: skip

    def apply_rows(self, rows: list[Row], query: str, batch: int) -> int:
        """Commits rows, in order, as (the last of) batch `batch` of `query`; the number of events that were new."""
        return self._apply_rows(rows, query, batch, self.table.state())[1]

    def _apply_rows(self, rows: list[Row], query: str, batch: int, state: MirrorState) -> tuple[MirrorState, int]:
        self._check(rows, state)
        if self.owner:
            state = replace(state, owner=self.owner.text())
        count = 0
        pieces = list(_pieces(rows, self._rows_max))
        for piece in pieces:
            keys = server_keys_to_read(piece) | self._leftover_keys.same_as(piece, state)
            changes = fold_servers(piece, state, self.table.rows(keys), clearing=self._policy != "keep")
            if piece is pieces[-1]:
                changes.state = replace(changes.state, query=query, batch=batch)
            self.table.commit(changes)
            state = changes.state
            count += changes.event_count
        return state, count

    def _check(self, rows: list[Row], state: MirrorState) -> None:
        """Raises CollectionGone if the rows say so and the policy is `fail`."""
        if self._policy == "fail":
            for row in rows:
                if row.operationType in INVALIDATING and row.token > state.of_server(row.server or "").token:
                    raise CollectionGone(f"{row.operationType} of {row.database}.{row.collection} at {row.token}")


def _pieces(rows: list[Row], rows_max: int) -> Iterator[list[Row]]:
    """The rows in pieces, each of `rows_max` or somewhat more: rows of one cluster time stay together."""
    start = 0
    while start < len(rows):
        end = min(start + rows_max, len(rows))
        while end < len(rows) and rows[end].token[:TIME_END] == rows[end - 1].token[:TIME_END]:
            end += 1
        yield rows[start:end]
        start = end
