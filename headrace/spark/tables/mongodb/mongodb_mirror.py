"""A mirror as a collection of another MongoDB or Headrace, with its position in the same database, whatever crashes.

    <collection>           the documents
    headrace.positions     {_id: <collection>, state: …, there: true, pending: {parts, clear, stale_before, next}}
    headrace.redo          {_id: "<collection>/<part>", of: <collection>, bson: …}  what a commit is about to do
    headrace.tokens        {_id: "<collection>/<key>", of: <collection>, token: …}  while a snapshot is caught up with

No transaction is needed (a standalone server has none), because a commit is in this order:

1. what is to be written, as whole documents or fields set to values, goes to `headrace.redo`;
2. `pending` in the position says that it is complete: this is the moment of the commit;
3. the writes are done; doing them twice gives the same;
4. the position is the new one, and no longer pending.

A crash before 2 changes nothing; behind it, whoever opens the table next does 3 and 4. When no document is computed
from the target's own (a snapshot, inserts, deletes), 1 and 2 are left out: the batch given again does the same.

What the target refuses (a validator, a unique index, the size) is known in 3 only. `on_outcome` is called between 3 and
4; without it the position stays where it is. A document that was refused is as before, and takes no update until
a later one is taken.

Documents that others write into the collection remain, unless the source has their keys. A collection that is gone,
although it was `there` after the last commit, is a TableGone: what comes next would make one with a part of the
documents.

The server takes 1 and 1.0 for one `_id`, so a token's key is the key's identity (`rows/key_identity.py`), and deletes
come before other writes: a document that comes back with a key of another type is deleted and inserted. A document with
a name that begins with `$` cannot replace another one as it is (error 52), and is sent as the literal of a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bson import ObjectId
from pymongo import DeleteOne, ReplaceOne, UpdateOne
from pymongo.errors import OperationFailure

from headrace import limits
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import TableGone, schema, state_of, state_text
from headrace.spark.tables.mongodb.refused_writes import write_all
from headrace.spark.tables.refused_rows import CommitOutcome, RefusedWrite, RowRefused
from headrace.values.bson import OPTIONS, decode, encode

if TYPE_CHECKING:
    import pyarrow as pa
    from pymongo import MongoClient

# From so many characters on an update that changes a few fields is sent as those fields.
_FIELDS_FROM: Final = 1024

_UNAUTHORIZED: Final = 13

Document = dict[str, Any]


_READING: Final = ContextVar("reading", default=False)


@contextmanager
def only_reading() -> Iterator[None]:
    """Inside, a commit that is not complete is left to its job, which may be at it: its writes must not come later
    than the job's next ones.
    """
    before = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(before)


class CommitRefused(RowRefused):
    """The target has refused documents of a commit; `state` is what it will be when this is settled."""

    def __init__(self, message: str, token: str, state: MirrorState) -> None:
        super().__init__(message, token)
        self.state = state


class MayNotWrite(RuntimeError):
    """The user of the target has not the rights that a copy needs."""


class MongoMirror:
    """See `mirror_table.MirrorTable` and `refused_rows.RefusesAsItWrites`."""

    def __init__(self, client: MongoClient[Document], database: str, collection: str) -> None:
        self.collection = collection
        self._database = client.get_database(database, codec_options=OPTIONS)
        self._documents = self._database[collection]
        self._positions = self._database["headrace.positions"]
        self._redo = self._database["headrace.redo"]
        self._tokens = self._database["headrace.tokens"]
        self._seen: dict[str, MirrorRow] = {}
        self._refused: set[str] = set()
        """The identities of the keys whose last document was refused."""
        self.on_outcome: Callable[[CommitOutcome], object] | None = None
        self._has_begun = self._is_there = False
        """Whether a position was seen, and the collection with it."""

    def __str__(self) -> str:
        return f"{self._database.name}.{self.collection}"

    def state(self) -> MirrorState:
        position = self._positions.find_one({"_id": self.collection}) or {}
        self._check_there(position)
        if "state" not in position and ("pending" not in position or _READING.get()):
            return MirrorState()
        if "pending" in position and not _READING.get():
            self._apply_pending(position["pending"])
            return state_of(position["pending"]["next"])
        return state_of(position["state"])

    def _check_there(self, position: Document) -> None:
        """Raises TableGone if the collection was removed, or its database, with the position."""
        if (position.get("there") and self._exists() is False) or (self._has_begun and not position):
            known = f"{self._positions.name} says" if position else "this job knows"
            raise TableGone(
                f"the copy {self} is gone, while {known} how far it was: put it back, or begin again with "
                "`headrace pipeline reset --data`"
            )
        self._has_begun, self._is_there = bool(position), bool(position.get("there"))

    def _exists(self) -> bool | None:
        """Whether there is such a collection; None without the right to know."""
        try:
            return self.collection in self._database.list_collection_names(filter={"name": self.collection})
        except OperationFailure:
            return None

    def leave(self) -> None:
        """Notes that the collection is about to be dropped or renamed, as its source was."""
        self._positions.update_one({"_id": self.collection}, {"$set": {"there": False}})
        self._is_there = False

    def check_rights(self) -> None:
        """Raises MayNotWrite if the target's user may not change documents or position; changes nothing."""
        nobody = {"_id": ObjectId()}
        for each in (self._documents, self._positions, self._redo, self._tokens):
            try:
                each.update_one(nobody, {"$set": {"headrace": 0}})
                each.delete_one(nobody)
            except OperationFailure as error:
                if error.code != _UNAUTHORIZED:
                    raise
                raise MayNotWrite(
                    f"the target {self} gives the user no right to write {each.name}: it needs the role 'readWrite' on "
                    f"{self._database.name}"
                ) from error

    def is_complete(self) -> bool:
        """Whether the documents are those of the state: no commit is being done, or was cut short."""
        return "pending" not in (self._positions.find_one({"_id": self.collection}) or {})

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        by_key = {key: loads(key) for key in keys}
        self._seen = {}
        for some in _chunks(list(by_key.items()), limits.SINK_WRITE_COUNT_MAX):
            # Earlier versions stored tokens by the key's text.
            names = dict.fromkeys(name for key, _ in some for name in (self._id(key_identity(key)), self._id(key)))
            tokens = {
                entry["_id"].partition("/")[2]: entry["token"]
                for entry in self._tokens.find({"_id": {"$in": list(names)}})
            }
            for document in self._documents.find({"_id": {"$in": [value for _, value in some]}}):
                key = dumps(document["_id"])
                token = max(tokens.get(key_identity(key), ""), tokens.get(key, ""))
                refused = bool(self._refused) and key_identity(key) in self._refused
                self._seen[key] = MirrorRow(dumps(document), token, refused)
        return self._seen

    def read_keys(self) -> Iterator[str]:
        return iter(())

    def commit(self, changes: MirrorChanges) -> None:
        writes = list(self._writes(changes))
        pending: Document = {"parts": 0, "clear": changes.clear, "next": state_text(changes.state)}
        pending["stale_before"] = changes.stale_before
        if changes.absolute:
            self._do(writes, pending)
            return
        for part in _slices(map(encode, writes)):
            stored = {"of": self.collection, "bson": part}
            self._redo.replace_one({"_id": self._id(str(pending["parts"]))}, stored, upsert=True)
            pending["parts"] += 1
        self._positions.update_one({"_id": self.collection}, {"$set": {"pending": pending}}, upsert=True)
        self._apply_pending(pending)

    def read(self) -> pa.Table:
        import pyarrow as pa

        token = self.state().token
        texts = [(dumps(document["_id"]), dumps(document), token) for document in self._documents.find()]
        columns = [list(column) for column in zip(*texts, strict=True)] or [[], [], []]
        return pa.table([pa.array(column, pa.string()) for column in columns], schema=schema())

    def set_state(self, state: MirrorState) -> None:
        """Stores a state without rows, after what cannot be in a commit: a drop, a rename."""
        self._finish(state_text(state))

    def forget(self) -> None:
        """Removes the position and all that belongs to it; the documents stay."""
        self._has_begun = False
        self._positions.delete_one({"_id": self.collection})
        self._redo.delete_many({"of": self.collection})
        self._tokens.delete_many({"of": self.collection})

    def _apply_pending(self, pending: Document) -> None:
        """Steps 3 and 4. Raises CommitRefused."""
        parts = [self._redo.find_one({"_id": self._id(str(number))}) for number in range(pending["parts"])]
        assert None not in parts, "a pending commit has all its writes"
        # Earlier versions stored lists of writes, the first ones as they are.
        writes = [write for part in parts if part and "bson" not in part for write in part["writes"]]
        read = memoryview(b"".join(part["bson"] for part in parts if part and "bson" in part))
        while read:
            size = int.from_bytes(read[:4], "little")
            write, read = decode(bytes(read[:size])), read[size:]
            writes += write.get("writes", [write])
        self._do(writes, pending)

    def _do(self, writes: list[Document], pending: Document) -> None:
        """Writes, says what came of it, and stores the position. Raises CommitRefused if nobody is to be told."""
        state = state_of(pending["next"])
        reasons = self._write(writes, pending)
        refused = [
            RefusedWrite(dumps(writes[number]["key"]), _token_of(writes[number], state), reason)
            for number, reason in reasons.items()
        ]
        if refused and not self.on_outcome:
            first, more = refused[0], f"; {len(refused) - 1} more were refused" if len(refused) > 1 else ""
            raise CommitRefused(f"{self} refuses the document {first.key}: {first.reason}{more}", first.token, state)
        if self.on_outcome:
            accepted = {
                dumps(write["key"]): _token_of(write, state)
                for number, write in enumerate(writes)
                if number not in reasons and not _is_delete(write)
            }
            self.on_outcome(CommitOutcome(accepted, refused))
            self._refused -= set(map(key_identity, accepted))
            self._refused |= {key_identity(each.key) for each in refused}
        self._finish(pending["next"])

    def _finish(self, text: str) -> None:
        state = state_of(text)
        if state.snapshot_token and state.token > state.snapshot_token:
            # Every event is newer than what the snapshot read, from now on. What was replayed may be newer still.
            self._tokens.delete_many({"of": self.collection, "token": {"$lte": state.token}})
        self._has_begun, self._is_there = True, self._is_there or bool(self._exists())
        position = {"state": text, "there": self._is_there}
        self._positions.replace_one({"_id": self.collection}, position, upsert=True)
        self._redo.delete_many({"of": self.collection})

    def _writes(self, changes: MirrorChanges) -> Iterator[Document]:
        state = changes.state
        catching_up = not state.snapshot_token or state.token <= state.snapshot_token
        for key in changes.deletes:
            yield {"key": loads(key)}
        for key, stored in changes.upserts.items():
            before = None if changes.clear else self._seen.get(key)
            document = loads(stored.document)
            large = before is not None and len(stored.document) > _FIELDS_FROM
            fields = _fields(loads(before.document), document) if before and large else None
            write = {"key": document["_id"], **({"fields": fields} if fields else {"document": document})}
            write["token"] = stored.token
            if catching_up or stored.token > state.token:
                write["guard"] = self._id(key_identity(key))
            yield write

    def _write(self, writes: list[Document], pending: Document) -> dict[int, str]:
        """Step 3; the numbers of the writes that were refused, and why."""
        if pending["clear"]:
            self._documents.delete_many({})
            self._tokens.delete_many({"of": self.collection})
        reasons: dict[int, str] = {}
        numbered = list(enumerate(writes))
        deletes = [each for each in numbered if _is_delete(each[1])]
        others = [each for each in numbered if not _is_delete(each[1])]
        for some in (
            *_chunks(deletes, limits.SINK_WRITE_COUNT_MAX),
            *_chunks(others, limits.SINK_WRITE_COUNT_MAX),
        ):
            refused = write_all(self._documents, [_operation(write) for _, write in some])
            reasons |= {some[number][0]: reason for number, reason in refused.items()}
            # Behind the documents: a token without its document would hide events from it.
            tokens = [
                ReplaceOne({"_id": write["guard"]}, {"of": self.collection, "token": write["token"]}, upsert=True)
                for number, write in some
                if "guard" in write and number not in reasons
            ]
            if tokens:
                self._tokens.bulk_write(tokens, ordered=False)
        if pending.get("stale_before") and not pending["clear"]:
            self._remove_stale(pending["stale_before"])
        return reasons

    def _remove_stale(self, before: str) -> None:
        """Removes the documents that no row of the snapshot which began at `before` has confirmed."""
        keys = (entry["_id"] for entry in self._documents.find({}, {"_id": 1}))
        while some := list(islice(keys, limits.SINK_WRITE_COUNT_MAX)):
            stale = {self._id(key_identity(dumps(key))): key for key in some}
            by_text = {self._id(dumps(key)): name for name, key in stale.items()}
            confirmed = {"_id": {"$in": list({**stale, **by_text})}, "token": {"$gte": before}}
            for entry in self._tokens.find(confirmed, {"_id": 1}):
                name: str = entry["_id"]
                stale.pop(by_text.get(name, name), None)
            if stale:
                self._documents.delete_many({"_id": {"$in": list(stale.values())}})

    def _id(self, name: str) -> str:
        """The key of what belongs to this collection; its name has no slash that matters: it is escaped."""
        return f"{self.collection.replace('/', '%2F')}/{name}"


