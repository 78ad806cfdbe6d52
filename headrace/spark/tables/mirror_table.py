"""The rows of a mirror, and its table of one file.

The columns are `_id` (the key as canonical Extended JSON), `document` (the document as the same) and `token` (the
resume token at which the document is true). With several servers the first column is `server`. The mirror's state is
written in the same commit as its rows, so a crash leaves both or neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.durable_files import replace_file
from headrace.spark.rows.events import SERVER
from headrace.spark.rows.key_identity import server_key, split_server_key
from headrace.spark.tables.document_table import DocumentTable, TableChanges, TableContent, TableKind
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState, mirror_schema
from headrace.spark.tables.progress import STATE_KEY, NotAMirror
from headrace.spark.tables.table_location import local_folder


class TableGone(RuntimeError):
    """The table is missing, although the job's checkpoint or the sink's own position says that it was begun."""


class ReadMirror(TableContent, Protocol):
    """The content of a mirror, for a comparison."""

    def position(self) -> MirrorState: ...


MirrorTable = DocumentTable[MirrorChanges]


def open_mirror_table(path: str | Path, kind: str = "delta", *, buckets: int = 0) -> MirrorTable:
    """Return the mirror's table at `path`: `delta` (in `buckets`, if any) or `parquet`. Its first commit creates it."""
    from headrace.spark.tables.delta_table import delta_mirror

    if kind not in KINDS:
        raise ValueError(f"a mirror's table is one of {', '.join(KINDS)}, not {kind!r}")
    if kind == "parquet" and buckets:
        raise ValueError("a mirror of kind parquet is one file: it has no buckets")
    return ParquetMirror(path) if kind == "parquet" else delta_mirror(path, buckets)


KINDS: Final = ("delta", "parquet")


def names_of(columns: Iterable[str]) -> list[str]:
    """Return which of a table's columns belong to its mirror."""
    return [*([SERVER] if SERVER in columns else []), "_id", "document", "token"]


def stored_rows(table: pa.Table) -> dict[str, MirrorRow]:
    """Return a mirror's rows by key; with several servers by the keys of `rows/key_identity.py`."""
    names = names_of(table.column_names)
    columns = [table.column(name).to_pylist() for name in names]
    if SERVER in names:
        servers, keys, *columns = columns
        columns = [[server_key(server, key) for server, key in zip(servers, keys, strict=True)], *columns]
    return {key: MirrorRow(document, token) for key, document, token in zip(*columns, strict=True)}


def stored_rows_of(table: pa.Table, keys: set[str] | None) -> dict[str, MirrorRow]:
    """Return a mirror's rows with these keys (None: all), where `table` may also have rows of other servers."""
    rows = stored_rows(table)
    return rows if keys is None else {key: row for key, row in rows.items() if key in keys}


MIRROR: Final = TableKind("mirror", MirrorState, mirror_schema, ("_id", "document", "token"), ("_id",), stored_rows_of)


def key_texts(rows: pa.Table | pa.RecordBatch) -> Iterator[str]:
    """Return the keys of rows, whose last column is the keys and, with several servers, whose first is the servers."""
    *servers, keys = (column.to_pylist() for column in rows.columns)
    return map(server_key, servers[0], keys) if servers else iter(keys)


def id_texts(keys: Iterable[str]) -> list[str]:
    """Return the texts of the `_id`s in the keys, without duplicates."""
    return list(dict.fromkeys(split_server_key(key)[1] for key in keys))


def keys_condition(column: str, keys: Iterable[str] | None) -> Any:
    """Return the condition that the column of `_id`s has one of the keys; None if `keys` is None."""
    if keys is None:
        return None
    return pc.field(column).cast(pa.large_string()).isin(pa.array(id_texts(keys), pa.large_string()))


class ParquetMirror:
    """A mirror as one Parquet file, replaced by a rename: every reader sees one complete state.

        <path>/mirror.parquet     the rows; the mirror's state is in the file's own metadata
        <path>/_writing.parquet   may remain after a crash; readers ignore names that begin with an underscore

    Each commit writes the whole table. So this is for collections that a machine writes in about a second (some hundred
    thousand documents); a larger mirror is a Delta table.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = local_folder(path)
        self._file = self._path / "mirror.parquet"

    def __str__(self) -> str:
        return str(self._path)

    def position(self) -> MirrorState:
        if not self._file.exists():
            return MirrorState()
        metadata = pq.read_schema(self._file).metadata or {}
        if STATE_KEY.encode() not in metadata:
            raise NotAMirror(f"{self._file} was not written by a mirror")
        return MirrorState.of(metadata[STATE_KEY.encode()].decode())

    def rows(self, keys: Iterable[str] | None = None) -> dict[str, MirrorRow]:
        wanted = None if keys is None else set(keys)
        if not self._file.exists() or wanted == set():
            return {}
        rows, condition = self.read(), keys_condition("_id", wanted)
        return stored_rows_of(rows if condition is None else rows.filter(condition), wanted)

    def read_keys(self) -> Iterator[str]:
        if self._file.exists():
            names = [name for name in pq.read_schema(self._file).names if name in {SERVER, "_id"}]
            yield from key_texts(pq.read_table(self._file, columns=names, partitioning=None))

    def commit(self, changes: TableChanges) -> None:
        table = changes.rows()
        if not changes.clear and self._file.exists():
            table = pa.concat_tables([changes.remaining(self.read()), table])
        self._path.mkdir(parents=True, exist_ok=True)
        table = table.replace_schema_metadata({STATE_KEY: changes.state.text()})
        replace_file(
            self._file, lambda path: pq.write_table(table, path, compression="zstd"), temporary="_writing.parquet"
        )

    def read(self) -> pa.Table:
        rows = pq.read_table(self._file, partitioning=None)
        names = names_of(rows.column_names)
        return rows.select(names).cast(mirror_schema(servers=SERVER in names))
