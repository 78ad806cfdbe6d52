"""A mirror as a collection of another MongoDB or Headrace. Its position is in the same database and survives any crash.

    <collection>           the documents
    headrace.positions     {_id: <collection>, state: …, there: true, pending: {parts, clear, stale_before, next}}
    headrace.redo          {_id: "<collection>/<part>", of: <collection>, bson: …}  the writes of the next commit
    headrace.tokens        {_id: "<collection>/<key>", of: <collection>, token: …}  until events pass the snapshot

A commit needs no transaction (a standalone server has none), because it goes in this order:

1. The writes, as whole documents or as fields set to values, go to `headrace.redo`.
2. `pending` in the position says that the writes are complete: this is the moment of the commit.
3. The writes are done. Doing them twice gives the same result.
4. The new position replaces the one with `pending`.

A crash before 2 changes nothing. After a crash between 2 and 4, the next process that opens the table does 3 and 4.
If no document is computed from a document of the target (a snapshot, inserts, deletes), 1 and 2 are left out: applying
the batch again does the same.

The target refuses a document (because of a validator, a unique index, or its size) only in 3. `on_outcome` is called
between 3 and 4; without it, the position does not advance. A refused document stays as it was, and takes no update
until the target accepts a later document.

Documents that other clients write into the collection remain, unless the source has their keys. If the collection was
`there` after the last commit and is now missing, TableGone is raised: later events would create it with only a part of
the documents.

The server treats 1 and 1.0 as one `_id`. So a token is stored under the key's identity (`rows/key_identity.py`), and
deletes come before other writes: a document that returns with a key of another type is deleted and inserted. A document
with a field name that begins with `$` cannot be the document of a replacement (error 52). It is sent as the literal of
a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from bson import ObjectId
from bson.errors import InvalidDocument
from pymongo import DeleteOne, ReplaceOne, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, OperationFailure

from headrace import limits
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState, mirror_schema
from headrace.spark.tables.mirror_table import TableGone
from headrace.spark.tables.refused_rows import CommitOutcome, RefusedWrite, RowRefused
from headrace.values.bson import OPTIONS, decode, encode

if TYPE_CHECKING:
    from pymongo import MongoClient

# If the document's text has at least this many characters, an update of a few fields sends only these fields.
_FIELDS_FROM: Final = 1024

_UNAUTHORIZED: Final = 13

Document = dict[str, Any]


_READING: Final = ContextVar("reading", default=False)


@contextmanager
def only_reading() -> Iterator[None]:
    """A context in which a pending commit is left to its job.

    The job may be doing it now: writes from here must not come after the job's next writes.
    """
    before = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(before)


class CommitRefused(RowRefused):
    """The target refused documents of a commit. `state` is the state after this is settled."""

    def __init__(self, message: str, token: str, state: MirrorState) -> None:
        super().__init__(message, token)
        self.state = state


class MayNotWrite(RuntimeError):
    """The target's user lacks a privilege that a copy needs."""


class MongoMirror:
    """See `mirror_table.MirrorTable`. Without `on_outcome` a refused document raises CommitRefused."""

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
        """Whether a position was seen, and whether the collection existed with it."""

    def __str__(self) -> str:
        return f"{self._database.name}.{self.collection}"

    def position(self) -> MirrorState:
        position = self._positions.find_one({"_id": self.collection}) or {}
        self._check_there(position)
        if "state" not in position and ("pending" not in position or _READING.get()):
            return MirrorState()
        if "pending" in position and not _READING.get():
            self._apply_pending(position["pending"])
            return MirrorState.of(position["pending"]["next"])
        return MirrorState.of(position["state"])

    def _check_there(self, position: Document) -> None:
        """Raise TableGone if the collection was removed, or its database with the position."""
        if (position.get("there") and self._exists() is False) or (self._has_begun and not position):
            known = f"{self._positions.name} says" if position else "this job knows"
            raise TableGone(
                f"the copy {self} is gone, while {known} how far it was: put it back, or begin again with "
                "`headrace pipeline reset --data`"
            )
        self._has_begun, self._is_there = bool(position), bool(position.get("there"))

    def _exists(self) -> bool | None:
        """Whether the collection exists; None without the privilege to list collections."""
        try:
            return self.collection in self._database.list_collection_names(filter={"name": self.collection})
        except OperationFailure:
            return None

    def leave(self) -> None:
        """Record that the collection is about to be dropped or renamed, as its source was."""
        self._positions.update_one({"_id": self.collection}, {"$set": {"there": False}})
        self._is_there = False

    def check_rights(self) -> None:
        """Raise MayNotWrite if the target's user may not change documents or the position. Change nothing."""
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
        """Whether the documents match the state: no commit is running or was interrupted."""
        return "pending" not in (self._positions.find_one({"_id": self.collection}) or {})

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        by_key = {key: loads(key) for key in keys}
        self._seen = {}
        for some in _chunks(list(by_key.items()), limits.SINK_WRITE_COUNT_MAX):
            # Earlier versions stored tokens under the key's text.
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
        pending: Document = {"parts": 0, "clear": changes.clear, "next": changes.state.text()}
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
        token = self.position().token
        texts = [(dumps(document["_id"]), dumps(document), token) for document in self._documents.find()]
        columns = [list(column) for column in zip(*texts, strict=True)] or [[], [], []]
        return pa.table([pa.array(column, pa.string()) for column in columns], schema=mirror_schema())

    def set_state(self, state: MirrorState) -> None:
        """Store a state without rows, after an operation that cannot be part of a commit: a drop, a rename."""
        self._finish(state.text())

    def forget(self) -> None:
        """Remove the position and all entries that belong to it; the documents stay."""
        self._has_begun = False
        self._positions.delete_one({"_id": self.collection})
        self._redo.delete_many({"of": self.collection})
        self._tokens.delete_many({"of": self.collection})

    def _apply_pending(self, pending: Document) -> None:
        """Do steps 3 and 4. Raise CommitRefused."""
        parts = [self._redo.find_one({"_id": self._id(str(number))}) for number in range(pending["parts"])]
        assert None not in parts, "a pending commit has all its writes"
        # Earlier versions stored lists of writes; the first ones not as BSON bytes.
        writes = [write for part in parts if part and "bson" not in part for write in part["writes"]]
        read = memoryview(b"".join(part["bson"] for part in parts if part and "bson" in part))
        while read:
            size = int.from_bytes(read[:4], "little")
            write, read = decode(bytes(read[:size])), read[size:]
            writes += write.get("writes", [write])
        self._do(writes, pending)

    def _do(self, writes: list[Document], pending: Document) -> None:
        """Do the writes, report the outcome, and store the position. Raise CommitRefused if `on_outcome` is not set."""
        state = MirrorState.of(pending["next"])
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
        state = MirrorState.of(text)
        if state.snapshot_token and state.token > state.snapshot_token:
            # From now on every event is newer than the rows of the snapshot. Replayed documents may be newer still.
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
        """Do step 3. Return the reasons of refused writes, by the number of the write."""
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
            # Tokens are written after the documents: a token without its document would hide events from it.
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
        """Remove the documents that no row of the snapshot that began at `before` has confirmed."""
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
        """Return the key of an entry of this collection; a slash in the collection's name is escaped."""
        return f"{self.collection.replace('/', '%2F')}/{name}"


