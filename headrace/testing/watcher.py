"""A watcher of a simulation. It opens, reads, stops and resumes a stream, and checks each event.

Rule checked: the watcher receives exactly the events of its scope since it began, without gaps or duplicates, however
it stops and wherever it resumes. If the oplog was pruned too far, it gets error 286 and never a stream with a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from bson import Int64, Timestamp

from headrace.dispatch.wait import Wait
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode
from headrace.values.position import from_timestamp, to_timestamp
from headrace.values.token import decode_token

INTERNAL = ("admin", "config", "local")


@dataclass(frozen=True, slots=True)
class ExpectedEvent:
    """An event that all streams of its scope must return, derived from the oplog alone by the simplest possible code.

    No tokens, feeds, filters or slices are involved. `kind`: its `operationType`."""

    position: int
    kind: str
    database: str
    collection: str | None
    to: str | None = None
    key: Any = None
    document: dict[str, Any] | None = None

    @property
    def namespace(self) -> str:
        """The database and the collection, joined with a dot."""
        return f"{self.database}.{self.collection}"


def expected_events(raw: bytes) -> list[ExpectedEvent]:
    """Return the events of an entry in order, as in streams without `showExpandedEvents`."""
    entry = decode(raw)
    position = from_timestamp(entry["ts"])
    if entry["op"] == "c" and "applyOps" in entry["o"]:
        return [event for inner in entry["o"]["applyOps"] for event in _one(position, inner)]
    return _one(position, entry)


def _one(position: int, entry: dict[str, Any]) -> list[ExpectedEvent]:
    operation, o = entry["op"], entry["o"]
    database, _, collection = entry["ns"].partition(".")
    if operation == "i":
        return [ExpectedEvent(position, "insert", database, collection, key=o["_id"], document=o)]
    if operation == "d":
        return [ExpectedEvent(position, "delete", database, collection, key=o["_id"])]
    if operation == "u":
        key = entry["o2"]["_id"]
        if "diff" in o:
            return [ExpectedEvent(position, "update", database, collection, key=key)]
        return [ExpectedEvent(position, "replace", database, collection, key=key, document=o)]
    if operation == "c":
        return _command(position, database, o)
    return []


def _command(position: int, database: str, o: dict[str, Any]) -> list[ExpectedEvent]:
    if "drop" in o:
        return [ExpectedEvent(position, "drop", database, o["drop"])]
    if "dropDatabase" in o:
        return [ExpectedEvent(position, "dropDatabase", database, None)]
    if "renameCollection" in o:
        source, _, name = o["renameCollection"].partition(".")
        return [ExpectedEvent(position, "rename", source, name, to=o["to"])]
    return []


def concerns(event: ExpectedEvent, database: str | None, collection: str | None) -> bool:
    """Return whether an event belongs to a stream on a collection, a database, or (None, None) the deployment."""
    if collection is not None:
        namespace = f"{database}.{collection}"
        return event.collection is not None and namespace in (event.namespace, event.to)
    if event.database in INTERNAL:
        return False
    return database is None or event.database == database


def ends(event: ExpectedEvent, database: str | None, collection: str | None) -> bool:
    """Return whether an event ends a stream that it belongs to."""
    if collection is not None:
        return event.kind in ("drop", "rename")
    return database is not None and event.kind == "dropDatabase"


HistoryIndex = tuple[int, int]
"""The position of a watcher: (index in the history, 0 for the event or 1 for the invalidate after it)."""


@dataclass(frozen=True, slots=True)
class WatchedStream:
    """A watcher's scope and pipeline, and the function `passes`, which tells the events that the pipeline passes."""

    database: str | None
    collection: str | None
    pipeline: list[dict[str, Any]]
    passes: Callable[[ExpectedEvent, str], bool]


class EventHistory:
    """The expected events so far. The last ones may be on disk but not yet published."""

    def __init__(self) -> None:
        self.happened: list[ExpectedEvent] = []
        self.published_count = 0


class SimulationError(AssertionError):
    """A watcher received an unexpected event, or missed one."""


