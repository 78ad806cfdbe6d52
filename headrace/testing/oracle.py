"""What streams ought to have told, worked out from the oplog alone, by the plainest code that can do it.

It knows nothing of tokens, feeds, filters or slices: it decodes every entry and asks each question again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bson import Timestamp

from headrace.values.bson import decode

INTERNAL = ("admin", "config", "local")


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened: `kind` is the `operationType` of the event that tells of it."""

    position: int
    kind: str
    database: str
    collection: str | None
    to: str | None = None
    key: Any = None
    document: dict[str, Any] | None = None

    @property
    def namespace(self) -> str:
        return f"{self.database}.{self.collection}"


def happenings(raw: bytes) -> list[Happening]:
    """What an entry tells streams that did not ask for expanded events, in order."""
    entry = decode(raw)
    ts: Timestamp = entry["ts"]
    position = ts.time << 32 | ts.inc
    if entry["op"] == "c" and "applyOps" in entry["o"]:
        return [told for inner in entry["o"]["applyOps"] for told in _one(position, inner)]
    return _one(position, entry)


def _one(position: int, entry: dict[str, Any]) -> list[Happening]:
    operation, o = entry["op"], entry["o"]
    database, _, collection = entry["ns"].partition(".")
    if operation == "i":
        return [Happening(position, "insert", database, collection, key=o["_id"], document=o)]
    if operation == "d":
        return [Happening(position, "delete", database, collection, key=o["_id"])]
    if operation == "u":
        key = entry["o2"]["_id"]
        if "diff" in o:
            return [Happening(position, "update", database, collection, key=key)]
        return [Happening(position, "replace", database, collection, key=key, document=o)]
    if operation == "c":
        return _command(position, database, o)
    return []


def _command(position: int, database: str, o: dict[str, Any]) -> list[Happening]:
    if "drop" in o:
        return [Happening(position, "drop", database, o["drop"])]
    if "dropDatabase" in o:
        return [Happening(position, "dropDatabase", database, None)]
    if "renameCollection" in o:
        source, _, name = o["renameCollection"].partition(".")
        return [Happening(position, "rename", source, name, to=o["to"])]
    return []


def concerns(told: Happening, database: str | None, collection: str | None) -> bool:
    """Whether a stream hears of it; no collection: the database's stream, no database: the deployment's."""
    if collection is not None:
        whole = f"{database}.{collection}"
        return told.collection is not None and whole in (told.namespace, told.to)
    if told.database in INTERNAL:
        return False
    return database is None or told.database == database


def ends(told: Happening, database: str | None, collection: str | None) -> bool:
    """Whether a stream that hears of it is ended by it."""
    if collection is not None:
        return told.kind in ("drop", "rename")
    return database is not None and told.kind == "dropDatabase"
