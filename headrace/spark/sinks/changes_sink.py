"""`changes`: an append-only Delta table of the events, for audit, replay, and whatever is built on it.

The table has every event once, and each batch is one commit. `ORDER BY token` gives the order in which the events
happened. A drop, a rename and an invalidate are rows, too; with the policy `fail` the job stops before them.
"""

from __future__ import annotations

from pathlib import Path

from headrace.spark.sinks.log_sink import LogSink, checked_writers
from headrace.spark.tables.delta_log import DeltaLog
from headrace.spark.tables.typed.table_schema import TypedOptions


def changes_sink(
    path: str | Path, *, policy: str = "follow", writers: str = "tasks", typed: TypedOptions | None = None,
    table: str = "", using: str = "",
) -> LogSink:  # fmt: skip
    """Return the sink whose table is at `path`; the first batch creates the table. For `writers` see
    `log_sink.checked_writers`.

    A `table` of one of Spark's catalogs, in the format `using` (`tables/catalog/`), is written by the driver; `path` is
    then empty.
    """
    if "." in table:
        from headrace.spark.session import get_session
        from headrace.spark.tables.catalog.catalog_kinds import CatalogLog

        return LogSink(CatalogLog(table, get_session, using), policy, shared=False)
    return LogSink(DeltaLog(path, typed), policy, shared=checked_writers(writers) == "tasks")
