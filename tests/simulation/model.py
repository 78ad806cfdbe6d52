"""The published states as Python dicts, one for each commit, made by applying what the oplog says.

    state, events = apply(state, entry)

A state is never changed: `apply` makes the next one. Documents are in the order of their insertion.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import bson

from tests.simulation.language import MISSING, Document, folded, matches, value_at
from tests.simulation.measurements import BUCKETS, SERIES, UNPACK, unpacked

INTERNAL: Final = ("admin", "config", "local")


class Finding(AssertionError):
    """The product did what no order of the steps explains."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ModelCollection:
    """A collection in one state."""

    uuid: bytes
    documents: dict[Any, Document] = field(default_factory=dict)
    indexes: dict[str, Document] = field(default_factory=dict)
    """Specifications of the indexes that are ready, but for that on `_id`, by name."""
    builds: dict[bytes, list[Document]] = field(default_factory=dict)
    validator: Document | None = None
    images: bool = False
    count_max: int | None = None
    """How many documents it holds, where it is capped."""
    is_capped: bool = False
    is_clustered: bool = False
    """Whether its documents are in the order of their `_id`."""
    expires_seconds: int | None = None
    """After how many seconds the buckets of a time series expire."""


class ModelView(NamedTuple):
    """A view in one state."""

    on: str
    pipeline: list[Document]


State = dict[str, Any]
"""A `ModelCollection` or `ModelView` by namespace; under `PARTIAL` the entries of a commit that is made in pieces."""
PARTIAL: Final = "partial"


class Event(NamedTuple):
    """A change that an entry of the oplog describes."""

    kind: str
    """`insert`, `update`, `replace`, `delete`, `create`, `drop`, `dropDatabase`, `rename`, `view`, or `catalog` for
    others."""
    namespace: str
    key: Any = None
    before: Document | None = None
    after: Document | None = None
    to: str | None = None
    images: bool = False
    position: int = 0
    inner: int = 0
    """The number among the changes of its entry."""
    entry: Document | None = None


def collection_of(state: State, namespace: str) -> ModelCollection | None:
    """The collection of a namespace, None for a view or nothing."""
    there = state.get(namespace)
    return there if isinstance(there, ModelCollection) else None


def is_series(state: State, namespace: str) -> bool:
    """Whether a namespace is a time series in a state."""
    return namespace == SERIES and isinstance(state.get(namespace), ModelView)


def behind(state: State, namespace: str) -> ModelCollection | None:
    """The collection that has the indexes and options of a namespace: the buckets of a time series."""
    return collection_of(state, BUCKETS if is_series(state, namespace) else namespace)


def documents_of(state: State, namespace: str) -> list[Document]:
    """The documents that a find without a filter returns, of a view too, in natural order."""
    there = state.get(namespace)
    if there is None:
        return []
    if isinstance(there, ModelCollection):
        return sorted(there.documents.values(), key=by_id) if there.is_clustered else list(there.documents.values())
    database = namespace.partition(".")[0]
    documents = documents_of(state, f"{database}.{there.on}")
    for stage in there.pipeline:
        if UNPACK in stage:
            documents = unpacked(stage, documents)
        else:
            documents = [document for document in documents if matches(document, stage["$match"])]
    return documents


def by_id(document: Document) -> Any:
    """The `_id` of a document, an integer or, after an upsert, an ObjectId."""
    return isinstance(document["_id"], bson.ObjectId), document["_id"]


def apply(state: State, raw: bytes) -> tuple[State, list[Event]]:
    """The state after an entry, and its changes in order. Raises `Finding` for an entry that cannot be."""
    entry = bson.decode(raw)
    position = (entry["ts"].time << 32) + entry["ts"].inc
    state, events = dict(state), []
    inner: list[Document] = [entry]
    if entry["op"] == "c" and "applyOps" in entry["o"]:
        key = (entry["lsid"]["id"], entry["txnNumber"])
        partial = dict(state.get(PARTIAL, {}))
        inner = [*partial.pop(key, []), *entry["o"]["applyOps"]]
        if entry["o"].get("partialTxn"):
            partial[key], inner = inner, []
        state[PARTIAL] = partial
    for number, one in enumerate(inner):
        for event in _apply(state, one):
            events.append(event._replace(position=position, inner=number, entry=one))
    return state, events


