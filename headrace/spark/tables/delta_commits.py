"""The metadata of a Delta commit of this program: writing it and reading it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction

from headrace import limits
from headrace.spark.tables.position import STATE_KEY
from headrace.spark.tables.progress import Progress

# Each commit adds about one small file. After `COMPACT_COMMITS` commits these are joined; the joined files less often.
COMPACT_COMMITS: Final = 100
_COMPACT_ALL_COMMITS: Final = 2500


def compact_small_files(
    table: DeltaTable, properties: CommitProperties, commits: int = COMPACT_COMMITS, cluster: Sequence[str] = ()
) -> None:
    """Join small files every `commits` commits, sorted by the columns `cluster`, in a commit with these properties.

    A large table is not sorted.
    """
    following = table.version() + 1
    if following % commits:
        return
    columns = cluster_columns(table, cluster) if cluster else []
    if columns and byte_count(table) <= limits.COMPACT_BYTES:
        table.optimize.z_order(columns, commit_properties=properties)
    else:
        target = None if following % _COMPACT_ALL_COMMITS == 0 else limits.COMPACT_BYTES
        table.optimize.compact(target_size=target, commit_properties=properties)


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


def cluster_columns(table: DeltaTable, wanted: Iterable[str]) -> list[str]:
    """Return the wanted columns that a compaction can sort by: columns of the table that do not partition it."""
    names = {field.name for field in table.schema().fields} - set(table.metadata().partition_columns)
    return [name for name in wanted if name in names]


def byte_count(table: DeltaTable) -> int:
    """Return the bytes of all files of the table."""
    return int(sum(pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()))
