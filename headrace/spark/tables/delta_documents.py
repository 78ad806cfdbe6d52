"""The base of mirrors and histories: a Delta table of rows with documents, changed in one commit with its state.

A commit merges, or writes the files of a small table anew; new typed columns come with the merge. Where a column's type
must be another one, the table is written anew in that commit, the rows one batch after the other. Or tasks have written
files (`sinks/fold_tasks.py`), which a commit adds in place of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.transaction import RemoveAction, create_table_with_add_actions

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.columns.infer import with_growth
from headrace.spark.rows.events import SERVER
from headrace.spark.tables.delta_commits import byte_count, commit_properties, compact_small_files, newest_commit
from headrace.spark.tables.delta_files import (
    Partition,
    WrittenFile,
    is_plain,
    read_files,
    replace_rows,
    small_files,
)
from headrace.spark.tables.document_codec import DocumentCodec, EncodedRows
from headrace.spark.tables.document_files import DocumentFile, DocumentFiles
from headrace.spark.tables.mirror_table import STATE_KEY, NotAMirror, key_texts
from headrace.spark.tables.open_table import OpenDeltaTable
from headrace.spark.tables.slots import Slots
from headrace.spark.tables.table_location import TableLocation
from headrace.spark.tables.typed.table_schema import (
    SchemaChange,
    TableSchema,
    TypedRows,
    change_of,
    commit_metadata,
)

Reshape = Callable[[pa.Table], pa.Table]
Replaced = Callable[[pa.Table], Sequence[tuple[str | None, pa.Table]]]
"""Makes of the rows of small files those that are then there, by the value of the partition column if there is one."""
GONE: Final = "gone"


class DeltaDocuments:
    """The table at a location; `partition_by` is a column of its own that partitions it, if any."""

    compact_commits: int = 100
    """After how many commits small files are joined."""

    def __init__(self, location: TableLocation, codec: DocumentCodec, partition_by: str = "") -> None:
        self.location, self.codec = location, codec
        self._open_table = OpenDeltaTable(location)
        own = [codec.name(partition_by)] if partition_by else []
        self.partition_by = [*own, *(field.name for field in codec.partitions)]

    def __str__(self) -> str:
        return str(self.location)

    @property
    def schema(self) -> TableSchema | None:
        """The schema of typed documents."""
        return self.codec.schema

    def commit_of(self, table: DeltaTable) -> dict[str, Any]:
        """The metadata of the table's newest commit of this program. Raises NotAMirror if there is none."""
        commit = newest_commit(table)
        if commit is None:
            raise NotAMirror(f"the Delta table {self.location} has no commit of this program")
        return commit

    def columns(self, table: DeltaTable | None) -> Any:
        """The columns of the table's documents, see `DocumentCodec`. Raises NotAMirror."""
        return self.codec.columns(self.commit_of(table) if table and self.schema else None)

    def of_servers(self, table: DeltaTable) -> bool:
        """Whether the rows name their server."""
        return any(field.name == self.codec.name(SERVER) for field in table.schema().fields)

    def read_rows(self, table: DeltaTable, files: Sequence[str], schema: pa.Schema, condition: Any = None) -> pa.Table:
        """Rows of these files, as rows of the schema."""
        columns = self.columns(table)
        dataset = self.location.dataset(table, files, self.codec.in_files(schema, columns))
        batches = (pa.Table.from_batches([batch]) for batch in dataset.to_batches(filter=condition))
        return pa.concat_tables(
            [schema.empty_table(), *(self.codec.decoded(each, schema, columns) for each in batches)]
        )

    def keys_in(self, table: DeltaTable, files: Sequence[str]) -> Iterator[str]:
        """The keys of the rows in these files."""
        names = [self.codec.name(name) for name in ([SERVER] if self.of_servers(table) else []) + ["_id"]]
        if files:
            schema = pa.schema([pa.field(name, pa.string()) for name in names])
            for batch in self.location.dataset(table, files, schema).to_batches():
                yield from key_texts(batch)

    def write(self, rows: pa.Table, properties: CommitProperties) -> None:
        """Makes the table of these rows, in place of what it has."""
        self.location.create()
        write_deltalake(
            self._open_table.now() or self.location.url, rows, mode="overwrite", schema_mode="overwrite",
            partition_by=self.partition_by or None, commit_properties=properties,
        )  # fmt: skip

    def rewrite(
        self, table: DeltaTable, rows: EncodedRows, schema: pa.Schema, remaining: Reshape, properties: CommitProperties
    ) -> None:
        """Writes the remaining rows by the new columns, and the new rows, in one commit.

        `remaining` are the rows of a batch that stay, with the table's own partition column.
        """
        assert rows.typed
        old, new = self.columns(table), rows.typed.columns
        dataset = self.location.dataset(table, table.file_uris(), self.codec.in_files(schema, old))

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in dataset.to_batches():
                stay = remaining(pa.Table.from_batches([batch]))
                if stay.num_rows:
                    converted = self.codec.converted(stay, old, new)
                    yield from converted.select(rows.table.schema.names).cast(rows.table.schema).to_batches()
            yield from rows.table.to_batches()

        self.write(pa.RecordBatchReader.from_batches(rows.table.schema, batches()), properties)

    def replace_small(
        self, table: DeltaTable, rows: EncodedRows, partition: Partition | None, replaced: Replaced,
        properties: CommitProperties,
    ) -> bool:  # fmt: skip
        """Commits what `replaced` makes of a small table, or partition; False if it is none, or lacks columns."""
        if rows.change is not SchemaChange.NONE or self.codec.partitions or self.codec.cluster:
            return False
        files = small_files(table, partition)
        if files is None:
            return False
        there = pa.schema([field for field in rows.table.schema if field.name not in self.partition_by])
        old = read_files(self.location, files, there)
        replace_rows(self.location, table, replaced(old), properties, partition=partition)
        return True

    def merge(
        self, table: DeltaTable, rows: EncodedRows, deleted: pa.Table | None, same: str, stale: str,
        properties: CommitProperties,
    ) -> bool:  # fmt: skip
        """Whether there was a commit: a merge that finds nothing to do makes none.

        `deleted` are rows that go, `same` and `stale` conditions of SQL on the rows `target` and `new`.
        """
        if rows.change is SchemaChange.NESTED:
            # A merge of deltalake that adds a field to a struct drops the structs of the rows that it copies.
            table = self._extend(table, rows.table.schema, rows.metadata)
        before, gone, new = table.version(), self.codec.name(GONE), rows.table
        if deleted is not None:
            flags = pa.array([False] * len(new) + [True] * len(deleted), pa.bool_())
            new = pa.concat_tables([new, deleted]).append_column(gone, flags)
        merging = table.merge(
            new, same, "new", "target", merge_schema=self.schema is not None, commit_properties=properties
        )
        if deleted is None:
            merging = merging.when_matched_update_all().when_not_matched_insert_all()
        else:
            merging = merging.when_matched_delete(f"new.{gone}")
            merging = merging.when_matched_update_all(f"not new.{gone}", except_cols=[gone])
            merging = merging.when_not_matched_insert_all(f"not new.{gone}", except_cols=[gone])
        if stale:
            merging = merging.when_not_matched_by_source_delete(stale)
        merging.execute()
        self.compact(table, properties)
        return bool(table.version() > before)

    def compact(self, table: DeltaTable, properties: CommitProperties) -> None:
        """Joins small files when it is time, sorted by the columns that the job names; a large table upkeep sorts."""
        compact_small_files(table, properties, self.compact_commits, self.codec.cluster)

    def slots(self, count: int) -> Slots:
        """Slots for the table's rows: `count`, or some times as many where the table is large."""
        table = self._open_table.now()
        size = byte_count(table) if table else 0
        while size / count > limits.FOLD_SLOT_BYTES_MAX / 2:
            count *= 2
        return Slots(count)

    def properties(self, state: Any, metadata: Mapping[str, str]) -> CommitProperties:
        """The properties of a commit of this state, with other metadata."""
        raise NotImplementedError

    def files(self, slots: Slots) -> DocumentFiles | None:
        """The table's files, for tasks that write them anew; None if the driver is to fold."""
        raise NotImplementedError

    def files_for(self, slots: Slots, rows: pa.Schema, of: tuple[str, Any] | None = None) -> DocumentFiles | None:
        """As `files`: those `of` a partition, its column and value, or all."""
        table = self._open_table.now()
        columns = self.columns(table)
        if self.schema and not (table and self.schema.settled(columns.schema)):
            return None
        commit = commit_metadata(columns.schema) if self.schema else {}
        in_files = self.codec.in_files(rows, columns)
        own = [in_files.field(name) for name in self.partition_by if name in in_files.names]
        partitions = (*own, *self.codec.partitions)
        if table is None:
            return DocumentFiles(self.location, slots, (), self.codec, rows, partitions, commit)
        if not is_plain(table) or self.of_servers(table):
            return None
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        if of:
            actions = [each for each in actions if each[f"partition.{of[0]}"] == of[1]]
        share = sum(each["size_bytes"] for each in actions) / slots.count
        if not slots.buckets and share > limits.FOLD_SLOT_BYTES_MAX:
            return None
        files = []
        for each in actions:
            values = tuple(each[f"partition.{field.name}"] for field in partitions)
            owner = int(values[0]) if slots.buckets else slots.slot_of_file(each["path"])
            files.append(DocumentFile(each["path"], values, owner or 0, owner is None))
        return DocumentFiles(self.location, slots, tuple(files), self.codec, rows, partitions, commit)

    def grown(self, files: DocumentFiles, wanted: Iterable[str]) -> DocumentFiles | None:
        """The files when the table has what is in the schemas that tasks want; None if the driver is to fold.

        New columns come by a commit that changes nothing else. For other types all files are to be written anew.
        """
        table, schema = self._open_table.now(), self.schema
        assert table and schema
        old = new = files.columns.schema
        for text in wanted:
            new = with_growth(new, schema.of(text), schema.options.rules)
        change = change_of(old, new)
        if change is SchemaChange.REWRITTEN:
            every = self.files_for(files.slots, files.rows)
            return every and replace(every, commit=commit_metadata(new), before=files.commit)
        if change is SchemaChange.NONE:
            return None
        grown = replace(files, commit=commit_metadata(new))
        self._extend(table, grown.stored, grown.commit)
        schema.committed(TypedRows(grown.columns, [], change, 0))
        return grown

    def commit_files(
        self,
        files: DocumentFiles,
        added: Iterable[WrittenFile],
        removed: Iterable[str],
        state: Any,
        rest_count: int = 0,
    ) -> None:
        """Puts files in place of others and stores the state: both, durably, or neither."""
        table, now = self._open_table.now(), SystemClock().now_ms()
        new, properties = [file.added(now) for file in added], self.properties(state, files.commit)
        if table is None:
            self.location.create()
            create_table_with_add_actions(
                self.location.url, Schema.from_arrow(files.stored), new, partition_by=self.partition_by,
                commit_properties=properties,
            )  # fmt: skip
            return
        anew = files.before is not None
        old = [] if anew else [RemoveAction(name, True, now) for name in dict.fromkeys(removed)]
        table.create_write_transaction(
            [*new, *old], "overwrite" if anew else "append",
            Schema.from_arrow(files.stored) if anew else table.schema(), self.partition_by,
            commit_properties=properties,
        )  # fmt: skip
        table.update_incremental()
        if self.schema:
            change = SchemaChange.REWRITTEN if anew else SchemaChange.NONE
            self.schema.committed(TypedRows(files.columns, [], change, rest_count))
        self.compact(table, properties)

    def _extend(self, table: DeltaTable, schema: pa.Schema, metadata: Mapping[str, str]) -> DeltaTable:
        """The table with all columns of the schema, by a commit that changes nothing else."""
        commit = self.commit_of(table)
        others = {name: str(value) for name, value in commit.items() if name.startswith("headrace.")}
        properties = commit_properties(str(commit[STATE_KEY]), "", -1, {**others, **metadata})
        write_deltalake(table, schema.empty_table(), mode="append", schema_mode="merge", commit_properties=properties)
        now = self._open_table.now()
        assert now is not None
        return now