def _is_delete(write: Document) -> bool:
    return not {"document", "fields"} & write.keys()


def _token_of(write: Document, state: MirrorState) -> str:
    """The token of the row that made the document; an earlier version did not store it."""
    return write.get("token") or state.token


def _operation(write: Document) -> Any:
    key = {"_id": {"$eq": write["key"]}}
    if "document" in write:
        if any(name.startswith("$") for name in write["document"]):
            return UpdateOne(key, [{"$replaceWith": {"$literal": write["document"]}}], upsert=True)
        return ReplaceOne(key, write["document"], upsert=True)
    return UpdateOne(key, write["fields"]) if "fields" in write else DeleteOne(key)


def _fields(before: Document, after: Document) -> Document | None:
    """The update that makes `after` of `before` by whole fields; None if it would not give their order, or not pay."""
    common = [name for name in before if name in after]
    new = [name for name in after if name not in before]
    changed = {name: after[name] for name in after if name not in before or dumps(before[name]) != dumps(after[name])}
    removed = [name for name in before if name not in after]
    # A `$set` adds fields in the order of their names.
    if list(after) != common + new or new != sorted(new) or len(changed) * 2 > len(after):
        return None
    if len(new) > 1 and any(name[:1].isdigit() for name in new):
        return None
    if any("." in name or name.startswith("$") or not name for name in [*changed, *removed]):
        return None
    update = {"$set": changed} if changed else {}
    return (update | ({"$unset": dict.fromkeys(removed, "")} if removed else {})) or None


def _slices(writes: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of all writes in parts that fit into a document: many writes, or a part of one."""
    waiting = bytearray()
    for write in writes:
        waiting += write
        while len(waiting) >= limits.REDO_BYTES_MAX:
            yield bytes(waiting[: limits.REDO_BYTES_MAX])
            del waiting[: limits.REDO_BYTES_MAX]
    if waiting:
        yield bytes(waiting)


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
