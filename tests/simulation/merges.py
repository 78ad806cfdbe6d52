"""`$merge` into the same and into other collections: it reads one state, then changes document after document."""

from __future__ import annotations

from typing import Any, Final

from tests.simulation.language import Document, matches
from tests.simulation.model import Event, Finding, ModelView, State, collection_of, documents_of, refuses_duplicates
from tests.simulation.reads import split
from tests.simulation.world import ENDED, Pending

MATCHED: Final = ("fail", "keepExisting", "merge", "replace", "count")
"""The modes of `whenMatched`; `count` is a pipeline."""
COUNT: Final[list[Document]] = [{"$set": {"n": {"$add": [{"$ifNull": ["$n", 0]}, 1]}}}]


def body_of(op: Document) -> Document:
    """The command that a client sends for a `$merge`."""
    database, name = split(op["ns"])
    merge = {
        "into": {"db": database, "coll": name}, "whenMatched": COUNT if op["matched"] == "count" else op["matched"],
        "whenNotMatched": op["not_matched"],
    }  # fmt: skip
    return {"aggregate": split(op["from"])[1], "pipeline": [{"$match": op["filter"]}, {"$merge": merge}], "cursor": {}}


def explain(op: Document, pending: Pending, reply: Document, possible: list[State]) -> None:
    """Raise `Finding` where no state that was read explains the changes, or none the error."""
    events = [event for event in pending.events if event.kind != "create"]
    read = [
        {item["_id"]: item for item in documents_of(state, op["from"]) if matches(item, op["filter"])}
        for state in possible
    ]
    if any(event.namespace != op["ns"] for event in events) or not any(_explains(op, made, events) for made in read):
        raise Finding("merge", f"{op} has made {events}, of documents of no state: {read[:3]}")
    if reply["ok"] == 1.0:
        done = {event.key for event in events}
        for made in read:
            left = [document for key, document in made.items() if key not in done]
            if _explains(op, made, events) and all(_is_left(op, document, possible) for document in left):
                return
        raise Finding("merge", f"{op} has made only {events}, of documents of no state: {read[:3]}")
    if reply["code"] in ENDED or any(_may_fail(op, reply["code"], state, read) for state in possible):
        return
    if reply["code"] != 175 or len({_identity(op, state) for state in possible}) == 1:
        raise Finding("merge", f"{op} was answered {reply}, which is not explained: {possible[0]}")


def decided(op: Document, before: Document | None, document: Document) -> Document | None:
    """The document that is there after a document was merged, None for none."""
    if before is None:
        return document if op["not_matched"] == "insert" else None
    if op["matched"] == "count":
        return {**before, "n": before.get("n", 0) + 1}
    return {"merge": {**before, **document}, "replace": document}.get(op["matched"], before)


def _explains(op: Document, read: dict[Any, Document], events: list[Event]) -> bool:
    """Whether the events merge documents that were read, each once."""
    return len({event.key for event in events}) == len(events) and all(
        event.key in read and event.before != event.after == decided(op, event.before, read[event.key])
        for event in events
    )


def _is_left(op: Document, document: Document, possible: list[State]) -> bool:
    """Whether a document changes nothing in some state."""
    for state in possible:
        there = collection_of(state, op["ns"])
        before = None if there is None else there.documents.get(document["_id"])
        if decided(op, before, document) == before and (before is None or op["matched"] != "fail"):
            return True
    return False


def _identity(op: Document, state: State) -> Any:
    return tuple(getattr(state.get(namespace), "uuid", None) for namespace in (op["ns"], op["from"]))


def _may_fail(op: Document, code: int, state: State, read: list[dict[Any, Document]]) -> bool:
    there, goal = state.get(op["ns"]), collection_of(state, op["ns"])
    if code == 166:
        return isinstance(there, ModelView)
    keys = {} if goal is None else goal.documents
    if code == 13113:
        return op["not_matched"] == "fail" and any(key not in keys for made in read for key in made)
    if goal is None:
        return False
    if code == 121:
        return goal.validator is not None
    building = [spec for specs in goal.builds.values() for spec in specs]
    is_unique = any(map(refuses_duplicates, (*goal.indexes.values(), *building)))
    has_match = op["matched"] == "fail" and any(key in keys for made in read for key in made)
    return code == 11000 and (is_unique or has_match)
