"""Operations: one change of one document, or one command, as the oplog records it; and CRUD entries split into them.

Entries are split by jumping over lengths, without decoding.

    [lsid, txnNumber,] op, ns, ui, o, [o2,] [stmtId,] ts, t, v, wall [, prevOpTime]
    |---- session ---| |-- head ----|       |------------ tail -------------------|

Rule: the bytes of the head are the same for all entries of one operation on one collection. They are the key of a memo
with the `Head` that was parsed from the first such entry. Entries in any other form than the store's are not understood
here; `entry.py` walks them element by element.

Derived data (an event, a header as a dict) is stored with the operation for the next stream.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, TypeAlias

from headrace import limits
from headrace.changes.bson_elements import namespace_element, string_element
from headrace.changes.event import Event
from headrace.values.position import Position

_UINT64 = Struct("<Q").unpack


class Head:
    """The fields that all entries of one operation on one collection share. Compared by identity."""

    __slots__ = ("coll", "db", "kind", "namespace", "ns_element", "replacement", "templates", "uuid")

    def __init__(self, kind: str, namespace: str, uuid: bytes | None) -> None:
        self.kind = kind
        """The operationType: insert, update, replace or delete."""
        self.namespace = namespace
        self.uuid = uuid
        self.db, _, self.coll = namespace.partition(".")
        self.ns_element = namespace_element(b"ns", self.db, self.coll)
        self.templates: dict[Any, Any] = {}
        """The `document_events.EventTemplate` of each shape of events."""
        self.replacement = Head("replace", namespace, uuid) if kind == "update" else self


class Session:
    """The transaction of an operation: the raw `lsid` document and the value bytes of `txnNumber`."""

    __slots__ = ("lsid", "txn_number")

    def __init__(self, lsid: bytes, txn_number: bytes) -> None:
        self.lsid = lsid
        self.txn_number = txn_number


class Operation:
    """One change as the oplog records it. `head` is None for a command (`op: "c"`)."""

    __slots__ = (
        "__weakref__", "drafts", "events", "head", "image_position", "o", "o2", "position", "seen_header", "ts", "uuid",
        "wall",
    )  # fmt: skip

    index: int = 0
    """Its number in its transaction, from 0: the txnOpIndex of tokens."""
    session: Session | None = None
    migrated: bool = False
    command_namespace: str = ""
    """The `ns` of a command, `db.$cmd`."""
    image_index: int = 0

    def __init__(self, head: Head | None, o: bytes, o2: bytes, ts: bytes, wall: bytes) -> None:
        self.head = head
        self.o = o
        self.o2 = o2
        """The raw `o2`. For an insert or a delete it is the document's key; empty if there is none."""
        self.ts = ts
        """The value bytes of the clusterTime."""
        self.wall = wall
        """The value bytes of the wallTime."""
        self.position: Position = _UINT64(ts)[0]
        self.image_position = self.position
        """The key of the pre-image, together with `image_index`."""
        self.uuid = head.uuid if head is not None else None
        """The collection's UUID; None if the entry has none."""
        self.events: dict[Any, Event] | None = None
        """The event of streams that do not change it, by shape."""
        self.drafts: dict[Any, Any] | None = None
        """Drafts by shape."""
        self.seen_header: dict[str, Any] | None = None


class UnwoundOperation(Operation):
    """An operation of a transaction, or a command. Fields that are constant in other operations may differ here."""

    __slots__ = ("command_namespace", "image_index", "index", "migrated", "session")

    def __init__(self, head: Head | None, o: bytes, o2: bytes, ts: bytes, wall: bytes, uuid: bytes | None) -> None:
        super().__init__(head, o, o2, ts, wall)
        self.uuid = uuid
        self.index = 0
        self.session = None
        self.migrated = False
        self.command_namespace = ""
        self.image_index = 0


UPDATE: Final = b"\x10$v\0\x02\0\0\0"  # the beginning of an update's `o`; a replacement's begins with its fields

