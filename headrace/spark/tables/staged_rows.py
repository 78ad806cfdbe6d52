"""A micro-batch whose rows a worker wrote into a log's folder while reading them: Spark gets one row for each file.

So the rows pass neither through Spark's JVM nor through a second worker. The one row has the source's columns and an
operation type that no event has. The driver commits the files like those that tasks of the sink wrote
(`staged_files.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from headrace.spark.tables.slots import Slots
from headrace.spark.tables.staged_files import StagedBatch, staged_prefix, write_staged
from headrace.spark.tables.table_location import location_of

STAGED: Final = "headraceStaged"
_NEEDED: Final = frozenset({"token", "operationType", "other"})


def batch_prefix(columns: Iterable[str]) -> str:
    """Return the prefix of the files of this task's micro-batch; empty if rows cannot be staged.

    Rows cannot be staged outside a task of a query (where a small batch is planned), or without the needed columns.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    query = task.getLocalProperty("sql.streaming.queryId") if task else None
    batch = task.getLocalProperty("streaming.sql.batchId") if task else None
    if not query or not batch or not set(columns) >= _NEEDED:
        return ""
    return staged_prefix(query, int(batch))


def staged_row(
    batches: Iterable[pa.RecordBatch], folder: str, prefix: str, schema: pa.Schema, slots: str = ""
) -> pa.RecordBatch:
    """Write the rows to a file in the folder. Return a batch with the one row that names the file. Raise
    FilesNotShared."""
    staged = write_staged(batches, location_of(folder), prefix, schema, slots=Slots.of(slots))
    row: dict[str, Any] = {"token": staged.stats.last, "operationType": STAGED, "other": staged.text()}
    return pa.RecordBatch.from_pylist([row], schema=schema)


def staged_batches(table: pa.Table, prefix: str) -> list[StagedBatch] | None:
    """Return the files that the rows of a micro-batch name; None if the rows were not staged."""
    if not table.num_rows or not set(table.column_names) >= _NEEDED:
        return None
    if set(table.column("operationType").to_pylist()) != {STAGED}:
        return None
    batches = [StagedBatch.of(text) for text in table.column("other").to_pylist()]
    foreign = [file.name for batch in batches for file in batch.files if not file.name.startswith(prefix)]
    if foreign:
        raise ValueError(f"{foreign[0]} is no file of this micro-batch")
    return batches
