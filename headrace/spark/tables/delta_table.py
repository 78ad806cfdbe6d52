"""Mirrors and histories as Delta tables, written by `deltalake`: each batch is one commit, with its position in it.

Documents are text, or typed columns with `_key` and `_token` beside them; with several servers also `_server`.

A large mirror (from about a million rows) is partitioned into buckets by a hash of the key. A batch then reads and
rewrites only files of the buckets that it touches. The column `bucket` has no other meaning. A history is partitioned
by the column `current`, and only files of valid versions are read and rewritten.

Old files are the table's history; a job's upkeep removes them (`upkeep/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable

from headrace.spark.rows.events import SERVER
from headrace.spark.tables.delta_documents import DeltaDocuments
from headrace.spark.tables.delta_files import StoredFile, note, stored_files
from headrace.spark.tables.document_codec import DocumentCodec, TypedCodec
from headrace.spark.tables.document_files import BUCKET, DocumentFiles, Slots
from headrace.spark.tables.document_table import Position, TableChanges, TableKind
from headrace.spark.tables.fold import MirrorState
from headrace.spark.tables.history_table import HISTORY
from headrace.spark.tables.mirror_table import MIRROR, keys_condition
from headrace.spark.tables.progress import NotAMirror, Progress
from headrace.spark.tables.table_location import location_of
from headrace.spark.tables.typed.table_schema import SchemaChange, TypedOptions

_BUCKETS_KEY: Final = "headrace.buckets"


def delta_mirror(
    path: str | Path, buckets: int = 0, typed: TypedOptions | None = None
) -> DeltaDocumentTable[MirrorState]:
    """Return the mirror at the path. `buckets` cannot change after the table is created; 0 for no buckets."""
    table = DeltaDocumentTable(MIRROR, path, typed, buckets)
    table.compact_commits = 50
    return table


def delta_history(path: str | Path, typed: TypedOptions | None = None) -> DeltaDocumentTable[Progress]:
    """Return the history at the path."""
    return DeltaDocumentTable(HISTORY, path, typed)


class DeltaDocumentTable(DeltaDocuments[Position]):
    """See `document_table.DocumentTable`: a table of this kind."""

    def __init__(
        self, kind: TableKind[Position], path: str | Path, typed: TypedOptions | None = None, buckets: int = 0
    ) -> None:
        location = location_of(path)
        codec = TypedCodec(typed, f"{kind.name} {location}") if typed else DocumentCodec()
        super().__init__(kind.position, location, codec, kind.current or (BUCKET if buckets else ""))
        self._kind, self._slots = kind, Slots(1, buckets)

    def commit_of(self, table: DeltaTable) -> dict[str, Any]:
        commit = super().commit_of(table)
        if (buckets := int(commit.get(_BUCKETS_KEY, "0"))) != self._slots.buckets:
            raise NotAMirror(f"the Delta table {self} has {buckets} buckets, not {self._slots.buckets}")
        return commit

    def rows(self, keys: Iterable[str] | None = None, confirmed_before: str = "") -> dict[str, Any]:
        """Return the valid rows by key: all, or those of `keys`, or those last confirmed before a token."""
        wanted = None if keys is None else set(keys)
        table = None if wanted == set() else self._open_table.now()
        files = self._files(table, wanted) if table is not None else []
        if table is None or not files:
            return {}
        every = self._kind.schema(servers=self.of_servers(table))
        names = [name for name in every.names if name in {*self._kind.valid, SERVER}]
        condition = keys_condition(self.codec.name("_id"), wanted)
        if confirmed_before:
            condition = pc.field(self.codec.name("confirmed")).cast(pa.large_string()) < confirmed_before
        return self._kind.parsed(self.read_rows(table, files, _selected(every, names), condition), wanted)

    def read_keys(self) -> Iterator[str]:
        table = self._open_table.now()
        if table is not None:
            yield from self.keys_in(table, self._files(table))

    def commit(self, changes: TableChanges) -> None:
        table = self._open_table.now()
        rows = self.codec.encoded(self._slots.bucketed(changes.rows()), self.columns(table))
        properties = self.properties(changes.state, rows.metadata)
        if table is None or changes.clear:
            self.write(rows.table, properties)
        elif not changes.has_rows and rows.change is not SchemaChange.REWRITTEN:
            note(table, properties)
        else:
            files = self._files(table, changes.keys)
            self.replace(table, rows, files, lambda old: changes.remaining(old, self.codec.prefix), properties)
        self.codec.committed(rows)

    def read(self) -> pa.Table:
        table = self._open_table.now()
        assert table is not None
        schema, current = self._kind.schema(servers=self.of_servers(table)), self._kind.current
        in_files = _selected(schema, [name for name in schema.names if name != current])
        if not current:
            return self.read_rows(table, stored_files(table), in_files)
        pieces = [schema.empty_table()]
        for valid in (False, True):
            if files := self._files(table, valid=valid):
                rows = self.read_rows(table, files, in_files)
                flags = pa.array([valid] * rows.num_rows, pa.bool_())
                pieces.append(rows.append_column(schema.field(current), flags).select(schema.names))
        return pa.concat_tables(pieces)

    def _files(self, table: DeltaTable, keys: Iterable[str] | None = None, *, valid: bool = True) -> list[StoredFile]:
        """Return the files that may have valid rows (or only others), or such rows of the keys."""
        files, buckets = stored_files(table), None if keys is None else set(map(self._slots.bucket, keys))
        if self._kind.current:
            return [file for file in files if file.values[self.codec.name(self._kind.current)] == valid]
        if not self._slots.buckets or buckets is None:
            return files
        return [file for file in files if file.values[self.codec.name(BUCKET)] in buckets]

    def slots(self, count: int) -> Slots:
        buckets = self._slots.buckets
        return Slots(min(count, buckets), buckets) if buckets else super().slots(count)

    def files(self, slots: Slots) -> DocumentFiles | None:
        valid = (self.codec.name(self._kind.current), True) if self._kind.current else None
        return self.files_for(slots, self._slots.bucketed(self._kind.schema().empty_table()).schema, valid)

    def properties(self, position: Position, metadata: Mapping[str, str]) -> CommitProperties:
        buckets = {_BUCKETS_KEY: str(self._slots.buckets)} if self._slots.buckets else {}
        return super().properties(position, {**metadata, **buckets})


def _selected(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])
