"""A seeded simulation of a server: random writes, random watchers, and an oracle that checks the watchers.

    Simulation(DrivenServer(clock=FakeClock()), seed=7).run(500)

Nothing waits, sleeps or runs concurrently, so the same seed repeats the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from bson import Binary, Int64

from headrace.store.retention import prune
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.testing.watcher import EventHistory, ExpectedEvent, WatchedStream, Watcher, expected_events

DATABASES: Final = ("a", "b")
COLLECTIONS: Final = ("x", "y", "z")
KEY_COUNT: Final = 12

Write = tuple[str, dict[str, Any]]
Maker = Callable[[Random, str, str], dict[str, Any]]


def _number(event: ExpectedEvent) -> int:
    return -1 if event.document is None else int(event.document.get("n", -1))


PIPELINES: Final[tuple[tuple[list[dict[str, Any]], Callable[[ExpectedEvent, str], bool]], ...]] = (
    ([], lambda event, kind: True),
    ([{"$match": {"operationType": "insert"}}], lambda event, kind: kind == "insert"),
    ([{"$match": {"operationType": {"$ne": "delete"}}}], lambda event, kind: kind != "delete"),
    (
        [{"$match": {"documentKey._id": {"$mod": [2, 0]}}}],
        lambda event, kind: kind != "invalidate" and event.key is not None and event.key % 2 == 0,
    ),
    (
        [{"$match": {"fullDocument.n": {"$gte": 50}}}],
        lambda event, kind: kind in ("insert", "replace") and _number(event) >= 50,
    ),
    ([{"$set": {"more": 1}}, {"$unset": "fullDocument"}], lambda event, kind: True),
    (
        [{"$match": {"operationType": {"$in": ["update", "invalidate"]}}}, {"$project": {"updateDescription": 0}}],
        lambda event, kind: kind in ("update", "invalidate"),
    ),
)


class Simulation:
    """A server, its expected events, and its watchers."""

    def __init__(
        self, server: DrivenServer, seed: int, *, watcher_count: int = 10, prunes: bool = False, restarts: bool = False
    ) -> None:
        self.server = server
        self.random = Random(seed)
        self.history = EventHistory()
        self.watchers: list[Watcher] = []
        self._open: list[dict[str, Any]] = []  # sessions with an open transaction
        self._number = 0
        self._read_through = server.store.last_position
        steps: list[tuple[int, Callable[[], None]]] = [
            (40, self._write), (10, self._write_together), (3, self._give_up), (6, self._time), (60, self._read),
            (12, self._resume), (3, self._noop), (40, self._transact),
        ]  # fmt: skip
        if prunes:
            steps.append((4, self._prune))
        if restarts:
            steps.append((2, self._restart))
        self._steps = [step for _, step in steps]
        self._weights = [weight for weight, _ in steps]
        server.between = self._between
        for _ in range(watcher_count):
            watcher = Watcher(server, self.history, self._random_stream(), self.random)
            watcher.begin()
            self.watchers.append(watcher)

    def run(self, step_count: int) -> None:
        """Run `step_count` steps, then let every watcher read to the end. Raises `SimulationError`."""
        for step in self.random.choices(self._steps, self._weights, k=step_count):
            step()
        for watcher in self.watchers:
            watcher.drain()

    def resume_everywhere(self, watcher: Watcher) -> int:
        """Resume a watcher after each of its events and read to the end; return the number of its events."""
        events = list(watcher.events)
        for item in events:
            watcher.stop()
            watcher.events = [item]
            watcher.resume()
            watcher.drain()
        return len(events)

    def _random_stream(self) -> WatchedStream:
        database, collection = self.random.choice(
            [(None, None), *[(name, None) for name in DATABASES], *[("a", name) for name in COLLECTIONS]]
        )
        pipeline, passes = self.random.choice(PIPELINES)
        return WatchedStream(database, collection, pipeline, passes)

    # Steps.

    def _write(self) -> None:
        database, body = self._some_write()
        self.server.run(database, body)
        self._note()

    def _write_together(self) -> None:
        self.server.together([self._some_write() for _ in range(self.random.randint(2, 6))])
        self._note()

    def _transact(self) -> None:
        """Begin or continue a client's transaction: write in it, commit it, or abort it."""
        if len(self._open) < 2 and self.random.random() < 0.5:
            self._number += 1
            self._open.append({"lsid": {"id": Binary(bytes(12) + self._number.to_bytes(4, "big"), 4)}, "new": True})
        if not self._open:
            return
        session = self.random.choice(self._open)
        fields = {"lsid": session["lsid"], "txnNumber": Int64(1), "autocommit": False}
        if not session.pop("new", False) and self.random.random() < 0.3:
            name = "commitTransaction" if self.random.random() < 0.7 else "abortTransaction"
            reply = self.server.run("admin", {name: 1, **fields})
            ended = True
        else:
            database, body = self._some_write((_insert_new, _update, _delete))
            first = {} if session.setdefault("begun", False) else {"startTransaction": True}
            session["begun"] = True
            reply = self.server.run(database, {**body, **fields, **first})
            ended = isinstance(reply, dict) and reply["ok"] != 1.0
        if ended:
            self._open.remove(session)
        self._note()

    def _give_up(self) -> None:
        self.server.given_up([self._some_write() for _ in range(self.random.randint(1, 4))])

    def _time(self) -> None:
        if isinstance(self.server.clock, FakeClock):
            self.server.clock.advance(self.random.choice((1, 300, 2000)))

    def _noop(self) -> None:
        txn = self.server.store.begin()
        self.server.store.log_noop(txn, "periodic noop")
        self.server.store.commit(txn)
        self._note()

    def _read(self) -> None:
        self.random.choice(self.watchers).read()

    def _resume(self) -> None:
        self.random.choice(self.watchers).resume()

    def _prune(self) -> None:
        """Prune the oldest oplog entries: mostly some, sometimes all but the newest."""
        store = self.server.store
        with store.reading() as view:
            positions = [position for position, _ in view.entries(0)]
        keep = positions[-1] if self.random.random() < 0.2 else self.random.choice(positions)
        txn = store.begin()
        prune(txn, keep, len(positions))
        store.commit(txn)

    def _restart(self) -> None:
        self.server.restart()
        for watcher in self.watchers:
            watcher.forget()
        self._note()

    # Commits.

    def _between(self, point: str) -> None:
        """Let watchers read during a commit, which they may or may not see."""
        self._note(published=False)
        for watcher in self.random.sample(self.watchers, min(2, len(self.watchers))):
            if self.random.random() < 0.5:
                watcher.read()

    def _note(self, *, published: bool = True) -> None:
        """Add the commits since the last call to the history."""
        with self.server.store.reading() as view:
            for position, raw in view.entries(self._read_through + 1):
                self.history.happened += expected_events(raw)
                self._read_through = position
        if published:
            self.history.published_count = len(self.history.happened)

    def _some_write(self, of: tuple[Maker, ...] = ()) -> Write:
        choose = self.random
        database, name = choose.choice(DATABASES), choose.choice(COLLECTIONS)
        makers = of or tuple(WRITES)
        (make,) = choose.choices(makers, [WRITES[maker] for maker in makers])
        body = make(choose, database, name)
        return ("admin" if make is _rename else database), body


