"""A mirror as one Parquet file, replaced by a rename: every reader sees one complete state.

    <path>/mirror.parquet     the rows; the mirror's state is in the file's own metadata
    <path>/_writing.parquet   may remain after a crash; readers ignore names that begin with an underscore

Each commit writes the whole table. So this is for collections that a machine writes in about a second (some hundred
thousand documents); a larger mirror is a Delta table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.durable_files import replace_file
from headrace.spark.rows.events import SERVER
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import id_texts, key_texts, names_of, schema, stored_rows_of, upserted
from headrace.spark.tables.position import STATE_KEY, NotAMirror
from headrace.spark.tables.table_location import local_folder


class ParquetMirror:
    """See `mirror_table.MirrorTable`."""

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

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        wanted = list(keys)
        if not self._file.exists() or not wanted:
            return {}
        table = self.read()
        return stored_rows_of(
            table.filter(pc.is_in(table.column("_id"), pa.array(id_texts(wanted), pa.string()))), wanted
        )

    def read_keys(self) -> Iterator[str]:
        if self._file.exists():
            names = [name for name in pq.read_schema(self._file).names if name in {SERVER, "_id"}]
            yield from key_texts(pq.read_table(self._file, columns=names, partitioning=None))

    def commit(self, changes: MirrorChanges) -> None:
        table = upserted(changes)
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
        return rows.select(names).cast(schema(servers=SERVER in names))
