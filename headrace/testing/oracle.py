"""The events that streams must return, derived from the oplog alone by the simplest possible code.

The oracle knows no tokens, feeds, filters or slices. It decodes every entry and tests each stream separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.values.bson import decode
from headrace.values.position import from_timestamp

INTERNAL = ("admin", "config", "local")


@dataclass(frozen=True, slots=True)
class ExpectedEvent:
    """An event that all streams of its scope must return; `kind` is its `operationType`."""

    position: int
    kind: str
    database: str
    collection: str | None
    to: str | None = None
    key: Any = None
    document: dict[str, Any] | None = None

    @property
    def namespace(self) -> str:
        """The database and the collection, joined with a dot."""
        return f"{self.database}.{self.collection}"


def expected_events(raw: bytes) -> list[ExpectedEvent]:
    """Return the events of an entry in order, as in streams without `showExpandedEvents`."""
    entry = decode(raw)
    position = from_timestamp(entry["ts"])
    if entry["op"] == "c" and "applyOps" in entry["o"]:
        return [event for inner in entry["o"]["applyOps"] for event in _one(position, inner)]
    return _one(position, entry)


def _one(position: int, entry: dict[str, Any]) -> list[ExpectedEvent]:
    operation, o = entry["op"], entry["o"]
    database, _, collection = entry["ns"].partition(".")
    if operation == "i":
        return [ExpectedEvent(position, "insert", database, collection, key=o["_id"], document=o)]
    if operation == "d":
        return [ExpectedEvent(position, "delete", database, collection, key=o["_id"])]
    if operation == "u":
        key = entry["o2"]["_id"]
        if "diff" in o:
            return [ExpectedEvent(position, "update", database, collection, key=key)]
        return [ExpectedEvent(position, "replace", database, collection, key=key, document=o)]
    if operation == "c":
        return _command(position, database, o)
    return []


def _command(position: int, database: str, o: dict[str, Any]) -> list[ExpectedEvent]:
    if "drop" in o:
        return [ExpectedEvent(position, "drop", database, o["drop"])]
    if "dropDatabase" in o:
        return [ExpectedEvent(position, "dropDatabase", database, None)]
    if "renameCollection" in o:
        source, _, name = o["renameCollection"].partition(".")
        return [ExpectedEvent(position, "rename", source, name, to=o["to"])]
    return []


def concerns(event: ExpectedEvent, database: str | None, collection: str | None) -> bool:
    """Return whether an event belongs to a stream on a collection, a database, or (None, None) the deployment."""
    if collection is not None:
        namespace = f"{database}.{collection}"
        return event.collection is not None and namespace in (event.namespace, event.to)
    if event.database in INTERNAL:
        return False
    return database is None or event.database == database


def ends(event: ExpectedEvent, database: str | None, collection: str | None) -> bool:
    """Return whether an event ends a stream that it belongs to."""
    if collection is not None:
        return event.kind in ("drop", "rename")
    return database is not None and event.kind == "dropDatabase"
