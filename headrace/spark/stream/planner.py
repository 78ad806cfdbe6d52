"""The planner of micro-batches, in the driver: of one server or of several, each with one collection or several.

There is a stream for each server (`server_stream.py`), and a batch has rows of each. With one server the offset is that
of its stream. With several it has the offset of each server, by its connection string without credentials:

    {"servers": {name: offset}, "initial": true}

Servers can be added to a running job (they begin at `startingPosition`) but not removed.

The events of one collection are in the order (cluster time, server, token), within a batch and from one batch to the
next (`MergedRanges`). So a batch ends at the frontier: the time up to which the slowest server has reported
everything. A quiet server's time advances with its periodic no-ops, every ten seconds, so the frontier lags by at most
that. Each server has its own snapshot. Its rows are not ordered by time, and a batch has a chunk of each server. The
order and the frontier begin when all snapshots are complete. If a server's collection is dropped, the server is read
again while the others wait.

The events of several collections have no order between servers, because sinks fold the rows of each server separately.
So no server waits for the time of another.

A server that cannot be reached stalls the others: there are no batches until it is back, and the log names it. With
onServerDown = skip the other servers continue; when the server is back, its events come late. A server that goes away
during a request has no events in that batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from bson import Timestamp
from pymongo import timeout
from pymongo.errors import ConnectionFailure

from headrace import limits
from headrace.spark.errors import OptionError
from headrace.spark.mongodb.event_ranges import ReadPartition
from headrace.spark.mongodb.mongodb_stream import PositionLost
from headrace.spark.mongodb.source_options import BatchLimits, SourceOptions, server_name
from headrace.spark.stream.offsets import Offset, ServerOffset, in_snapshot
from headrace.spark.stream.partitions import EventRange, MergedRanges, ServerPartition
from headrace.spark.stream.server_stream import ServerStream
from headrace.values.position import LAST, to_timestamp

_LOG: Final = logging.getLogger(__name__)
_END: Final = to_timestamp(LAST)


class StreamPlanner:
    """Plans the batches of the options' servers. Not thread-safe."""

    def __init__(self, options: SourceOptions) -> None:
        if options.others and options.start.token is not None:
            raise OptionError("a token is of one server: begin several at a time, 'earliest', 'latest' or 'snapshot'")
        count = len(options.servers)
        share = max((options.rows_max or limits.MERGED_ROW_COUNT_MAX) // count, 1)
        bytes_max = options.bytes_max and max(options.bytes_max // count, 1)
        rows_max, wait_ms = options.rows_max and share, max(options.await_ms // count, 1)
        each = [replace(one, rows_max=rows_max, bytes_max=bytes_max, await_ms=wait_ms) for one in options.servers]
        self._streams = {server_name(one.uri): ServerStream(one, alone=count == 1) for one in each}
        self._only = None if options.others else next(iter(self._streams.values()))
        """The stream of the only server."""
        self._options, self._bounds = options, BatchLimits(share, bytes_max)
        self._skips = options.on_server_down == "skip"
        self._down: set[str] = set()

    def initial_offset(self) -> Offset:
        """Return the offset of `startingPosition` on each server. Raise PositionLost."""
        if self._only:
            return self._only.initial_offset()
        return {"servers": {name: stream.initial_offset() for name, stream in self._streams.items()}, "initial": True}

    def stop_at_now(self) -> None:
        """End each server's stream at its present time, for the trigger availableNow."""
        for stream in self._streams.values():
            stream.stop_at_now()

    def latest_offset(self, start: Offset) -> Offset:
        """Return the end of the next batch; `start` if there is nothing new, or if a server is awaited. Raise
        PositionLost."""
        if self._only:
            return self._only.latest_offset(start)
        before: dict[str, Offset] = start["servers"]
        if added := self._streams.keys() - before.keys():
            return {"servers": before | {name: self._streams[name].initial_offset() for name in sorted(added)}}
        up = list(filter(self._is_up, self._streams))
        goes_on = self._skips or len(up) == len(self._streams)
        snapshots = [name for name in self._streams if in_snapshot(before[name])]
        if self._options.several:
            names = up if goes_on else []
        else:
            names = [name for name in up if name in snapshots]
        after = before | self._next_of(names, before)
        if after != before:
            return {"servers": after}
        if self._options.several or (snapshots and not self._skips):
            return start
        try:
            return self._to_frontier(start, [name for name in up if name not in snapshots and goes_on])
        except ConnectionFailure as error:
            _LOG.warning("A server went away while it was asked: %s", error)
            return start

    def _next_of(self, names: Iterable[str], before: dict[str, Offset]) -> dict[str, Offset]:
        """Return the offset of each of these servers after the next batch of its own."""
        after = {}
        for name in names:
            try:
                after[name] = self._streams[name].latest_offset(before[name])
            except ConnectionFailure as error:
                _LOG.warning("The server %s went away while it was asked: %s", name, error)
        return after

    def _to_frontier(self, start: Offset, names: list[str]) -> Offset:
        """Return the end of a batch of events of these servers; `start` if there is nothing up to the frontier."""
        before: dict[str, Offset] = start["servers"]
        reported: dict[str, Timestamp] = {}
        for name in names:
            stream, token = self._streams[name], ServerOffset.of(before[name]).token
            try:
                stream.check_server(token)
                reachable = stream.ahead.reachable_time(token, self._bounds, wait_ms=stream.options.await_ms)
            except PositionLost as error:
                return {"servers": before | {name: stream.restart(error, token)}}
            # With availableNow a server that has reported everything does not hold back the others.
            reported[name] = _END if stream.until and reachable >= stream.until else reachable
        frontier = min(reported.values(), default=_END)
        after, rows = dict(before), 0
        for name in names:
            stream, token = self._streams[name], ServerOffset.of(before[name]).token
            until = min(frontier, stream.until or _END)
            if until >= token.time:
                reach = stream.ahead.advance(token, BatchLimits(), until=until, wait_ms=1)
                after[name] = stream.offset_after(reach.token, closed=reach.closed)
                rows += reach.rows
        quiet_s = min((_seconds(after[name]) - _seconds(before[name]) for name in names), default=0)
        moved = rows or start.get("initial") or quiet_s * 1000 >= self._options.idle_advance_ms
        return {"servers": after} if moved else start

    def _is_up(self, name: str) -> bool:
        """Whether the server answers. A change of the answer is logged."""
        try:
            with timeout(limits.MERGED_PING_SECONDS_MAX):
                self._streams[name].mongodb.now()
        except ConnectionFailure as error:
            if name not in self._down:
                policy = "going on without it" if self._skips else "waiting for it; there are no batches until then"
                _LOG.warning("The server %s cannot be reached, %s: %s", name, policy, error)
                self._down.add(name)
            return False
        if name in self._down:
            _LOG.warning("The server %s is back", name)
            self._down.discard(name)
        return True

    def partitions(self, start: Offset, end: Offset) -> Sequence[ReadPartition]:
        """Return the partitions between two offsets. Raise OptionError if a server was removed from the options."""
        if self._only:
            return self._only.partitions(start, end)
        before, after = start["servers"], end["servers"]
        if missing := sorted(after.keys() - self._streams.keys()):
            raise OptionError(f"the checkpoint has the server {missing[0]}, which the option 'uri' has not")
        alone: list[ReadPartition] = []
        ranges: list[EventRange | None] = []
        for number, (name, stream) in enumerate(self._streams.items()):
            # A server that was just added has nothing to read.
            same = name not in before or before[name] == after[name]
            partitions = [] if same else stream.partitions(before[name], after[name])
            events = [each for each in partitions if isinstance(each, EventRange)]
            ranges.append(EventRange(events[0].start, events[-1].end) if events else None)
            alone += [] if events else [ServerPartition(number, part) for part in partitions]
        return [*alone, *(MergedRanges(tuple(ranges)).sliced(self._options.partitions) if any(ranges) else [])]

    def close(self) -> None:
        """Close the cursors that read ahead."""
        for stream in self._streams.values():
            stream.close()


def _seconds(offset: Offset) -> int:
    """Return the cluster time of an offset of one server, in seconds."""
    return ServerOffset.of(offset).token.time.time
