"""Logs of events: tables that only grow, in Delta or as Parquet files. A commit of rows also stores the progress.

A log of Parquet files has a list of the valid files in the format of Spark's own file sink:

    <path>/part-<query>-<batch>-<uuid>.parquet  a file that a task wrote; after a crash the list may lack it
    <path>/part-00007-<query>-<batch>.parquet   a file of a whole batch that the driver wrote
    <path>/_spark_metadata/7                    `v1`, then a line of JSON for each file; put in place by a rename
    <path>/_spark_metadata/9.compact            every tenth list has the lines of all lists before it

Spark reads the list, and so sees each event once. Readers that take every file of the directory (DuckDB, pandas) may
see a batch twice: give them the files that `ParquetLog.files` returns, or use a Delta table (the sink `changes`).

Unlike Spark's sink, this log survives a lost checkpoint. Spark's sink compares only the batch's number, and drops the
batches of a new query until their numbers exceed the old ones.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from headrace.durable_files import replace_file, sync_folder
from headrace.spark.rows.events import SERVER, SNAPSHOT_KINDS
from headrace.spark.tables.delta_files import WrittenFile, files_between, fits, note
from headrace.spark.tables.delta_table import DeltaDocuments
from headrace.spark.tables.document_codec import DocumentCodec, TypedEvents
from headrace.spark.tables.document_table import TableChanges
from headrace.spark.tables.progress import IDENTITY, STATE_KEY, Progress, RowIdentity
from headrace.spark.tables.staged_files import Encode
from headrace.spark.tables.table_location import local_folder, location_of
from headrace.spark.tables.typed.table_schema import SchemaChange, TypedOptions


@dataclass(frozen=True, slots=True)
class NewRows(TableChanges):
    """The rows to append to a log, perhaps none, and its progress after them.

    Without `table` only the progress is stored, if the log has rows and can store it alone.
    """

    state: Progress
    table: pa.Table | None


class EventLog:
    """An append-only table. The commit of its rows also stores the progress. It has one writer at a time."""

    location: Any = None
    """The `TableLocation` into which tasks can write files before the commit; it need not exist yet. None: only the
    driver writes."""

    def position(self) -> Progress:
        """Return the last committed position; `Progress()` if the table does not exist."""
        raise NotImplementedError

    def commit(self, changes: NewRows) -> None:
        """Append the rows and store the progress, durably: both or neither."""
        raise NotImplementedError

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        """Return the identities of snapshot rows with tokens from `since` on. Slow, and rarely needed."""
        raise NotImplementedError

    def read(self) -> pa.Table:
        """Return all rows, in any order."""
        raise NotImplementedError

    def takes(self, schema: pa.Schema) -> bool:
        """Whether files of rows with these columns can be committed."""
        return self.location is not None

    def encoder(self) -> Encode | None:
        """Return the function, for tasks, that returns the source's rows as stored; None if they are stored unchanged.

        Call it only when `takes` is true.
        """
        return None

    def append_files(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        """Add files (perhaps none) of the location and store the progress, durably: both or neither."""
        raise NotImplementedError


class DeltaLog(DeltaDocuments[Progress], EventLog):
    """A Delta table, in which each batch is one commit. With `typed`, documents are stored as typed columns."""

    def __init__(self, path: str | Path, typed: TypedOptions | None = None) -> None:
        location = location_of(path)
        super().__init__(Progress, location, TypedEvents(typed, f"log {location}") if typed else DocumentCodec())

    def commit(self, changes: NewRows) -> None:
        table = self._open_table.now()
        if changes.table is None:
            note(self._table(), self.properties(changes.state, self.metadata(table)))
            return
        encoded = self.codec.encoded(changes.table, self.columns(table))
        properties = self.properties(changes.state, encoded.metadata)
        if table is not None and encoded.change is SchemaChange.REWRITTEN:
            self.rewrite(table, encoded, lambda old: old, properties)
        else:
            self.location.create()
            # A later release, or another option of the source, may bring columns that the table lacks.
            write_deltalake(
                table or self.location.url, encoded.table, mode="append", schema_mode="merge",
                partition_by=self.partition_by or None, commit_properties=properties,
            )  # fmt: skip
        self.codec.committed(encoded)
        # After the write, `table`, if it existed, is at its new version.
        self.compact(table or self._table(), properties)

    def takes(self, schema: pa.Schema) -> bool:
        table = self._open_table.now()
        columns = self.columns(table)
        if self.schema and not (table and self.schema.settled(columns.schema)):
            return False
        return table is None or fits(table, self.codec.encoded(schema.empty_table(), columns).table.schema)

    def encoder(self) -> Encode | None:
        return partial(self.codec.encoded, columns=self.columns(self._table())) if self.schema else None

    def append_files(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        table = self._open_table.now()
        self._commit(table, files, (), self.properties(progress, self.metadata(table)), schema)

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        table = self._open_table.now()
        if table is None:
            return ()
        wanted = (pc.field("token").cast(pa.large_string()) >= since) & pc.field("operationType").isin(SNAPSHOT_KINDS)
        schema = pa.schema([(name, pa.string()) for name in IDENTITY])
        rows = self.location.dataset(files_between(table, since, None), schema).to_table(filter=wanted)
        return set(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def read(self) -> pa.Table:
        table = self._table()
        rows = table.to_pyarrow_table()
        return self.codec.decoded(rows, rows.schema, self.columns(table))

    def between(self, after: str, upto: str | None = None) -> pa.Table:
        """Return the rows with tokens after `after` up to and including `upto`, sorted by token."""
        table = self._table()
        schema = pa.schema(table.schema().to_arrow())
        token = pc.field("token").cast(pa.large_string())
        wanted = (token > after) & (token <= upto) if upto else token > after
        files = files_between(table, after, upto)
        if not files:
            return schema.empty_table()
        return self.location.dataset(files, schema).to_table(filter=wanted).sort_by("token")

    def _table(self) -> DeltaTable:
        return self._open_table.now() or DeltaTable(self.location.url)


_VERSION: Final = "v1"
_COMPACT_EVERY: Final = 10
_COMPACT: Final = ".compact"


class ParquetLog(EventLog):
    """Parquet files and the list of the valid ones."""

    def __init__(self, path: str | Path) -> None:
        self._path = local_folder(path).absolute()
        self.location = location_of(self._path)
        self._list = self._path / "_spark_metadata"

    def __str__(self) -> str:
        return str(self._path)

    def position(self) -> Progress:
        number = self._last()
        # Spark ignores a key that it does not know.
        return Progress() if number is None else Progress.of(self._lines(number)[-1][STATE_KEY])

    def commit(self, changes: NewRows) -> None:
        if changes.table is None:
            return  # the progress is stored in the line of a file
        rows, progress, last = changes.table, changes.state, self._last()
        number = 0 if last is None else last + 1
        self._list.mkdir(parents=True, exist_ok=True)
        file = self._path / f"part-{number:05}-{progress.query or 'none'}-{progress.batch}.parquet"
        replace_file(file, lambda writing: pq.write_table(rows, writing, compression="zstd"))
        self._commit_list([file], number, progress)

    def append_files(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        if not files:
            self.commit(NewRows(progress, schema.empty_table()))
            return
        last = self._last()
        sync_folder(self._path)
        self._commit_list([self._path / file.name for file in files], 0 if last is None else last + 1, progress)

    def _commit_list(self, files: Sequence[Path], number: int, progress: Progress) -> None:
        """Put the list with this number in place: this is the commit."""
        self._list.mkdir(parents=True, exist_ok=True)
        added = [_line(file) for file in files]
        added[-1][STATE_KEY] = progress.text()
        compact = (number + 1) % _COMPACT_EVERY == 0
        lines = [*(self._all() if compact else []), *added]
        text = "\n".join([_VERSION, *(json.dumps(each, separators=(",", ":")) for each in lines)])
        name = f"{number}{_COMPACT}" if compact else str(number)
        replace_file(self._list / name, lambda writing: writing.write_text(text))

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        if self._last() is None:
            return ()
        table = self.read()
        if SERVER not in table.column_names:
            table = table.append_column(SERVER, pa.nulls(table.num_rows, pa.string()))
        table = table.select(list(IDENTITY))
        kinds = pa.array(SNAPSHOT_KINDS)
        wanted = pc.and_(pc.is_in(table.column(0), kinds), pc.greater_equal(table.column(1), since))
        return set(zip(*(column.to_pylist() for column in table.filter(wanted).columns), strict=True))

    def files(self) -> list[Path]:
        """Return the valid files, in the order of their batches."""
        return [Path(unquote(urlsplit(line["path"]).path)) for line in self._all()]

    def read(self) -> pa.Table:
        return pa.concat_tables([pq.read_table(file, partitioning=None) for file in self.files()])

    def _last(self) -> int | None:
        names = [path.name.removesuffix(_COMPACT) for path in self._list.glob("[0-9]*")] if self._list.is_dir() else []
        return max((int(name) for name in names if name.isdigit()), default=None)

    def _all(self) -> list[dict[str, Any]]:
        """Return the lines of the last compact list and of every later list."""
        last = self._last()
        if last is None:
            return []
        first = max((last + 1) // _COMPACT_EVERY * _COMPACT_EVERY - 1, 0)
        return [line for number in range(first, last + 1) for line in self._lines(number)]

    def _lines(self, number: int) -> list[dict[str, Any]]:
        name = f"{number}{_COMPACT}" if (number + 1) % _COMPACT_EVERY == 0 else str(number)
        return [json.loads(line) for line in (self._list / name).read_text().splitlines()[1:]]


def _line(file: Path) -> dict[str, Any]:
    status = file.stat()
    return {
        "path": file.as_uri(),
        "size": status.st_size,
        "isDir": False,
        "modificationTime": status.st_mtime_ns // 1_000_000,
        "blockReplication": 1,
        "blockSize": 1 << 25,
        "action": "add",
    }
