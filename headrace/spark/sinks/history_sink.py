"""The sink `history`: every version of every document, see `tables/history_table.py`.

A drop, a rename and an invalidate end every version (`follow`), are ignored (`keep`), or stop the job (`fail`).

With several servers, the versions of each server are computed from its own rows, because tokens of two servers cannot
be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from headrace.spark.rows.events import Row
from headrace.spark.rows.key_identity import of_server, rows_by_server, server_key
from headrace.spark.sinks.fold_tasks import Fold, history_folded
from headrace.spark.sinks.folding_sink import FoldingSink
from headrace.spark.sinks.log_sink import checked_writers
from headrace.spark.tables.fold import document_keys
from headrace.spark.tables.history_table import HistoryTable, VersionTable
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.typed.table_schema import TypedOptions
from headrace.spark.tables.versions import DocumentVersion, OpenVersions, VersionChanges


class HistorySink(FoldingSink):
    """See `FoldingSink`. For a `table` of one of Spark's catalogs, in the format `using`, the path is empty."""

    table: VersionTable

    def __init__(
        self, path: str | Path, *, policy: str = "follow", typed: TypedOptions | None = None, table: str = "",
        using: str = "", writers: str = "tasks",
    ) -> None:  # fmt: skip
        opened = _opened(path, typed, table, using)
        super().__init__(opened, policy, several=True, shared=checked_writers(writers) == "tasks")

    def _fold(self, state: Progress) -> Fold:
        return partial(history_folded, state, self._policy)

    def _apply_rows(self, rows: list[Row], query: str, batch: int, state: Progress) -> tuple[Progress, int]:
        after, changed, count = self._changes(rows, state)
        after = self._after(after, query, batch)
        self.table.commit(changed, after)
        return after, count

    def _changes(self, rows: list[Row], before: Progress) -> tuple[Progress, list[DocumentVersion], int]:
        """Return the progress after the rows, the versions that they change, and the number of new events."""
        each = rows_by_server(rows)
        keys = {server_key(server, key) for server, some in each.items() for key in document_keys(some)}
        opened = self.table.current(keys | self._leftover_keys.same_as(rows, before))
        after, changed, count = before, list[DocumentVersion](), 0
        for server, some in each.items():
            current = of_server(server, opened) if server else opened
            versions = VersionChanges(before.of_server(server), _renamed(current), self._all_of(server), self._policy)
            for row in some:
                versions.take(row._replace(server=None))
            after = after.with_server(server, versions.progress)
            changed += [replace(each, key=server_key(server, each.key)) for each in versions.changed.values()]
            count += versions.event_count
        return after, changed, count

    def _all_of(self, server: str) -> Callable[[str], OpenVersions]:
        """Return a function that reads the valid versions of the server's documents, by `_id` alone; see
        `VersionChanges`."""
        if not server:
            return partial(self.table.current, None)
        return lambda before: _renamed(of_server(server, self.table.current(None, before)))


def _opened(path: str | Path, typed: TypedOptions | None, table: str, using: str) -> VersionTable:
    if "." not in table:
        return HistoryTable(path, typed)
    from headrace.spark.session import get_session
    from headrace.spark.tables.catalog.catalog_table import CatalogHistory

    return CatalogHistory(table, get_session, using)


def _renamed(versions: OpenVersions) -> OpenVersions:
    """Return the versions, each with the key that it has in this dict."""
    return {key: version if version.key == key else replace(version, key=key) for key, version in versions.items()}
