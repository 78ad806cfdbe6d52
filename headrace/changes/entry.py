"""An oplog entry, told apart once and handed to every stream that may want it.

    CRUD    [lsid, txnNumber,] op, ns, ui, o, [o2,] [stmtId,] ts, t, v, wall [, prevOpTime]
            |--- session ---|  |-- head --|              |---- tail ----|

Rule: the store's own CRUD entries are never decoded here. Everything before `o` but the session is the same
for all entries of one collection and operation, so that it is a key: it is looked up once and gives a
`Head`. The rest is found by jumping over lengths. An entry of any other shape is walked element by element.

An `Operation` is one change of one document, or one command: an ordinary entry holds one, a transaction's entry
many. What was made of it for one stream (its events, its header as a dict) is kept on it for the next.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, Protocol

from bson import Timestamp

from headrace.changes.event import Event
from headrace.values.bson import decode
from headrace.values.elements import find_element
from headrace.values.position import Position

HEADS_MAX: Final = 10_000  # collections times operations known at once; forgotten and learnt again beyond that

_INT32 = Struct("<i").unpack_from
_UINT64 = Struct("<Q").unpack_from
_PACK = Struct("<i").pack
_OP: Final = b"\x02op\0\x02\0\0\0"
_SESSION: Final = b"\x03lsid\0"
_TXN_NUMBER: Final = b"\x12txnNumber\0"
_UI: Final = b"\x05ui\0\x10\0\0\0\x04"
_UPDATE: Final = b"\x10$v\0\x02\0\0\0"  # how the `o` of an update begins; a replacement's begins with its fields
_TS: Final = b"\x11ts\0"
_WALL: Final = b"\x09wall\0"
_CRUD: Final = {"d": "delete", "i": "insert", "u": "update"}


class History(Protocol):
    """Earlier oplog entries, which a transaction's last entry may need."""

    def entry(self, position: Position) -> bytes | None:
        """The entry at exactly this position, or None when the oplog no longer has it."""


class Head:
    """What all entries of one operation on one collection have in common. Compared by identity."""

    __slots__ = ("coll", "db", "kind", "layouts", "namespace", "ns_element", "replacement", "uuid")

    def __init__(self, kind: str, namespace: str, uuid: bytes | None) -> None:
        self.kind = kind
        """The operationType: insert, update, replace or delete."""
        self.namespace = namespace
        self.uuid = uuid
        self.db, _, self.coll = namespace.partition(".")
        self.ns_element = namespace_element(b"ns", self.db, self.coll)
        self.layouts: dict[Any, Any] = {}
        """What `crud.py` has worked out for each shape of events."""
        self.replacement = Head("replace", namespace, uuid) if kind == "update" else self


class Session:
    """The transaction that an operation was part of: raw `lsid` document and the value bytes of `txnNumber`."""

    __slots__ = ("lsid", "txn_number")

    def __init__(self, lsid: bytes, txn_number: bytes) -> None:
        self.lsid = lsid
        self.txn_number = txn_number


class Operation:
    """One change as the oplog tells it. `head` is None for a command (`op: "c"`)."""

    __slots__ = (
        "drafts", "head", "image_position", "o", "o2", "position", "seen_header", "told", "ts", "uuid", "wall",
    )  # fmt: skip

    index: int = 0
    """The place in its transaction, as tokens count it (txnOpIndex)."""
    session: Session | None = None
    migrated: bool = False
    command_namespace: str = ""
    """The `ns` of a command, `db.$cmd`."""
    image_index: int = 0

    def __init__(self, head: Head | None, o: bytes, o2: bytes, ts: bytes, wall: bytes) -> None:
        self.head = head
        self.o = o
        self.o2 = o2
        """The raw `o2`, for an insert or a delete the document's key; empty where there is none."""
        self.ts = ts
        """Value bytes of the clusterTime."""
        self.wall = wall
        """Value bytes of the wallTime."""
        self.position: Position = _UINT64(ts)[0]
        self.image_position = self.position
        """With `image_index`, what the pre-image is kept under."""
        self.uuid = head.uuid if head is not None else None
        """The collection's; None where the entry names none."""
        self.told: dict[Any, Event] | None = None
        """By shape, the event as streams hear it that leave it as it is."""
        self.drafts: dict[Any, Any] | None = None
        """By shape, the event in the making."""
        self.seen_header: dict[str, Any] | None = None


class UnwoundOperation(Operation):
    """An operation of a transaction, or a command: what is the same for all others may differ here."""

    __slots__ = ("command_namespace", "image_index", "index", "migrated", "session")

    def __init__(self, head: Head | None, o: bytes, o2: bytes, ts: bytes, wall: bytes, uuid: bytes | None) -> None:
        super().__init__(head, o, o2, ts, wall)
        self.uuid = uuid
        self.index = 0
        self.session = None
        self.migrated = False
        self.command_namespace = ""
        self.image_index = 0