_INT32 = Struct("<i").unpack_from
_OBJECT: Final = 0x03
_INT: Final = 0x10
_OP: Final = b"\x02op\0\x02\0\0\0"
_SESSION: Final = b"\x03lsid\0"
_TXN_NUMBER: Final = b"\x12txnNumber\0"
_UI: Final = b"\x05ui\0\x10\0\0\0\x04"
_TS: Final = b"\x11ts\0"
_WALL: Final = b"\x09wall\0"
_CRUD: Final = {"d": "delete", "i": "insert", "u": "update"}

EntrySlices: TypeAlias = tuple[Head, bytes, bytes, bytes, bytes]

_HEADS: dict[bytes, Head] = {}
"""Memo for all servers of the process, because a head depends only on its bytes. Bounded by `HEAD_COUNT_MAX`."""


def sliced(data: bytes) -> Operation | None:
    """Return the operation of a CRUD entry in the store's form, without decoding; None for any other entry."""
    slices = slices_of(data)
    return None if slices is None else Operation(*slices)


def slices_of(data: bytes) -> EntrySlices | None:
    """Return the arguments of an entry's `Operation`: head, `o`, `o2`, and the value bytes of `ts` and `wall`."""
    at = 4
    if data[4] == _OBJECT:
        at = 10 + _INT32(data, 10)[0]
        if not (data.startswith(_SESSION, 4) and data.startswith(_TXN_NUMBER, at)):
            return None
        at += 19
    start = at + 46 + _INT32(data, at + 14)[0]
    head = _HEADS.get(data[at:start])
    if head is None:
        head = _learn(data[at:start]) if data.startswith(_OP, at) else None
        if head is None:
            return None
    at = start + _INT32(data, start)[0]
    o, o2 = data[start:at], b""
    if data[at] == _OBJECT and data[at : at + 4] == b"\x03o2\0":
        start = at + 4
        at = start + _INT32(data, start)[0]
        o2 = data[start:at]
    if data[at] == _INT and data[at : at + 8] == b"\x10stmtId\0":
        at += 12
    if data[at : at + 4] != _TS or data[at + 34 : at + 40] != _WALL:
        return None
    if head.replacement is not head:
        if not o.startswith(UPDATE, 4):
            head = head.replacement
    elif not o2:
        if head.kind != "delete":
            return None
        o2 = o
    return head, o, o2, data[at + 4 : at + 12], data[at + 40 : at + 48]


def head_bytes(data: bytes) -> bytes:
    """Return the bytes of a CRUD entry's head, see `head_of`. For any other entry they are not a head."""
    at = 4
    if data[4] == _OBJECT:
        at = 10 + _INT32(data, 10)[0]
        if not data.startswith(_TXN_NUMBER, at):
            return b""
        at += 19
    return data[at : at + 46 + _INT32(data, at + 14)[0]]


def head_of(key: bytes) -> Head | None:
    """Return the head in these bytes. A replacement's entry has the head of updates."""
    return _HEADS.get(key) or (_learn(key) if key.startswith(_OP) else None)


def _learn(key: bytes) -> Head | None:
    """Return the head in these bytes, memoized; None unless they are a CRUD head with a UUID, followed by `o`."""
    ns_end = 18 + _INT32(key, 14)[0] if key.startswith(b"\x02ns\0", 10) else 0
    kind = _CRUD.get(chr(key[8]))
    if kind is None or not ns_end or not key.startswith(_UI, ns_end) or not key.endswith(b"\x03o\0"):
        return None
    if len(_HEADS) >= limits.HEAD_COUNT_MAX:
        _HEADS.clear()
    head = Head(kind, key[18 : ns_end - 1].decode(), key[ns_end + 9 : ns_end + 25])
    _HEADS[key] = head
    return head


def crud_head(op: str, namespace: str, uuid: bytes | None) -> Head:
    """Return the head of an operation that was not parsed by slicing. It is the same object as with slicing."""
    key = string_element(b"op", op) + string_element(b"ns", namespace)
    key += _UI + (uuid or b"") + b"\x03o\0"
    head = _HEADS.get(key)
    if head is None:
        if len(_HEADS) >= limits.HEAD_COUNT_MAX:
            _HEADS.clear()
        head = _HEADS[key] = Head(_CRUD[op], namespace, uuid)
    return head
