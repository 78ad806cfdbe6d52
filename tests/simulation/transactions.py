"""Clients' transactions: each statement reads the snapshot of the first one and what the transaction has written.

The commit makes exactly the changes that its statements were answered, of documents as they were in the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.simulation.language import Document, matches, updated, upserted
from tests.simulation.language import changes as is_changed
from tests.simulation.model import (
    Event,
    Finding,
    ModelCollection,
    ModelView,
    State,
    collection_of,
    index_keys,
    refuses_duplicates,
)
from tests.simulation.reads import READS, answer_in, answer_of, namespaces_of
from tests.simulation.world import ENDED

CREATES: Final = ("create", "createIndexes")
LIFETIME_MS: Final = 60_000
Change = tuple[str, str, Any, Document | None, Document | None]
"""Kind, namespace, key, the document before and after."""


@dataclass(slots=True)
class ModelTransaction:
    """The reads and writes of a client's transaction."""

    snapshot: State
    began_ms: float
    since: int
    """The number of the snapshot,"""
    attempted_from: int
    """and how much had been changed when it began."""
    namespaces: set[str] = field(default_factory=set)
    """Where it may have locks."""
    changes: list[Change] = field(default_factory=list)
    created: list[tuple[str, str]] = field(default_factory=list)
    """The collections that it has created, each as (namespace, ""), and their indexes, as (namespace, name)."""
    state: State = field(init=False)
    """The state that its own statements see."""

    def __post_init__(self) -> None:
        self.state = self.snapshot

    def statement(self, op: Document) -> tuple[State, list[Change], Document]:
        """The state after a statement that writes, its changes, and the numbers of its reply."""
        namespace = op["ns"]
        there = collection_of(self.state, namespace) or ModelCollection(b"new")
        documents, changes = dict(there.documents), []
        numbers: Document = {}
        if op["do"] in CREATES:
            indexes = {**there.indexes, **{spec["name"]: spec for spec in op.get("indexes", ())}}
            return {**self.state, namespace: replace(there, indexes=indexes)}, [], numbers
        if op["do"] == "insert":
            for document in op["documents"]:
                changes.append(("insert", namespace, document["_id"], None, document))
                documents[document["_id"]] = document
            numbers["n"] = len(op["documents"])
        else:
            found = [item for item in documents.values() if matches(item, op["filter"])]
            numbers["n"] = len(found)
            for before in found:
                if op["do"] == "delete":
                    changes.append(("delete", namespace, before["_id"], before, None))
                    del documents[before["_id"]]
                    continue
                after = updated(before, op["change"])
                if is_changed(before, op["change"]):
                    kind = "update" if next(iter(op["change"]), "").startswith("$") else "replace"
                    changes.append((kind, namespace, before["_id"], before, after))
                    documents[before["_id"]] = after
            if op["do"] == "update":
                numbers["nModified"] = len(changes)
                if not found and op.get("upsert"):
                    made = upserted(op["filter"], op["change"])
                    changes.append(("insert", namespace, made["_id"], None, made))
                    documents[made["_id"]] = made
                    numbers["n"] = 1
        if not changes:
            return self.state, [], numbers
        return {**self.state, namespace: replace(there, documents=documents)}, changes, numbers

    def is_refused(self, op: Document, code: int, *, surely: bool = False, begun: Sequence[Document] = ()) -> bool:
        """Whether what the transaction itself sees refuses the statement, with this error. `surely`: not only by an
        index that is being built, where a change of other fields brings no key. `begun`: the indexes whose build has
        begun since the transaction."""
        there = self.state.get(op["ns"])
        if code == 166:
            return isinstance(there, ModelView)
        if op["do"] in CREATES or code in (48, 263):
            return there is not None and code == self._code_of(op, there)
        state, changes, _ = self.statement(op)
        after = collection_of(state, op["ns"])
        before = collection_of(self.state, op["ns"])
        if after is None or before is None:
            return False
        made = [(key, document) for kind, _, key, _, document in changes if document is not None]
        if code == 121:
            return before.validator is not None and not all(matches(item, before.validator) for _, item in made)
        if code != 11000:
            return False
        if op["do"] == "insert" and any(key in before.documents for key, _ in made):
            return True
        built = [] if surely else [*begun, *(spec for specs in before.builds.values() for spec in specs)]
        # An index with `prepareUnique` may have equal keys, which stay when other fields change.
        refuses = (lambda spec: bool(spec.get("unique"))) if surely else refuses_duplicates
        unique = [spec for spec in (*before.indexes.values(), *built) if refuses(spec)]
        return _collides(before, after, made, unique)

    def _code_of(self, op: Document, there: ModelCollection) -> int:
        """The error of creating a collection that is there, or its indexes; 0 for none."""
        if op["do"] == "create":
            return 48
        known = (*there.indexes, *(spec["name"] for specs in there.builds.values() for spec in specs))
        if all(spec["name"] in known for spec in op.get("indexes", ())):
            return 0
        return 263 if (op["ns"], "") not in self.created or there.documents else 0


