"""A mirror as a Delta table of typed columns: those of the documents, `_rest` and `_shape`, and its own `_key` and
`_token`; of several servers also `_server`.

It takes documents as text and returns them as text, as every mirror does (`mirror_table.MirrorTable`); in between they
are columns (`columns/`). Its state and its schema are in the metadata of each commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable

from headrace.spark.rows.events import SERVER
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.server_keys import server_key, split_server_key
from headrace.spark.tables.delta_commits import commit_properties
from headrace.spark.tables.delta_files import note, read_files, replace_rows
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import (
    STATE_KEY,
    NotAMirror,
    id_texts,
    same_key,
    schema,
    stale_condition,
    state_of,
    state_text,
    stored_rows_of,
)
from headrace.spark.tables.table_location import location_of
from headrace.spark.tables.typed.table_schema import SchemaChange, TableSchema, TypedOptions, TypedRows, commit_metadata
from headrace.spark.tables.typed.typed_delta import TypedDelta

COMPACT_COMMITS: Final = 50
_BUCKETS_KEY: Final = "headrace.buckets"
_BUCKET: Final = "_bucket"
_BASE: Final = pa.schema(
    [pa.field("_key", pa.string(), nullable=False), pa.field("_token", pa.string(), nullable=False)]
)
_SERVER: Final = f"_{SERVER}"
_OF_SERVERS: Final = pa.schema([pa.field(_SERVER, pa.string(), nullable=False), *_BASE])


class TypedMirror:
    """See `mirror_table.MirrorTable`; `buckets` as in `delta_mirror.DeltaMirror`."""

    def __init__(self, path: str | Path, options: TypedOptions, buckets: int = 0) -> None:
        location = location_of(path)
        self.schema = TableSchema(options, f"The columns of the mirror {location}.")
        self._buckets = buckets
        self._delta = TypedDelta(location, self.schema, _BASE, [_BUCKET] if buckets else [])

    def __str__(self) -> str:
        return str(self._delta.location)

    def state(self) -> MirrorState:
        table = self._delta.now()
        if table is None:
            return MirrorState()
        commit = self._delta.commit_of(table)
        if (buckets := int(commit.get(_BUCKETS_KEY, "0"))) != self._buckets:
            raise NotAMirror(f"the Delta table {self} has {buckets} buckets, not {self._buckets}")
        return state_of(commit[STATE_KEY])

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        wanted = list(keys)
        table = self._delta.now() if wanted else None
        files = self._files(table, wanted) if table is not None else []
        if table is None or not files:
            return {}
        ids = pa.array(id_texts(wanted), pa.large_string())
        return stored_rows_of(self._read(table, files, pc.field("_key").cast(pa.large_string()).isin(ids)), wanted)

    def read_keys(self) -> Iterator[str]:
        table = self._delta.now()
        if table is not None:
            yield from self._delta.read_keys(table, table.file_uris())

    def commit(self, changes: MirrorChanges) -> None:
        table = self._delta.now()
        self._delta.base = _OF_SERVERS if changes.state.servers else _BASE
        stored = self._delta.stored_schema(table)
        documents = [loads(row.document) for row in changes.upserts.values()]
        typed = self.schema.planned(stored, documents)
        properties = self._properties(changes.state, typed)
        rows = self._table(changes, documents, typed)
        if table is None or changes.clear:
            self._delta.write(rows, properties)
        elif typed.change is SchemaChange.REWRITTEN:
            self._rewrite(table, changes, rows, typed, properties)
        elif not (
            self._rewrite_small(table, changes, rows, typed, properties)
            or self._merge(self._delta.extend(table, typed, rows.schema), changes, rows, properties)
        ):
            note(table, properties)
        self.schema.committed(typed)

    def read(self) -> pa.Table:
        table = self._delta.now()
        assert table is not None
        return self._read(table, table.file_uris(), None)

    def _read(self, table: DeltaTable, files: list[str], condition: Any) -> pa.Table:
        """The rows as a mirror's, documents as text."""
        servers = any(field.name == _SERVER for field in table.schema().fields)
        self._delta.base = _OF_SERVERS if servers else _BASE
        columns = self._delta.columns(table)
        dataset = self._delta.location.dataset(table, files, self._delta.arrow(columns))
        pieces = []
        for batch in dataset.to_batches(filter=condition):
            rows = pa.Table.from_batches([batch])
            documents = pa.array([dumps(document) for document in columns.joined(rows)], pa.string())
            keys = [rows.column(name) for name in ([_SERVER] if servers else []) + ["_key"]]
            pieces.append(pa.table([*keys, documents, rows.column("_token")], schema=schema(servers=servers)))
        return pa.concat_tables(pieces) if pieces else schema(servers=servers).empty_table()

    def _files(self, table: DeltaTable, keys: list[str]) -> list[str]:
        if not self._buckets:
            return list(table.file_uris())
        touched = [str(number) for number in sorted({self._bucket_of(key) for key in keys})]
        return list(table.file_uris(file_pruning_predicate=[(_BUCKET, "in", touched)]))

    def _table(self, changes: MirrorChanges, documents: list[dict[str, Any]], typed: TypedRows) -> pa.Table:
        keys = [split_server_key(key) for key in changes.upserts]
        columns = [[key for _, key in keys], [row.token for row in changes.upserts.values()]]
        if changes.state.servers:
            columns.insert(0, [server for server, _ in keys])
        base = [pa.array(column, pa.string()) for column in columns]
        return self._bucketed(self._delta.rows(base, documents, typed))

    def _bucketed(self, rows: pa.Table) -> pa.Table:
        if not self._buckets:
            return rows
        keys = rows.column("_key").to_pylist()
        if _SERVER in rows.column_names:
            keys = list(map(server_key, rows.column(_SERVER).to_pylist(), keys))
        numbers = [self._bucket_of(key) for key in keys]
        return rows.append_column(pa.field(_BUCKET, pa.int32(), nullable=False), pa.array(numbers, pa.int32()))

    def _bucket_of(self, key: str) -> int:
        return crc32(key.encode()) % self._buckets

    def _rewrite(
        self, table: DeltaTable, changes: MirrorChanges, rows: pa.Table, typed: TypedRows, properties: CommitProperties
    ) -> None:
        def remaining(old: pa.Table) -> pa.Table:
            return changes.remaining(old, "_")

        self._delta.rewrite(table, remaining, rows, typed.columns, properties, self._bucketed)

    def _rewrite_small(
        self, table: DeltaTable, changes: MirrorChanges, rows: pa.Table, typed: TypedRows, properties: CommitProperties
    ) -> bool:
        """Commits the changes of a small table with the columns that it has; False if it is none."""
        files = self._delta.small_files(table, typed) if changes.has_rows and not self._buckets else None
        if files is None:
            return False
        old = read_files(self._delta.location, files, rows.schema)
        merged = pa.concat_tables([changes.remaining(old, "_"), rows])
        replace_rows(self._delta.location, table, [(None, merged)], properties)
        return True

    def _merge(self, table: DeltaTable, changes: MirrorChanges, rows: pa.Table, properties: CommitProperties) -> bool:
        """Whether there was a commit: a merge that finds nothing to do makes none."""
        stale = stale_condition(changes, "_")
        if not changes.has_rows:
            return False
        before = table.version()
        merged = _with_deletes(rows, self._bucketed(_deleted(sorted(changes.deletes), rows)))
        same = same_key(changes, "_")
        if self._buckets and not stale:
            touched = sorted(set(merged.column(_BUCKET).to_pylist()))
            same += f" and target._bucket = new._bucket and target._bucket in ({', '.join(map(str, touched))})"
        merging = table.merge(merged, same, "new", "target", merge_schema=True, commit_properties=properties)
        merging = merging.when_matched_delete("new._gone").when_matched_update_all(
            "not new._gone", except_cols=["_gone"]
        )
        merging = merging.when_not_matched_insert_all("not new._gone", except_cols=["_gone"])
        if stale:
            merging = merging.when_not_matched_by_source_delete(stale)
        merging.execute()
        if table.version() % COMPACT_COMMITS == COMPACT_COMMITS - 1:
            self._delta.compact(table, properties)
        return bool(table.version() > before)

    def _properties(self, state: MirrorState, typed: TypedRows) -> CommitProperties:
        others = commit_metadata(typed.columns.schema)
        if self._buckets:
            others[_BUCKETS_KEY] = str(self._buckets)
        return commit_properties(state_text(state), state.query, state.batch, others)


def _deleted(keys: list[str], rows: pa.Table) -> pa.Table:
    """Rows of the keys that go, with nulls for all that a document would say."""
    split = [split_server_key(key) for key in keys]
    blank = {"_key": pa.array([key for _, key in split], pa.string())}
    blank |= {"_token": pa.array([""] * len(keys), pa.string())}
    blank |= {_SERVER: pa.array([server for server, _ in split], pa.string())}
    names = [name for name in rows.column_names if name != _BUCKET]
    columns = [blank.get(name, pa.nulls(len(keys), rows.schema.field(name).type)) for name in names]
    return pa.table(columns, schema=pa.schema([rows.schema.field(name) for name in names]))


def _with_deletes(rows: pa.Table, deleted: pa.Table) -> pa.Table:
    flags = pa.array([False] * len(rows) + [True] * len(deleted), pa.bool_())
    return pa.concat_tables([rows, deleted]).append_column("_gone", flags)
