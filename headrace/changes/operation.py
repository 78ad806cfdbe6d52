"""One change of one document, or one command, as the oplog records it.

Derived data (an event, a header as a dict) is stored with the operation for the next stream.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from headrace.changes.bson_elements import namespace_element
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
