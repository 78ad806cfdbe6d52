"""Oplog entries as MongoDB shapes them, and streams over them: what the tests of events are written with."""

from __future__ import annotations

from typing import Any

from bson import Binary, Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.changes.builder import EventBuilder
from headrace.changes.entry import DecodedEntry
from headrace.changes.event import Event
from headrace.changes.resume import ResumeGuard
from headrace.changes.stream import StreamSpec, parse_stream
from headrace.errors import CommandError
from headrace.values.bson import decode, encode
from headrace.values.position import from_timestamp

UUID = bytes(range(16))
OTHER_UUID = bytes(range(16, 32))
WALL = DatetimeMS(1_700_000_000_123)
SECONDS = 1_700_000_000
SESSION = {"id": Binary(bytes(16), 4), "uid": bytes(32)}
NO_PREVIOUS = {"ts": Timestamp(0, 0), "t": Int64(-1)}


def at(increment: int) -> int:
    """The position of an entry."""
    return SECONDS << 32 | increment


def time(increment: int = 1) -> Timestamp:
    return Timestamp(SECONDS, increment)


def position_of(data: bytes) -> int:
    """The position of a raw entry."""
    return from_timestamp(decode(data)["ts"])


def entry(
    op: str, ns: str, o: dict[str, Any], *, o2: dict[str, Any] | None = None, uuid: bytes | None = UUID,
    increment: int = 1, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None,
    middle: dict[str, Any] | None = None,
) -> bytes:  # fmt: skip
    """One entry in the order of MongoDB; `before` stands in front, `middle` before `ts`, `after` at the end."""
    document: dict[str, Any] = {**(before or {}), "op": op, "ns": ns}
    if uuid is not None:
        document["ui"] = Binary(uuid, 4)
    document["o"] = o
    if o2 is not None:
        document["o2"] = o2
    document |= {**(middle or {}), "ts": time(increment), "t": Int64(1), "v": Int64(2), "wall": WALL, **(after or {})}
    return encode(document)


def insert(document: dict[str, Any], ns: str = "d.c", **more: Any) -> bytes:
    return entry("i", ns, document, o2={"_id": document["_id"]}, **more)


def update(key: Any, diff: dict[str, Any], ns: str = "d.c", **more: Any) -> bytes:
    return entry("u", ns, {"$v": 2, "diff": diff}, o2={"_id": key}, **more)


def replace(document: dict[str, Any], ns: str = "d.c", **more: Any) -> bytes:
    return entry("u", ns, document, o2={"_id": document["_id"]}, **more)


def delete(key: Any, ns: str = "d.c", **more: Any) -> bytes:
    return entry("d", ns, {"_id": key}, **more)


def command(o: dict[str, Any], db: str = "d", **more: Any) -> bytes:
    return entry("c", f"{db}.$cmd", o, **more)


def transaction(
    *operations: dict[str, Any], increment: int = 1, more_o: dict[str, Any] | None = None,
    previous: dict[str, Any] = NO_PREVIOUS, number: int = 7,
) -> bytes:  # fmt: skip
    """The entry of a transaction; `operations` are made by `inside`."""
    return entry(
        "c", "admin.$cmd", {"applyOps": list(operations), **(more_o or {})}, uuid=None, increment=increment,
        before={"lsid": SESSION, "txnNumber": Int64(number)}, after={"prevOpTime": previous},
    )  # fmt: skip


def inside(op: str, o: dict[str, Any], o2: dict[str, Any] | None = None, ns: str = "d.c") -> dict[str, Any]:
    """One operation as it stands in `applyOps`."""
    operation: dict[str, Any] = {"op": op, "ns": ns, "ui": Binary(UUID, 4), "o": o}
    return operation if o2 is None else {**operation, "o2": o2}


class Documents:
    """A lookup that knows what it was told."""

    def __init__(self, current: dict[str, Any] | None = None, before: dict[str, Any] | None = None) -> None:
        self._current = current
        self._before = before
        self.asked: list[tuple[Any, ...]] = []

    def current(self, namespace: str, uuid: bytes | None, document_key: bytes) -> bytes | None:
        self.asked.append((namespace, uuid, decode(document_key)))
        return None if self._current is None else encode(self._current)

    def pre_image(self, uuid: bytes, position: int, index: int) -> bytes | None:
        self.asked.append((uuid, position, index))
        return None if self._before is None else encode(self._before)


class StoredImages:
    """A history of entries by position."""

    def __init__(self, **entries: bytes) -> None:
        self._entries = {at(int(name[1:])): data for name, data in entries.items()}

    def entry(self, position: int) -> bytes | None:
        return self._entries.get(position)


SCOPES = {
    "collection": ("d", "c", {}),
    "database": ("d", None, {}),
    "deployment": ("admin", None, {"allChangesForCluster": True}),
}


def stream(scope: str = "collection", *stages: dict[str, Any], **options: Any) -> StreamSpec:
    """The stream of one scope: `d.c`, `d` or everything."""
    db, coll, fixed = SCOPES[scope]
    return parse_stream(db, coll, [{"$changeStream": {**fixed, **options}}, *stages])


def events_in(spec: StreamSpec, *entries: bytes, lookup: Any = None, history: Any = None) -> list[Event]:
    """Return the stream's events of these entries: until it is closed, and from its resume point on. Raise the error
    of an event that cannot be built."""
    builder, guard = EventBuilder(spec, lookup or Documents(), history), ResumeGuard(spec)
    events: list[Event] = []
    for data in entries:
        for event in builder.build(DecodedEntry(data), None if guard.settled else guard):
            if isinstance(event, CommandError):
                raise event
            events.append(event)
            if event.closes:
                return events
    return events


def documents(events: list[Event]) -> list[dict[str, Any]]:
    return [decode(event.document) for event in events if event.document is not None]
