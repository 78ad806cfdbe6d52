"""The rows of a history: every version of every document, with the tokens and times between which it was valid.

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

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.rows.events import SERVER
from headrace.spark.rows.key_identity import server_key, split_server_key
from headrace.spark.rows.tokens import Token
from headrace.spark.tables.document_table import DocumentTable, TableChanges, TableKind
from headrace.spark.tables.progress import Progress
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


VERSION_NAMES: Final = ("_id", "document", "token", "operationType", "confirmed")
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


class HistoryChanges(TableChanges):
    """The changes of a history: new and changed versions."""

    def __init__(self, state: Progress, changed: Iterable[DocumentVersion]) -> None:
        self.state = state
        self._rows = table_of(changed, servers=bool(state.servers))

    def rows(self) -> pa.Table:
        return self._rows

    def remaining(self, rows: pa.Table, prefix: str = "") -> pa.Table:
        return without_versions(rows, version_texts(self._rows, ""), prefix)


class VersionTable(DocumentTable[HistoryChanges], Protocol):
    """A history's table."""

    def rows(self, keys: Iterable[str] | None = None, confirmed_before: str = "") -> dict[str, DocumentVersion]:
        """Return the valid versions by key: all, or those of `keys`, or those last confirmed before a token."""


def _schema(*, servers: bool = False) -> pa.Schema:
    return SCHEMA_OF_SERVERS if servers else SCHEMA


HISTORY: Final = TableKind("history", Progress, _schema, VERSION_NAMES, ("_id", "token"), versions_by_key, CURRENT)


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
