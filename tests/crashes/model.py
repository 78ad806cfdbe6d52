"""The expected contents of a worker's collections: a model in plain dicts that shares no code with the product.

A worker writes alone to its documents, so that the model of each is exact. An operation is a dict that goes through a
pipe as BSON:

    do         insert, update, delete, create, drop, rename, index, unindex, transaction
    to         "database.collection"
    whole      whether it is done at once or not at all; if not, each document of it is done or not
    again      whether it may be sent again under its transaction number, and is done once
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]
Operation = dict[str, Any]


@dataclass(slots=True)
class CollectionModel:
    """The documents of one worker in a collection, by `_id`, and the names of its indexes that are complete."""

    documents: dict[str, Document] = field(default_factory=dict)
    indexes: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    """Indexes whose build was cut short by a crash or an error: it goes on, perhaps to its end."""


class Model:
    """The collections of one worker, by namespace."""

    def __init__(self) -> None:
        self.collections: dict[str, CollectionModel] = {}

    def copy(self) -> Model:
        """A copy that changes alone; documents are never changed in place."""
        made = Model()
        made.collections = {
            name: CollectionModel(dict(at.documents), set(at.indexes), set(at.unsure))
            for name, at in self.collections.items()
        }
        return made

    def apply(self, operation: Operation) -> None:
        """Do an operation that has succeeded."""
        namespace = operation["to"]
        match operation["do"]:
            case "transaction":
                for step in operation["steps"]:
                    self.apply(step)
            case "drop":
                del self.collections[namespace]
            case "rename":
                self.collections[operation["goal"]] = self.collections.pop(namespace)
            case kind:
                self._apply_inside(kind, self.collections.setdefault(namespace, CollectionModel()), operation)

    def refuse(self, operation: Operation) -> None:
        """Note an operation that was refused: the build of an index goes on if its turn failed."""
        at = self.collections.get(operation["to"])
        if operation["do"] == "index" and at is not None and operation["name"] not in at.indexes:
            at.unsure.add(operation["name"])

    def _apply_inside(self, kind: str, at: CollectionModel, operation: Operation) -> None:
        match kind:
            case "create":
                pass
            case "index":
                at.indexes.add(operation["name"])
                at.unsure.discard(operation["name"])
            case "unindex":
                at.indexes.discard(operation["name"])
            case "insert":
                for document in operation["documents"]:
                    at.documents[document["_id"]] = document
            case "delete":
                for key in operation["keys"]:
                    del at.documents[key]
            case "update":
                for key in operation["keys"]:
                    at.documents[key] = _updated(key, at.documents.get(key), operation["change"])

    def matching(self, namespace: str, group: int) -> list[str]:
        """The `_id`s of the documents of a group."""
        at = self.collections.get(namespace)
        return [] if at is None else [key for key, item in at.documents.items() if item.get("group") == group]


def _updated(key: str, document: Document | None, change: Document) -> Document:
    """A document behind a change by operators or a replacement; None: it is inserted with its `_id`."""
    if not next(iter(change)).startswith("$"):
        return {"_id": key, **change}
    new = {"_id": key} if document is None else dict(document)
    new.update(change.get("$set", {}))
    for name, value in change.get("$inc", {}).items():
        new[name] = new.get(name, 0) + value
    for name, value in change.get("$push", {}).items():
        new[name] = [*new.get(name, []), value]
    for name in change.get("$unset", {}):
        new.pop(name, None)
    return new


def differences(actual: Model, before: Model, operation: Operation | None) -> list[str]:
    """How what is there differs from `before`, or from that with `operation` done, which was under way."""
    after = before.copy()
    if operation is None:
        return _unequal(actual, before)
    after.apply(operation)
    if operation["whole"]:
        found = _unequal(actual, before)
        return found and _unequal(actual, after) and [f"neither before nor after {operation['do']}:", *found]
    found = []
    for namespace in actual.collections.keys() | before.collections.keys() | after.collections.keys():
        there, old, new = (_documents(model, namespace) for model in (actual, before, after))
        found += [
            f"{namespace} {key}: {there.get(key)}, and neither {old.get(key)} nor {new.get(key)}"
            for key in there.keys() | old.keys() | new.keys()
            if there.get(key) != old.get(key) and there.get(key) != new.get(key)
        ]
    return found


def _documents(model: Model, namespace: str) -> dict[str, Document]:
    at = model.collections.get(namespace)
    return {} if at is None else at.documents


def _unequal(actual: Model, expected: Model) -> list[str]:
    found = []
    if actual.collections.keys() != expected.collections.keys():
        found.append(f"collections {sorted(actual.collections)}, expected {sorted(expected.collections)}")
    for namespace, at in expected.collections.items():
        there = actual.collections.get(namespace)
        if there is None:
            continue
        found += [
            f"{namespace} {key}: {there.documents.get(key)}, expected {at.documents.get(key)}"
            for key in there.documents.keys() | at.documents.keys()
            if there.documents.get(key) != at.documents.get(key)
        ]
        if there.indexes - at.unsure - there.unsure != at.indexes - at.unsure - there.unsure:
            found.append(f"{namespace} has the indexes {sorted(there.indexes)}, expected {sorted(at.indexes)}")
    return found
