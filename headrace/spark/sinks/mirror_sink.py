"""`mirror` and `sql`: a table equal to the collection, in Delta, Parquet, one of Spark's catalogs, or a database.

Rows are folded into the final state of each document (`tables/fold.py`) and committed together with the position.

After a drop, a rename or an invalidate, the policy decides. `follow` empties the mirror, and new rows fill it with what
the collection of that name then holds. `keep` keeps the rows, also when a new snapshot begins, and replaces each when
its key comes again. `fail` stops the job and writes nothing of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from headrace.spark.errors import OptionError
from headrace.spark.mongodb.connection_strings import referred
from headrace.spark.rows.events import Row
from headrace.spark.rows.tokens import TIME_END
from headrace.spark.sinks.fold_tasks import Fold, mirror_folded
from headrace.spark.sinks.folding_sink import FoldingSink
from headrace.spark.sinks.log_sink import checked_writers
from headrace.spark.tables.delta_mirror import DeltaMirror
from headrace.spark.tables.fold import MirrorState, fold_servers, server_keys_to_read
from headrace.spark.tables.mirror_table import MirrorTable, open_mirror_table
from headrace.spark.tables.position import check_not_gone
from headrace.spark.tables.sql.sql_mirror import SqlMirror
from headrace.spark.tables.typed.table_schema import TypedOptions

_UNBOUNDED: Final = 1 << 62


def mirror_sink(
    path: str | Path, *, table: str = "delta", buckets: int = 0, policy: str = "follow",
    typed: TypedOptions | None = None, using: str = "", writers: str = "tasks",
) -> MirrorSink:  # fmt: skip
    """Return the sink whose table is at `path`; the first batch creates it. For `buckets` see
    `delta_mirror.DeltaMirror`.

    A `table` with a dot is a table of one of Spark's catalogs, in the format `using` (`tables/catalog/`); `path` is
    then empty. A table with typed columns is a Delta table with a path. For `writers` see `log_sink.checked_writers`.
    """
    if "." not in table:
        shared = checked_writers(writers) == "tasks"
        opened = DeltaMirror(path, buckets, typed) if typed else open_mirror_table(path, table, buckets=buckets)
        return MirrorSink(opened, policy, several=True, shared=shared)
    from headrace.spark.session import get_session
    from headrace.spark.tables.catalog.catalog_table import CatalogMirror

    if buckets or path:
        raise ValueError(f"a table of Spark's catalogs, {table}, has neither a path nor buckets of ours")
    return MirrorSink(CatalogMirror(table, get_session, using), policy, several=True)


class MirrorSink(FoldingSink):
    """See `FoldingSink`. `rows_max` bounds one commit, but a transaction is never split."""

    table: MirrorTable

    def __init__(
        self, table: MirrorTable, policy: str = "follow", rows_max: int = _UNBOUNDED, *, several: bool = False,
        shared: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(table, policy, several=several, shared=shared)
        self._rows_max = rows_max

    def _fold(self, state: MirrorState) -> Fold:
        return partial(mirror_folded, state)

    def apply_rows(self, rows: list[Row], query: str, batch: int) -> int:
        """Commit rows, in order, as (the last of) batch `batch` of `query`. Return the number of new events."""
        return self._apply_rows(rows, query, batch, self.position())[1]

    def _apply_rows(self, rows: list[Row], query: str, batch: int, state: MirrorState) -> tuple[MirrorState, int]:
        if self._policy == "fail":
            check_not_gone(rows, state)
        state = self._after(state, state.query, state.batch)
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


def _pieces(rows: list[Row], rows_max: int) -> Iterator[list[Row]]:
    """Yield the rows in pieces of `rows_max` or slightly more: rows of one cluster time stay together."""
    start = 0
    while start < len(rows):
        end = min(start + rows_max, len(rows))
        while end < len(rows) and rows[end].token[:TIME_END] == rows[end - 1].token[:TIME_END]:
            end += 1
        yield rows[start:end]
        start = end


def sql_sink(uri: str, table: str, *, policy: str = "follow") -> MirrorSink:
    """Return the sink `sql`, whose table is in the database at `uri`, an SQLAlchemy URL; the first batch creates it.

    Why SQLAlchemy: rows and position must be one transaction, with upserts and deletes by key. Spark's JDBC writer only
    appends, in a transaction per task.
    """
    try:
        return MirrorSink(SqlMirror(referred(uri), table), policy)
    except ImportError as error:
        raise OptionError(f"the sink 'sql' needs SQLAlchemy: pip install 'headrace[sql]' ({error})") from None