def _document(choose: Random) -> dict[str, Any]:
    return {"_id": choose.randrange(KEY_COUNT), "n": choose.randrange(100)}


def _insert(choose: Random, database: str, name: str) -> dict[str, Any]:
    documents = [_document(choose) for _ in range(choose.choice((1, 1, 1, 4, 10)))]
    return {"insert": name, "documents": documents, "ordered": choose.random() < 0.5}


def _insert_new(choose: Random, database: str, name: str) -> dict[str, Any]:
    """Return an insert of a new document, so that it is not refused."""
    return {"insert": name, "documents": [{"_id": choose.randrange(1 << 30), "n": choose.randrange(100)}]}


def _update(choose: Random, database: str, name: str) -> dict[str, Any]:
    key = choose.randrange(KEY_COUNT)
    change = choose.choice(({"$set": {"n": choose.randrange(100)}}, {"$inc": {"m": 1}}, {"n": choose.randrange(100)}))
    return {"update": name, "updates": [{"q": {"_id": key}, "u": change, "upsert": choose.random() < 0.5}]}


def _update_all(choose: Random, database: str, name: str) -> dict[str, Any]:
    return {"update": name, "updates": [{"q": {}, "u": {"$inc": {"m": 1}}, "multi": True}]}


def _delete(choose: Random, database: str, name: str) -> dict[str, Any]:
    condition = choose.choice(({"_id": choose.randrange(KEY_COUNT)}, {"n": {"$lt": choose.randrange(30)}}))
    return {"delete": name, "deletes": [{"q": condition, "limit": choose.choice((0, 1))}]}


def _drop(choose: Random, database: str, name: str) -> dict[str, Any]:
    return {"drop": name}


def _drop_database(choose: Random, database: str, name: str) -> dict[str, Any]:
    return {"dropDatabase": 1}


def _rename(choose: Random, database: str, name: str) -> dict[str, Any]:
    to = choose.choice(COLLECTIONS)
    return {"renameCollection": f"{database}.{name}", "to": f"{database}.{to}", "dropTarget": choose.random() < 0.5}


WRITES: Final[dict[Maker, int]] = {
    _insert: 40, _insert_new: 20, _update: 30, _update_all: 3, _delete: 15, _drop: 2, _drop_database: 1, _rename: 3,
}  # fmt: skip
