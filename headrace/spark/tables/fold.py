"""The fold of a batch of rows into a mirror: computed from the rows and the mirror's own rows, nothing else.

What must hold: a mirror's row is the document as it was at the row's token. So an event counts for a key exactly
when its token is greater than the row's, and than the mirror's own token, which also speaks for the keys that are
gone. Giving the same rows again, or some of them, changes nothing.

Keys are compared as MongoDB compares them (`rows/key_identity.py`): a row whose key is 1.0 takes the place of one whose
key is 1.

A new snapshot does not empty a mirror: whoever reads it meanwhile finds each document, at the latest as it was before.
The snapshot's rows replace those of their keys, and when it is complete the rows that are older than its beginning go:
what is left of them was not in the collection any more.

Events may come between the chunks of a snapshot, if no chunk is read before the events that are folded before it: a
snapshot of one of several collections. An event of a key whose chunk was not read yet is folded like any other: an
insert or a replacement makes the row, a delete removes it, and the chunk's row, which is newer, takes its place. An
update that finds no row of this snapshot changes nothing: either the chunk's row has it, or the document is gone before
its chunk is read. So early events, those up to the snapshot's end, never need a row and never take one of before the
snapshot as theirs.

Of several servers the rows of each are folded by themselves, since its tokens say nothing of another's: a drop takes
away the rows of that server only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.spark.rows.events import SERVER, SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.json_documents import JsonDocument, with_fields
from headrace.spark.rows.key_identity import key_identity, same_document_key
from headrace.spark.rows.server_keys import of_server, rows_by_server, server_key, split_server_key
from headrace.spark.tables.apply_update import CannotApply, apply_update
from headrace.spark.tables.refused_rows import RowRefused

if TYPE_CHECKING:
    import pyarrow as pa

# After these the collection of that name is another one, or none; what it holds then comes by its own rows.
INVALIDATING: Final = frozenset({"drop", "dropDatabase", "invalidate", "rename"})
# Rows about one document, which they name by its key.
_KEYED: Final = frozenset({"delete", "insert", "replace", "update"})
DOCUMENT_OPERATIONS: Final = _KEYED | {SNAPSHOT}
_PLAIN_KEY: Final = re.compile(r'\{"_id":(\{"\$\w+":"[^"\\]*"\}|"[^"\\]*")\}')
"""A key of one field with a plain value."""
_ALL: Final = "~"
"""Greater than every token."""


class MirrorDiverged(RowRefused):
    """An update came for a document that the mirror does not have, or that it does not fit: not the same collection."""


@dataclass(frozen=True, slots=True)
class MirrorRow:
    """A row of the mirror: the document's text, true at the token. `refused`: a later one was not taken."""

    document: str
    token: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The state that a mirror stores besides its rows, in the same commit.

    Every event up to `token` is in. Up to `snapshot_token`, where the snapshot ended, an update may find no row.
    `batch` is the last batch of the query `query`. While a snapshot comes in over the rows of before, `begun` is the
    token at which it began: older rows do not count any more. The last snapshot of all began at `snapshot_began`;
    without a `snapshot_token` it is not complete.
    """

    token: str = ""
    snapshot_token: str = ""
    query: str = ""
    batch: int = -1
    begun: str = ""
    owner: str = ""
    """The owner of the table (`table_owner.py`); empty if a program without a job made it."""
    snapshot_began: str = ""
    leftovers: bool = False
    """Whether rows of a collection that is gone may be among the others (`leftover_keys.py`)."""
    servers: Mapping[str, MirrorState] = field(default_factory=dict)
    """The state of each of several servers, by its name; `token` is then the last of all."""

    def of_server(self, server: str) -> MirrorState:
        """The state by which rows of this server are folded; an empty name: of the only one."""
        return self.servers.get(server, _NEW) if server else self

    def with_server(self, server: str, state: MirrorState) -> MirrorState:
        """The state when that of this server is `state`."""
        if not server:
            return state
        return replace(self, token=max(self.token, state.token), servers={**self.servers, server: state})

    @property
    def in_snapshot(self) -> bool:
        """Whether a snapshot has begun and is not complete."""
        return bool(self.snapshot_began) and not self.snapshot_token

    def is_early(self, token: str) -> bool:
        """Whether an event at `token` may be of a document that the snapshot did not find, or will find later."""
        return self.in_snapshot or token <= self.snapshot_token

    def has(self, query: str, batch: int) -> bool:
        """Whether this batch of this query is committed."""
        return self.query == query and batch <= self.batch


_NEW: Final = MirrorState()


@dataclass(slots=True)
class MirrorChanges:
    """The changes to a mirror: empty it first if `clear`, then `upserts` and `deletes`, and store `state`.

    Rows with a token below `stale_before` are to go, too.

    `absolute` says that no document here was computed from one in the mirror: done in part and then folded again, the
    rows give the same.
    """

    state: MirrorState
    clear: bool = False
    upserts: dict[str, MirrorRow] = field(default_factory=dict)
    deletes: set[str] = field(default_factory=set)
    event_count: int = 0
    absolute: bool = True
    stale_before: str = ""
    stale_of_servers: dict[str, str] = field(default_factory=dict)
    """The `stale_before` for the rows of each of several servers (keys are then those of `rows/server_keys.py`)."""

    @property
    def has_rows(self) -> bool:
        """Whether rows come, change or go."""
        return bool(self.upserts or self.deletes or self.stale_before or self.stale_of_servers)

    def remaining(self, rows: pa.Table, prefix: str = "") -> pa.Table:
        """Which rows of the mirror stay as they are; its columns' names begin with `prefix`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        keys, tokens = rows.column("_key" if prefix else "_id"), rows.column(f"{prefix}token")
        changed: dict[str, list[str]] = {name: [] for name in self.state.servers or ("",)}
        for key in (*self.upserts, *self.deletes):
            server, text = split_server_key(key)
            changed[server].append(text)
        stays = None
        for server, texts in changed.items():
            stale = self.stale_of_servers.get(server, "") if server else self.stale_before
            gone = pc.or_(pc.less(tokens, stale), pc.is_in(keys, pa.array(texts, pa.string())))
            gone = pc.and_(gone, pc.equal(rows.column(f"{prefix}{SERVER}"), server)) if server else gone
            stays = pc.invert(gone) if stays is None else pc.and_not(stays, gone)
        return rows.filter(stays)


