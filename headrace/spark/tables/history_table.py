"""A Delta table of every version of every document, with the tokens and times between which it was valid.

    _id, document         the key and the document, canonical Extended JSON
    token, until          valid from this token up to that one, exclusive; null if still valid
    since, ended          the times in these tokens, to the second
    operationType         the operation that made the version: insert, replace, update, snapshot
    endedBy               the operation that ended it: delete, replace, update, drop, ... (see `versions.py`)
    current               whether the version is still valid; the table is partitioned by this column
    server                with several servers: the server of the document

`WHERE current` is the collection; `WHERE token <= T AND (until > T OR until IS NULL)` is the collection at T.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from headrace.spark.rows.events import SERVER
from headrace.spark.rows.key_identity import server_key, split_server_key
from headrace.spark.rows.tokens import Token
from headrace.spark.tables.delta_documents import DeltaDocuments
from headrace.spark.tables.delta_files import StoredFile, note, stored_files
from headrace.spark.tables.document_codec import DocumentCodec, TypedCodec
from headrace.spark.tables.document_files import DocumentFiles, Slots
from headrace.spark.tables.mirror_table import keys_condition
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.table_location import location_of
from headrace.spark.tables.typed.table_schema import SchemaChange, TypedOptions
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
CURRENT: Final = "current"


class VersionTable(Protocol):
    """The versions, and the progress in the same commit. It has one writer at a time."""

    def position(self) -> Progress:
        """Return the last committed position; `Progress()` if the table does not exist. Raise NotAMirror."""

    def current(self, keys: Iterable[str] | None = None, confirmed_before: str = "") -> dict[str, DocumentVersion]:
        """Return the valid versions by key: all, or only those of `keys`, or only those last confirmed before a token.

        With several servers the keys are the keys of `rows/key_identity.py`.
        """

    def read_keys(self) -> Iterator[str]:
        """Yield the keys of the valid versions."""

    def commit(self, changed: list[DocumentVersion], progress: Progress) -> None:
        """Write new and changed versions and store the progress, durably: both or neither."""

    def read(self) -> pa.Table:
        """Return all versions, in any order."""


class HistoryTable(DeltaDocuments[Progress]):
    """See `VersionTable`. `typed`: documents are typed columns; the other columns get the prefix `_`, and `_id` is
    `_key`."""

    def __init__(self, path: str | Path, typed: TypedOptions | None = None) -> None:
        location = location_of(path)
        codec = TypedCodec(typed, f"history {location}") if typed else DocumentCodec()
        super().__init__(Progress, location, codec, CURRENT)

    def current(self, keys: Iterable[str] | None = None, confirmed_before: str = "") -> dict[str, DocumentVersion]:
        wanted = None if keys is None else set(keys)
        table = None if wanted is not None and not wanted else self._open_table.now()
        files = self._files(table, current=True) if table is not None else []
        if table is None or not files:
            return {}
        names = VERSION_NAMES + ([SERVER] if self.of_servers(table) else [])
        schema = pa.schema([SCHEMA_OF_SERVERS.field(name) for name in names])
        condition = keys_condition(self.codec.name("_id"), wanted)
        if confirmed_before:
            condition = pc.field(self.codec.name("confirmed")).cast(pa.large_string()) < confirmed_before
        rows = self.read_rows(table, files, schema, condition)
        return versions_by_key(rows, wanted)

    def read_keys(self) -> Iterator[str]:
        table = self._open_table.now()
        if table is not None:
            yield from self.keys_in(table, self._files(table, current=True))

    def commit(self, changed: list[DocumentVersion], progress: Progress) -> None:
        table, servers = self._open_table.now(), bool(progress.servers)
        rows = self.codec.encoded(table_of(changed, servers=servers), self.columns(table))
        properties = self.properties(progress, rows.metadata)
        if table is None:
            self.write(rows.table, properties)
        elif not changed and rows.change is not SchemaChange.REWRITTEN:
            note(table, properties)
        else:
            files = self._files(table, current=True)
            changing = version_texts(rows.table, self.codec.prefix)
            self.replace(table, rows, files, lambda old: without_versions(old, changing, self.codec.prefix), properties)
        self.codec.committed(rows)

    def read(self) -> pa.Table:
        table = self._open_table.now()
        assert table is not None
        schema = SCHEMA_OF_SERVERS if self.of_servers(table) else SCHEMA
        pieces = [schema.empty_table()]
        for current in (False, True):
            if files := self._files(table, current=current):
                rows = self.read_rows(table, files, _in_files(schema))
                flags = pa.array([current] * rows.num_rows, pa.bool_())
                pieces.append(rows.append_column(schema.field(CURRENT), flags).select(schema.names))
        return pa.concat_tables(pieces)

    def files(self, slots: Slots) -> DocumentFiles | None:
        return self.files_for(slots, SCHEMA, (self.codec.name(CURRENT), True))

    def _files(self, table: DeltaTable, *, current: bool) -> list[StoredFile]:
        return [file for file in stored_files(table) if file.values[self.codec.name(CURRENT)] == current]


VERSION_NAMES: Final = ["_id", "document", "token", "operationType", "confirmed"]
"""The columns of a valid version, in the order of `DocumentVersion`."""


def versions_by_key(rows: pa.Table, keys: set[str] | None) -> dict[str, DocumentVersion]:
    """Return the versions by key; all if `keys` is None. The rows have `VERSION_NAMES` and perhaps the server."""
    columns = [rows.column(name).to_pylist() for name in VERSION_NAMES]
    if SERVER in rows.column_names:
        columns[0] = list(map(server_key, rows.column(SERVER).to_pylist(), columns[0]))
    versions = (DocumentVersion(*values) for values in zip(*columns, strict=True))
    return {version.key: version for version in versions if keys is None or version.key in keys}


def table_of(versions: Iterable[DocumentVersion], *, servers: bool = False) -> pa.Table:
    """Return the versions as rows of the table. `servers`: with the column of the server."""
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


def version_texts(rows: pa.Table, prefix: str) -> pa.ChunkedArray:
    """Return the identity of each row's version: token, server if there is one, and key.

    The names of the columns begin with `prefix`.
    """
    names = (f"{prefix}token", f"{prefix}{SERVER}", "_key" if prefix else "_id")
    columns = [rows.column(name).cast(pa.string()) for name in names if name in rows.column_names]
    return pc.binary_join_element_wise(*columns, " ")


def without_versions(rows: pa.Table, changing: pa.ChunkedArray, prefix: str) -> pa.Table:
    """Return the rows except the current versions whose `version_texts` are in `changing`."""
    gone = pc.is_in(version_texts(rows, prefix), changing.combine_chunks())
    if (current := f"{prefix}{CURRENT}") in rows.column_names:
        gone = pc.and_(gone, rows.column(current))
    return rows.filter(pc.invert(gone))


def _in_files(schema: pa.Schema) -> pa.Schema:
    """Return the schema without the column that partitions the table."""
    return schema.remove(schema.get_field_index(CURRENT))


def _time(token: str | None) -> datetime | None:
    try:
        return None if token is None else datetime.fromtimestamp(Token(token).time.time, UTC)
    except ValueError:
        # A token that no server made contains no time.
        return None


def at(history: pa.Table, token: str) -> pa.Table:
    """Return the rows of a history that are the collection as it was at `token`."""
    until = pc.field("until")
    return history.filter((pc.field("token") <= token) & (until.is_null() | (until > token)))
