"""A watcher of a simulation: it opens, reads, stops and resumes a stream, and checks each event it is told.

Rule checked: what it was told is exactly what happened in its scope since it began, with nothing left out and
nothing twice, however it stopped and wherever it resumed; and where that cannot be, because history was lost, the
answer is error 286 and never a stream with a hole in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from bson import Int64, Timestamp

from headrace.dispatch.wait import Wait
from headrace.testing.driven import DrivenServer
from headrace.testing.oracle import Happening, concerns, ends
from headrace.values.token import decode_token

Place = tuple[int, int]
"""Where a watcher is: (index in the history, 0 for what happened or 1 for the invalidate behind it)."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a watcher looks at: its scope, its pipeline, and what of a scope that pipeline lets through."""

    database: str | None
    collection: str | None
    pipeline: list[dict[str, Any]]
    passes: Callable[[Happening, str], bool]


class History:
    """What happened so far; the last of it may be on the disk already but not yet told to everybody."""

    def __init__(self) -> None:
        self.happened: list[Happening] = []
        self.published_count = 0


class SimulationError(AssertionError):
    """A watcher was told something else than what happened."""


class Watcher:
    """One client of a stream, at most one cursor at a time."""

    def __init__(self, server: DrivenServer, history: History, sight: Sight, random: Random) -> None:
        self.server = server
        self.history = history.happened
        self._history = history
        self.sight = sight
        self.random = random
        self.told: list[tuple[dict[str, Any], Place]] = []
        """Tokens of all events it was told, each with the place behind the event."""
        self.lost_count = 0
        self._cursor = 0
        self._namespace = ""
        self._place: Place = (0, 0)
        self._token: dict[str, Any] = {}
        """The last postBatchResumeToken: everything before it was told."""
        self._closed = False
        self._text = ""
        self._floor = 0  # what happened before this position is none of its business: the start may be yet to come

    # Opening.

    def open(self, **options: Any) -> dict[str, Any]:
        """Open a stream; the reply, which may be an error."""
        sight = self.sight
        if sight.database is None:
            options["allChangesForCluster"] = True
        size = self._batch_size()
        body = {
            "aggregate": sight.collection or 1,
            "pipeline": [{"$changeStream": options}, *sight.pipeline],
            "cursor": {} if size is None else {"batchSize": size},
        }
        reply = self.server.run(sight.database or "admin", body)
        assert isinstance(reply, dict)
        return reply

    def begin(self) -> None:
        """Watch from now on."""
        self._floor = 0
        self._place = (self._history.published_count, 0)
        self._text = ""
        self._take(self.open(), "firstBatch")

    def resume(self) -> None:
        """Stop, and go on in one of the ways a client may: by an event, by the mark, or by a time."""
        self.stop()
        self._floor = 0
        ways: list[Callable[[], None]] = [self._by_mark]
        if self.told:
            ways.append(self._by_event)
        if not self._closed:
            ways.append(self._by_time)
        self.random.choice(ways)()

    def _by_mark(self) -> None:
        self._floor = self._position()
        self._reopen(self._floor, self._place, **{self._option(self._token): self._token})

    def _by_event(self) -> None:
        token, place = self.told[-1] if self.random.random() < 0.5 else self.random.choice(self.told)
        self._reopen(int(token["_data"][2:18], 16), place, **{self._option(token): token})

    def _option(self, token: dict[str, Any]) -> str:
        """Behind an invalidate only `startAfter` goes on; elsewhere both do."""
        ended = decode_token(token).from_invalidate
        return "startAfter" if ended or self.random.random() < 0.3 else "resumeAfter"

    def _by_time(self) -> None:
        position = self._position() + self.random.choice((0, 0, 1))
        index = len(self.history)
        while index and self.history[index - 1].position >= position:
            index -= 1
        self._floor = position
        self._reopen(position, (index, 0), startAtOperationTime=Timestamp(position >> 32, position & 0xFFFFFFFF))

    def _reopen(self, position: int, place: Place, **options: Any) -> None:
        """Open from `position`, behind which `place` is; 286 if and only if the oplog begins after it."""
        with self.server.store.reading() as view:
            oldest = view.oldest()
        assert oldest is not None
        lost = self.server.store.pruned_through >= 0 and position < oldest[0]
        reply = self.open(**options)
        if lost != (reply.get("code") == 286):
            raise SimulationError(f"opened at {position}, the oplog begins at {oldest[0]}: {reply}")
        if lost:
            self._start_again()
            return
        self._closed = False
        self._place = place
        self._text = ""
        self._take(reply, "firstBatch")

    def _ended_at(self, index: int) -> bool:
        told = self.history[index]
        return self._concerns(told) and ends(told, self.sight.database, self.sight.collection)

    def _position(self) -> int:
        return int(self._token["_data"][2:18], 16)

    def _start_again(self) -> None:
        """History was lost: what was told before is of no use any more."""
        self.lost_count += 1
        self.told.clear()
        self._closed = False
        self.begin()

    # Reading.

    def stop(self) -> None:
        """Abandon the cursor, as a client does that goes away."""
        if self._cursor:
            database, _, name = self._namespace.partition(".")
            self.server.must(database, {"killCursors": name, "cursors": [Int64(self._cursor)]})
            self._cursor = 0

    def forget(self) -> None:
        """The server has ended, and the cursor with it."""
        self._cursor = 0

    def read(self) -> bool:
        """Read once; False when there is nothing now."""
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
                raise SimulationError(f"nothing is told, but {left} happened")
            return False
        if reply.get("code") == 286:
            if self.server.store.pruned_through < self._position():
                raise SimulationError(f"286, but nothing after {self._position()} was pruned")
            self._cursor = 0
            self._start_again()
            return True
        return self._take(reply, "nextBatch") > 0 or self._closed

    def drain(self) -> None:
        """Read until there is nothing left, through every end of the stream."""
        while self.read():
            pass

    def _batch_size(self) -> int | None:
        return self.random.choice((None, None, 1, 2, 5))

    def _take(self, reply: dict[str, Any], field: str) -> int:
        """Check and note a batch; how many events it brought."""
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
            raise SimulationError(f"told of {event}, but nothing happened")
        told, kind = expected
        time: Timestamp = event["clusterTime"]
        text = event["_id"]["_data"]
        if (event["operationType"], time.time << 32 | time.inc) != (kind, told.position):
            raise SimulationError(f"told of {event}, expected {kind} of {told}")
        if text <= self._text:
            raise SimulationError(f"a token that does not come after {self._text}: {text}")
        if kind not in ("invalidate", "dropDatabase") and event["ns"] != {"db": told.database, "coll": told.collection}:
            raise SimulationError(f"told of {event['ns']}, expected {told.namespace}")
        if told.key is not None and kind != "invalidate" and event["documentKey"] != {"_id": told.key}:
            raise SimulationError(f"told of {event['documentKey']}, expected {told.key}")
        if "fullDocument" in event and told.document is not None and event["fullDocument"] != told.document:
            raise SimulationError(f"told {event['fullDocument']}, expected {told.document}")
        self._text = text
        self._place = self._behind(self._place)
        self.told.append((event["_id"], self._place))

    def _pass_by_the_end(self) -> None:
        """The stream has ended, perhaps by an invalidate that the pipeline hid: go on behind it."""
        self._closed = True
        if self.told and self.told[-1][0] == self._token:
            return
        index = self._place[0]
        while index < len(self.history) and not self._ended_at(index):
            if self._next(index + 1) is not None:
                raise SimulationError(f"ended before {self.history[index]} was told")
            index += 1
        if index == len(self.history) or self.sight.passes(self.history[index], "invalidate"):
            raise SimulationError("ended with nothing that ends it")
        self._place = (index + 1, 0)

    # What is expected.

    def _concerns(self, told: Happening) -> bool:
        return told.position >= self._floor and concerns(told, self.sight.database, self.sight.collection)

    def _next(self, end: int) -> tuple[Happening, str] | None:
        """What has to be told next, of the history before `end`; moves the place up to it."""
        index, part = self._place
        while index < end:
            told = self.history[index]
            if self._concerns(told):
                if part == 0 and self.sight.passes(told, told.kind):
                    self._place = (index, 0)
                    return told, told.kind
                if self._ended_at(index):
                    if self.sight.passes(told, "invalidate"):
                        self._place = (index, 1)
                        return told, "invalidate"
                    return None
            index, part = index + 1, 0
        return None

    def _behind(self, place: Place) -> Place:
        index, part = place
        return (index, 1) if part == 0 and self._ended_at(index) else (index + 1, 0)
