"""A history as a Delta table of typed columns: `history_table.HistoryTable`'s columns, with `_` before their names.

_server                       of several servers: whose document it is
_key, _token, _until          the key; from this token on, up to this one exclusive; null: still true
_since, _ended                the times inside these tokens, to the second
_operationType, _endedBy, _confirmed, _current
                              as in a history with documents; `_current` partitions the table
…, _rest, _shape              the document (`columns/`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from headrace.spark.rows.events import SERVER
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.server_keys import server_key
from headrace.spark.tables.delta_commits import commit_properties
from headrace.spark.tables.delta_files import note, read_files, replace_rows
from headrace.spark.tables.history_table import (
    SCHEMA,
    SCHEMA_OF_SERVERS,
    VERSION_NAMES,
    keys_condition,
    replaced_versions,
    table_of,
    versions_by_key,
)
from headrace.spark.tables.mirror_table import STATE_KEY
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.table_location import location_of
from headrace.spark.tables.typed.table_schema import SchemaChange, TableSchema, TypedOptions, TypedRows, commit_metadata
from headrace.spark.tables.typed.typed_delta import TypedDelta
from headrace.spark.tables.versions import DocumentVersion

COMPACT_COMMITS: Final = 100
_NAMES: Final = [name for name in SCHEMA.names if name not in {"_id", "document"}]
_BASE: Final = pa.schema(
    [
        pa.field("_key", pa.string(), nullable=False),
        *(SCHEMA.field(name).with_name(f"_{name}").with_nullable(name != "token") for name in _NAMES),
    ]
)
_SERVER: Final = f"_{SERVER}"
_OF_SERVERS: Final = pa.schema([pa.field(_SERVER, pa.string(), nullable=False), *_BASE])
_CURRENT: Final = [("_current", "=", "true")]
_PARTITION: Final = ("_current", "true")
_SAME: Final = "target._current = true and target._key = new._key and target._token = new._token"
_SAME_OF_SERVERS: Final = f"{_SAME} and target.{_SERVER} = new.{_SERVER}"


class TypedHistory:
    """See `history_table.HistoryTable`."""

    def __init__(self, path: str | Path, options: TypedOptions) -> None:
        location = location_of(path)
        self.schema = TableSchema(options, f"The columns of the history {location}.")
        self._delta = TypedDelta(location, self.schema, _BASE, ["_current"])

    def __str__(self) -> str:
        return str(self._delta.location)

    def progress(self) -> Progress:
        """As last committed; `Progress()` if there is no table yet. Raises NotAMirror."""
        table = self._delta.now()
        return Progress() if table is None else Progress.of(str(self._delta.commit_of(table)[STATE_KEY]))

    def current(self, keys: Iterable[str] | None = None) -> dict[str, DocumentVersion]:
        """The versions that are still valid, by key: all of them, or those of `keys`."""
        wanted = None if keys is None else set(keys)
        table = None if wanted is not None and not wanted else self._delta.now()
        files = table.file_uris(file_pruning_predicate=_CURRENT) if table is not None else []
        if table is None or not files:
            return {}
        rows = self._read(table, files, keys_condition("_key", wanted))
        return versions_by_key(
            rows.select(VERSION_NAMES + [name for name in rows.column_names if name == SERVER]), wanted
        )

    def read_keys(self) -> Iterator[str]:
        """The keys of the versions that are still valid."""
        table = self._delta.now()
        if table is not None:
            yield from self._delta.read_keys(table, table.file_uris(file_pruning_predicate=_CURRENT))

    def commit(self, changed: list[DocumentVersion], progress: Progress) -> None:
        """Writes new and changed versions and stores the progress: both, durably, or neither."""
        table = self._delta.now()
        servers = bool(progress.servers)
        self._delta.base = _OF_SERVERS if servers else _BASE
        documents = [loads(version.document) for version in changed]
        typed = self.schema.planned(self._delta.stored_schema(table), documents)
        others = commit_metadata(typed.columns.schema)
        properties = commit_properties(progress.text(), progress.query, progress.batch, others)
        plain = table_of(changed, servers=servers)
        base = [plain.column(name).combine_chunks() for name in (*([SERVER] if servers else []), "_id", *_NAMES)]
        rows = self._delta.rows(base, documents, typed)
        if table is None:
            self._delta.write(rows, properties)
        elif typed.change is SchemaChange.REWRITTEN:
            self._rewrite(table, changed, rows, typed, properties)
        elif not changed:
            note(table, properties)
        elif not self._rewrite_small(table, rows, typed, properties):
            same = _SAME_OF_SERVERS if servers else _SAME
            self._merge(self._delta.extend(table, typed, rows.schema), rows, same, properties)
        self.schema.committed(typed)

    def read(self) -> pa.Table:
        """All versions, in no order, with their documents as text."""
        table = self._delta.now()
        assert table is not None
        past = table.file_uris(file_pruning_predicate=[("_current", "=", "false")])
        now = table.file_uris(file_pruning_predicate=_CURRENT)
        rows = [self._read(table, files, None, current=files is now) for files in (past, now) if files]
        return pa.concat_tables(rows) if rows else (SCHEMA_OF_SERVERS if _of_servers(table) else SCHEMA).empty_table()

    def _read(self, table: DeltaTable, files: list[str], condition: Any, *, current: bool = True) -> pa.Table:
        """Versions with their documents as text. The partition column is in no file."""
        servers = _of_servers(table)
        schema = SCHEMA_OF_SERVERS if servers else SCHEMA
        self._delta.base = _OF_SERVERS if servers else _BASE
        columns = self._delta.columns(table)
        dataset = self._delta.location.dataset(table, files, self._delta.arrow(columns))
        pieces = []
        for batch in dataset.to_batches(filter=condition):
            rows = pa.Table.from_batches([batch])
            documents = pa.array([dumps(document) for document in columns.joined(rows)], pa.string())
            base = {name: rows.column(f"_{name}") for name in _NAMES}
            base |= {"_id": rows.column("_key"), "document": documents}
            base["current"] = pa.array([current] * rows.num_rows, pa.bool_())
            base |= {SERVER: rows.column(_SERVER)} if servers else {}
            pieces.append(pa.table([base[name] for name in schema.names], schema=schema))
        return pa.concat_tables(pieces) if pieces else schema.empty_table()

    def _rewrite_small(self, table: DeltaTable, rows: pa.Table, typed: TypedRows, properties: CommitProperties) -> bool:
        """Commits the rows with the columns that the table has, if few of it are current; False otherwise."""
        files = self._delta.small_files(table, typed, _PARTITION)
        if files is None:
            return False
        schema = pa.schema([field for field in rows.schema if field.name != _PARTITION[0]])
        old = read_files(self._delta.location, files, schema)
        replaced = replaced_versions(old, rows, "_", _PARTITION)
        replace_rows(self._delta.location, table, replaced, properties, partition=_PARTITION)
        if table.version() % COMPACT_COMMITS == COMPACT_COMMITS - 1:
            self._delta.compact(table, properties)
        return True

    def _merge(self, table: DeltaTable, rows: pa.Table, same: str, properties: CommitProperties) -> None:
        merging = table.merge(rows, same, "new", "target", merge_schema=True, commit_properties=properties)
        merging.when_matched_update_all().when_not_matched_insert_all().execute()
        if table.version() % COMPACT_COMMITS == COMPACT_COMMITS - 1:
            self._delta.compact(table, properties)

    def _rewrite(
        self, table: DeltaTable, changed: list[DocumentVersion], rows: pa.Table, typed: TypedRows,
        properties: CommitProperties,
    ) -> None:  # fmt: skip
        replaced = {(version.key, version.token) for version in changed}

        def remaining(old: pa.Table) -> pa.Table:
            keys, tokens, ends = (old.column(name).to_pylist() for name in ("_key", "_token", "_until"))
            if _SERVER in old.column_names:
                keys = list(map(server_key, old.column(_SERVER).to_pylist(), keys))
            stays = [
                end is not None or (key, token) not in replaced
                for key, token, end in zip(keys, tokens, ends, strict=True)
            ]
            current = pa.array([end is None for end in ends], pa.bool_())
            at = old.schema.get_field_index("_current")
            return old.set_column(at, _BASE.field("_current"), current).filter(pa.array(stays, pa.bool_()))

        self._delta.rewrite(table, remaining, rows, typed.columns, properties)


def _of_servers(table: DeltaTable) -> bool:
    return any(field.name == _SERVER for field in table.schema().fields)
