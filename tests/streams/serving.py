"""A server whose clock stands still, and a client that speaks raw commands and follows streams.

Replies come back with every BSON type kept and every field in its place, as no driver would show them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bson import Binary, Int64, Timestamp

import headrace
from headrace.testing.clock import FakeClock
from tests.server.raw import RawClient
from tests.waiting import until

START_MS = 1_700_000_000_000
SESSION = {"id": Binary(bytes(range(16)), 4)}
"""An `lsid` as clients send it."""


class Stream:
    """One change stream of a raw client: what came, and where it stands."""

    def __init__(self, served: Served, reply: dict[str, Any], database: str) -> None:
        self._served = served
        self._database = database
        cursor = reply["cursor"]
        self.id = Int64(cursor["id"])
        self.namespace: str = cursor["ns"]
        self.first: list[dict[str, Any]] = cursor["firstBatch"]
        self.token: dict[str, Any] = cursor["postBatchResumeToken"]
        self._pending = list(self.first)

    def more(self, **options: Any) -> dict[str, Any]:
        """The reply to one getMore, a failure too."""
        body = {"getMore": self.id, "collection": self.namespace.partition(".")[2], "maxTimeMS": 0, **options}
        reply = self._served.ask(body, self._database)
        if reply["ok"] == 1.0:
            self.token = reply["cursor"]["postBatchResumeToken"]
            self.id = Int64(reply["cursor"]["id"])
        return reply

    def read(self, **options: Any) -> list[dict[str, Any]]:
        """Everything there is now."""
        events, self._pending = self._pending, []
        while self.id:
            reply = self.more(**options)
            assert reply["ok"] == 1.0, reply
            batch = reply["cursor"]["nextBatch"]
            if not batch:
                break
            events += batch
        return events

    def failure(self) -> tuple[int, str]:
        """(code, message) of a getMore that is to fail."""
        reply = self.more()
        assert reply["ok"] == 0.0, reply
        return reply["code"], reply["errmsg"]


class Served:
    """A throw-away server, nothing of which happens by itself."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock(START_MS)
        self.server = headrace.Server(clock=self.clock, **options).start()
        self._core = self.server._running
        self._core.loop.call_soon_threadsafe(self._core.background.stop)
        self._client = RawClient(self.server.address)
        self._names = itertools.count(1)

    def close(self) -> None:
        self._client.socket.close()
        self.server.close()

    def name(self) -> str:
        """A name of a collection or database that no test had yet."""
        return f"n{next(self._names)}"

    def ask(self, body: dict[str, Any], database: str = "t") -> dict[str, Any]:
        """The reply to any command."""
        return self._client.ask(body, database)

    def must(self, body: dict[str, Any], database: str = "t") -> dict[str, Any]:
        """The reply to a command that is to succeed."""
        reply = self.ask(body, database)
        assert reply["ok"] == 1.0, reply
        assert "writeErrors" not in reply, reply
        return reply

    def fails(self, body: dict[str, Any], database: str = "t") -> tuple[int, str]:
        """(code, message) of a command that is to fail."""
        reply = self.ask(body, database)
        assert reply["ok"] == 0.0, reply
        return reply["code"], reply["errmsg"]

    def code(self, body: dict[str, Any], database: str = "t") -> int:
        """The error code of a command; 0 where it succeeds."""
        return int(self.ask(body, database).get("code", 0))

    # Writes, each one command.

    def insert(self, coll: str, *documents: dict[str, Any], db: str = "t", **more: Any) -> dict[str, Any]:
        return self.must({"insert": coll, "documents": list(documents), **more}, db)

    def update(self, coll: str, key: Any, change: Any, *, db: str = "t", **more: Any) -> dict[str, Any]:
        return self.must({"update": coll, "updates": [{"q": {"_id": key}, "u": change}], **more}, db)

    def delete(self, coll: str, key: Any, *, db: str = "t", **more: Any) -> dict[str, Any]:
        return self.must({"delete": coll, "deletes": [{"q": {"_id": key}, "limit": 1}], **more}, db)

    def transaction(self, number: int, statements: list[dict[str, Any]], db: str = "t") -> None:
        """Statements of one transaction of `SESSION`, committed."""
        more = {"lsid": SESSION, "txnNumber": Int64(number), "autocommit": False}
        for index, statement in enumerate(statements):
            self.must({**statement, **more, **({"startTransaction": True} if index == 0 else {})}, db)
        self.must({"commitTransaction": 1, **more}, "admin")

    def set_image_seconds(self, seconds: Any) -> None:
        """Let images expire after so many seconds, or "off"."""
        options = {"preAndPostImages": {"expireAfterSeconds": seconds}}
        self.must({"setClusterParameter": {"changeStreamOptions": options}}, "admin")

    def image_seconds(self) -> Any:
        (actual,) = self.must({"getClusterParameter": "changeStreamOptions"}, "admin")["clusterParameters"]
        assert actual["_id"] == "changeStreamOptions"
        return actual["preAndPostImages"]["expireAfterSeconds"]

    # Streams.

    def opening(self, coll: str | int, *stages: dict[str, Any], **options: Any) -> dict[str, Any]:
        """The command that opens a stream."""
        return {"aggregate": coll, "pipeline": [{"$changeStream": options}, *stages], "cursor": {}}

    def watch(self, coll: str | int, *stages: dict[str, Any], db: str = "t", **options: Any) -> Stream:
        """A stream on a collection, on a database (`coll` 1), or on everything (`db` "admin")."""
        if db == "admin":
            options = {"allChangesForCluster": True, **options}
        return Stream(self, self.must(self.opening(coll, *stages, **options), db), db)

    def refused(self, coll: str | int, *stages: dict[str, Any], db: str = "t", **options: Any) -> tuple[int, str]:
        """(code, message) of a stream that is to be refused."""
        return self.fails(self.opening(coll, *stages, **options), db)

    # The oplog, time, and what the server does by itself.

    def entries(self, spec: dict[str, Any]) -> list[dict[str, Any]]:
        """Entries of the oplog, oldest first."""
        reply = self.must({"find": "oplog.rs", "filter": spec, "batchSize": 100_000}, "local")
        return list(reply["cursor"]["firstBatch"])

    def last_entry(self) -> dict[str, Any]:
        body = {"find": "oplog.rs", "sort": {"$natural": -1}, "limit": 1}
        (entry,) = self.must(body, "local")["cursor"]["firstBatch"]
        return dict(entry)

    def now(self) -> Timestamp:
        """The cluster time of the last commit."""
        time = self.must({"ping": 1})["operationTime"]
        assert type(time) is Timestamp
        return time

    def tick(self) -> None:
        """One round of the background jobs, now."""
        core = self._core
        asyncio.run_coroutine_threadsafe(core.background.tick(), core.loop).result()

    def until_waiting(self) -> None:
        """Return when some client's command waits on the server."""
        until(lambda: asyncio.run_coroutine_threadsafe(self._waiting(), self._core.loop).result())

    async def _waiting(self) -> bool:
        return bool(self._core.notifier._parked)

    def uuid_of(self, coll: str, db: str = "t") -> Binary:
        reply = self.must({"listCollections": 1, "filter": {"name": coll}}, db)
        actual = reply["cursor"]["firstBatch"][0]["info"]["uuid"]
        assert type(actual) is Binary
        return actual


@contextmanager
def serving(**options: Any) -> Iterator[Served]:
    """A server for the length of a `with`."""
    served = Served(**options)
    try:
        yield served
    finally:
        served.close()


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["operationType"] for event in events]


def shape(value: Any) -> Any:
    """A value as what equals it only if every field stands in the same place and has the same type."""
    if isinstance(value, dict):
        return [(name, shape(item)) for name, item in value.items()]
    if isinstance(value, list):
        return ["list", *map(shape, value)]
    return type(value).__name__, value
