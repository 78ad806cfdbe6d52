"""Reads: the command of each, its answer in a state of the model, and which states explain the server's answer.

A command that reads holds one state, so some published state between its start and its end gives exactly its answer. A
cursor's batches are read by several commands: a document that is there all the time is read once, and each document
that is read was there in some state.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from tests.simulation import language
from tests.simulation.language import Document, distance, frozen, matches, ordered, projected, query_of
from tests.simulation.model import (
    Finding,
    ModelCollection,
    ModelView,
    State,
    behind,
    collection_of,
    documents_of,
    is_series,
)

CAPPED: Final = "a.c"
"""The namespace of the capped collection, which transactions do not write to."""
READS: Final = ("aggregate", "count", "distinct", "find", "listCollections", "listIndexes")


def split(namespace: str) -> tuple[str, str]:
    """The database and the collection of a namespace."""
    database, _, name = namespace.partition(".")
    return database, name


def body_of(op: Document) -> Document:
    """The command that a client sends for a read."""
    _, name = split(op["ns"])
    kind = op["do"]
    condition, collation = query_of(op) if "filter" in op else ({}, {})
    if kind == "find":
        body: Document = {"find": name, "filter": condition, **collation}
        for field, key in (("sort", "sort"), ("limit", "limit"), ("fields", "projection"), ("hint", "hint")):
            if op.get(field):
                body[key] = op[field]
        return {**body, "batchSize": op["batch"]} if op.get("batch") else body
    if kind == "count":
        return {"count": name, "query": condition, **collation} if condition else {"count": name}
    if kind == "distinct":
        return {"distinct": name, "key": op["key"], "query": condition, **collation}
    if kind == "aggregate":
        return {
            "aggregate": name,
            "pipeline": pipeline_of(op),
            "cursor": {"batchSize": op["batch"]} if op.get("batch") else {},
            **collation,
        }
    if kind == "listCollections":
        return {"listCollections": 1, "nameOnly": True}
    return {"listIndexes": name}


def pipeline_of(op: Document) -> list[Document]:
    """The pipeline of an aggregation."""
    stages: list[Document] = [{"$match": query_of(op)[0]}]
    if op["stage"] == "count":
        return [*stages, {"$count": "count"}]
    if op["stage"] == "group":
        group = {"_id": f"${op['key']}", "count": {"$sum": 1}, "n": {"$sum": "$n"}}
        return [*stages, {"$group": group}, {"$sort": {"_id": 1}}]
    if op["stage"] == "union":
        return [*stages, {"$unionWith": {"coll": split(op["from"])[1], "pipeline": stages}}]
    if op["stage"] == "union group":
        group = {"_id": f"${op['key']}", "count": {"$sum": 1}, "n": {"$sum": "$n"}}
        return [*stages, {"$unionWith": split(op["from"])[1]}, {"$group": group}, {"$sort": {"_id": 1}}]
    join = {"from": split(op["from"])[1], "localField": "a", "foreignField": "a", "as": "found"}
    return [*stages, {"$lookup": join}, {"$sort": {"_id": 1}}]


def is_ordered(op: Document) -> bool:
    """Whether the order of a find's documents is given."""
    return bool(op.get("sort")) or isinstance(op.get("hint"), dict)


def answer_in(op: Document, state: State) -> Any:
    """The answer to a read in a state, to be compared with `answer_of`."""
    kind, namespace = op["do"], op["ns"]
    if kind == "listCollections":
        prefix = split(namespace)[0] + "."
        named = [name[len(prefix) :] for name in state if name.startswith(prefix)]
        return sorted(name for name in named if not name.startswith("system."))
    if kind == "listIndexes":
        collection = behind(state, namespace)
        if collection is None:
            return None
        building = [spec["name"] for specs in collection.builds.values() for spec in specs]
        first = [] if is_series(state, namespace) else ["_id_"]
        return sorted([*first, *collection.indexes, *building])
    hint = op.get("hint")
    if isinstance(hint, str):
        collection = collection_of(state, namespace)
        if collection is not None and (hint not in collection.indexes or collection.indexes[hint].get("hidden")):
            return "error 2"
    near = near_of(op)
    if near is not None and namespace in state:
        kind_of_index = "2d" if isinstance(near, list) else "2dsphere"
        indexes = collection.indexes.values() if (collection := collection_of(state, namespace)) is not None else ()
        if not any(kind_of_index in spec["key"].values() and not spec.get("hidden") for spec in indexes):
            return "error 291"
    found = [document for document in documents_of(state, namespace) if matches(document, op["filter"])]
    if kind == "count":
        return len(found)
    if kind == "distinct":
        return frozen(language.distinct(found, op["key"]))
    if kind == "aggregate":
        return _aggregated(op, state, found)
    return _found(op, found)


