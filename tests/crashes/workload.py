"""The random writes of one worker: the next operation, and the commands that do it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from bson import Binary, Int64

from tests.crashes.model import Document, Model, Operation

SHARED: Final = "s.shared"
"""All workers write to it; it has pre-images, and is never dropped."""
DOCUMENT_COUNT_MAX: Final = 30
"""The most documents of a worker in one collection."""
INDEXES: Final[dict[str, Document]] = {
    "list_1": {"list": 1},
    "n_1_group_-1": {"n": 1, "group": -1},
    "number_1": {"number": 1},
    "text_hashed": {"text": "hashed"},
}
Ask = Callable[[str, Document], Document]
"""Sends a command to a database: its reply."""


class CommandFailed(Exception):
    """A command was refused."""

    def __init__(self, reply: Document) -> None:
        self.reply = reply
        first = (reply.get("writeErrors") or [reply])[0]
        self.code = int(first.get("code", 0))
        super().__init__(str(first))


def must(ask: Ask, database: str, body: Document) -> Document:
    """The reply to a command that has succeeded. Raises `CommandFailed`."""
    reply = ask(database, body)
    if reply["ok"] != 1.0 or reply.get("writeErrors"):
        raise CommandFailed(reply)
    return reply


class Worker:
    """Makes operations. `number` is the worker's; `life` is greater each time that it begins anew."""

    def __init__(self, number: int, life: int, model: Model, random: Random) -> None:
        self.number = number
        self.model = model
        self.random = random
        self._life = life
        self._made = 0

    @property
    def _own(self) -> list[str]:
        return [f"d{self.number}.a", f"d{self.number}.b", f"e{self.number}.c"]

    def next_operation(self) -> Operation:
        """An operation that succeeds on what the model has."""
        self._made += 1
        makers: list[tuple[int, Callable[[], Operation | None]]] = [
            (30, self._insert), (25, self._update), (8, self._delete), (6, self._insert_many), (6, self._update_many),
            (3, self._delete_many), (8, self._transaction), (2, self._long), (3, self._many_keys), (3, self._create),
            (2, self._drop), (3, self._rename), (4, self._index), (2, self._unindex),
        ]  # fmt: skip
        while True:
            made = self.random.choices([maker for _, maker in makers], [weight for weight, _ in makers])[0]()
            if made is not None:
                break
        if made["do"] in ("delete", "insert", "update") and self.random.random() < 0.4:
            made["again"] = True
        return {"number": self._life * 100_000 + self._made, "again": False, **made}

    # Operations.

    def _namespace(self) -> str:
        there = [name for name in self.model.collections if name != SHARED]
        return SHARED if not there or self.random.random() < 0.5 else self.random.choice(there)

    def _document(self, at: int = 0, **more: Any) -> Document:
        return {
            "_id": f"{self.number}-{self._life}-{self._made}-{at}",
            "worker": self.number,
            "group": self.random.randrange(4),
            "n": self.random.randrange(20),
            "text": "x" * self.random.choice((5, 50, 500)),
            **more,
        }

    def _room(self, namespace: str) -> int:
        at = self.model.collections.get(namespace)
        return DOCUMENT_COUNT_MAX - (0 if at is None else len(at.documents))

    def _insert(self) -> Operation | None:
        namespace = self._namespace()
        if self._room(namespace) < 1:
            return None
        return {"do": "insert", "to": namespace, "whole": True, "documents": [self._document()]}

    def _insert_many(self) -> Operation | None:
        namespace, count = self._namespace(), self.random.randint(2, 12)
        if self._room(namespace) < count:
            return None
        return {"do": "insert", "to": namespace, "whole": False, "documents": [self._document(n) for n in range(count)]}

    def _long(self) -> Operation | None:
        namespace = self._namespace()
        if self._room(namespace) < 1:
            return None
        document = self._document(text="long" * 8000)
        return {"do": "insert", "to": namespace, "whole": True, "documents": [document]}

    def _many_keys(self) -> Operation | None:
        namespace = self._namespace()
        values = [self.random.randrange(1000) for _ in range(self.random.choice((3, 60)))]
        if (key := self._some_key(namespace)) is None:
            return None
        return {"do": "update", "to": namespace, "whole": True, "keys": [key], "change": {"$set": {"list": values}}}

    def _some_key(self, namespace: str) -> str | None:
        at = self.model.collections.get(namespace)
        return self.random.choice(list(at.documents)) if at is not None and at.documents else None

    def _change(self) -> Document:
        number = self.random.randrange(1000)
        return self.random.choice([
            {"$set": {"number": number}}, {"$inc": {"n": 1}}, {"$push": {"pushed": number}}, {"$unset": {"pushed": 1}},
            {"$set": {"group": number % 4, "text": "y" * number}, "$inc": {"m": number}},
            {"worker": self.number, "group": number % 4, "n": number},
        ])  # fmt: skip

    def _update(self) -> Operation | None:
        namespace = self._namespace()
        key = self._some_key(namespace)
        if key is None or self.random.random() < 0.1:
            if self._room(namespace) < 1:
                return None
            key = self._document()["_id"]
            change = {"$set": {"worker": self.number, "group": 1, "upserted": True}}
            return {"do": "update", "to": namespace, "whole": True, "keys": [key], "change": change, "upsert": True}
        finds = self.random.random() < 0.3
        return {
            "do": "update", "to": namespace, "whole": True, "keys": [key], "change": self._change(), "finds": finds,
        }  # fmt: skip

    def _update_many(self) -> Operation | None:
        namespace, group = self._namespace(), self.random.randrange(4)
        keys = self.model.matching(namespace, group)
        change = {"$inc": {"m": 1}, "$set": {"number": self.random.randrange(100)}}
        return (keys and {
            "do": "update", "to": namespace, "whole": False, "keys": keys, "change": change, "group": group,
        }) or None  # fmt: skip

    def _delete(self) -> Operation | None:
        namespace = self._namespace()
        key = self._some_key(namespace)
        return None if key is None else {"do": "delete", "to": namespace, "whole": True, "keys": [key]}

    def _delete_many(self) -> Operation | None:
        namespace, group = self._namespace(), self.random.randrange(4)
        keys = self.model.matching(namespace, group)
        return {"do": "delete", "to": namespace, "whole": False, "keys": keys, "group": group} if keys else None

    def _transaction(self) -> Operation | None:
        """Some writes at once; above 8 of them the commit is made in pieces."""
        after, steps = self.model, []
        self.model = after.copy()
        try:
            for at in range(self.random.choice((2, 4, 20))):
                maker = self.random.choice((self._insert, self._insert, self._update, self._delete))
                if (step := maker()) is None:
                    continue
                if step["do"] == "insert":
                    step["documents"] = [self._document(at)]
                self.model.apply(step)
                steps.append(step)
        finally:
            self.model = after
        if not steps:
            return None
        commits = self.random.random() < 0.9
        return {"do": "transaction", "to": SHARED, "whole": True, "steps": steps if commits else [], "tries": steps}

    def _create(self) -> Operation | None:
        missing = [name for name in self._own if name not in self.model.collections]
        return {"do": "create", "to": self.random.choice(missing), "whole": True} if missing else None

    def _some_own(self) -> str | None:
        there = [name for name in self._own if name in self.model.collections]
        return self.random.choice(there) if there else None

    def _drop(self) -> Operation | None:
        namespace = self._some_own()
        return None if namespace is None else {"do": "drop", "to": namespace, "whole": True}

    def _rename(self) -> Operation | None:
        namespace = self._some_own()
        missing = [name for name in self._own if name not in self.model.collections]
        if namespace is None or not missing or self.model.collections[namespace].unsure:
            return None
        return {"do": "rename", "to": namespace, "goal": self.random.choice(missing), "whole": True}

    def _index(self) -> Operation | None:
        namespace = self._some_own()
        if namespace is None:
            return None
        return {"do": "index", "to": namespace, "name": self.random.choice(list(INDEXES)), "whole": True}

    def _unindex(self) -> Operation | None:
        namespace = self._some_own()
        names = [] if namespace is None else list(self.model.collections[namespace].indexes)
        if not names:
            return None
        return {"do": "unindex", "to": namespace, "name": self.random.choice(names), "whole": True}


