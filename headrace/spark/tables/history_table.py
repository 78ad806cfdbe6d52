"""A Delta table of every version of every document, with the tokens and times between which it was true.

    _id, document         the key and the document, canonical Extended JSON
    token, until          from this token on, up to this one exclusive; null: still true
    since, ended          the times inside these tokens, to the second
    operationType         what made it: insert, replace, update, snapshot
    endedBy               what ended it: delete, replace, update, drop, rename, ..., snapshot (see `versions.py`)
    current               the table's partitions: the versions still true, and the others
    server                of several servers: whose document it is

`WHERE current` is the collection; `WHERE token <= T AND (until > T OR until IS NULL)` is the collection at T.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from headrace.spark.rows.events import SERVER
from headrace.spark.rows.server_keys import server_key, split_server_key
from headrace.spark.rows.tokens import Token
from headrace.spark.tables.delta_commits import commit_properties, compact_small_files, progress_of
from headrace.spark.tables.delta_files import Partition, note, read_files, replace_rows, small_files
from headrace.spark.tables.mirror_table import key_texts
from headrace.spark.tables.open_table import OpenDeltaTable
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.table_location import location_of
from headrace.spark.tables.versions import DocumentVersion

SCHEMA: Final = pa.schema(
    [
        pa.field("_id", pa.string(), nullable=False),
        pa.field("document", pa.string(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("until", pa.string()),
        pa.field("since", pa.timestamp("us", "UTC")),
        pa.field("ended", pa.timestamp("us", "UTC")),
        pa.field("operationType", pa.string()),
        pa.field("endedBy", pa.string()),
        pa.field("confirmed", pa.string()),
        pa.field("current", pa.bool_(), nullable=False),
    ]
)
SCHEMA_OF_SERVERS: Final = pa.schema([*SCHEMA, pa.field(SERVER, pa.string(), nullable=False)])
_CURRENT: Final = [("current", "=", "true")]
_PARTITION: Final = ("current", "true")
_SAME: Final = "target.current = true and target._id = new._id and target.token = new.token"
_SAME_OF_SERVERS: Final = f"{_SAME} and target.{SERVER} = new.{SERVER}"


class VersionTable(Protocol):
    """The versions, and the progress in the same commit. One writer at a time."""

    def progress(self) -> Progress:
        """As last committed; `Progress()` if there is no table yet. Raises NotAMirror."""

    def current(self, keys: Iterable[str] | None = None) -> dict[str, DocumentVersion]:
        """The versions that are still valid, by key: all of them, or those of `keys`.

        Of several servers the keys are those of `rows/server_keys.py`.
        """

    def read_keys(self) -> Iterator[str]:
        """The keys of the versions that are still valid."""

    def commit(self, changed: list[DocumentVersion], progress: Progress) -> None:
        """Writes new and changed versions and stores the progress: both, durably, or neither."""

    def read(self) -> pa.Table:
        """All versions, in no order."""


class HistoryTable:
    """See `VersionTable`."""

    def __init__(self, path: str | Path) -> None:
        self._location = location_of(path)
        self._open_table = OpenDeltaTable(self._location)

    def __str__(self) -> str:
        return str(self._location)

    def progress(self) -> Progress:
        return progress_of(self._open_table)

    def current(self, keys: Iterable[str] | None = None) -> dict[str, DocumentVersion]:
        wanted = None if keys is None else set(keys)
        table = None if wanted is not None and not wanted else self._open_table.now()
        files = table.file_uris(file_pruning_predicate=_CURRENT) if table is not None else []
        if table is None or not files:
            return {}
        names = VERSION_NAMES + ([SERVER] if any(field.name == SERVER for field in table.schema().fields) else [])
        schema = pa.schema([SCHEMA_OF_SERVERS.field(name) for name in names])
        rows = self._location.dataset(table, files, schema).to_table(filter=keys_condition("_id", wanted))
        return versions_by_key(rows, wanted)

    def read_keys(self) -> Iterator[str]:
        table = self._open_table.now()
        if table is not None and (files := table.file_uris(file_pruning_predicate=_CURRENT)):
            names = [name for name in (SERVER, "_id") if name in {field.name for field in table.schema().fields}]
            schema = pa.schema([pa.field(name, pa.string()) for name in names])
            for batch in self._location.dataset(table, files, schema).to_batches():
                yield from key_texts(batch)

    def commit(self, changed: list[DocumentVersion], progress: Progress) -> None:
        properties = commit_properties(progress.text(), progress.query, progress.batch)
        rows = table_of(changed, servers=bool(progress.servers))
        table = self._open_table.now()
        if table is None:
            self._location.create()
            write_deltalake(
                self._location.url, rows, mode="append", partition_by=["current"], commit_properties=properties
            )
            return
        if not changed:
            note(table, properties)
            return
        if self._rewrite(table, rows, properties):
            compact_small_files(table, properties)
            return
        merging = table.merge(
            rows, _SAME_OF_SERVERS if progress.servers else _SAME, "new", "target", commit_properties=properties
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()
        compact_small_files(table, properties)

    def _rewrite(self, table: DeltaTable, rows: pa.Table, properties: CommitProperties) -> bool:
        """Commits the rows if the table has few that are current; False otherwise."""
        files = small_files(table, _PARTITION)
        if files is None:
            return False
        schema = pa.schema([field for field in rows.schema if field.name != _PARTITION[0]])
        old = read_files(self._location, files, schema)
        replace_rows(
            self._location, table, replaced_versions(old, rows, "", _PARTITION), properties,
            partition=_PARTITION,
        )  # fmt: skip
        return True

    def read(self) -> pa.Table:
        rows = DeltaTable(self._location.url).to_pyarrow_table()
        return rows.select([name for name in SCHEMA_OF_SERVERS.names if name in rows.column_names])


VERSION_NAMES: Final = ["_id", "document", "token", "operationType", "confirmed"]
"""The columns of a version that is still valid, in the order of `DocumentVersion`."""


def keys_condition(column: str, keys: Iterable[str] | None) -> Any:
    """The condition that the column, of the keys' `_id`s, has one of the keys; None for all."""
    if keys is None:
        return None
    texts = {split_server_key(key)[1] for key in keys}
    return pc.field(column).cast(pa.large_string()).isin(pa.array(sorted(texts), pa.large_string()))


