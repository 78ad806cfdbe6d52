"""Writes outside transactions: the command of each, and whether its changes and its reply are explained.

Each change is of a document that matched as it was made, and is what the update makes of it. A document that matched
all the time has been changed, once. The numbers in the reply are those of the changes. A write whose commit has failed
keeps what its earlier turns did; a retryable one that is sent again does the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tests.simulation import bulks
from tests.simulation.language import Document, changes, frozen, matches, ordered, query_of, updated, upserted
from tests.simulation.measurements import BUCKETS, SERIES, Turn, problem_of
from tests.simulation.model import (
    Event,
    Finding,
    ModelView,
    State,
    collection_of,
    documents_of,
    index_keys,
    is_series,
    refuses_duplicates,
)
from tests.simulation.reads import shape, split, steady
from tests.simulation.world import COMMIT_FAILED, ENDED, Pending

WRITES: Final = ("bulkWrite", "delete", "findAndModify", "insert", "update")


def body_of(op: Document) -> tuple[Document, dict[str, list[Document]]]:
    """The command that a client sends for a write, and its document sequences."""
    kind = op["do"]
    if kind == "bulkWrite":
        return bulks.body_of(op), {}
    _, name = split(op["ns"])
    if kind == "insert":
        body: Document = {"insert": name, "ordered": op.get("ordered", True)}
        return (body, {"documents": op["documents"]})
    condition, collation = query_of(op)
    if kind == "update":
        one = {"q": condition, "u": op["change"], "multi": op["multi"], "upsert": op.get("upsert", False)}
        return {"update": name, "updates": [one | collation]}, {}
    if kind == "delete":
        return {"delete": name, "deletes": [{"q": condition, "limit": 0 if op["multi"] else 1, **collation}]}, {}
    body = {"findAndModify": name, "query": condition, "sort": op["sort"], **collation}
    if op.get("change") is None:
        return {**body, "remove": True}, {}
    return {**body, "update": op["change"], "new": op.get("new", False), "upsert": op.get("upsert", False)}, {}


def database_of(op: Document) -> str:
    """The database that the command is sent to."""
    return "admin" if op["do"] == "bulkWrite" else split(op["ns"])[0]


def explain(op: Document, pending: Pending, reply: Document, states: list[State]) -> None:
    """Raise `Finding` where the changes or the reply of a write cannot be explained."""
    if op["do"] != "bulkWrite":
        Explanation(op, pending, reply, states).check()
        return
    if reply["ok"] != 1.0 and reply["code"] not in ENDED:
        raise Finding("bulk", f"{op} was answered {reply}")
    parts = bulks.parts_of(op, pending, reply)
    for at, part in enumerate(parts):
        if reply["ok"] == 1.0 or part.events:
            turns, seen = bulks.turns_of(parts, at, pending)
            explanation = Explanation(part.op, replace(pending, turns=turns), part.reply, states)
            explanation.states += seen
            explanation.check()


class Explanation:
    """The comparison of a write's result with its intent."""

    def __init__(self, op: Document, pending: Pending, reply: Document, states: list[State]) -> None:
        self.op = op
        self.reply = reply
        self.turns = turns = pending.turns
        between = states[turns[0].since :] if len(turns) > 1 else []
        self.states = [*[turn.before for turn in turns], *between, *[turn.after for turn in turns]]
        """All states that it may have seen, not in order, the first one first."""
        self.is_one_turn = len(turns) == 1
        self.events = [event for event in pending.events if event.kind != "create"]
        self.is_counted = reply["ok"] != 1.0 or "n" in reply
        """Whether the reply has the numbers: not that of an operation of a bulkWrite that answers errors only."""

    def fail(self, why: str) -> None:
        """Raise `Finding`."""
        raise Finding("write", f"{why}: {self.op} has made {self.events} and was answered {self.reply}")

    def check(self) -> None:
        """Raise `Finding` where the changes or the reply cannot be explained."""
        if self.op["ns"] == SERIES:
            self._check_measurements()
            return
        if any(event.namespace != self.op["ns"] for event in self.events):
            self.fail("a change elsewhere")
        if self.reply["ok"] != 1.0:
            self._explain_error(self.reply["code"])
        for error in self.reply.get("writeErrors", ()):
            self._explain_error(error["code"], error["index"])
        {"insert": self._insert, "update": self._update, "delete": self._delete, "findAndModify": self._modify}[
            self.op["do"]
        ]()

    def _check_measurements(self) -> None:
        if any(event.namespace not in (BUCKETS, SERIES) for event in self.events):
            self.fail("a change elsewhere")
        for error in (*([self.reply] if self.reply["ok"] != 1.0 else []), *self.reply.get("writeErrors", ())):
            half_dropped = error["code"] == 26 and any(
                is_series(state, SERIES) and BUCKETS not in state for state in self.states
            )  # by dropDatabase, which may pause between two collections
            if error["code"] not in ENDED and not half_dropped and not self._has_lost_its_collection(error["code"]):
                self.fail(f"the error {error['code']} is not explained")
        try:
            turns = [Turn(documents_of(turn.before, SERIES), documents_of(turn.after, SERIES)) for turn in self.turns]
        except ValueError as error:
            self.fail(str(error))
        steady = [] if self.op["do"] == "insert" else self._steady()
        problem = problem_of(self.op, turns, self.reply, steady)
        if problem is not None:
            self.fail(problem)

    def _has_lost_its_collection(self, code: int) -> bool:
        return code == 175 and len({frozen_shape(self.op, state) for state in self.states}) > 1

    @property
    def _failed(self) -> bool:
        return self.reply["ok"] != 1.0 or "writeErrors" in self.reply

    def _steady(self) -> list[Document]:
        return steady(self.op, self.states)

    def _insert(self) -> None:
        documents, errors = self.op["documents"], self.reply.get("writeErrors", [])
        is_unordered = not self.op.get("ordered", True)
        if self.reply["ok"] != 1.0:
            made = [event.after for event in self.events]
            if self.reply["code"] != COMMIT_FAILED and self.is_one_turn and made:
                self.fail("a failed command has changed something")
            left = iter(documents if is_unordered else documents[: len(made)])
            if not all(item in left for item in made):  # in the order in which they were sent
                self.fail("other documents are there than were to be inserted")
            return
        failed = [error["index"] for error in errors]
        if failed and not is_unordered:
            expected = documents[: failed[0]]
        else:
            expected = [item for index, item in enumerate(documents) if index not in failed]
        if [(event.kind, event.after) for event in self.events] != [("insert", item) for item in expected]:
            self.fail("other documents are there than were to be inserted")
        if self.is_counted and self.reply["n"] != len(expected):
            self.fail("n is wrong")

    def _check_updates(self, events: list[Event]) -> None:
        seen: dict[Any, Document] = {}
        for event in events:
            assert event.before is not None and event.after is not None
            if event.kind not in ("update", "replace"):
                self.fail(f"{event.kind} by an update")
            if not matches(event.before, self.op["filter"]):
                self.fail(f"a document was changed that did not match: {event.before}")
            if updated(event.before, self.op["change"]) != event.after or not changes(event.before, self.op["change"]):
                self.fail(f"a wrong change: {event.before} became {event.after}")
            if event.key in seen and (self.is_one_turn or seen[event.key] == event.before):
                self.fail("a document was changed twice")  # and not another one with the same _id, inserted meanwhile
            seen[event.key] = event.after

    def _check_upsert(self, event: Event) -> None:
        wanted, after = upserted(self.op["filter"], self.op["change"]), dict(event.after or {})
        if "_id" not in wanted:
            after.pop("_id")
        if event.kind != "insert" or after != wanted:
            self.fail("a wrong upsert")
        if self._steady():
            self.fail("an upsert although a document matched")

    def _update(self) -> None:
        inserted = [event for event in self.events if event.kind == "insert"]
        changed = [event for event in self.events if event.kind != "insert"]
        if inserted and (changed or len(inserted) > 1 or not self.op.get("upsert")):
            self.fail("more than an upsert")
        self._check_updates(changed)
        if inserted:
            self._check_upsert(inserted[0])
        if not self.op["multi"] and len(changed) > 1:
            self.fail("more than one document was changed")
        if self._failed or not self.is_counted:
            return
        if self.reply["nModified"] != len(changed) or len(self.reply.get("upserted", ())) != len(inserted):
            self.fail("the reply has other numbers")
        through, same = self._steady(), self.reply["n"] - len(changed) - len(inserted)
        unchanged = [item for item in through if not changes(item, self.op["change"])]
        if same < 0 or (not self.op["multi"] and self.reply["n"] > 1):
            self.fail("n is wrong")
        if self.op["multi"]:
            if len(unchanged) != len(through):
                self.fail("a document that matched all the time was not changed")
            if same < len(unchanged) or (self.is_one_turn and same != len(unchanged)):
                self.fail("n is wrong")
        elif self.reply["n"] == 0 and through:
            self.fail("a document that matched all the time was not found")
        elif self.is_one_turn and same and not unchanged:
            self.fail("a document was found that did not match")
        if self.op.get("upsert") and self.reply["n"] == 0:
            self.fail("neither an update nor an upsert")

    def _delete(self) -> None:
        for event in self.events:
            assert event.before is not None
            if event.kind != "delete" or not matches(event.before, self.op["filter"]):
                self.fail(f"a document was deleted that did not match: {event}")
        if self._failed:
            return
        if self.is_counted and self.reply["n"] != len(self.events):
            self.fail("n is wrong")
        if self.op["multi"]:
            if self._steady():
                self.fail("a document that matched all the time was not deleted")
        elif len(self.events) > 1 or (not self.events and self._steady()):
            self.fail("not one document was deleted")

    def _modify(self) -> None:
        if len(self.events) > 1:
            self.fail("more than one change")
        event = self.events[0] if self.events else None
        if self.reply["ok"] != 1.0:
            if event is not None:
                self.fail("a failed command has changed something")
            return
        value, op = self.reply.get("value"), self.op
        if event is None:
            through = self._steady()
            if op.get("change") is None or value is None:
                if through or (value is not None) or op.get("upsert"):
                    self.fail("nothing was changed")
            elif changes(value, op["change"]) or not any(value in self._matching(state) for state in self.states):
                self.fail("a change is missing")
            return
        if event.kind == "insert":
            self._check_upsert(event)
        elif event.kind == "delete":
            if op.get("change") is not None or not matches(event.before or {}, op["filter"]):
                self.fail("a wrong delete")
        else:
            self._check_updates([event])
        expected = event.after if op.get("new") and op.get("change") is not None else event.before
        if value != expected:
            self.fail(f"value is not {expected}")
        if self.is_one_turn and event.kind != "insert":
            first = ordered(self._matching(self.states[0]), op["sort"])[0]
            if first["_id"] != event.key:
                self.fail(f"the first document is {first}")

    def _matching(self, state: State) -> list[Document]:
        collection = collection_of(state, self.op["ns"])
        documents = [] if collection is None else collection.documents.values()
        return [document for document in documents if matches(document, self.op["filter"])]

    def _explain_error(self, code: int, index: int = 0) -> None:
        is_explained = code in ENDED or any(self._may_fail(state, code, index) for state in self.states)
        if not is_explained and not self._has_lost_its_collection(code):
            self.fail(f"the error {code} is not explained")

    def _may_fail(self, state: State, code: int, index: int) -> bool:
        namespace = self.op["ns"]
        if code == 166:
            return isinstance(state.get(namespace), ModelView)
        collection = collection_of(state, namespace)
        if collection is None:
            return False
        inserted = self.op["documents"][index] if self.op["do"] == "insert" else None
        if code == 121 and collection.validator is not None:
            return inserted is None or not matches(inserted, collection.validator)
        if code != 11000:
            return False
        building = [spec for specs in collection.builds.values() for spec in specs]
        unique = [spec for spec in (*collection.indexes.values(), *building) if refuses_duplicates(spec)]
        if inserted is None:
            return bool(unique)
        if inserted["_id"] in collection.documents:
            return True
        others = [item for item in collection.documents.values() if item["_id"] != inserted["_id"]]
        return any(
            key in index_keys(spec, other) for spec in unique for key in index_keys(spec, inserted) for other in others
        )


def frozen_shape(op: Document, state: State) -> Any:
    """The collections and indexes that a write uses in a state, as a value that hashes."""
    return frozen([str(item) for item in shape(op, state)])