def _collides(
    before: ModelCollection, after: ModelCollection, made: list[tuple[Any, Document]], unique: list[Document]
) -> bool:  # fmt: skip
    documents = [*before.documents.values(), *after.documents.values()]
    return any(
        key in index_keys(spec, other)
        for spec in unique
        for own, document in made
        for key in index_keys(spec, document)
        for other in documents
        if other["_id"] != own
    )


class TransactionCheck:
    """The checks of one reply in a transaction."""

    def __init__(
        self, transaction: ModelTransaction, attempted: list[Event], others: list[ModelTransaction]
    ) -> None:  # fmt: skip
        """`attempted`: what was changed since the transaction began, also where the commit failed later."""
        self.transaction = transaction
        self.attempted = attempted
        self.others = others

    def _may_conflict(self, namespace: str) -> bool:
        """Whether another client has written there, or writes there, since the transaction began; or a background job
        goes on with an index build there, which writes the keys of documents."""
        there = collection_of(self.transaction.snapshot, namespace)
        if there is not None and there.builds:
            return True
        return any(namespace in other.namespaces for other in self.others) or any(
            namespace in (event.namespace, event.to)
            or (event.namespace.endswith(".") and namespace.startswith(event.namespace))
            for event in self.attempted
        )

    def _begun(self, namespace: str) -> list[Document]:
        """The indexes whose build has begun there since the transaction."""
        entries = [event.entry["o"] for event in self.attempted if event.entry and event.namespace == namespace]
        return [spec for o in entries if "startIndexBuild" in o for spec in o["indexes"]]

    def failed(self, op: Document, reply: Document, now_ms: float) -> None:
        """Raise `Finding` where a statement's error is not explained."""
        code, transaction = reply["code"], self.transaction
        if code == 251 and now_ms - transaction.began_ms >= LIFETIME_MS:
            return
        ends = op["do"] in ("abort", "commit")
        if code in ENDED:
            return
        if not ends and op["do"] not in READS and transaction.is_refused(op, code, begun=self._begun(op["ns"])):
            return
        if code == 251 and any(map(self._may_conflict, transaction.namespaces)):
            return  # a change that took long has overwritten what it had locked meanwhile
        if code == 251 and any(event.kind == "compact" for event in self.attempted):
            return
        namespaces = [] if ends else namespaces_of(op, transaction.snapshot)
        if code in (112, 175, 246) and any(map(self._may_conflict, namespaces)):
            return
        raise Finding("transaction", f"{op} was answered {reply}, of a transaction that has made {transaction.changes}")

    def statement(self, op: Document, reply: Document, documents: list[Document]) -> None:
        """Check the reply of a statement, and note what it has done. `documents`: those of all batches of its cursor.
        Raises `Finding`."""
        transaction = self.transaction
        if op["do"] in READS:
            answer, expected = answer_of(op, reply, documents), answer_in(op, transaction.state)
            if answer != expected:
                raise Finding("transaction", f"{op} was answered {answer}, expected {expected}")
            return
        for code in (48, 121, 263, 11000):
            if transaction.is_refused(op, code, surely=True):
                raise Finding("transaction", f"{op} was answered {reply}, expected error {code}")
        state, changes, numbers = transaction.statement(op)
        if any(reply.get(name) != number for name, number in numbers.items()):
            raise Finding("transaction", f"{op} was answered {reply}, expected {numbers}")
        old, new = collection_of(transaction.state, op["ns"]), collection_of(state, op["ns"])
        if new is not None:
            transaction.created += [] if old is not None else [(op["ns"], "")]
            transaction.created += [(op["ns"], name) for name in new.indexes if old is None or name not in old.indexes]
        transaction.state = state
        transaction.changes += changes
        if changes or op["do"] in CREATES:
            transaction.namespaces.add(op["ns"])

    def committed(self, events: list[Any]) -> None:
        """Raise `Finding` where a commit has made other changes than its statements."""
        made = [
            (event.kind, event.namespace, event.key, event.before, event.after)
            for event in events
            if event.kind in ("delete", "insert", "replace", "update")
        ]
        created = [
            (event.namespace, (event.entry or {})["o"].get("name", ""))
            for event in events
            if event.kind in ("catalog", "create")
        ]
        if sorted(created) != sorted(self.transaction.created):
            raise Finding("transaction", f"committed {created}, expected {self.transaction.created}")
        if _by_document(made) != _by_document(self.transaction.changes):
            raise Finding("transaction", f"committed {made}, expected {self.transaction.changes}")


def _by_document(changes: list[Change]) -> dict[Any, list[Change]]:
    """The changes of each document in order: a statement may change several in whatever order."""
    made: dict[Any, list[Change]] = {}
    for change in changes:
        made.setdefault(change[1:3], []).append(change)
    return made
