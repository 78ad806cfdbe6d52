"""A tailable cursor on the capped collection: it returns what is inserted in order, without a gap, until it falls off.

Where it stands is a number in the order of all inserts into this collection. There may be several such places, where
the same document was inserted again.
"""

from __future__ import annotations

from typing import Any

import bson

from headrace import limits
from tests.simulation.language import Document, matches
from tests.simulation.model import Finding, State, collection_of
from tests.simulation.world import ENDED, Reply, World


def is_complete(batch: list[Document], left: list[Document], size: int | None) -> bool:
    """Whether a batch could not have more of the documents that are left."""
    is_large = sum(len(bson.encode(item)) for item in [*batch, *left[:1]]) > limits.BATCH_BYTES_MAX
    return not left or len(batch) == size or bool(batch and is_large)


class Tail:
    """One tailable cursor."""

    def __init__(self, world: World, op: Document) -> None:
        self.world = world
        self.op = op
        self.cursor = 0
        self.uuid: bytes | None = None
        self.may_be_of_another = False  # a capped copy has the same documents as the collection before it
        self.places: set[int] = set()
        self.has_returned = False

    def body(self) -> Document:
        """The find that opens it."""
        op = self.op
        body = {"find": op["ns"].partition(".")[2], "filter": op["filter"], "tailable": True, "awaitData": op["awaits"]}
        return {**body, "batchSize": op["batch"]} if op["batch"] else body

    def inserted(self) -> list[Document]:
        """All documents that were ever inserted into the collection, and are published."""
        made: list[Document] = []
        for event in self.world.history[: self.world.published_count]:
            if event.kind == "insert" and (event.entry or {}).get("ui") == self.uuid:  # also under its temporary name
                assert event.after is not None
                made.append(event.after)
        return made

    def begin(self, reply: Reply, states: list[State]) -> None:
        """The first batch is what some state has. Raises `Finding`."""
        batch, namespace = reply["cursor"]["firstBatch"], self.op["ns"]
        self.cursor = int(reply["cursor"]["id"])
        for state in states:
            there = collection_of(state, namespace)
            documents = [] if there is None else list(there.documents.values())
            found = [item for item in documents if matches(item, self.op["filter"])]
            size = self.op["batch"] or limits.FIRST_BATCH_COUNT
            is_first = batch == found[: len(batch)] and is_complete(batch, found[len(batch) :], size)
            if not is_first or bool(self.cursor) != bool(documents):
                continue  # one on an empty collection is closed
            if not self.cursor:
                return
            assert there is not None
            if self.uuid not in (None, there.uuid):
                self.places = set()
                self.may_be_of_another = True
            self.uuid = there.uuid
            self._stand_after(batch, documents)
        if not self.places:
            raise Finding("tail", f"{self.op} was answered {reply}, which is no state")

    def _stand_after(self, batch: list[Document], documents: list[Document]) -> None:
        inserted = self.inserted()
        last = batch[-1] if batch else documents[-1]
        self.places |= {number + 1 for number, item in enumerate(inserted) if item == last}
        self.has_returned = bool(batch)

    def take(self, reply: Reply, size: int | None, due: int) -> None:
        """Check a further batch; `due`: how many documents had been inserted when it was asked for."""
        batch, inserted, places = reply["cursor"]["nextBatch"], self.inserted(), set()
        for place in self.places:
            at = self._after(batch, inserted, place)
            if at is None:
                continue
            left = [item for item in inserted[at:due] if matches(item, self.op["filter"])]
            if is_complete(batch, left, size):
                places.add(at)
        if not places:
            raise Finding("tail", f"{self.op} was answered {batch} at {self.places} of {inserted}")
        self.places, self.cursor = places, int(reply["cursor"]["id"])
        self.has_returned |= bool(batch)

    def _after(self, batch: list[Document], inserted: list[Document], place: int) -> int | None:
        """Where it stands after a batch that it began at a place; None if that cannot be."""
        for document in batch:
            while place < len(inserted) and not matches(inserted[place], self.op["filter"]):
                place += 1
            if place == len(inserted) or inserted[place] != document:
                return None
            place += 1
        return place

    def require_nothing(self) -> None:
        """Raise `Finding` where a document is published that it should have returned, rather than wait."""
        inserted, there = self.inserted(), collection_of(self.world.state, self.op["ns"])
        if there is None or there.uuid != self.uuid:
            return
        if all(any(matches(item, self.op["filter"]) for item in inserted[place:]) for place in self.places):
            raise Finding("tail", f"{self.op} waits at {self.places} of {inserted}")

    def failed(self, reply: Reply, states: list[State]) -> None:
        """Raise `Finding` where an error is not explained."""
        code, namespace = reply["code"], self.op["ns"]
        there = [collection_of(state, namespace) for state in states]
        if code in ENDED or (code in (43, 175) and self.may_be_of_another):
            return
        if code == 2 and any(item is not None and not item.is_capped for item in there):
            return
        if code in (43, 175) and any(item is None or item.uuid != self.uuid for item in there):
            return
        if code == 136 and any(self._has_fallen_off(item) for item in there):
            return
        raise Finding("tail", f"{self.op} was answered {reply}")

    def _has_fallen_off(self, collection: Any) -> bool:
        """Whether the last document that it returned is gone."""
        if collection is None or collection.uuid != self.uuid:
            return False
        inserted, documents = self.inserted(), list(collection.documents.values())
        return not self.has_returned or any(inserted[place - 1] not in documents for place in self.places)
