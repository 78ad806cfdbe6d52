"""The oplog replayed into plain dicts, and the events that streams must return of it with both images.

Entries of a transaction's chain count from its last one on; of a commit that was cut short the first ones stay. The
replay must equal the collections.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final

from bson import Timestamp

from headrace.query.diff import apply_diff
from headrace.values.bson import decode
from tests.crashes.model import Document

INTERNAL: Final = frozenset({"admin", "config", "local"})


@dataclass(frozen=True, slots=True)
class DueEvent:
    """An event that streams of its scope must return; `before` and `after` are the images of a document."""

    position: int
    kind: str
    namespace: str
    key: Any
    before: Document | None
    after: Document | None

    @property
    def seen(self) -> tuple[Any, ...]:
        """The part that every stream shows."""
        return self.position, self.kind, self.namespace, self.key


class History:
    """All documents by namespace and `_id`, as the oplog says up to `position`."""

    def __init__(self) -> None:
        self.position = 0
        self.documents: dict[str, dict[Any, Document]] = {}
        self._chains: dict[bytes, list[Document]] = {}

    def copy(self) -> History:
        """A copy that goes on alone; documents are never changed in place."""
        made = History()
        made.position = self.position
        made.documents = {name: dict(documents) for name, documents in self.documents.items()}
        made._chains = {session: list(chain) for session, chain in self._chains.items()}
        return made

    def read(self, entries: list[tuple[int, bytes]]) -> list[DueEvent]:
        """The events of these entries, which follow the last ones."""
        due: list[DueEvent] = []
        for position, raw in entries:
            assert position > self.position, f"the entry at {position} comes again"
            self.position = position
            entry = decode(raw)
            inner = entry["o"].get("applyOps") if entry["op"] == "c" else None
            if inner is None:
                due += self._one(position, entry)
                continue
            session = bytes(entry["lsid"]["id"])
            if entry["prevOpTime"]["ts"] == Timestamp(0, 0):
                self._chains[session] = []
            chain = self._chains[session]
            chain += inner
            if not entry["o"].get("partialTxn"):
                del self._chains[session]
                for item in chain:
                    due += self._one(position, item)
        return [event for event in due if event.namespace.partition(".")[0] not in INTERNAL]

    def _one(self, position: int, entry: Document) -> list[DueEvent]:
        namespace, o = entry["ns"], entry["o"]
        match entry["op"]:
            case "i":
                return [self._change(position, "insert", namespace, o["_id"], o)]
            case "d":
                return [self._change(position, "delete", namespace, o["_id"], None)]
            case "u":
                key = entry["o2"]["_id"]
                if "diff" not in o:
                    return [self._change(position, "replace", namespace, key, o)]
                after = apply_diff(copy.deepcopy(self.documents[namespace][key]), o["diff"])
                return [self._change(position, "update", namespace, key, after)]
            case "c":
                return self._command(position, namespace.partition(".")[0], o)
        return []

    def _change(self, position: int, kind: str, namespace: str, key: Any, after: Document | None) -> DueEvent:
        documents = self.documents.setdefault(namespace, {})
        before = documents.pop(key, None)
        assert (before is None) == (kind == "insert"), f"{kind} of {key} in {namespace}, which was {before}"
        if after is not None:
            documents[key] = after
        return DueEvent(position, kind, namespace, key, before, after)

    def _command(self, position: int, database: str, o: Document) -> list[DueEvent]:
        if "create" in o:
            self.documents.setdefault(f"{database}.{o['create']}", {})
        if "drop" in o:
            namespace = f"{database}.{o['drop']}"
            self.documents.pop(namespace, None)
            return [DueEvent(position, "drop", namespace, None, None, None)]
        if "renameCollection" in o:
            self.documents[o["to"]] = self.documents.pop(o["renameCollection"], {})
            return [DueEvent(position, "rename", o["renameCollection"], None, None, None)]
        return []