def _apply(state: State, entry: Document) -> list[Event]:
    operation, namespace = entry["op"], entry["ns"]
    if operation == "n":
        return []
    if operation == "c":
        return _command(state, namespace.partition(".")[0], entry)
    if namespace.endswith(".system.views"):
        return _view(state, entry)
    collection = collection_of(state, namespace)
    if collection is None or collection.uuid != entry["ui"]:
        raise Finding("oplog", f"an entry of a collection that is not there: {entry}")
    documents = dict(collection.documents)
    state[namespace] = replace(collection, documents=documents)
    if operation == "i":
        if collection.count_max is not None:  # it may have made room in the middle of the command
            while entry["o"]["_id"] in documents and len(documents) > collection.count_max:
                del documents[next(iter(documents))]
        return [_insert(documents, namespace, entry, images=collection.images)]
    key = entry["o2" if operation == "u" else "o"]["_id"]
    before = documents.get(key)
    if before is None:
        raise Finding("oplog", f"a change of a document that is not there: {entry}")
    if operation == "d":
        del documents[key]
        return [Event("delete", namespace, key, before, images=collection.images)]
    change = entry["o"]
    kind = "update" if "diff" in change else "replace"
    documents[key] = after = patched(before, change["diff"]) if kind == "update" else change
    return [Event(kind, namespace, key, before, after, images=collection.images)]


def applied(state: State, events: list[Event]) -> State:
    """The state after some of the changes of a commit."""
    state = dict(state)
    for event in events:
        assert event.entry is not None
        _apply(state, event.entry)
    return state


def _insert(documents: dict[Any, Document], namespace: str, entry: Document, *, images: bool) -> Event:
    document = entry["o"]
    if document["_id"] in documents:
        raise Finding("oplog", f"a second document with the same _id: {entry}")
    documents[document["_id"]] = document
    return Event("insert", namespace, document["_id"], None, document, images=images)


def patched(document: Document, diff: Document) -> Document:
    """The document after the diff of an entry, `$v: 2`."""
    new = copy.copy(document)
    for name in diff.get("d", {}):
        new.pop(name, None)
    new.update({**diff.get("u", {}), **diff.get("i", {})})
    for name, inner in diff.items():
        if name.startswith("s"):
            there = new[name[1:]]
            new[name[1:]] = _patched_array(there, inner) if inner.get("a") is True else patched(there, inner)
    return new


def _patched_array(array: list[Any], diff: Document) -> list[Any]:
    new = list(array)
    for name, value in diff.items():
        if name == "l":
            del new[value:]
        elif name.startswith("u"):
            index = int(name[1:])
            new += [None] * (index + 1 - len(new))
            new[index] = value
    return new


def _view(state: State, entry: Document) -> list[Event]:
    if entry["op"] == "d":
        del state[entry["o"]["_id"]]
    else:
        state[entry["o"]["_id"]] = ModelView(entry["o"]["viewOn"], entry["o"]["pipeline"])
    return [Event("view", entry["o"]["_id"])]


def _command(state: State, database: str, entry: Document) -> list[Event]:
    o = entry["o"]
    name = next(iter(o))
    if name == "dropDatabase":
        for namespace in [item for item in state if item.startswith(f"{database}.")]:
            del state[namespace]
        return [Event("dropDatabase", f"{database}.")]
    if name == "renameCollection":
        state[o["to"]] = state.pop(o[name])
        return [Event("rename", o[name], to=o["to"])]
    namespace = f"{database}.{o[name]}"
    if name == "create":
        images = o.get("changeStreamPreAndPostImages", {}).get("enabled", False)
        count_max = o.get("max") if o.get("capped") else None
        state[namespace] = ModelCollection(
            entry["ui"], validator=o.get("validator"), images=images, count_max=count_max,
            is_capped=bool(o.get("capped")), is_clustered="clusteredIndex" in o,
            expires_seconds=o.get("expireAfterSeconds"),
        )  # fmt: skip
        return [Event("create", namespace)]
    if name == "drop":
        if state.pop(namespace, None) is None:
            raise Finding("oplog", f"a drop of what is not there: {entry}")
        return [Event("drop", namespace)]
    collection = collection_of(state, namespace)
    if collection is None or collection.uuid != entry["ui"]:
        raise Finding("oplog", f"a change of a collection that is not there: {entry}")
    state[namespace] = _changed(collection, name, o)
    return [Event("catalog", namespace)]


