"""Files and commits of a Delta table that this program reads and writes itself, and the metadata of these commits.

A merge by deltalake plans a query over the table and costs 30 to 50 ms of CPU, even for a few rows. So a file with a
changing row is read, a batch at a time, and its other rows go to a new file.

It is one commit: the new files are durable before it, and the old files stay as the previous version. A crash before
the commit leaves files that no reader uses; upkeep removes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction

from headrace import limits
from headrace.spark.rows.tokens import TIME_END
from headrace.spark.tables.progress import STATE_KEY, Progress
from headrace.spark.tables.table_location import TableLocation

# Properties of tables that only some writers support.
_STRANGE: Final = ("delta.columnMapping.mode", "delta.constraints")


class OpenDeltaTable:
    """The table at a location, for a sink's lifetime. Others may commit to it meanwhile, but not remove it.

    Opening reads every commit since the table's last checkpoint; refreshing reads only new ones.
    """

    def __init__(self, location: TableLocation) -> None:
        self.location = location
        self._table: DeltaTable | None = None

    def now(self) -> DeltaTable | None:
        """Return the table in its present state; None if it does not exist."""
        if self._table is None:
            self._table = self.location.table()
        else:
            self._table.update_incremental()
        return self._table

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenDeltaTable, (self.location,)


def fits(table: DeltaTable, schema: pa.Schema) -> bool:
    """Whether a file with these columns can be added to the table unchanged."""
    if table.metadata().partition_columns or not is_plain(table):
        return False
    there = {field.name: field.type for field in table.schema().fields}
    return all(there.get(field.name) == field.type for field in Schema.from_arrow(schema).fields)


def is_plain(table: DeltaTable) -> bool:
    """Whether no property of the table requires another writer."""
    return not any(name.startswith(_STRANGE) for name in table.metadata().configuration)


def files_between(table: DeltaTable, after: str, upto: str | None) -> list[str]:
    """Return the names of files that, by the log's statistics, may have tokens after `after` up to and including
    `upto`."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = {"path", "min.token", "max.token"} & set(actions.column_names)
    # The log has URL-encoded names.
    return [unquote(each["path"]) for each in actions.select(sorted(names)).to_pylist() if _overlaps(each, after, upto)]


def _overlaps(action: dict[str, Any], after: str, upto: str | None) -> bool:
    least, most = action.get("min.token"), action.get("max.token")
    if not least or not most:
        return True
    soon_enough = upto is None or least[:TIME_END] <= upto[:TIME_END]
    return bool(soon_enough and most[:TIME_END] >= after[:TIME_END])


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the table, with the values of the columns that partition the table."""

    name: str
    size: int
    values: Mapping[str, Any]


def stored_files(table: DeltaTable) -> list[StoredFile]:
    """Return the files of the table."""
    actions, prefix = pa.table(table.get_add_actions(flatten=True)), "partition."
    columns = [name for name in actions.column_names if name.startswith(prefix)]
    return [
        StoredFile(unquote(path), size, {name.removeprefix(prefix): value for name, value in values.items()})
        for path, size, values in zip(
            actions["path"].to_pylist(), actions["size_bytes"].to_pylist(),
            actions.select(columns).to_pylist() if columns else [{}] * len(actions), strict=True,
        )
    ]  # fmt: skip


def read_file(location: TableLocation, file: StoredFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a file in batches, with the columns of the schema; a column that the file lacks is null."""
    import pyarrow.dataset as ds

    there = pa.schema([each for each in schema if each.name not in file.values])
    for batch in ds.dataset([file.name], there, "parquet", location.files).to_batches():
        rows = pa.Table.from_batches([batch])
        for each in schema:
            if each.name in file.values:
                value = pa.scalar(file.values[each.name], each.type)
                rows = rows.append_column(each, pa.repeat(value, rows.num_rows))
        yield rows.select(schema.names)


def note(table: DeltaTable, properties: CommitProperties) -> None:
    """Make a commit without rows."""
    table.create_write_transaction(
        [], "append", table.schema(), table.metadata().partition_columns, commit_properties=properties
    )


