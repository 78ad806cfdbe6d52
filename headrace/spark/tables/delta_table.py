"""Mirrors and histories as Delta tables: each batch is one commit, with its position in it.

Documents are text, or typed columns with `_key` and `_token` beside them; with several servers also `_server`.

A commit replaces each file that has a changing row by one without that row, and adds the new rows (`delta_files.py`).
Tasks may have written these files (`sinks/folding_sink.py`). If a column's type changes, the commit rewrites the whole
table, one batch of rows after the other.

A large mirror (from about a million rows) is partitioned into buckets by a hash of the key. A batch then reads and
rewrites only files of the buckets that it touches. The column `bucket` has no other meaning. A history is partitioned
by the column `current`, and only files of valid versions are read and rewritten.

Old files are the table's history; a job's upkeep removes them (`upkeep/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.transaction import RemoveAction, create_table_with_add_actions

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.rows.events import SERVER
from headrace.spark.tables.delta_files import (
    FileWriter,
    OpenDeltaTable,
    StoredFile,
    WrittenFile,
    byte_count,
    commit_properties,
    is_plain,
    join_files,
    newest_commit,
    note,
    read_file,
    stored_files,
)
from headrace.spark.tables.document_codec import DocumentCodec, EncodedRows, TypedCodec
from headrace.spark.tables.document_table import Position, TableChanges, TableKind
from headrace.spark.tables.fold import MirrorState
from headrace.spark.tables.history_table import HISTORY
from headrace.spark.tables.mirror_table import MIRROR, key_texts, keys_condition
from headrace.spark.tables.progress import STATE_KEY, NotAMirror, Progress
from headrace.spark.tables.staged_files import BUCKET, DocumentFile, DocumentFiles, Slots
from headrace.spark.tables.table_location import TableLocation, location_of
from headrace.spark.tables.typed.table_schema import (
    SchemaChange,
    TableSchema,
    TypedOptions,
    TypedRows,
    commit_metadata,
)

Reshape = Callable[[pa.Table], pa.Table]
_JOIN_ALL_COMMITS: Final = 2500
"""The number of commits after which joined files are joined, too."""


class DeltaDocuments(Generic[Position]):
    """The table at a location, with a position of the type `kept`. `partition_by` is a column that only partitions the
    table, if any."""

    compact_commits: int = 100
    """The number of commits after which small files are joined: each commit adds about one."""

    def __init__(
        self, kept: type[Position], location: TableLocation, codec: DocumentCodec, partition_by: str = ""
    ) -> None:  # fmt: skip
        self._kept, self.location, self.codec = kept, location, codec
        self._open_table = OpenDeltaTable(location)
        own = [codec.name(partition_by)] if partition_by else []
        self.partition_by = [*own, *(field.name for field in codec.partitions)]

    def __str__(self) -> str:
        return str(self.location)

    @property
    def schema(self) -> TableSchema | None:
        """The schema of typed documents; None if documents are text."""
        return self.codec.schema

    def commit_of(self, table: DeltaTable) -> dict[str, Any]:
        """Return the metadata of this program's newest commit of the table. Raise NotAMirror if there is none."""
        commit = newest_commit(table)
        if commit is None:
            raise NotAMirror(f"the Delta table {self.location} has no commit of this program")
        return commit

    def columns(self, table: DeltaTable | None) -> Any:
        """Return the columns of the table's documents, see `DocumentCodec`. Raise NotAMirror."""
        return self.codec.columns(self.commit_of(table) if table and self.schema else None)

    def metadata(self, table: DeltaTable | None) -> dict[str, str]:
        """Return the part of a commit's metadata that describes the current columns of the documents."""
        return commit_metadata(self.columns(table).schema) if self.schema else {}

    def write(self, rows: pa.Table, properties: CommitProperties) -> None:
        """Replace all rows of the table, or create it."""
        self.location.create()
        write_deltalake(
            self._open_table.now() or self.location.url, rows, mode="overwrite", schema_mode="overwrite",
            partition_by=self.partition_by or None, commit_properties=properties,
        )  # fmt: skip

    def rewrite(self, table: DeltaTable, rows: EncodedRows, remaining: Reshape, properties: CommitProperties) -> None:
        """Write the remaining rows with the new columns, and the new rows, in one commit by deltalake."""
        new = rows.typed.columns if rows.typed else None
        old, dataset = self.columns(table), table.to_pyarrow_dataset()
        there = self.codec.converted(dataset.schema.empty_table(), old, new).schema
        fields = {field.name: field for field in [*there, *rows.table.schema]}
        names = [] if rows.change is SchemaChange.REWRITTEN else dataset.schema.names
        schema = pa.schema([fields[name] for name in dict.fromkeys([*names, *rows.table.schema.names, *fields])])

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in dataset.to_batches():
                stay = remaining(pa.Table.from_batches([batch]))
                if stay.num_rows:
                    yield from _filled(self.codec.converted(stay, old, new), schema).to_batches()
            yield from _filled(rows.table, schema).to_batches()

        self.write(pa.RecordBatchReader.from_batches(schema, batches()), properties)

    def _commit(
        self, table: DeltaTable | None, added: Iterable[WrittenFile], removed: Iterable[str],
        properties: CommitProperties, schema: pa.Schema,
    ) -> None:  # fmt: skip
        """Replace files in one commit; create the table with the columns of the schema if it does not exist."""
        now = SystemClock().now_ms()
        new = [file.added(now) for file in added]
        if table is None:
            self.location.create()
            create_table_with_add_actions(
                self.location.url, Schema.from_arrow(schema), new, partition_by=self.partition_by,
                commit_properties=properties,
            )  # fmt: skip
            return
        old = [RemoveAction(name, True, now) for name in dict.fromkeys(removed)]
        table.create_write_transaction(
            [*new, *old], "append", table.schema(), self.partition_by, commit_properties=properties
        )
        table.update_incremental()
        self.compact(table, properties)

    def compact(self, table: DeltaTable, properties: CommitProperties) -> None:
        """Join small files when due, sorted by the columns that the job names; a large table is sorted by upkeep."""
        following = table.version() + 1
        if following % self.compact_commits == 0:
            target = None if following % _JOIN_ALL_COMMITS == 0 else limits.COMPACT_BYTES
            join_files(table, properties, target, self.codec.cluster, limits.COMPACT_BYTES)

    def position(self) -> Position:
        """Return the last committed position; the first one if the table does not exist. Raise NotAMirror."""
        table = self._open_table.now()
        if table is None:
            return self._kept()
        commit = self.commit_of(table)
        self.codec.columns(commit)
        return self._kept.of(str(commit[STATE_KEY]))

    def properties(self, position: Position, metadata: Mapping[str, str]) -> CommitProperties:
        """Return the properties of a commit of this position, with other metadata."""
        return commit_properties(position.text(), position.query, position.batch, metadata)

    def _extend(self, table: DeltaTable, schema: pa.Schema, metadata: Mapping[str, str]) -> DeltaTable:
        """Add all columns of the schema, in a commit that changes nothing else, and return the table."""
        commit = self.commit_of(table)
        others = {name: str(value) for name, value in commit.items() if name.startswith("headrace.")}
        properties = commit_properties(str(commit[STATE_KEY]), "", -1, {**others, **metadata})
        write_deltalake(table, schema.empty_table(), mode="append", schema_mode="merge", commit_properties=properties)
        now = self._open_table.now()
        assert now is not None
        return now