def _found(op: Document, found: list[Document]) -> Any:
    near = near_of(op)
    if near is not None:
        found = sorted(found, key=lambda document: distance(document["p"], near))
    elif op.get("sort"):
        found = ordered(found, op["sort"])
    elif is_ordered(op) and op["hint"]["$natural"] < 0:
        found = found[::-1]
    if op.get("limit"):
        found = found[: op["limit"]]
    return _comparable(op, [projected(document, op.get("fields")) for document in found])


def near_of(op: Document) -> Any:
    """The argument of the `$near` of a find, which returns the nearest document first; None without one."""
    condition = op.get("filter", {}).get("p")
    return condition.get("$near") if isinstance(condition, dict) else None


def _comparable(op: Document, documents: list[Document]) -> Any:
    made, near = [frozen(document) for document in documents], near_of(op)
    if near is not None:
        return [round(distance(document["p"], near), 6) for document in documents], sorted(made)
    return made if is_ordered(op) else sorted(made)


def _aggregated(op: Document, state: State, found: list[Document]) -> Any:
    if op["stage"] == "count":
        return [frozen({"count": len(found)})] if found else []
    if op["stage"] == "group":
        return [frozen(group) for group in language.grouped(found, op["key"])]
    others = documents_of(state, op["from"])
    if op["stage"] == "union":
        return sorted(frozen(item) for item in [*found, *(item for item in others if matches(item, op["filter"]))])
    if op["stage"] == "union group":
        return [frozen(group) for group in language.grouped([*found, *others], op["key"])]
    joined = [
        {**document, "found": [other for other in others if matches(other, {"a": document.get("a")})]}
        for document in ordered(found, {"_id": 1})
    ]
    return [_joined(document) for document in joined]


def _joined(document: Document) -> Any:
    """A document with what a lookup has found, in whatever order."""
    return frozen({**document, "found": None}), sorted(map(frozen, document["found"]))


def answer_of(op: Document, reply: Document, documents: list[Document]) -> Any:
    """The answer in a reply, and in the batches of its cursor."""
    kind = op["do"]
    if reply["ok"] != 1.0:
        if kind == "listIndexes" and reply["code"] == 26:
            return None
        return f"error {reply['code']}"
    if kind == "count":
        return reply["n"]
    if kind == "distinct":
        return frozen(sorted(reply["values"], key=language.order_key))
    if kind in ("listCollections", "listIndexes"):
        return sorted(item["name"] for item in documents if not item["name"].startswith("system."))
    if kind == "aggregate":
        if op["stage"] == "union":
            return sorted(map(frozen, documents))
        return [_joined(item) if op["stage"] == "lookup" else frozen(item) for item in documents]
    return _comparable(op, documents)


def namespaces_of(op: Document, state: State) -> list[str]:
    """The namespaces that a read looks at in a state."""
    named = [op["ns"], *([op["from"]] if "from" in op else [])]
    for namespace in list(named):
        there = state.get(namespace)
        if isinstance(there, ModelView):
            named.append(f"{split(namespace)[0]}.{there.on}")
    return named


def distinct_states(op: Document, states: list[State]) -> list[State]:
    """The states that are different for a read, in order."""
    if op["do"] == "listCollections":
        return states
    made: list[State] = []
    last: Any = None
    for state in states:
        seen = [(name, state.get(name)) for name in namespaces_of(op, state)]
        if last is None or len(seen) != len(last) or any(
            one[0] != other[0] or one[1] is not other[1] for one, other in zip(seen, last)
        ):  # fmt: skip
            made.append(state)
        last = seen
    return made


def explain(op: Document, reply: Document, documents: list[Document], states: list[State], *, is_one: bool) -> None:
    """Raise `Finding` where no state of those between the read's start and its end explains its answer.

    `is_one`: one command has read it all. Of a cursor that has read on, each batch is from another state."""
    all_states, states = states, distinct_states(op, states)
    answer = answer_of(op, reply, documents)
    if any(answer_in(op, state) == answer for state in states):
        return
    if reply["ok"] != 1.0:
        if error_is_explained(op, reply["code"], states):
            return
    elif not is_one:
        several = [states] if len(states) > 1 else []
        if any(_is_explained_in_batches(op, documents, seen) for seen in (*several, *_as_opened(op, all_states))):
            return
    expected = [answer_in(op, state) for state in states][:3]
    raise Finding("read", f"{op} was answered {answer}, of {len(states)} states;\n expected {expected}")


