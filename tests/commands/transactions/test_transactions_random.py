"""Random transactions beside random writes, each step compared with a model of snapshot isolation."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from bson import Binary, Int64

from headrace.dispatch.wait import Wait
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

pytestmark = pytest.mark.long

IDS = range(6)
INC = {"$inc": {"a": 1}}
Documents = dict[int, int]


@dataclass
class OpenTransaction:
    """A transaction as the model sees it."""

    started: int
    view: Documents
    changed_ids: set[int] = field(default_factory=set)


class Model:
    """Documents as committed, when each last changed or came and went, and the open transactions."""

    def __init__(self) -> None:
        self.committed: Documents = {}
        self.time = 0
        self.changed = dict.fromkeys(IDS, 0)
        self.open: dict[int, OpenTransaction] = {}

    def holder(self, number: int, besides: OpenTransaction | None = None) -> bool:
        return any(number in item.changed_ids for item in self.open.values() if item is not besides)

    def commit(self, documents: Documents, changed: set[int]) -> None:
        self.time += 1
        self.changed |= dict.fromkeys(changed, self.time)
        for number in changed:
            self.committed.pop(number, None)
            if number in documents:
                self.committed[number] = documents[number]

    def write(self, transaction: OpenTransaction, ids: list[int], values: dict[int, int | None]) -> int:
        """Return the answer to a transaction's write of these documents: 112, or 0 and it is done."""
        for number in ids:
            if self.holder(number, transaction) or (
                number not in transaction.changed_ids and self.changed[number] > transaction.started
            ):
                return 112
        for number in ids:
            transaction.changed_ids.add(number)
            value = values[number]
            if value is None:
                del transaction.view[number]
            else:
                transaction.view[number] = value
        return 0


class Run:
    """One server and its model, driven by the same dice."""

    def __init__(self, at: DrivenServer, seed: int) -> None:
        self.at = at
        self.dice = random.Random(seed)
        self.model = Model()
        self.numbers = dict.fromkeys(range(4), 0)

    def step(self) -> None:
        if self.dice.random() < 0.3:
            self.plain()
            return
        client = self.dice.randrange(4)
        if client not in self.model.open:
            self.numbers[client] += 1
            self.model.open[client] = OpenTransaction(self.model.time, dict(self.model.committed))
            self.read(client, startTransaction=True)
        elif self.dice.random() < 0.25:
            self.end(client)
        else:
            self.write(client)
        for other in self.model.open:
            self.read(other)

    def session(self, client: int) -> dict[str, Any]:
        lsid = {"id": Binary(bytes([client]) * 16, 4)}
        return {"lsid": lsid, "txnNumber": Int64(self.numbers[client]), "autocommit": False}

    def read(self, client: int, **more: Any) -> None:
        """Everything a transaction can read, in every way of reading, is what the model says."""
        wanted = self.model.open[client].view
        ways: tuple[dict[str, Any], ...] = (
            {}, {"sort": {"_id": 1}}, {"sort": {"_id": -1}}, {"sort": {"$natural": -1}},
            {"filter": {"_id": {"$gte": 1, "$lt": 5}}}, {"filter": {"_id": self.dice.choice(IDS)}},
            {"filter": {"a": 2}},
        )  # fmt: skip
        for way in ways if not more else ways[:1]:
            reply = self.at.must("d", {"find": "c", **way, **self.session(client), **more})
            documents = {document["_id"]: document["a"] for document in reply["cursor"]["firstBatch"]}
            assert documents == {
                key: value for key, value in wanted.items() if _matches(way.get("filter", {}), key, value)
            }

    def statement(self) -> tuple[dict[str, Any], str, int | None]:
        number = self.dice.choice(IDS)
        kind = self.dice.choice(["insert", "inc", "inc", "delete", "all"])
        if kind == "insert":
            return {"insert": "c", "documents": [{"_id": number, "a": 0}]}, kind, number
        if kind == "delete":
            return {"delete": "c", "deletes": [{"q": {"_id": number}, "limit": 1}]}, kind, number
        spec = {"_id": number} if kind == "inc" else {}
        return {"update": "c", "updates": [{"q": spec, "u": INC, "multi": kind == "all"}]}, kind, number

    def expected(self, kind: str, number: int, view: Documents) -> tuple[list[int], dict[int, int | None]]:
        """What a statement writes."""
        if kind == "insert":
            return [number], {number: 0}
        ids = [item for item in view if kind == "all" or item == number]
        return ids, {item: None if kind == "delete" else view[item] + 1 for item in ids}

    def write(self, client: int) -> None:
        body, kind, number = self.statement()
        transaction = self.model.open[client]
        assert number is not None
        reply = self.at.run("d", {**body, **self.session(client)})
        assert isinstance(reply, dict)
        if kind == "insert" and number in transaction.view:
            assert reply["writeErrors"][0]["code"] == 11000
            del self.model.open[client]
            return
        code = self.model.write(transaction, *self.expected(kind, number, transaction.view))
        assert reply.get("code", 0) == code
        if code:
            del self.model.open[client]

    def end(self, client: int) -> None:
        name = self.dice.choice(["commitTransaction", "commitTransaction", "abortTransaction"])
        transaction = self.model.open.pop(client)
        if name == "commitTransaction" and self.dice.random() < 0.2:
            self.at.given_up([("admin", {name: 1, **self.session(client)})])
        self.at.must("admin", {name: 1, **self.session(client)})
        if name == "commitTransaction":
            self.model.commit(transaction.view, transaction.changed_ids)

    def plain(self) -> None:
        """A write outside transactions: it waits, is refused, or is done."""
        body, kind, number = self.statement()
        assert number is not None
        view = dict(self.model.committed)
        taken = kind == "insert" and number in view
        ids, values = self.expected(kind, number, view)
        reply = self.at.run("d", body)
        if not taken and any(self.model.holder(item) for item in ids):
            assert isinstance(reply, Wait)
            return
        assert isinstance(reply, dict) and reply["ok"] == 1.0
        assert ("writeErrors" in reply) == taken
        if not taken:
            self.model.commit({item: value for item, value in values.items() if value is not None}, set(ids))

    def check(self) -> None:
        stored = self.at.must("d", {"find": "c"})["cursor"]["firstBatch"]
        assert {document["_id"]: document["a"] for document in stored} == self.model.committed
        assert self.at.must("d", {"count": "c"})["n"] == len(stored)
        assert self.at.must("d", {"validate": "c"})["valid"]


def _matches(spec: dict[str, Any], number: int, value: int) -> bool:
    if "a" in spec:
        return bool(value == spec["a"])
    bounds = spec.get("_id", {})
    if isinstance(bounds, int):
        return number == bounds
    return bool(not bounds or bounds["$gte"] <= number < bounds["$lt"])


@pytest.mark.parametrize("seed", range(12))
def test_every_answer_is_that_of_snapshot_isolation(seed: int) -> None:
    with DrivenServer(clock=FakeClock()) as at:
        at.must("d", {"create": "c"})
        run = Run(at, seed)
        for _ in range(120):
            run.step()
            run.check()
        for client in list(run.model.open):
            run.end(client)
        run.check()
        transactions = at.store.transactions
        assert not transactions.locks and not transactions.written._last and not transactions.written._commits
