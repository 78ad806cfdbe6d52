"""The fold of a batch of rows into a mirror, computed only from these rows and the mirror's own rows.

Rule: a row of the mirror is the document at the row's token. So an event counts for a key exactly when its token is
greater than the row's token and than the mirror's own token, which also covers the keys that were deleted. Folding the
same rows again, or some of them, changes nothing.

Keys are compared as MongoDB compares them (`rows/key_identity.py`): a row with key 1.0 replaces a row with key 1.

A new snapshot does not empty a mirror: its readers find each document, at worst as it was before the snapshot. The
snapshot's rows replace the rows of their keys. When the snapshot is complete, rows older than its beginning are
removed: their documents were no longer in the collection.

Events may come between the chunks of a snapshot of one of several collections, provided that each chunk is read after
the events folded before it. An event whose key's chunk was not read yet is folded like any other: an insert or a
replacement makes the row, a delete removes it, and the row of the chunk, which is newer, replaces it. An update that
finds no row of this snapshot changes nothing: either the row of the chunk includes it, or the document is deleted
before its chunk is read. So early events, up to the snapshot's end, need no row, and never use a row from before the
snapshot.

With several servers, the rows of each are folded separately, because tokens of two servers cannot be compared. A drop
removes only the rows of its server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.rows.events import (
    DOCUMENT_OPERATIONS,
    INVALIDATING,
    KEYED,
    SERVER,
    SNAPSHOT,
    SNAPSHOT_BEGIN,
    SNAPSHOT_END,
    Row,
)
from headrace.spark.rows.extjson import JsonDocument, dumps, loads, with_fields
from headrace.spark.rows.key_identity import (
    key_identity,
    of_server,
    rows_by_server,
    same_document_key,
    server_key,
    split_server_key,
)
from headrace.spark.tables.apply_update import CannotApply, apply_update
from headrace.spark.tables.document_table import TableChanges
from headrace.spark.tables.progress import TablePosition
from headrace.spark.tables.refused_rows import RowRefused

_PLAIN_KEY: Final = re.compile(r'\{"_id":(\{"\$\w+":"[^"\\]*"\}|"[^"\\]*")\}')
"""A `documentKey` of one field with a plain value."""
_ALL: Final = "~"
"""Greater than every token."""


class MirrorDiverged(RowRefused):
    """An update's document is not in the mirror, or does not fit the update: the mirror is of another collection."""


@dataclass(frozen=True, slots=True)
class MirrorRow:
    """A row of the mirror: the document's text, true at the token. `refused`: the target refused a later document."""

    document: str
    token: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class MirrorState(TablePosition):
    """The position of a mirror. Up to `snapshot_token`, where the snapshot ended, an update may find no row.

    While a snapshot replaces earlier rows, `begun` is the token at which it began, and rows with a smaller token no
    longer count. `snapshot_began` is the token at which the last snapshot began; if `snapshot_token` is empty, that
    snapshot is not complete.
    """

    snapshot_token: str = ""
    begun: str = ""
    snapshot_began: str = ""

    @property
    def in_snapshot(self) -> bool:
        """Whether a snapshot has begun and is not complete."""
        return bool(self.snapshot_began) and not self.snapshot_token

    def is_early(self, token: str) -> bool:
        """Whether the document of an event at `token` may be missing: the snapshot has not read it yet, or did not find
        it."""
        return self.in_snapshot or token <= self.snapshot_token