def _is_delete(write: Document) -> bool:
    return not {"document", "fields"} & write.keys()


def _token_of(write: Document, state: MirrorState) -> str:
    """Return the token of the row that made the document; an earlier version did not store it."""
    return write.get("token") or state.token


def _operation(write: Document) -> Any:
    key = {"_id": {"$eq": write["key"]}}
    if "document" in write:
        if any(name.startswith("$") for name in write["document"]):
            return UpdateOne(key, [{"$replaceWith": {"$literal": write["document"]}}], upsert=True)
        return ReplaceOne(key, write["document"], upsert=True)
    return UpdateOne(key, write["fields"]) if "fields" in write else DeleteOne(key)


def _fields(before: Document, after: Document) -> Document | None:
    """Return the update that turns `before` into `after` by whole fields.

    Return None if the update would not give the order of `after`'s fields, or would save too little.
    """
    common = [name for name in before if name in after]
    new = [name for name in after if name not in before]
    changed = {name: after[name] for name in after if name not in before or dumps(before[name]) != dumps(after[name])}
    removed = [name for name in before if name not in after]
    # `$set` adds fields in the order of their names.
    if list(after) != common + new or new != sorted(new) or len(changed) * 2 > len(after):
        return None
    if len(new) > 1 and any(name[:1].isdigit() for name in new):
        return None
    if any("." in name or name.startswith("$") or not name for name in [*changed, *removed]):
        return None
    update = {"$set": changed} if changed else {}
    return (update | ({"$unset": dict.fromkeys(removed, "")} if removed else {})) or None


def _slices(writes: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of all writes in parts that fit into a document. A part has many writes, or a piece of one."""
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


REFUSALS: Final[dict[int, str]] = {
    2: "BadValue",
    52: "DollarPrefixedFieldName",
    55: "InvalidDBRef",
    56: "EmptyFieldName",
    57: "DottedFieldName",
    121: "DocumentValidationFailure",
    171: "CannotIndexParallelArrays",
    201: "CannotBuildIndexKeys",
    10334: "BSONObjectTooLarge",
    11000: "DuplicateKey",
    16675: "a text index with an array beside the text",
    16755: "geo keys cannot be extracted",
    16756: "geo keys cannot be extracted",
    16766: "a hashed index of an array",
    17261: "a language that is no string, in a text index",
    17262: "a language that a text index does not know",
    17280: "KeyTooLong",
    17419: "the document is too large after the update",
    17420: "the document is too large after the update",
}
"""The codes that refuse a document, each with its name or its meaning.

Any other code (privileges, a full disk, another primary) is an error, because it does not depend on the document.
"""
_DUPLICATE_KEY: Final = 11000


def write_all(collection: Collection[dict[str, Any]], operations: Sequence[Any]) -> dict[int, str]:
    """Do the operations, in any order. Return the reasons of refused operations, by their numbers.

    Raise pymongo's BulkWriteError for a refusal that is not about a document, and pymongo's other errors.
    """
    refused = _write(collection, operations)
    while any(code == _DUPLICATE_KEY for code, _ in refused.values()):
        # The write may have run before the write that releases the unique value.
        numbers = list(refused)
        again = _write(collection, [operations[number] for number in numbers])
        refused = {numbers[number]: why for number, why in again.items()}
        if len(refused) == len(numbers):
            break
    return {number: text for number, (_, text) in sorted(refused.items())}


def _write(collection: Collection[dict[str, Any]], operations: Sequence[Any]) -> dict[int, tuple[int, str]]:
    """Return the numbers of refused operations, with code and text."""
    try:
        collection.bulk_write(operations, ordered=False)
    except BulkWriteError as error:
        errors = error.details["writeErrors"]
        if error.details.get("writeConcernErrors") or any(each["code"] not in REFUSALS for each in errors):
            raise
        return {each["index"]: (each["code"], f"{each['errmsg']} ({each['code']})") for each in errors}
    except InvalidDocument as error:
        # The driver does not send the document, and does not say which one it is.
        if len(operations) == 1:
            return {0: (10334, str(error))}
        each_alone = enumerate(_write(collection, [operation]) for operation in operations)
        return {number: why[0] for number, why in each_alone if why}
    return {}