# Commands.


def session_of(worker: int) -> Document:
    """The session in which a worker writes."""
    return {"id": Binary(b"crash test " + worker.to_bytes(5, "big"), 4)}


def commands_of(operation: Operation, worker: int) -> tuple[str, Document]:
    """The database, and the command that does an operation which is no transaction."""
    database, _, name = operation["to"].partition(".")
    body = _body(operation, name, worker)
    if operation["again"]:
        body.update(lsid=session_of(worker), txnNumber=Int64(operation["number"]))
    return ("admin" if operation["do"] == "rename" else database), body


def _body(operation: Operation, name: str, worker: int) -> Document:
    match operation["do"]:
        case "create":
            return {"create": name}
        case "drop":
            return {"drop": name}
        case "rename":
            return {"renameCollection": operation["to"], "to": operation["goal"]}
        case "index":
            return {"createIndexes": name, "indexes": [{"key": INDEXES[operation["name"]], "name": operation["name"]}]}
        case "unindex":
            return {"dropIndexes": name, "index": operation["name"]}
        case "insert":
            return {"insert": name, "documents": operation["documents"]}
    many = "group" in operation and not operation["again"]
    queries = [{"worker": worker, "group": operation["group"]}] if many else [{"_id": key} for key in operation["keys"]]
    if operation["do"] == "delete":
        return {"delete": name, "deletes": [{"q": query, "limit": 0 if many else 1} for query in queries]}
    change, upsert = operation["change"], operation.get("upsert", False)
    if operation.get("finds"):
        return {"findAndModify": name, "query": queries[0], "update": change}
    return {"update": name, "updates": [{"q": q, "u": change, "multi": many, "upsert": upsert} for q in queries]}


def perform(ask: Ask, operation: Operation, worker: int) -> None:
    """Do an operation. Raises `CommandFailed`."""
    if operation["do"] != "transaction":
        must(ask, *commands_of(operation, worker))
        return
    fields = {"lsid": session_of(worker), "txnNumber": Int64(operation["number"]), "autocommit": False}
    for at, step in enumerate(operation["tries"]):
        database, body = commands_of({**step, "again": False}, worker)
        must(ask, database, {**body, **fields, **({} if at else {"startTransaction": True})})
    end = "commitTransaction" if operation["steps"] else "abortTransaction"
    must(ask, "admin", {end: 1, **fields})