@dataclass(slots=True)
class MirrorChanges(TableChanges):
    """The changes to a mirror: empty it first if `clear`, apply `upserts` and `deletes`, and store `state`.

    Rows with a token below `stale_before` are also removed. `absolute`: no document was computed from a document of the
    mirror. So if the changes are done in part and the rows are folded again, the result is the same.
    """

    state: MirrorState
    clear: bool = False
    upserts: dict[str, MirrorRow] = field(default_factory=dict)
    deletes: set[str] = field(default_factory=set)
    event_count: int = 0
    absolute: bool = True
    stale_before: str = ""
    stale_of_servers: dict[str, str] = field(default_factory=dict)
    """The `stale_before` of each of several servers; keys are then the keys of `rows/key_identity.py`."""

    @property
    def has_rows(self) -> bool:
        return bool(self.upserts or self.deletes or self.stale)

    @property
    def stale(self) -> dict[str, str]:
        return self.stale_of_servers | ({"": self.stale_before} if self.stale_before else {})

    @property
    def keys(self) -> list[str] | None:
        return None if self.stale else [*self.upserts, *self.deletes]

    def rows(self) -> pa.Table:
        return _rows(self.upserts, servers=bool(self.state.servers))

    def deleted(self) -> pa.Table:
        return _rows(dict.fromkeys(sorted(self.deletes), MirrorRow("", "")), servers=bool(self.state.servers))

    def remaining(self, rows: pa.Table, prefix: str = "") -> pa.Table:
        keys, tokens = rows.column("_key" if prefix else "_id"), rows.column(f"{prefix}token")
        changed: dict[str, list[str]] = {name: [] for name in self.state.servers or ("",)}
        for key in (*self.upserts, *self.deletes):
            server, text = split_server_key(key)
            changed[server].append(text)
        stays = None
        for server, texts in changed.items():
            stale = self.stale.get(server, "")
            gone = pc.or_(pc.less(tokens, stale), pc.is_in(keys, pa.array(texts, pa.string())))
            gone = pc.and_(gone, pc.equal(rows.column(f"{prefix}{SERVER}"), server)) if server else gone
            stays = pc.invert(gone) if stays is None else pc.and_not(stays, gone)
        return rows.filter(stays)


def mirror_schema(*, servers: bool = False) -> pa.Schema:
    """Return the columns of every mirror. `servers`: with the column of the server."""
    names = [*([SERVER] if servers else []), "_id", "document", "token"]
    return pa.schema([pa.field(name, pa.string(), nullable=False) for name in names])


def _rows(by_key: Mapping[str, MirrorRow], *, servers: bool) -> pa.Table:
    stored = by_key.values()
    columns = [list(by_key), [row.document for row in stored], [row.token for row in stored]]
    if servers:
        split = list(map(split_server_key, by_key))
        columns[:1] = [[server for server, _ in split], [key for _, key in split]]
    return pa.table([pa.array(column, pa.string()) for column in columns], schema=mirror_schema(servers=servers))


def document_keys(rows: Iterable[Row]) -> set[str]:
    """Return the keys of all documents that the rows are about, before and after each replacement."""
    keys: set[str] = set()
    for row in rows:
        if row.operationType in DOCUMENT_OPERATIONS:
            key = key_of(row)
            keys |= {key, same_document_key(row.fullDocument, key)} if row.fullDocument else {key}
    return keys


def keys_to_read(rows: Iterable[Row]) -> set[str]:
    """Return the keys whose stored rows `fold` needs. A snapshot row needs none: it is new, or overwrites a row."""
    return set(map(key_text, {row.documentKey for row in rows if row.operationType in KEYED}))


def key_of(row: Row) -> str:
    """Return the `_id` as text: the key of a mirror's row."""
    return key_text(row.documentKey)


def key_text(text: str | None) -> str:
    """Return the text of the `_id` from the text of a `documentKey`."""
    plain = _PLAIN_KEY.fullmatch(text or "")
    # In a sharded collection `documentKey` also has the fields of the shard key.
    return plain[1] if plain else dumps(loads(text or "")["_id"])


def fold(
    rows: Iterable[Row], state: MirrorState, existing: Mapping[str, MirrorRow], *, clearing: bool = True
) -> MirrorChanges:
    """Return the changes that `rows` make to a mirror in `state`; `existing` has its rows of `keys_to_read(rows)`.

    Rows are taken in token order. Without `clearing`, only deletes remove rows, not a drop or a new snapshot. Raise
    MirrorDiverged.
    """
    folding = _Folding(state, existing, clearing)
    folding.take(sorted(rows, key=attrgetter("token")))
    return folding.changes()


