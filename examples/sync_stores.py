"""Real-time sync: what changes in one store is changed in another, in the same order, across restarts of either.

The target has the token up to which it is in sync, written in the same transaction as the change: each change is
applied once, however often this is killed.
"""

from __future__ import annotations

from typing import Any

import headrace

CHANGES = ["insert", "update", "replace", "delete"]


def follow(source: Any, target: Any, database: str) -> Any:
    """Sync a database from where the target is; returns the stream."""
    state = target["sync"]["state"]
    position = state.find_one({"_id": database})
    stream = source[database].watch(
        operation_types=CHANGES, full_document="updateLookup", resume_after=position["token"] if position else None
    )
    if position is None:  # what is there already, then what changed since the stream was opened
        target.drop_database(database)  # a copy that was cut short may have what is gone since
        for name in source[database].list_collection_names():
            for document in source[database][name].find():
                target[database][name].insert_one(document)
        state.insert_one({"_id": database, "token": dict(stream.resume_token)})
    stream.on(None, lambda event: apply(target, database, event))
    return stream


def apply(target: Any, database: str, event: headrace.ChangeEvent) -> None:
    """Make one change, and note how far it has come."""
    collection = target[database][event.collection]
    with target.start_session() as session, session.start_transaction():
        if event.full_document is None:  # deleted, now or since
            collection.delete_one(event.document_key, session=session)
        else:
            collection.replace_one(event.document_key, event.full_document, upsert=True, session=session)
        target["sync"]["state"].replace_one(
            {"_id": database}, {"token": dict(event.resume_token)}, upsert=True, session=session
        )


def main() -> list[Any]:
    """Sync two stores, and return what the second has."""
    with headrace.open() as source, headrace.open() as target:
        notes = source["app"]["notes"]
        notes.insert_one({"_id": 1, "text": "there before"})
        follow(source, target, "app").close()
        notes.insert_one({"_id": 2, "text": "new"})  # while nothing follows
        seen = target["app"].watch()
        stream = follow(source, target, "app")
        notes.update_one({"_id": 2}, {"$set": {"done": True}})
        notes.delete_one({"_id": 1})
        for event in seen:
            if event.operation_type == "delete":
                break
        stream.close()
        return list(target["app"]["notes"].find())


if __name__ == "__main__":
    print(main())
