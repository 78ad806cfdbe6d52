"""`$out` into a collection, and renames into another database: both copy in turns, beside everything else.

The collection that `$out` makes has the documents that its filter matched in one state. A renamed collection has the
documents, indexes and options that it had just before.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.language import Document, frozen, matches
from tests.simulation.model import (
    Finding,
    ModelCollection,
    ModelView,
    State,
    collection_of,
    documents_of,
    refuses_duplicates,
)
from tests.simulation.reads import split
from tests.simulation.world import ENDED, Pending, WriteTurn


def out_body(op: Document) -> Document:
    """The command that a client sends for an `$out`."""
    stages = [{"$match": op["filter"]}, {"$out": split(op["ns"])[1]}]
    return {"aggregate": split(op["from"])[1], "pipeline": stages, "cursor": {}}


def explain_out(op: Document, pending: Pending, reply: Document, possible: list[State]) -> None:
    """Raise `Finding` where the new collection or the error is not explained."""
    turn, goal = _last_change(pending), op["ns"]
    after = turn.after
    if reply["ok"] == 1.0:
        made = _values(documents_of(after, goal))
        read = [[item for item in documents_of(state, op["from"]) if matches(item, op["filter"])] for state in possible]
        if made not in [_values(documents) for documents in read]:
            raise Finding("out", f"{op} has made {made}, which is the answer in no state")
        before, now = collection_of(turn.before, goal), collection_of(after, goal)
        if before is not None and now is not None and _specs(before) != _specs(now):
            raise Finding("out", f"{op} has changed the indexes {before.indexes} to {now.indexes}")
    elif reply["code"] not in ENDED and not _out_may_fail(op, possible, reply["code"]):
        raise Finding("out", f"{op} was answered {reply}, which is not explained: {turn.before}")


def _last_change(pending: Pending) -> WriteTurn:
    """The last turn that changed something: the rename. The turn after it may only answer, when others have written."""
    return next((turn for turn in reversed(pending.turns) if turn.events), pending.turns[-1])


def _specs(collection: ModelCollection) -> dict[str, Document]:
    """The indexes without the version, which not every entry of the oplog has, and without options that are false."""
    return {
        name: {key: value for key, value in spec.items() if key != "v" and value is not False}
        for name, spec in collection.indexes.items()
    }


def _values(documents: list[Document]) -> list[Any]:
    return sorted(map(frozen, documents))


def _out_may_fail(op: Document, possible: list[State], code: int) -> bool:
    goals = [state.get(op["ns"]) for state in possible]
    collections = [there for there in goals if isinstance(there, ModelCollection)]
    indexes = [spec for there in collections for spec in there.indexes.values()]
    if code == 166:
        return any(isinstance(there, ModelView) for there in goals)
    if code == 17152:
        return any(there.is_capped for there in collections)
    if code == 11000:
        return any(map(refuses_duplicates, indexes))
    if code == 121:
        return any(there.validator is not None for there in collections)
    if code in (16766, 10067401):
        return any("hashed" in spec["key"].values() for spec in indexes)
    return code in (26, 125, 175) and len({id(there) for there in (*goals, *_of_database(op, possible))}) > 1


def _of_database(op: Document, possible: list[State]) -> list[Any]:
    """The collections of the database, which may be dropped."""
    prefix = split(op["ns"])[0] + "."
    return [there for state in possible for name, there in state.items() if name.startswith(prefix)]


def require_moved(op: Document, pending: Pending) -> None:
    """Raise `Finding` where a collection has lost something on its way into another database."""
    last = _last_change(pending)
    before, after = collection_of(last.before, op["ns"]), collection_of(last.after, op["to"])
    if before is None or after is None:
        raise Finding("rename", f"{op} has made {last.after} of {last.before}")
    if _specs(before) != _specs(after):
        raise Finding("rename", f"{op} has changed the indexes {before.indexes} to {after.indexes}")
    for name in ("documents", "validator", "images", "count_max", "is_capped", "is_clustered"):
        if (getattr(before, name) or None) != (getattr(after, name) or None):  # an empty validator is none
            raise Finding("rename", f"{op} has changed {name} from {before} to {after}")
