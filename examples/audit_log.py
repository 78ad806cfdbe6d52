"""An audit log: who changed which fields of which document, with what was there before.

The log is written by a stream, not by the code that changes documents: nothing that is committed escapes it. The `_id`
of an entry is the event's token, so that it can be stopped, killed and started again: it goes on behind the last entry.
"""

from __future__ import annotations

from typing import Any

import headrace

WATCHED = ["accounts"]


def start(store: Any) -> Any:
    """Follow the watched collections, from the last entry of the log on; returns the stream."""
    bank = store["bank"]
    for name in WATCHED:
        if name not in bank.list_collection_names():
            bank.create_collection(name)
        bank.command("collMod", name, changeStreamPreAndPostImages={"enabled": True})
    last = bank.audit.find_one(sort=[("_id._data", -1)])
    stream = bank.watch(
        filter={"ns.coll": {"$in": WATCHED}},
        operation_types=["insert", "update", "replace", "delete"],
        full_document="whenAvailable",
        full_document_before_change="whenAvailable",
        resume_after=last["_id"] if last else None,
    )
    stream.on(None, lambda event: bank.audit.insert_one(entry(event)))
    return stream


def entry(event: headrace.ChangeEvent) -> dict[str, Any]:
    """What the log says of an event."""
    before, after = event.full_document_before_change or {}, event.full_document or {}
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return {
        "_id": dict(event.resume_token),
        "at": event.wall_time,
        "what": event.operation_type,
        "collection": event.collection,
        "document": event.document_id,
        "before": {name: before[name] for name in changed if name in before},
        "after": {name: after[name] for name in changed if name in after},
    }


def main(path: str | None = None) -> list[dict[str, Any]]:
    """Change some accounts, and return their log."""
    with headrace.open(path) as store:
        stream = start(store)
        accounts, audit = store["bank"]["accounts"], store["bank"]["audit"]
        seen = store["bank"].audit.watch()
        accounts.insert_one({"_id": "ann", "balance": 100})
        accounts.update_one({"_id": "ann"}, {"$inc": {"balance": -30}})
        accounts.delete_one({"_id": "ann"})
        for _ in range(3):
            seen.next(timeout=60)
        stream.close()
        return list(audit.find().sort("_id._data", 1))


if __name__ == "__main__":
    for line in main():
        print(line["what"], line["document"], line["before"], "→", line["after"])