class Watcher:
    """One client of a stream, with at most one cursor at a time."""

    def __init__(self, server: DrivenServer, history: EventHistory, stream: WatchedStream, random: Random) -> None:
        self.server = server
        self.history = history.happened
        self._history = history
        self.stream = stream
        self.random = random
        self.events: list[tuple[dict[str, Any], HistoryIndex]] = []
        """The tokens of all received events, each with the index after the event."""
        self.history_lost_count = 0
        self._cursor = 0
        self._namespace = ""
        self._index: HistoryIndex = (0, 0)
        self._token: dict[str, Any] = {}
        """The last postBatchResumeToken; all events before it were received."""
        self._closed = False
        self._text = ""
        self._floor = 0  # events before this position are not expected: the stream may start in the future

    # Opening.

    def open(self, **options: Any) -> dict[str, Any]:
        """Open a stream and return the reply, which may be an error."""
        stream = self.stream
        if stream.database is None:
            options["allChangesForCluster"] = True
        size = self._batch_size()
        body = {
            "aggregate": stream.collection or 1,
            "pipeline": [{"$changeStream": options}, *stream.pipeline],
            "cursor": {} if size is None else {"batchSize": size},
        }
        reply = self.server.run(stream.database or "admin", body)
        assert isinstance(reply, dict)
        return reply

    def begin(self) -> None:
        """Watch from now on."""
        self._floor = 0
        self._index = (self._history.published_count, 0)
        self._text = ""
        self._take(self.open(), "firstBatch")

    def resume(self) -> None:
        """Stop, then resume in one of a client's ways: after an event, after the last batch, or at a time."""
        self.stop()
        self._floor = 0
        ways: list[Callable[[], None]] = [self._by_mark]
        if self.events:
            ways.append(self._by_event)
        if not self._closed:
            ways.append(self._by_time)
        self.random.choice(ways)()

    def _by_mark(self) -> None:
        self._floor = self._position()
        self._reopen(self._floor, self._index, **{self._option(self._token): self._token})

    def _by_event(self) -> None:
        token, index = self.events[-1] if self.random.random() < 0.5 else self.random.choice(self.events)
        self._reopen(int(token["_data"][2:18], 16), index, **{self._option(token): token})

    def _option(self, token: dict[str, Any]) -> str:
        """Return an option to resume with: `startAfter` after an invalidate, otherwise also `resumeAfter`."""
        ended = decode_token(token).from_invalidate
        return "startAfter" if ended or self.random.random() < 0.3 else "resumeAfter"

    def _by_time(self) -> None:
        position = self._position() + self.random.choice((0, 0, 1))
        index = len(self.history)
        while index and self.history[index - 1].position >= position:
            index -= 1
        self._floor = position
        self._reopen(position, (index, 0), startAtOperationTime=to_timestamp(position))

    def _reopen(self, position: int, index: HistoryIndex, **options: Any) -> None:
        """Open at `position`, which is `index` in the history; expect 286 exactly if the oplog begins later."""
        with self.server.store.reading() as view:
            oldest = view.oldest_position()
        assert oldest is not None
        history_is_gone = self.server.store.pruned_through >= 0 and position < oldest
        reply = self.open(**options)
        if history_is_gone != (reply.get("code") == 286):
            raise SimulationError(f"opened at {position}, the oplog begins at {oldest}: {reply}")
        if history_is_gone:
            self._start_again()
            return
        self._closed = False
        self._index = index
        self._text = ""
        self._take(reply, "firstBatch")

    def _ended_at(self, index: int) -> bool:
        due = self.history[index]
        return self._concerns(due) and ends(due, self.stream.database, self.stream.collection)

    def _position(self) -> int:
        return int(self._token["_data"][2:18], 16)

    def _start_again(self) -> None:
        """Open a new stream, because the history is lost and the tokens of earlier events are useless."""
        self.history_lost_count += 1
        self.events.clear()
        self._closed = False
        self.begin()

    # Reading.

    def stop(self) -> None:
        """Kill the cursor, as a client does that stops."""
        if self._cursor:
            database, _, name = self._namespace.partition(".")
            self.server.must(database, {"killCursors": name, "cursors": [Int64(self._cursor)]})
            self._cursor = 0

    def forget(self) -> None:
        """Forget the cursor, which ended with the server."""
        self._cursor = 0

    def read(self) -> bool:
        """Read once; return False if there was nothing to read."""
        if not self._cursor:
            self.resume()
            return True
        database, _, name = self._namespace.partition(".")
        size = self._batch_size()
        body = {"getMore": Int64(self._cursor), "collection": name, **({} if size is None else {"batchSize": size})}
        reply = self.server.run(database, body, time_is_up=self.random.random() < 0.2)
        if isinstance(reply, Wait):
            left = self._next(self._history.published_count)
            if left is not None:
                raise SimulationError(f"no event, but {left} was expected")
            return False
        if reply.get("code") == 286:
            if self.server.store.pruned_through < self._position():
                raise SimulationError(f"286, but nothing after {self._position()} was pruned")
            self._cursor = 0
            self._start_again()
            return True
        return self._take(reply, "nextBatch") > 0 or self._closed

    def drain(self) -> None:
        """Read until nothing is left, and go on after every end of the stream."""
        while self.read():
            pass

    def _batch_size(self) -> int | None:
        return self.random.choice((None, None, 1, 2, 5))

    def _take(self, reply: dict[str, Any], field: str) -> int:
        """Check and record a batch; return the number of its events."""
        if reply["ok"] != 1.0:
            raise SimulationError(f"the stream failed: {reply}")
        cursor = reply["cursor"]
        self._cursor, self._namespace = int(cursor["id"]), cursor["ns"]
        events: list[dict[str, Any]] = cursor[field]
        for event in events:
            self._check(event)
        self._token = cursor["postBatchResumeToken"]
        if self._token["_data"] < self._text:
            raise SimulationError("the batch's token is before its last event's")
        if self._cursor == 0:
            self._pass_by_the_end()
        return len(events)

    def _check(self, event: dict[str, Any]) -> None:
        expected = self._next(len(self.history))
        if expected is None:
            raise SimulationError(f"received {event}, but nothing was expected")
        due, kind = expected
        time: Timestamp = event["clusterTime"]
        text = event["_id"]["_data"]
        if (event["operationType"], from_timestamp(time)) != (kind, due.position):
            raise SimulationError(f"received {event}, expected {kind} of {due}")
        if text <= self._text:
            raise SimulationError(f"a token that does not come after {self._text}: {text}")
        if kind not in ("invalidate", "dropDatabase") and event["ns"] != {
            "db": due.database,
            "coll": due.collection,
        }:
            raise SimulationError(f"received {event['ns']}, expected {due.namespace}")
        if due.key is not None and kind != "invalidate" and event["documentKey"] != {"_id": due.key}:
            raise SimulationError(f"received {event['documentKey']}, expected {due.key}")
        if "fullDocument" in event and due.document is not None and event["fullDocument"] != due.document:
            raise SimulationError(f"received {event['fullDocument']}, expected {due.document}")
        self._text = text
        self._index = self._behind(self._index)
        self.events.append((event["_id"], self._index))

    def _pass_by_the_end(self) -> None:
        """Open a stream after the end of this one, whose invalidate the pipeline may have hidden."""
        self._closed = True
        if self.events and self.events[-1][0] == self._token:
            return
        index = self._index[0]
        while index < len(self.history) and not self._ended_at(index):
            if self._next(index + 1) is not None:
                raise SimulationError(f"ended before {self.history[index]}")
            index += 1
        if index == len(self.history) or self.stream.passes(self.history[index], "invalidate"):
            raise SimulationError("ended with nothing that ends it")
        self._index = (index + 1, 0)

    # Expected events.

    def _concerns(self, due: ExpectedEvent) -> bool:
        return due.position >= self._floor and concerns(due, self.stream.database, self.stream.collection)

    def _next(self, end: int) -> tuple[ExpectedEvent, str] | None:
        """Return the event that must come next in the history before `end`, and move the index to it."""
        index, part = self._index
        while index < end:
            due = self.history[index]
            if self._concerns(due):
                if part == 0 and self.stream.passes(due, due.kind):
                    self._index = (index, 0)
                    return due, due.kind
                if self._ended_at(index):
                    if self.stream.passes(due, "invalidate"):
                        self._index = (index, 1)
                        return due, "invalidate"
                    return None
            index, part = index + 1, 0
        return None

    def _behind(self, at: HistoryIndex) -> HistoryIndex:
        index, part = at
        return (index, 1) if part == 0 and self._ended_at(index) else (index + 1, 0)