def document_keys(rows: Iterable[Row]) -> set[str]:
    """The keys of all documents that the rows are about, those before a replacement and after it."""
    keys: set[str] = set()
    for row in rows:
        if row.operationType in DOCUMENT_OPERATIONS:
            key = key_of(row)
            keys |= {key, same_document_key(row.fullDocument, key)} if row.fullDocument else {key}
    return keys


def keys_to_read(rows: Iterable[Row]) -> set[str]:
    """The keys whose rows `fold` needs. A snapshot's chunks are new to the mirror, or overwrite it."""
    return set(map(key_text, {row.documentKey for row in rows if row.operationType in _KEYED}))


def key_of(row: Row) -> str:
    """The `_id` as text, which is the key of a mirror's row."""
    return key_text(row.documentKey)


def key_text(text: str | None) -> str:
    """The text of the `_id` in the text of a `documentKey`."""
    plain = _PLAIN_KEY.fullmatch(text or "")
    # A sharded collection's key also has the shard key's fields.
    return plain[1] if plain else dumps(loads(text or "")["_id"])


def fold(
    rows: Iterable[Row], state: MirrorState, existing: Mapping[str, MirrorRow], *, clearing: bool = True
) -> MirrorChanges:
    """The changes that `rows` make to a mirror in `state`; `existing` holds its rows of `keys_to_read(rows)`.

    Rows are taken in the order of their tokens. Without `clearing` nothing takes rows away but their own deletes: no
    drop, no new snapshot. Raises MirrorDiverged.
    """
    folding = _Folding(state, existing, clearing)
    folding.take(sorted(rows, key=attrgetter("token")))
    return folding.changes()


def server_keys_to_read(rows: Iterable[Row]) -> set[str]:
    """The keys whose rows `fold_servers` needs."""
    return {server_key(server, key) for server, some in rows_by_server(rows).items() for key in keys_to_read(some)}


def fold_servers(
    rows: list[Row], state: MirrorState, existing: Mapping[str, MirrorRow], *, clearing: bool = True
) -> MirrorChanges:
    """As `fold`, of one server or of several. Raises MirrorDiverged."""
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
    """A row as it is now: its key's text, the document's text (None: gone), the token at which that is true."""

    key: str
    document: str | None
    token: str


_NOTHING: Final = _Changed("", None, "")


def _text_of(document: dict[str, Any] | JsonDocument | str | None) -> str | None:
    if document is None or isinstance(document, str):
        return document
    return document.text() if isinstance(document, JsonDocument) else dumps(document)


class _Folding:
    """The mirror's rows as they change.

    Rows of documents wait until a row comes that is about more than one (a drop, the beginning of a snapshot), or the
    end. Then they are applied document by document: each is parsed once and written as text once, while it is in the
    processor's caches.
    """

    def __init__(self, state: MirrorState, existing: Mapping[str, MirrorRow], clearing: bool) -> None:
        self._state = state
        self._token = state.token
        self._existing = existing
        self._texts: dict[str, list[str]] = {}
        """The keys of existing rows by their identity: one, but for rows of a snapshot that is still being read."""
        for key in existing:
            self._texts.setdefault(key_identity(key), []).append(key)
        self._refused = {key_identity(key) for key, row in existing.items() if row.refused}
        self._clearing = clearing
        self._clear = False
        self._stale_before = state.begun
        self._absolute = True
        self._count = 0
        self._changed: dict[str, _Changed] = {}
        """By the identity of the key."""
        self._waiting: dict[str, list[Row]] = {}
        """The rows that wait, in order, by the identity of their key."""
        self._waiting_of: dict[str | None, list[Row]] = {}
        """The same lists by the text of `documentKey`: most documents change more than once."""

    def take(self, rows: Iterable[Row]) -> None:
        waiting_of = self._waiting_of
        for row in rows:
            kind = row.operationType
            if kind in _KEYED or kind == SNAPSHOT:
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
        """Applies the rows that wait. Raises MirrorDiverged, of several the first."""
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
        """A snapshot begins. A server that is behind the mirror (restored from a copy) has no token to go by."""
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
        """Applies the rows of one document."""
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