def server_keys_to_read(rows: Iterable[Row]) -> set[str]:
    """Return the keys whose stored rows `fold_servers` needs."""
    return {server_key(server, key) for server, some in rows_by_server(rows).items() for key in keys_to_read(some)}


def fold_servers(
    rows: list[Row], state: MirrorState, existing: Mapping[str, MirrorRow], *, clearing: bool = True
) -> MirrorChanges:
    """Fold rows of one server or of several, as `fold` does. Raise MirrorDiverged."""
    each = rows_by_server(rows)
    if "" in each:
        return fold(rows, state, existing, clearing=clearing)
    combined = MirrorChanges(state)
    for server, some in each.items():
        changes = fold(some, state.of_server(server), of_server(server, existing), clearing=clearing)
        combined.state = combined.state.with_server(server, changes.state)
        combined.upserts |= {server_key(server, key): row for key, row in changes.upserts.items()}
        combined.deletes |= {server_key(server, key) for key in changes.deletes}
        combined.event_count += changes.event_count
        combined.absolute &= changes.absolute
        if stale := _ALL if changes.clear else changes.stale_before:
            combined.stale_of_servers[server] = stale
    return combined


class _Changed(NamedTuple):
    """A changed row: the text of its key, the text of its document (None if deleted), and the token."""

    key: str
    document: str | None
    token: str


_NOTHING: Final = _Changed("", None, "")


def _text_of(document: dict[str, Any] | JsonDocument | str | None) -> str | None:
    if document is None or isinstance(document, str):
        return document
    return document.text() if isinstance(document, JsonDocument) else dumps(document)


