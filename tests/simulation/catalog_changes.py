"""Changes of the catalog: the command of each, what it must have done where it answers ok, and its errors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from tests.simulation import merges
from tests.simulation.language import Document, matches
from tests.simulation.measurements import SERIES
from tests.simulation.model import (
    Finding,
    ModelCollection,
    ModelView,
    State,
    behind,
    collection_of,
    index_keys,
    is_series,
    refuses_duplicates,
)
from tests.simulation.outputs import explain_out, out_body, require_moved
from tests.simulation.reads import split
from tests.simulation.world import ENDED, TEMPORARY, Pending

CHANGES: Final = (
    "cloneCollectionAsCapped", "collMod", "compact", "convertToCapped", "create", "createIndexes", "createView", "drop",
    "dropDatabase", "dropIndexes", "merge", "out", "renameCollection",
)  # fmt: skip
CAPPED_BYTES: Final = 1 << 20
"""The size of a capped copy, into which all documents fit."""


def body_of(op: Document) -> Document:
    """The command that a client sends for a change of the catalog."""
    _, name = split(op["ns"])
    kind = op["do"]
    if kind == "create":
        return {"create": name, **op["options"]}
    if kind == "createView":
        return {"create": name, "viewOn": op["on"], "pipeline": op["pipeline"]}
    if kind == "createIndexes":
        return {"createIndexes": name, "indexes": op["indexes"]}
    if kind == "out":
        return out_body(op)
    if kind == "merge":
        return merges.body_of(op)
    if kind == "compact":
        return {"compact": name, "force": True}
    if kind == "convertToCapped":
        return {"convertToCapped": name, "size": CAPPED_BYTES}
    if kind == "cloneCollectionAsCapped":
        return {"cloneCollectionAsCapped": name, "toCollection": split(op["to"])[1], "size": CAPPED_BYTES}
    if kind == "dropIndexes":
        return {"dropIndexes": name, "index": op["index"]}
    if kind == "collMod":
        return {"collMod": name, **op["options"]}
    if kind == "renameCollection":
        return {"renameCollection": op["ns"], "to": op["to"], "dropTarget": op["drop_target"]}
    return {kind: 1 if kind == "dropDatabase" else name}


def database_of(op: Document) -> str:
    """The database that the command is sent to."""
    return "admin" if op["do"] == "renameCollection" else split(op["from" if op["do"] == "merge" else "ns"])[0]


def explain(op: Document, pending: Pending, reply: Document, states: list[State]) -> None:
    """Raise `Finding` where the change, its absence or the error is not explained."""
    turns = pending.turns
    possible = [*[turn.before for turn in turns], *states[turns[0].since :], *[turn.after for turn in turns]]
    if len(turns) == 1:
        possible = [turns[0].before, turns[0].after]
    if op["do"] in ("merge", "out"):
        check = explain_out if op["do"] == "out" else merges.explain
        check(op, pending, reply, [*states[turns[0].since :], *possible])  # it reads a published state
        return
    if reply["ok"] == 1.0 and op["do"] == "renameCollection" and split(op["ns"])[0] != split(op["to"])[0]:
        require_moved(op, pending)
    if reply["ok"] == 1.0:
        if not any(_is_done(op, state) for state in possible[1:]) and not _was_built(op, possible):
            raise Finding("catalog", f"{op} was answered {reply}, but is not done: {turns[-1].after}")
    elif reply["code"] == 175 and reply["errmsg"].startswith("the oplog no longer has"):
        return  # a job has pruned it
    elif reply["code"] == 175 and _copy_was_dropped(op, states[turns[0].since :]):
        return
    elif not any(_may_fail(op, state, reply["code"]) for state in possible) and not _was_changed(op, possible, reply):
        raise Finding("catalog", f"{op} was answered {reply}, which is not explained: {turns[-1].before}")


def _was_changed(op: Document, possible: list[State], reply: Document) -> bool:
    """Whether the command was ended, or the error says that another command was in between, as one was."""
    if reply["code"] in ENDED:
        return True
    identities = {getattr(behind(state, op["ns"]), "uuid", None) for state in possible}
    shapes = {
        (repr(getattr(state.get(op["ns"]), "validator", None)), getattr(state.get(op["ns"]), "images", None))
        for state in possible
    }
    if reply["code"] == 175 and ("Capped" in op["do"] or op["do"] == "renameCollection") and len(shapes) > 1:
        return True
    names = {
        (*getattr(state.get(op["ns"]), "indexes", ()), *getattr(state.get(op["ns"]), "builds", ()))
        for state in possible
    }
    return reply["code"] in (26, 27, 73, 175, 246, 276) and (len(identities) > 1 or len(names) > 1)


def _copy_was_dropped(op: Document, states: list[State]) -> bool:
    """Whether another command has dropped or renamed a capped copy while it was made."""
    uuids: list[Any] = []
    for state in states if "Capped" in op["do"] or op["do"] == "renameCollection" else ():
        made = [there for name, there in state.items() if TEMPORARY.search(name) or name == op.get("to")]
        uuids.append({getattr(there, "uuid", None) for there in made})
    return any(not before <= after for before, after in pairwise(uuids))


def _was_built(op: Document, possible: list[State]) -> bool:
    """Whether each index was there at some time: another one may be dropped, or the collection renamed, beside a
    build."""
    uuids = [there.uuid for state in possible if (there := behind(state, op["ns"])) is not None]
    return op["do"] == "createIndexes" and all(
        any(
            there.uuid in uuids and spec["name"] in there.indexes
            for state in possible
            for there in state.values()
            if isinstance(there, ModelCollection)
        )
        for spec in op["indexes"]
    )


def _is_done(op: Document, state: State) -> bool:
    kind, there = op["do"], state.get(op["ns"])
    if kind == "compact":
        return True
    if is_series(state, op["ns"]) and kind != "drop":
        there = behind(state, op["ns"])
    if kind == "create":
        return isinstance(there, ModelCollection) and ("timeseries" in op["options"]) == is_series(state, op["ns"])
    if kind == "cloneCollectionAsCapped":
        copy = state.get(op["to"])
        return isinstance(copy, ModelCollection) and copy.is_capped
    if kind == "createView":
        return there == ModelView(op["on"], op["pipeline"])
    if kind == "drop":
        return there is None
    if kind == "dropDatabase":
        return not any(name.startswith(op["ns"].partition(".")[0] + ".") for name in state)
    if kind == "renameCollection":
        return there is None and isinstance(state.get(op["to"]), ModelCollection)
    if kind == "collMod" and isinstance(there, ModelView):
        return there == ModelView(op["options"].get("viewOn"), op["options"].get("pipeline"))
    if not isinstance(there, ModelCollection):
        return False
    if kind == "convertToCapped":
        return there.is_capped and not there.indexes
    if kind == "createIndexes":
        return all(spec["name"] in there.indexes for spec in op["indexes"])
    if kind == "dropIndexes":
        return not there.indexes if op["index"] == "*" else op["index"] not in there.indexes
    return _is_modified(op["options"], there)


def _is_modified(options: Document, there: ModelCollection) -> bool:
    if "expireAfterSeconds" in options:
        return there.expires_seconds == (
            None if options["expireAfterSeconds"] == "off" else options["expireAfterSeconds"]
        )
    if "timeseries" in options:
        return True
    if "validator" in options:
        return there.validator == (options["validator"] or None)
    if "changeStreamPreAndPostImages" in options:
        return there.images == options["changeStreamPreAndPostImages"]["enabled"]
    wanted = dict(options["index"])
    spec = there.indexes.get(wanted.pop("name"), {})
    return all(spec.get(name, False) == value for name, value in wanted.items())


def _may_fail(op: Document, state: State, code: int) -> bool:
    kind, there = op["do"], state.get(op["ns"])
    if op["ns"] == SERIES and kind != "create":
        there = behind(state, SERIES)
        if code == 72 and kind == "collMod":  # buckets that are longer, or no time series
            return there is not None and ("timeseries" in op["options"] or not is_series(state, SERIES))
    if code == 20:
        return bool(op["ns"] == op.get("to"))
    if code == 117:
        return bool(kind == "compact")  # another compaction
    if code == 26:
        return there is None or (kind == "collMod" and isinstance(there, ModelView))
    if code == 27:
        return isinstance(there, ModelCollection) and _misses_index(op, there)
    if code == 48:
        return (state.get(op["to"]) if "to" in op else there) is not None
    if code == 166:
        return isinstance(there, ModelView) or (
            kind == "renameCollection" and isinstance(state.get(op["to"]), ModelView)
        )
    if code == 72 and kind == "collMod" and isinstance(there, ModelCollection) and "index" in op["options"]:
        wanted = op["options"]["index"]
        spec = there.indexes.get(wanted["name"], {})
        if "unique" in wanted or "prepareUnique" in wanted:  # it is unique already, or not prepared
            return bool(spec.get("unique")) or not spec.get("prepareUnique")
    if code == 72 and kind == "collMod":
        return isinstance(there, ModelView) != ("viewOn" in op["options"]) or there is None
    if not isinstance(there, ModelCollection):
        return False
    if code == 11000 and kind == "renameCollection":  # into another database
        documents = list(there.documents.values())
        return any(refuses_duplicates(spec) and _has_duplicates(spec, documents) for spec in there.indexes.values())
    if kind == "createIndexes":
        return _may_not_be_built(op["indexes"], there, code)
    if kind == "collMod" and "index" in op["options"]:
        spec = there.indexes.get(op["options"]["index"]["name"])
        if code == 359:
            return spec is not None and _has_duplicates(spec, list(there.documents.values()))
        return code == 72 and spec is not None and "expireAfterSeconds" in op["options"]["index"]
    return False


def _misses_index(op: Document, there: ModelCollection) -> bool:
    name = op["options"].get("index", {}).get("name") if op["do"] == "collMod" else op.get("index")
    return name not in there.indexes


def _may_not_be_built(specs: list[Document], there: ModelCollection, code: int) -> bool:
    if code in (85, 86):
        known = {**there.indexes, **{item["name"]: item for build in there.builds.values() for item in build}}
        return any(spec["name"] in known and known[spec["name"]] != spec for spec in specs)
    if code in (16766, 10067401):
        return any("hashed" in spec["key"].values() for spec in specs)
    if code != 11000:
        return False
    unique = [spec for spec in specs if spec.get("unique")]
    return any(_has_duplicates(spec, list(there.documents.values())) for spec in unique)


def _has_duplicates(spec: Document, documents: list[Document]) -> bool:
    owners: dict[Any, Any] = {}
    for document in documents:
        for key in index_keys(spec, document):
            if owners.setdefault(key, document["_id"]) != document["_id"]:
                return True
    return False


__all__ = ["CHANGES", "body_of", "collection_of", "database_of", "explain", "matches"]