def _filled(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with all columns of the schema; missing ones are null."""
    columns = [
        rows.column(field.name) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, names=schema.names).cast(schema)


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

    def properties(self, position: Position, metadata: Mapping[str, str]) -> CommitProperties:
        buckets = {_BUCKETS_KEY: str(self._slots.buckets)} if self._slots.buckets else {}
        return super().properties(position, {**metadata, **buckets})

    def slots(self, count: int) -> Slots:
        """Return the slots for the table's rows: `count`, or a multiple for a large table without buckets."""
        if buckets := self._slots.buckets:
            return Slots(min(count, buckets), buckets)
        table = self._open_table.now()
        size = byte_count(table) if table else 0
        while size / count > limits.FOLD_SLOT_BYTES_MAX / 2:
            count *= 2
        return Slots(count)

    def files(self, slots: Slots) -> DocumentFiles | None:
        """Return the files with valid rows, for tasks that rewrite them; None if the driver must fold."""
        table = self._open_table.now()
        columns = self.columns(table)
        if self.schema and not (table and self.schema.settled(columns.schema)):
            return None
        commit, rows = self.metadata(table), self._slots.bucketed(self._kind.schema().empty_table()).schema
        in_files = self.codec.in_files(rows, columns)
        own = [in_files.field(name) for name in self.partition_by if name in in_files.names]
        partitions = (*own, *self.codec.partitions)
        if table is None:
            return DocumentFiles(self.location, slots, (), self.codec, rows, partitions, commit)
        if not is_plain(table) or self.of_servers(table):
            return None
        there = self._files(table)
        if not slots.buckets and sum(file.size for file in there) / slots.count > limits.FOLD_SLOT_BYTES_MAX:
            return None
        files = []
        for each in there:
            owner = each.values[self.partition_by[0]] if slots.buckets else slots.slot_of_file(each.name)
            files.append(DocumentFile(each.name, each.size, each.values, owner or 0, owner is None))
        return DocumentFiles(self.location, slots, tuple(files), self.codec, rows, partitions, commit)

    def of_servers(self, table: DeltaTable) -> bool:
        """Whether the rows name their server."""
        return any(field.name == self.codec.name(SERVER) for field in table.schema().fields)

    def read_rows(
        self, table: DeltaTable, files: Sequence[StoredFile], schema: pa.Schema, condition: Any = None
    ) -> pa.Table:
        """Return the rows of these files with the columns of the schema."""
        columns = self.columns(table)
        dataset = self.location.dataset([file.name for file in files], self.codec.in_files(schema, columns))
        batches = (pa.Table.from_batches([batch]) for batch in dataset.to_batches(filter=condition))
        return pa.concat_tables(
            [schema.empty_table(), *(self.codec.decoded(each, schema, columns) for each in batches)]
        )

    def keys_in(self, table: DeltaTable, files: Sequence[StoredFile]) -> Iterator[str]:
        """Yield the keys of the rows in these files."""
        names = [self.codec.name(name) for name in ([SERVER] if self.of_servers(table) else []) + ["_id"]]
        schema = pa.schema([pa.field(name, pa.string()) for name in names])
        for file in files:
            for rows in read_file(self.location, file, schema):
                yield from key_texts(rows)

    def replace(
        self, table: DeltaTable, rows: EncodedRows, files: Sequence[StoredFile], remaining: Reshape,
        properties: CommitProperties,
    ) -> None:  # fmt: skip
        """Commit the new rows, and the remaining rows of the files that lose rows.

        New columns are in the same commit if the whole table is rewritten, otherwise in a commit before it.
        """
        touched, typed = self._touched(table, files, remaining), rows.change is not SchemaChange.NONE
        anew = rows.change is SchemaChange.REWRITTEN or (typed and len(touched) == len(stored_files(table)))
        # deltalake writes a table on which its owner has set constraints, because it checks them.
        if anew or not is_plain(table):
            self.rewrite(table, rows, remaining, properties)
            return
        if typed:
            table = self._extend(table, rows.table.schema, rows.metadata)
        size, writer = 0, FileWriter(self.location, self.partition_by)
        for file in sorted(touched, key=lambda file: file.size, reverse=True):
            for batch in read_file(self.location, file, rows.table.schema):
                writer.write(remaining(batch))
            size += file.size
            if size > limits.COMPACT_BYTES:
                writer.finish()
                size = 0
        writer.write(rows.table)
        self._commit(table, writer.finish(), [file.name for file in touched], properties, rows.table.schema)

    def _touched(self, table: DeltaTable, files: Sequence[StoredFile], remaining: Reshape) -> list[StoredFile]:
        """Return the files that lose rows, and small files whose rows join the new ones."""
        joined: list[StoredFile] = []
        if not (self.codec.partitions or self.codec.cluster):
            size = 0
            for file in sorted(files, key=lambda file: file.size)[: limits.REWRITTEN_FILE_COUNT_MAX]:
                size += file.size
                joined += [file] if size <= limits.REWRITTEN_BYTES_MAX else []
        names = {self.codec.name(name) for name in ("_id", "token", SERVER)}
        schema = pa.schema([field for field in pa.schema(table.schema().to_arrow()) if field.name in names])

        def changes(file: StoredFile) -> bool:
            return any(remaining(rows).num_rows < rows.num_rows for rows in read_file(self.location, file, schema))

        return [file for file in files if file in joined or changes(file)]

    def commit_files(
        self,
        files: DocumentFiles,
        added: Iterable[WrittenFile],
        removed: Iterable[str],
        position: Position,
        rest_count: int = 0,
    ) -> None:
        """Replace files and store the position, durably: both or neither."""
        self._commit(self._open_table.now(), added, removed, self.properties(position, files.commit), files.stored)
        if self.schema:
            self.schema.committed(TypedRows(files.columns, [], SchemaChange.NONE, rest_count))


def _selected(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])