class _Folding:
    """The mirror's rows while they change.

    Rows of documents wait until a row about more than one document (a drop, the beginning of a snapshot), or until the
    end. Then they are applied document by document: each document is parsed once and written as text once, while it is
    in the processor's caches.
    """

    def __init__(self, state: MirrorState, existing: Mapping[str, MirrorRow], clearing: bool) -> None:
        self._state = state
        self._token = state.token
        self._existing = existing
        self._texts: dict[str, list[str]] = {}
        """The keys of existing rows by their identity: one key each, except while a snapshot is being read."""
        for key in existing:
            self._texts.setdefault(key_identity(key), []).append(key)
        self._refused = {key_identity(key) for key, row in existing.items() if row.refused}
        self._clearing = clearing
        self._clear = False
        self._stale_before = state.begun
        self._absolute = True
        self._count = 0
        self._changed: dict[str, _Changed] = {}
        """The changed rows, by the identity of their key."""
        self._waiting: dict[str, list[Row]] = {}
        """The waiting rows, in order, by the identity of their key."""
        self._waiting_of: dict[str | None, list[Row]] = {}
        """The same lists by the text of `documentKey`, because most documents change more than once."""

    def take(self, rows: Iterable[Row]) -> None:
        waiting_of = self._waiting_of
        for row in rows:
            kind = row.operationType
            if kind in KEYED or kind == SNAPSHOT:
                if kind != SNAPSHOT:
                    if row.token <= self._token:
                        continue
                    self._token = row.token
                    self._count += 1
                waiting = waiting_of.get(row.documentKey)
                if waiting is None:
                    waiting = waiting_of[row.documentKey] = self._waiting.setdefault(key_identity(key_of(row)), [])
                waiting.append(row)
            elif kind == SNAPSHOT_BEGIN:
                self._settle()
                self._begin(row.token)
            elif kind == SNAPSHOT_END:
                self._settle()
                self._state = replace(self._state, snapshot_token=row.token, begun="")
            elif row.token > self._token:
                if kind in INVALIDATING:
                    self._settle()
                    self._empty()
                self._token = row.token
                self._count += 1

    def _settle(self) -> None:
        """Apply the waiting rows. Raise the MirrorDiverged with the first token."""
        diverged: MirrorDiverged | None = None
        for identity, rows in self._waiting.items():
            try:
                self._apply(identity, rows)
            except MirrorDiverged as error:
                diverged = error if diverged is None or error.token < diverged.token else diverged
        self._waiting.clear()
        self._waiting_of.clear()
        if diverged is not None:
            raise diverged

    def changes(self) -> MirrorChanges:
        self._settle()
        self._state = replace(self._state, token=self._token)
        changes = MirrorChanges(self._state, clear=self._clear, event_count=self._count, absolute=self._absolute)
        if not self._state.begun:
            changes.stale_before = self._stale_before
        for identity, (key, document, token) in self._changed.items():
            if document is not None:
                changes.upserts[key] = MirrorRow(document, token)
            if not self._clear:
                changes.deletes |= {text for text in self._texts.get(identity, ()) if text not in changes.upserts}
        for identity, texts in self._texts.items():
            if len(texts) > 1 and identity not in self._changed and not self._clear:
                newest = max(texts, key=lambda text: self._existing[text].token)
                changes.deletes |= {text for text in texts if text != newest}
        return changes

    def _begin(self, token: str) -> None:
        """Begin a snapshot. Tokens of a server older than the mirror (restored from a copy) cannot be compared."""
        if token < self._token:
            self._empty()
        elif not self._token:
            pass
        elif self._clearing:
            self._changed.clear()
            self._stale_before = token
        else:
            self._state = replace(self._state, leftovers=True)
        begun = "" if self._clear else self._stale_before
        self._token = token
        self._state = replace(self._state, token=token, snapshot_token="", begun=begun, snapshot_began=token)

    def _apply(self, identity: str, rows: list[Row]) -> None:
        """Apply the rows of one document."""
        key, text, token = self._current(identity)
        document: dict[str, Any] | JsonDocument | str | None = text
        changed = False
        for row in rows:
            if row.operationType == SNAPSHOT:
                key, document = key_of(row), row.fullDocument
            elif row.token <= token:
                continue
            elif row.operationType == "delete":
                key, document = key_of(row), None
            elif row.fullDocument is not None:
                key, document = same_document_key(row.fullDocument, key_of(row)), row.fullDocument
            elif self._state.is_early(row.token) and token < self._state.snapshot_began:
                self._absolute = False
                continue
            elif identity in self._refused and not changed and identity not in self._changed:
                raise MirrorDiverged(
                    f"the document {key_of(row)}, which was updated at {row.token}, was refused before", row.token
                )
            elif document is not None:
                document = self._updated(document, row)
            elif self._state.is_early(row.token):
                self._absolute = False
                continue
            else:
                raise MirrorDiverged(
                    f"the mirror has no document {key_of(row)}, which was updated at {row.token}", row.token
                )
            token, changed = row.token, True
        if changed:
            self._changed[identity] = _Changed(key, _text_of(document), token)

    def _updated(self, before: dict[str, Any] | JsonDocument | str, row: Row) -> dict[str, Any] | JsonDocument:
        self._absolute = False
        if isinstance(before, str | JsonDocument):
            changed = with_fields(before, row.updateDescription or "{}")
            if changed is not None:
                return changed
            before = before if isinstance(before, str) else before.text()
        try:
            document = loads(before) if isinstance(before, str) else before
            return apply_update(document, loads(row.updateDescription or "{}"))
        except CannotApply as error:
            raise MirrorDiverged(f"the update of {row.documentKey} at {row.token}: {error}", row.token) from error

    def _current(self, identity: str) -> _Changed:
        changed = self._changed.get(identity)
        if changed is not None:
            return changed
        texts = () if self._clear else self._texts.get(identity, ())
        if not texts:
            return _NOTHING
        rows = [_Changed(text, self._existing[text].document, self._existing[text].token) for text in texts]
        newest = max(rows, key=lambda row: row.token)
        return newest if newest.token >= self._stale_before else _NOTHING

    def _empty(self) -> None:
        self._state = replace(self._state, leftovers=not self._clearing)
        if self._clearing:
            self._clear = True
            self._changed.clear()
