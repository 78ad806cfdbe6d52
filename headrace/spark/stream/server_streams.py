"""The streams of several servers, planned as one, in the driver.

There is a stream for each server, of one collection or of several, and a batch has rows of each. An offset has the
offset of each server, by its connection string without credentials. Servers can be added to a running job (they begin
at `startingPosition`) but not removed.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bson import Timestamp
from pymongo import timeout
from pymongo.errors import ConnectionFailure

from headrace import limits
from headrace.spark.errors import OptionError
from headrace.spark.mongodb.event_ranges import ARROW_ROWS, ReadPartition
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.mongodb.source_options import BatchLimits, SourceOptions, server_name
from headrace.spark.rows.events import SERVER
from headrace.spark.stream.collections_stream import CollectionsStream
from headrace.spark.stream.partitions import EventRange, past_partitions
from headrace.spark.stream.server_stream import Offset, ServerStream, in_snapshot, offset_of, token_of
from headrace.spark.timetravel.archive import end_at
from headrace.values.position import LAST, to_timestamp

if TYPE_CHECKING:
    import pyarrow as pa


_LOG: Final = logging.getLogger(__name__)
_END: Final = to_timestamp(LAST)


class ServerStreams:
    """Plans the batches of several servers' streams. Not thread-safe."""

    def __init__(self, options: SourceOptions) -> None:
        if options.start.token is not None:
            raise OptionError("a token is of one server: begin several at a time, 'earliest', 'latest' or 'snapshot'")
        count = len(options.servers)
        share = max((options.rows_max or limits.MERGED_ROW_COUNT_MAX) // count, 1)
        bytes_max = options.bytes_max and max(options.bytes_max // count, 1)
        rows_max, wait_ms = options.rows_max and share, max(options.await_ms // count, 1)
        each = [replace(one, rows_max=rows_max, bytes_max=bytes_max, await_ms=wait_ms) for one in options.servers]
        stream_of = CollectionsStream if options.several else ServerStream
        self._streams = {server_name(one.uri): stream_of(one, alone=False) for one in each}
        self._options, self._bounds = options, BatchLimits(share, bytes_max)
        self._skips = options.on_server_down == "skip"
        self._down: set[str] = set()

    def initial_offset(self) -> Offset:
        """Return the offset of `startingPosition` on each server."""
        return {"servers": {name: stream.initial_offset() for name, stream in self._streams.items()}, "initial": True}

    def stop_at_now(self) -> None:
        """End each server's stream at its present time, for the trigger availableNow."""
        for stream in self._streams.values():
            stream.stop_at_now()

    def latest_offset(self, start: Offset) -> Offset:
        """Return the end of the next batch; `start` if there is nothing new, or if a server is awaited. Raise
        PositionLost."""
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
            stream, token = self._streams[name], token_of(before[name])
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
            stream, token = self._streams[name], token_of(before[name])
            until = min(frontier, stream.until or _END)
            if until >= token.time:
                reach = stream.ahead.advance(token, BatchLimits(), until=until, wait_ms=1)
                again = reach.closed and stream.options.start.kind == "snapshot"
                after[name] = offset_of(reach.token, after="") if again else offset_of(reach.token)
                rows += reach.rows
        quiet_s = min((token_of(after[name]).time.time - token_of(before[name]).time.time for name in names), default=0)
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
        before, after = start["servers"], end["servers"]
        if missing := sorted(after.keys() - self._streams.keys()):
            raise OptionError(f"the checkpoint has the server {missing[0]}, which the option 'uri' has not")
        alone: list[ReadPartition] = []
        ranges: list[EventRange | None] = []
        for number, (name, stream) in enumerate(self._streams.items()):
            # A server that was just added has nothing to read.
            same = name not in before or before[name] == after[name]
            partitions = [] if same else stream.partitions(before[name], after[name])
            merges = bool(partitions) and isinstance(partitions[0], EventRange)
            ranges.append(EventRange(token_of(before[name]), token_of(after[name])) if merges else None)
            alone += [] if merges else [ServerPartition(number, part) for part in partitions]
        return [*alone, *(MergedRanges(tuple(ranges)).sliced(self._options.partitions) if any(ranges) else [])]

    def close(self) -> None:
        """Close the cursors that read ahead."""
        for stream in self._streams.values():
            stream.close()


@dataclass(frozen=True, slots=True)
class MergedRanges(ReadPartition):
    """A range of each server, in the order of the options; None for a server without a range."""

    ranges: tuple[EventRange | None, ...]

    def sliced(self, slices: int) -> list[MergedRanges]:
        """Return the same events in `slices` partitions, divided as in `EventRange.sliced`."""
        each = [[None] * slices if one is None else one.sliced(slices) for one in self.ranges]
        return [MergedRanges(tuple(ranges)) for ranges in zip(*each, strict=True)]

    def read(self, options: SourceOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wanted = tuple(columns) if "token" in columns else ("token", *columns)
        each = zip(options.servers, self.ranges, strict=True)
        return _merged({server_name(one.uri): events.read(one, wanted) for one, events in each if events})


@dataclass(frozen=True, slots=True)
class ServerPartition(ReadPartition):
    """A partition of one of several servers; `number` is the server's index in the options."""

    number: int
    partition: ReadPartition

    def read(self, options: SourceOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        one = options.servers[self.number]
        return (_named(batch, server_name(one.uri)) for batch in self.partition.read(one, columns))


def merged_past_partitions(options: SourceOptions) -> list[ServerPartition]:
    """Return the partitions of each server's documents at a past time, by the server's own clock."""
    if options.as_of is None or options.as_of.time is None:
        raise OptionError("a token is of one server: several are asked for the collections as of a time")
    each = ((one, end_at(MongoDBStream(one), options.as_of.time)) for one in options.servers)
    return [ServerPartition(number, part) for number, server in enumerate(each) for part in past_partitions(*server)]


def _merged(inputs: Mapping[str, Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield the servers' rows in order. Rows are complete up to the time to which the slowest server was read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    read_to = dict.fromkeys(inputs, "")
    """The servers that have not ended, each with the time of its last row read, as hexadecimal digits of a token."""
    rows: dict[str, pa.Table] = {}
    while read_to or rows:
        slowest = min(read_to, key=read_to.__getitem__, default=None)
        complete = []
        for server in inputs:
            if table := rows.pop(server, None):
                early = None if slowest is None else pc.sum(pc.less(_times(table), read_to[slowest])).as_py()
                complete.append(table.slice(0, early))
                rows |= {} if early is None else {server: table.slice(early)}
        if any(table.num_rows for table in complete):
            table = pa.concat_tables(complete)
            order = pc.sort_indices(_times(table))  # stable: servers and tokens stay in order
            yield from table.take(order).combine_chunks().to_batches(max_chunksize=ARROW_ROWS)
        if slowest is not None:
            batch = next(inputs[slowest], None)
            if batch is None:
                del read_to[slowest]
            elif batch.num_rows:
                table = pa.table(_named(batch, slowest))
                read_to[slowest] = _times(table)[-1].as_py()
                rows[slowest] = pa.concat_tables([rows[slowest], table]) if slowest in rows else table


def _times(table: pa.Table) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.utf8_slice_codeunits(table["token"], 2, 18)


def _named(batch: pa.RecordBatch, server: str) -> pa.RecordBatch:
    import pyarrow as pa

    return batch.append_column(SERVER, pa.array([server] * batch.num_rows, type=pa.string()))
