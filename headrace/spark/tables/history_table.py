"""A history: every version of every document, with the tokens and times between which it was valid.

    _id, document         the key and the document, canonical Extended JSON
    token, until          valid from this token up to that one, exclusive; null if still valid
    since, ended          the times in these tokens, to the second
    operationType         the operation that made the version: insert, replace, update, snapshot
    endedBy               the operation that ended it: delete, replace, update, drop, ...
    current               whether the version is still valid; the table is partitioned by this column
    server                with several servers: the server of the document

`WHERE current` is the collection; `WHERE token <= T AND (until > T OR until IS NULL)` is the collection at T, for any T
that the history covers (slowly changing dimension, type 2).

After a new snapshot (a lost checkpoint) the events in between are unknown. A document that has changed or is gone ends
with `endedBy` = `snapshot`; an unchanged document continues.

Events may come between the chunks of a snapshot, by the rule in `fold.py`. From the snapshot's end on the history is
exact. Before it, a version may begin at its chunk instead of at its event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.rows.events import (
    DOCUMENT_OPERATIONS,
    INVALIDATING,
    SERVER,
    SNAPSHOT,
    SNAPSHOT_BEGIN,
    SNAPSHOT_END,
    Row,
)
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity, same_document_key, server_key, split_server_key
from headrace.spark.rows.tokens import Token
from headrace.spark.tables.apply_update import CannotApply, apply_update
from headrace.spark.tables.document_table import DocumentTable, TableChanges, TableKind
from headrace.spark.tables.fold import MirrorDiverged, key_of
from headrace.spark.tables.progress import CollectionGone, Progress, Sieve


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """A document from `token` until `until` (None: still valid), last seen unchanged at the token `confirmed`."""

    key: str
    document: str
    token: str
    operation: str
    confirmed: str
    until: str | None = None
    ended_by: str | None = None


OpenVersions = Mapping[str, DocumentVersion]


class VersionChanges:
    """Applies rows in order; `changed` then has the versions to write.

    `everything` returns the open versions: those confirmed before a token, when a snapshot ends, or, for an empty
    token, all of them, when the collection is gone.
    """

    def __init__(
        self, progress: Progress, opened: OpenVersions, everything: Callable[[str], OpenVersions], policy: str
    ) -> None:
        self._sieve = Sieve(progress)
        self._before = opened
        self._everything = everything
        self._policy = policy
        self._now: dict[str, DocumentVersion | None] = {}
        self._all_read = False
        self._texts = {key_identity(key): key for key in opened} if policy == "keep" or progress.leftovers else {}
        """The keys of open versions by their identity, if kept versions may have another text of the same key."""
        self.changed: dict[tuple[str, str], DocumentVersion] = {}

    @property
    def progress(self) -> Progress:
        """The progress after the rows so far."""
        return self._sieve.progress

    @property
    def event_count(self) -> int:
        """The number of new events in the rows so far."""
        return self._sieve.event_count

    def take(self, row: Row) -> None:
        """Apply a row, if it is new. Raise CollectionGone, MirrorDiverged."""
        before = self.progress
        if not self._sieve.is_new(row):
            return
        kind = row.operationType
        if self._policy == "keep" and before.token and kind in {SNAPSHOT_BEGIN, *INVALIDATING}:
            self._sieve.progress = replace(self.progress, leftovers=True)
        if kind == SNAPSHOT:
            self._snapshot(row)
        elif kind == SNAPSHOT_END and self._policy != "keep":
            self._end_unconfirmed(before.begun)
        elif kind in INVALIDATING:
            self._emptied(row)
        elif kind in DOCUMENT_OPERATIONS and kind != SNAPSHOT_BEGIN:
            self._event(row)

    def _current(self, key: str) -> DocumentVersion | None:
        version = self._now[key] if key in self._now else self._before.get(key)
        same = self._texts.get(key_identity(key), key) if self._texts else key
        return version if version or same == key else self._current(same)

    def _put(self, version: DocumentVersion) -> None:
        self.changed[version.key, version.token] = version
        self._now[version.key] = None if version.until else version
        if self._policy == "keep" or self.progress.leftovers:
            self._texts[key_identity(version.key)] = version.key

    def _end(self, version: DocumentVersion, until: str, ended_by: str) -> None:
        self._put(replace(version, until=until, ended_by=ended_by))

    def _begin(self, key: str, document: str, row: Row) -> None:
        self._put(DocumentVersion(key, document, row.token, row.operationType or "", row.token))

    def _snapshot(self, row: Row) -> None:
        key, document = key_of(row), row.fullDocument or ""
        version = self._current(key)
        if version and version.confirmed >= row.token:
            return
        if version and version.document == document:
            self._put(replace(version, confirmed=row.token))
            return
        if version:
            self._end(version, row.token, SNAPSHOT)
        self._begin(key, document, row)

    def _end_unconfirmed(self, begun: str) -> None:
        for version in self._all_open(begun):
            if version.confirmed < begun:
                self._end(version, begun, SNAPSHOT)

    def _emptied(self, row: Row) -> None:
        if self._policy == "fail":
            raise CollectionGone.by(row)
        if self._policy == "follow":
            for version in self._all_open():
                self._end(version, row.token, row.operationType or "")

    def _all_open(self, confirmed_before: str = "") -> list[DocumentVersion]:
        if not self._all_read:
            self._before = {**self._before, **self._everything(confirmed_before)}
            self._all_read = not confirmed_before
        keys = dict.fromkeys([*self._before, *self._now])
        return [version for key in keys if (version := self._current(key))]

    def _event(self, row: Row) -> None:
        key = key_of(row)
        version = self._current(key)
        if version and row.token <= version.confirmed:
            return
        if row.fullDocument is None and row.operationType != "delete" and self._is_early(row, version):
            return
        document = self._document(row, version)
        if version and document != version.document:
            self._end(version, row.token, row.operationType or "")
        elif version:
            # The document is unchanged (such as a replacement by itself), so the version continues.
            self._put(replace(version, confirmed=row.token))
            return
        if document is not None:
            name = same_document_key(document, key)
            after = self._current(name) if name != key else None
            if after and after.confirmed >= row.token:
                return  # a chunk has already brought the document under its new key
            if after:
                self._end(after, row.token, row.operationType or "")
            self._begin(name, document, row)

    def _is_early(self, row: Row, version: DocumentVersion | None) -> bool:
        """Whether the snapshot has not read the updated document yet, or did not find it."""
        progress = self.progress
        if row.token > progress.ended and not progress.in_snapshot:
            return False
        return version is None or version.confirmed < progress.begun

    def _document(self, row: Row, version: DocumentVersion | None) -> str | None:
        if row.operationType == "delete":
            return None
        if row.fullDocument is not None:
            return row.fullDocument
        if version is None:
            message = f"the history has no document {key_of(row)}, which was updated at {row.token}"
            raise MirrorDiverged(message, row.token)
        try:
            return dumps(apply_update(loads(version.document), loads(row.updateDescription or "{}")))
        except CannotApply as error:
            raise MirrorDiverged(f"the update of {row.documentKey} at {row.token}: {error}", row.token) from error


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