def _as_opened(op: Document, states: list[State]) -> Iterator[list[State]]:
    """The states as a cursor on views sees them: it reads on what they meant when it was opened, in one of them."""
    last: dict[str, Any] = {}
    for first, state in enumerate(states):
        views = {name: state[name] for name in namespaces_of(op, state) if isinstance(state.get(name), ModelView)}
        if views and views != last:
            yield [{**later, **views} for later in states[first:]]
        last = views


def error_is_explained(op: Document, code: int, states: list[State]) -> bool:
    """Whether a read may end with this error: its plan was killed by a change of the catalog."""
    if code != 175:
        return False
    return any(shape(op, one) != shape(op, other) for one, other in pairwise(states))


def shape(op: Document, state: State) -> list[Any]:
    """The collections and indexes that a command uses in a state."""
    made: list[Any] = []
    for namespace in namespaces_of(op, state):
        there = state.get(namespace)
        if isinstance(there, ModelCollection):
            made.append((namespace, there.uuid, frozen(there.indexes)))
        else:
            made.append((namespace, there))
    return made


def steady(op: Document, states: list[State]) -> list[Document]:
    """The documents that match in every state, and are the same in each."""
    tables = [{document["_id"]: document for document in documents_of(state, op["ns"])} for state in states]
    collections = {id_of(state, op["ns"]) for state in states}
    if len(collections) > 1:
        return []
    return [
        document
        for key, document in tables[0].items()
        if matches(document, op["filter"]) and all(table.get(key) == document for table in tables[1:])
    ]


def id_of(state: State, namespace: str) -> Any:
    """The identity of what a namespace means in a state."""
    there = state.get(namespace)
    if isinstance(there, ModelView):
        return there.on, frozen(there.pipeline), id_of(state, f"{split(namespace)[0]}.{there.on}")
    return there if there is None else there.uuid


def _is_explained_in_batches(op: Document, documents: list[Document], states: list[State]) -> bool:
    """Whether each document of a cursor is some state's, and none is missing that was there all the time."""
    if op["do"] == "aggregate":
        return _is_aggregated_in_batches(op, documents, states)
    through, fields = steady(op, states), op.get("fields")
    ever = [item for state in states for item in documents_of(state, op["ns"]) if matches(item, op["filter"])]
    seen = [frozen(document) for document in documents]
    possible = {frozen(projected(document, fields)) for document in ever}
    if any(document not in possible for document in seen):
        return False
    if (fields or {}).get("_id") == 0:
        return True
    counts = [seen.count(frozen(projected(item, fields))) for item in through]
    return all(count <= 1 for count in counts) and (bool(op.get("limit")) or all(counts))


def _is_aggregated_in_batches(op: Document, documents: list[Document], states: list[State]) -> bool:
    """The same of an aggregation that reads on for each batch; one that groups has read all for its first."""
    if op["stage"] not in ("lookup", "union"):
        return False
    if op["stage"] == "lookup":
        mine = [{name: value for name, value in item.items() if name != "found"} for item in documents]
        keys = [item["_id"] for item in mine]
        is_found = all(any(_found_in(op, state, item) for state in states) for item in documents)
        return keys == sorted(keys) and is_found and _is_explained_in_batches({**op, "do": "find"}, mine, states)
    other = {**op, "ns": op["from"]}
    ever = {
        frozen(item)
        for which in (op, other)
        for state in states
        for item in documents_of(state, which["ns"])
        if matches(item, op["filter"])
    }
    seen = [frozen(item) for item in documents]
    through = [frozen(item) for which in (op, other) for item in steady(which, states)]
    return ever.issuperset(seen) and all(seen.count(item) >= through.count(item) for item in through)


def _found_in(op: Document, state: State, document: Document) -> bool:
    """Whether the lookup of a document has found this in a state."""
    found = [item for item in documents_of(state, op["from"]) if matches(item, {"a": document.get("a")})]
    return sorted(map(frozen, found)) == sorted(map(frozen, document["found"]))