class DecodedEntry:
    """One entry of the oplog, lazily: cheap to make, and whatever is worked out is kept."""

    __slots__ = ("_document", "_operations", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._operations: tuple[Operation, ...] | None = None
        self._document: dict[str, Any] | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The whole entry decoded, once."""
        if self._document is None:
            self._document = decode(self.data)
        return self._document

    @property
    def position(self) -> Position:
        """The entry's `ts`."""
        operation = sliced(self.data)
        return operation.position if operation is not None else position_of(self.data)

    def operations(self, history: History | None = None) -> tuple[Operation, ...]:
        """The changes this entry tells of, in order; empty for noops, and for transactions not yet committed.

        Raises error 286 when a transaction's earlier entries are no longer there; `history` finds them.
        """
        if self._operations is None:
            operation = sliced(self.data)
            if operation is not None:
                self._operations = (operation,)
            else:
                from headrace.changes.transaction import unwound  # which is written in terms of this module

                self._operations = unwound(self.data, history)
        return self._operations


_HEADS: dict[bytes, Head] = {}


def sliced(data: bytes) -> Operation | None:
    """The operation of a CRUD entry as the store writes it, found without decoding; None for any other entry."""
    at = 4
    if data.startswith(_SESSION, 4):
        at = 10 + _INT32(data, 10)[0]
        if not data.startswith(_TXN_NUMBER, at):
            return None
        at += 19
    if not data.startswith(_OP, at):
        return None
    o = at + 46 + _INT32(data, at + 14)[0]
    key = data[at:o]
    head = _HEADS.get(key)
    if head is None:
        head = _learn(key)
        if head is None:
            return None
    o_end = o + _INT32(data, o)[0]
    return _with_tail(data, head, data[o:o_end], o_end)


def _with_tail(data: bytes, head: Head, o: bytes, at: int) -> Operation | None:
    """The operation, once what follows `o` is found to be what the store writes."""
    o2 = b""
    if data.startswith(b"\x03o2\0", at):
        end = at + 4 + _INT32(data, at + 4)[0]
        o2 = data[at + 4 : end]
        at = end
    if data.startswith(b"\x10stmtId\0", at):
        at += 12
    if not (data.startswith(_TS, at) and data.startswith(_WALL, at + 34)):
        return None
    kind = head.kind
    if kind == "update" and not o.startswith(_UPDATE, 4):
        head = head.replacement
    elif not o2:
        if kind != "delete":
            return None
        o2 = o
    return Operation(head, o, o2, data[at + 4 : at + 12], data[at + 40 : at + 48])


def _learn(key: bytes) -> Head | None:
    """The head these bytes spell, remembered; None if they are no CRUD head with a UUID, followed by `o`."""
    ns_end = 18 + _INT32(key, 14)[0] if key.startswith(b"\x02ns\0", 10) else 0
    kind = _CRUD.get(chr(key[8]))
    if kind is None or not ns_end or not key.startswith(_UI, ns_end) or not key.endswith(b"\x03o\0"):
        return None
    if len(_HEADS) >= HEADS_MAX:
        _HEADS.clear()
    head = Head(kind, key[18 : ns_end - 1].decode(), key[ns_end + 9 : ns_end + 25])
    _HEADS[key] = head
    return head


def crud_head(op: str, namespace: str, uuid: bytes | None) -> Head:
    """The head for an operation that was not found by slicing; the same object as for those that were."""
    key = string_element(b"op", op) + string_element(b"ns", namespace)
    key += _UI + (uuid or b"") + b"\x03o\0"
    head = _HEADS.get(key)
    if head is None:
        if len(_HEADS) >= HEADS_MAX:
            _HEADS.clear()
        head = _HEADS[key] = Head(_CRUD[op], namespace, uuid)
    return head


def position_of(data: bytes) -> Position:
    """The `ts` of any entry."""
    found = find_element(data, b"ts")
    if found is None:
        raise ValueError("an oplog entry without ts")
    return int(_UINT64(data, found[1])[0])


def string_element(name: bytes, value: str) -> bytes:
    """One BSON string element; `name` without its zero."""
    text = value.encode()
    return b"".join((b"\x02", name, b"\0", _PACK(len(text) + 1), text, b"\0"))


def namespace_element(name: bytes, db: str, coll: str | None) -> bytes:
    """The element `name: {db[, coll]}`."""
    body = string_element(b"db", db) + (string_element(b"coll", coll) if coll is not None else b"")
    return b"".join((b"\x03", name, b"\0", _PACK(len(body) + 5), body, b"\0"))


def document_element(name: bytes, document: bytes) -> bytes:
    """The element `name: document`, the document raw."""
    return b"".join((b"\x03", name, b"\0", document))


def document_of(body: bytes) -> bytes:
    """A raw document from its elements."""
    return b"".join((_PACK(len(body) + 5), body, b"\0"))


def timestamp(position: Position) -> Timestamp:
    return Timestamp(position >> 32, position & 0xFFFFFFFF)
