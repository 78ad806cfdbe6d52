"""Commits of Delta tables: their metadata, written and read, and the commit that joins small files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction

from headrace.spark.tables.position import STATE_KEY
from headrace.spark.tables.progress import Progress


def join_files(
    table: DeltaTable, properties: CommitProperties, target: int | None, cluster: Iterable[str], sorted_max: float
) -> int:
    """Join small files to files of `target` bytes, in one commit. Return how many there were.

    The rows are sorted by the columns `cluster` that the table has and is not partitioned by, unless the table has more
    than `sorted_max` bytes.
    """
    names = {field.name for field in table.schema().fields} - set(table.metadata().partition_columns)
    columns = [name for name in cluster if name in names]
    if columns and byte_count(table) <= sorted_max:
        metrics = table.optimize.z_order(columns, target_size=target, commit_properties=properties)
    else:
        metrics = table.optimize.compact(target_size=target, commit_properties=properties)
    return int(metrics["numFilesRemoved"])


def commit_properties(text: str, query: str, batch: int, others: Mapping[str, str] | None = None) -> CommitProperties:
    """Return the metadata of a commit: `text`, the table's state or progress, under `STATE_KEY`, and the `others`.

    The transaction tells other writers of Delta the query and its batch; this program reads only the text.
    """
    transactions = [Transaction(query, batch)] if query else None
    return CommitProperties(custom_metadata={STATE_KEY: text, **(others or {})}, app_transactions=transactions)


def newest_commit(table: DeltaTable) -> dict[str, Any] | None:
    """Return the metadata of this program's newest commit; None if the table's history has none.

    It is the last commit unless others (such as OPTIMIZE) have committed since.
    """
    for depth in (1, None):
        for commit in table.history(depth):
            if STATE_KEY in commit:
                return dict(commit)
    return None


def committed_progress(table: DeltaTable) -> Progress | None:
    """Return the progress in this program's newest commit; None if there is none."""
    commit = newest_commit(table)
    return None if commit is None else Progress.of(str(commit[STATE_KEY]))


def byte_count(table: DeltaTable) -> int:
    """Return the bytes of all files of the table."""
    return int(sum(pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()))