def versions_by_key(rows: pa.Table, keys: set[str] | None) -> dict[str, DocumentVersion]:
    """The versions in the rows, which have `VERSION_NAMES` and maybe the server, by key; None: all of them."""
    columns = [rows.column(name).to_pylist() for name in VERSION_NAMES]
    if SERVER in rows.column_names:
        columns[0] = list(map(server_key, rows.column(SERVER).to_pylist(), columns[0]))
    versions = (DocumentVersion(*values) for values in zip(*columns, strict=True))
    return {version.key: version for version in versions if keys is None or version.key in keys}


def table_of(versions: Iterable[DocumentVersion], *, servers: bool = False) -> pa.Table:
    """The versions as rows of the table; `servers`: of one of several."""
    schema = SCHEMA_OF_SERVERS if servers else SCHEMA
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for version in versions:
        server, key = split_server_key(version.key)
        values = (
            key, version.document, version.token, version.until, _time(version.token), _time(version.until),
            version.operation, version.ended_by, version.confirmed, version.until is None,
            server,
        )  # fmt: skip
        for name, value in zip(columns, values, strict=False):
            columns[name].append(value)
    return pa.table(columns, schema=schema)


def replaced_versions(old: pa.Table, new: pa.Table, prefix: str, partition: Partition) -> list[tuple[str, pa.Table]]:
    """The current versions and the new past ones, after `new` was put in place of what is `old` of them.

    Columns' names begin with `prefix`.
    """
    key = "_key" if prefix else "_id"
    names = [name for name in (f"{prefix}{SERVER}", key, f"{prefix}token") if name in new.column_names]
    changed = set(zip(*(new.column(name).to_pylist() for name in names), strict=True))
    there = zip(*(old.column(name).to_pylist() for name in names), strict=True)
    stays = old.filter(pa.array([each not in changed for each in there], pa.bool_()))
    is_current = new.column(partition[0])
    rows = new.drop_columns([partition[0]])
    current = pa.concat_tables([stays, rows.filter(is_current)])
    return [("true", current), ("false", rows.filter(pc.invert(is_current)))]


def _time(token: str | None) -> datetime | None:
    try:
        return None if token is None else datetime.fromtimestamp(Token(token).time.time, UTC)
    except ValueError:
        # A token that no server made has no time.
        return None


def at(history: pa.Table, token: str) -> pa.Table:
    """The rows of a history that are the collection as it was at `token`."""
    until = pc.field("until")
    return history.filter((pc.field("token") <= token) & (until.is_null() | (until > token)))