class FileWriter:
    """Writes rows to new files, one for each partition; `name` returns the name of the next file."""

    def __init__(
        self, location: TableLocation, partitions: Sequence[str], name: Callable[[], str] | None = None
    ) -> None:  # fmt: skip
        self._location, self._partitions = location, list(partitions)
        self._name = name or (lambda: f"part-{uuid4()}.parquet")
        self._open: dict[tuple[Any, ...], OpenFile] = {}
        self._waiting: list[pa.Table] = []
        self._written: list[WrittenFile] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows, which include the columns of the partitions."""
        if rows.num_rows:
            self._waiting.append(rows)
            if sum(each.nbytes for each in self._waiting) > limits.ROW_GROUP_BYTES:
                self._flush()

    def finish(self) -> tuple[WrittenFile, ...]:
        """Return all files, which are durable. Later rows go to new files."""
        self._flush()
        for values, file in self._open.items():
            texts = dict(zip(self._partitions, map(_partition_text, values), strict=True))
            written = file.close(values=texts)
            self._written += [written] if written else []
        self._open.clear()
        return tuple(self._written)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting.clear()
        names = self._partitions
        each = rows.select(names).group_by(names).aggregate([]).to_pylist() if names else [{}]
        for partition in each:
            some = rows
            for name, value in partition.items():
                some = some.filter(pc.is_null(pc.field(name)) if value is None else pc.field(name) == value)
            values = tuple(partition[name] for name in names)
            if values not in self._open:
                self._open[values] = OpenFile(self._location, self._name())
            self._open[values].write(some.drop_columns(names))


def _partition_text(value: bool | int | str | date | None) -> str | None:
    """Return the value of a partition column as Delta's log writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


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


_DOCUMENTS: Final = frozenset({"document", "fullDocument"})


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A durable file in the table's folder that is not committed yet. `stats` are its statistics for Delta, as JSON.

    `values` are the values of the columns that partition the table. In a file of rows to be folded, which is never
    committed, each row group has the rows of one slot; `slots` lists the slots.
    """

    name: str
    size: int
    stats: str
    slots: tuple[int, ...] = ()
    values: Mapping[str, str | None] = field(default_factory=dict)

    def added(self, now_ms: int) -> AddAction:
        """Return the Delta action that adds the file."""
        return AddAction(self.name, self.size, self.values, now_ms, True, self.stats)


class OpenFile:
    """A new file, created with its first rows. `options` are options of Arrow's writer.

    Its statistics have the smallest and the greatest value of the columns `bounded`; by default, of all columns with an
    order.
    """

    def __init__(
        self, location: TableLocation, name: str, bounded: Collection[str] | None = None, **options: Any
    ) -> None:
        self._location, self._name, self._bounded = location, name, bounded
        self._options = {"compression": "zstd"} | options
        self._writer: pq.ParquetWriter | None = None
        self._count = 0
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._unbounded = set(_DOCUMENTS)

    def write(self, rows: pa.Table) -> None:
        """Add a row group."""
        if self._writer is None:
            self._location.create()
            self._writer = pq.ParquetWriter(self._name, rows.schema, filesystem=self._location.files, **self._options)
        self._writer.write_table(rows)
        self._count += rows.num_rows
        for each in rows.schema:
            if (self._bounded is None and _has_order(each.type)) or each.name in (self._bounded or ()):
                self._widen(each.name, pc.min_max(rows.column(each.name)).as_py())

    def close(self, **more: Any) -> WrittenFile | None:
        """Make the file durable and return it; None if there are no rows. `more` sets other fields of the result."""
        if self._writer is None:
            return None
        self._writer.close()
        self._location.sync_file(self._name)
        size = self._location.size(self._name)
        assert size is not None
        return WrittenFile(self._name, size, _statistics(self._count, self._bounds), **more)

    def abandon(self) -> None:
        """Remove the unfinished file."""
        if self._writer is not None:
            self._writer.close()
            self._location.remove_file(self._name)

    def _widen(self, name: str, both: dict[str, Any]) -> None:
        pair = both["min"], both["max"]
        if None in pair or name in self._unbounded:
            return
        if any(len(str(each)) > limits.STATISTIC_CHARACTER_COUNT_MAX for each in pair):
            self._unbounded.add(name)
            self._bounds.pop(name, None)
            return
        least, most = self._bounds.get(name, pair)
        self._bounds[name] = min(least, pair[0]), max(most, pair[1])


def _has_order(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_timestamp(kind))


def _statistics(row_count: int, bounds: Mapping[str, tuple[Any, Any]]) -> str:
    """Return Delta's statistics of a file, as JSON, from the smallest and greatest values of columns."""
    least = {name: _statistic(pair[0], up=False) for name, pair in bounds.items()}
    most = {name: _statistic(pair[1], up=True) for name, pair in bounds.items()}
    return json.dumps({"numRecords": row_count, "minValues": least, "maxValues": most})


def _statistic(value: Any, *, up: bool) -> str | int:
    """Return a bound for Delta's statistics. Times are rounded outwards to milliseconds."""
    if not isinstance(value, datetime):
        return value if isinstance(value, int) else str(value)
    moment = value.astimezone(UTC)
    rest = timedelta(microseconds=moment.microsecond % 1000)
    moment += timedelta(milliseconds=1) - rest if up and rest else -rest
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"