def _changed(collection: ModelCollection, name: str, o: Document) -> ModelCollection:
    indexes, builds = dict(collection.indexes), dict(collection.builds)
    if name == "createIndexes":
        spec = {key: value for key, value in o.items() if key not in (name, "v")}
        indexes[spec["name"]] = spec
    elif name == "startIndexBuild":
        builds[o["indexBuildUUID"]] = o["indexes"]
    elif name == "commitIndexBuild":
        indexes.update({spec["name"]: spec for spec in builds.pop(o["indexBuildUUID"])})
    elif name == "abortIndexBuild":
        del builds[o["indexBuildUUID"]]
    elif name == "dropIndexes":
        del indexes[o["index"]]
    elif name == "collMod":
        if "index" in o:
            given = dict(o["index"])
            spec = indexes[given.pop("name")]
            indexes[spec["name"]] = {**spec, **given}
        if "validator" in o:
            collection = replace(collection, validator=o["validator"] or None)
        if "expireAfterSeconds" in o:
            seconds = o["expireAfterSeconds"]
            collection = replace(collection, expires_seconds=None if seconds == "off" else seconds)
        if "changeStreamPreAndPostImages" in o:
            collection = replace(collection, images=o["changeStreamPreAndPostImages"]["enabled"])
    else:
        raise Finding("oplog", f"an entry that the simulator does not know: {o}")
    return replace(collection, indexes=indexes, builds=builds)


def with_room(state: State, namespace: str, left: list[Any], *, is_done: bool) -> State:
    """The state in which a capped collection has only the documents that are `left`, by `_id`.

    These are the last of those that it had, and not fewer than it may hold; more only where the insert has paused.
    Raises `Finding`."""
    collection = state[namespace]
    keys, count_max = list(collection.documents), collection.count_max
    fewest = min(len(keys), count_max)
    if left != keys[len(keys) - len(left) :] or len(left) < fewest or (is_done and len(left) > count_max):
        raise Finding("capped", f"{namespace} had {keys}, and {left} are left of {count_max} at most")
    return {**state, namespace: replace(collection, documents={key: collection.documents[key] for key in left})}


def index_keys(spec: Document, document: Document) -> list[Any]:
    """The keys of a document in a unique index, none where that does not cover it."""
    if not matches(document, spec.get("partialFilterExpression", {})):
        return []
    if "collation" in spec:
        document = folded(document)
    values = [value_at(document, path) for path in spec["key"]]
    if spec.get("sparse") and all(value is MISSING for value in values):
        return []
    keys: list[tuple[Any, ...]] = [()]
    for value in values:
        items = value or [MISSING] if isinstance(value, list) else [value]
        keys = [(*key, None if item is MISSING else item) for key in keys for item in items]
    return list(dict.fromkeys(keys))


def refuses_duplicates(spec: Document) -> bool:
    """Whether an index refuses a document whose key another one has."""
    return bool(spec.get("unique") or spec.get("prepareUnique"))


def require_sound(state: State, namespace: str) -> None:
    """Raise `Finding` where two documents have the same key in a unique index that is ready."""
    collection = collection_of(state, namespace)
    for spec in () if collection is None else collection.indexes.values():
        if spec.get("unique") and collection is not None:
            seen: dict[Any, Any] = {}
            for document in collection.documents.values():
                for key in index_keys(spec, document):
                    if seen.setdefault(key, document["_id"]) != document["_id"]:
                        raise Finding("unique", f"{namespace} has {key} twice in {spec['name']}: {document}")
