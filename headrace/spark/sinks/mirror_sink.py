"""`mirror`: a table equal to the collection, in Delta (in buckets when large), Parquet, or a catalog of Spark's.

Rows are folded into the final state of each document (`tables/fold.py`) and committed together with the position.

A drop, a rename, an invalidate empty the mirror, and what the collection of that name holds then comes by its own
rows (`follow`); or the rows stay, also when a new snapshot begins, and are replaced as their keys come again (`keep`);
or the job stops and nothing of the batch is written (`fail`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.clock import SystemClock
from headrace.spark.masks.mask import Mask
from headrace.spark.rows.events import SERVER, Row
from headrace.spark.rows.tokens import TIME_END
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.sinks.paused_collector import paused_collector
from headrace.spark.tables.drop_policy import CollectionGone, checked_policy
from headrace.spark.tables.fold import INVALIDATING, MirrorState, fold_servers, server_keys_to_read
from headrace.spark.tables.leftover_keys import LeftoverKeys
from headrace.spark.tables.mirror_table import MirrorTable, open_mirror_table
from headrace.spark.tables.table_owner import TableOwner, check_owner, check_servers
from headrace.spark.tables.typed.table_schema import TypedOptions, rest_count_of
from headrace.spark.tables.typed.typed_mirror import TypedMirror

_UNBOUNDED: Final = 1 << 62


def mirror_sink(
    path: str | Path, *, kind: str = "delta", buckets: int = 0, policy: str = "follow",
    typed: TypedOptions | None = None, using: str = "",
) -> MirrorSink:  # fmt: skip
    """The sink whose table is at `path`; created by its first batch. For `buckets` see `delta_mirror.DeltaMirror`.

    A kind with a dot names a table in one of Spark's catalogs, made `using` a format, see `tables/catalog/`; `path` is
    then empty.
    A table with typed columns is a Delta table with a path.
    """
    if typed is not None:
        return MirrorSink(TypedMirror(path, typed, buckets), policy, several=True)
    if "." not in kind:
        return MirrorSink(open_mirror_table(path, kind, buckets=buckets), policy, several=True)
    from headrace.spark.session import get_session
    from headrace.spark.tables.catalog.catalog_mirror import CatalogMirror

    if buckets or path:
        raise ValueError(f"a table of Spark's catalogs, {kind}, has neither a path nor buckets of ours")
    return MirrorSink(CatalogMirror(kind, get_session, using), policy, several=True)


class MirrorSink:
    """See `contract.Sink`. `rows_max` bounds one commit; a transaction is never cut. `several`: of servers."""

    def __init__(
        self, table: MirrorTable, policy: str = "follow", rows_max: int = _UNBOUNDED, *, several: bool = False
    ) -> None:
        self.table = table
        self._leftover_keys = LeftoverKeys(table, policy)
        self._several = several
        self._policy = checked_policy(policy)
        self._rows_max = rows_max
        self.owner: TableOwner | None = None
        self.omit: Mask | None = None
        """The fields that the table does not have."""

    def position(self) -> MirrorState:
        return self.table.state()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        with paused_collector():
            return self._apply(batch)

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
