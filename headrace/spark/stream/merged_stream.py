"""Several servers read as one stream, in the order of cluster time.

Rule: rows are in the order (cluster time, server, token), within a batch and from one batch to the next. So a batch
ends at the frontier: the time up to which the slowest server has reported everything. An offset has each server's
token, by its connection string without credentials. Servers can be added to a running job (they begin at
`startingPosition`) but not removed.

A server that cannot be reached stalls the frontier: there are no batches until it is back, and the log names it. With
onServerDown = skip the other servers continue; when the server is back, its events come late, out of order.

Each server has its own snapshot. Its rows are not ordered by time, and a batch has a chunk of each server. The order
and the frontier begin when all snapshots are complete. If a server's collection is dropped, the server is read again
while the others wait.

A quiet server's time advances with its periodic no-ops, every ten seconds, so the frontier lags by at most that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp
from pymongo import timeout
from pymongo.errors import ConnectionFailure
from pyspark.sql.datasource import InputPartition

from headrace import limits
from headrace.spark.errors import OptionError
from headrace.spark.mongodb.batch_limits import BatchLimits
from headrace.spark.mongodb.event_ranges import ARROW_ROWS
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.rows.events import SERVER
from headrace.spark.stream.collections_partitions import CollectionEvents, CollectionSnapshots, read_collections
from headrace.spark.stream.partitions import EventRange, MergedRanges, ServerPartition
from headrace.spark.stream.read_partition import past_partitions, read_partition
from headrace.spark.stream.server_stream import Offset, ServerStream, in_snapshot, offset_of, token_of
from headrace.spark.timetravel.archive import end_at
from headrace.values.position import LAST, to_timestamp

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger(__name__)
_END: Final = to_timestamp(LAST)


class MergedStream:
    """Plans the batches of several servers' streams. Not thread-safe."""

    def __init__(self, options: SourceOptions) -> None:
        if options.start.token is not None:
            raise OptionError("a token is of one server: begin several at a time, 'earliest', 'latest' or 'snapshot'")
        servers = options.servers
        share = max((options.rows_max or limits.MERGED_ROW_COUNT_MAX) // len(servers), 1)
        size = options.bytes_max and max(options.bytes_max // len(servers), 1)
        self._bounds = BatchLimits(share, size)
        self._partitions = options.partitions
        self._idle_ms = options.idle_advance_ms
        self._reached = ReachedServers(skips=options.on_server_down == "skip")
        rows_max = options.rows_max and share
        self._streams = {server_name(one.uri): ServerStream(replace(one, rows_max=rows_max)) for one in servers}
        self._until: dict[str, Timestamp] | None = None

    def initial_offset(self) -> Offset:
        """Return the offset of `startingPosition` on each server."""
        return {"servers": {name: _at_first(stream) for name, stream in self._streams.items()}, "initial": True}

    def stop_at_now(self) -> None:
        """End each server's stream at its present time, for the trigger availableNow."""
        self._until = {name: stream.mongodb.now() for name, stream in self._streams.items()}

    def latest_offset(self, start: Offset) -> Offset:
        """Return the end of the next batch, at the frontier; `start` if there is nothing up to the frontier."""
        tokens: dict[str, Offset] = start["servers"]
        if added := self._streams.keys() - tokens.keys():
            return {"servers": tokens | {name: _at_first(self._streams[name]) for name in added}}
        try:
            snapshots = [name for name in self._streams if in_snapshot(tokens[name])]
            if chunks := self._next_chunks(tokens, snapshots):
                return {"servers": tokens | chunks}
            if snapshots and not self._reached.skips:
                return start
            seen = self._look(tokens, snapshots)
            ends, rows = self._reach(tokens, seen) if seen else (tokens, 0)
        except ConnectionFailure as error:
            _LOG.warning("A server went away while it was asked: %s", error)
            return start
        except _ServerRestart as again:
            return {"servers": tokens | {again.server: again.offset}}
        quiet = min((_seconds(ends[name]) - _seconds(tokens[name]) for name in seen), default=0)
        moved = rows or start.get("initial") or quiet * 1000 >= self._idle_ms
        return {"servers": ends} if moved else start

    def _next_chunks(self, tokens: dict[str, Offset], snapshots: list[str]) -> dict[str, Offset]:
        """Return the end of the next chunk of each snapshot whose server is up."""
        chunks: dict[str, Offset] = {}
        for name in snapshots:
            stream = self._streams[name]
            if self._reached.is_up(name, stream.mongodb):
                chunks[name] = stream.latest_offset(tokens[name])
                if self._until and not in_snapshot(chunks[name]):
                    # Rows of the snapshot may be newer than the end of the run, so the end moves to the present time.
                    self._until[name] = stream.mongodb.now()
        return chunks

    def _reach(self, tokens: dict[str, Offset], seen: dict[str, Timestamp]) -> tuple[dict[str, Offset], int]:
        """Return each server's token at the frontier, and the least number of rows up to these tokens."""
        frontier = min(seen.values())
        ends, rows = dict(tokens), 0
        for name in seen:
            until = min(frontier, self._until[name]) if self._until else frontier
            if until >= token_of(tokens[name]).time:
                ahead = self._streams[name].ahead
                reach = ahead.advance(token_of(tokens[name]), BatchLimits(), until=until, wait_ms=1)
                again = reach.closed and self._streams[name].options.start.kind == "snapshot"
                ends[name] = offset_of(reach.token, after="") if again else offset_of(reach.token)
                rows += reach.rows
        return ends, rows

    def _look(self, tokens: dict[str, Offset], without: list[str]) -> dict[str, Timestamp]:
        """Return the time up to which each server has reported everything; empty if the stream waits for a server."""
        seen: dict[str, Timestamp] = {}
        for name, stream in self._streams.items():
            if name in without:
                continue
            if self._reached.is_up(name, stream.mongodb):
                bounds, wait_ms = self._bounds, stream.options.await_ms // len(self._streams)
                try:
                    stream.check_server(token_of(tokens[name]))
                    reachable = stream.ahead.reachable_time(token_of(tokens[name]), bounds, wait_ms=max(wait_ms, 1))
                except PositionLost as error:
                    raise _ServerRestart(name, stream.restart(error, token_of(tokens[name]))) from error
                # With availableNow a server that has reported everything does not hold back the others.
                seen[name] = _END if self._until and reachable >= self._until[name] else reachable
            elif not self._reached.skips:
                return {}
        return seen

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the partitions between two offsets. Raise OptionError if a server was removed from the options."""
        before, after = start["servers"], end["servers"]
        check_none_removed(after, self._streams)
        alone: list[InputPartition] = []
        ranges: list[EventRange | None] = []
        for number, (name, stream) in enumerate(self._streams.items()):
            # A server that was just added, and a snapshot that waits, have nothing to read.
            waits = name not in before or (in_snapshot(before[name]) and before[name] == after[name])
            partitions = [] if waits else stream.partitions(before[name], after[name])
            events = bool(partitions) and isinstance(partitions[0], EventRange)
            ranges.append(EventRange(token_of(before[name]), token_of(after[name])) if events else None)
            alone += [] if events else [ServerPartition(number, part) for part in partitions]
        return [*alone, *(MergedRanges(tuple(ranges)).sliced(self._partitions) if any(ranges) else [])]

    def close(self) -> None:
        """Close the cursors that read ahead."""
        for stream in self._streams.values():
            stream.close()


class ReachedServers:
    """The servers that can be reached. `skips`: the other servers continue without one that cannot."""

    def __init__(self, *, skips: bool) -> None:
        self.skips = skips
        self._down: set[str] = set()

    def is_up(self, name: str, mongodb: MongoDBStream) -> bool:
        """Whether the server answers. A change of the answer is logged."""
        try:
            with timeout(limits.MERGED_PING_SECONDS_MAX):
                mongodb.now()
        except ConnectionFailure as error:
            if name not in self._down:
                policy = "going on without it" if self.skips else "waiting for it; there are no batches until then"
                _LOG.warning("The server %s cannot be reached, %s: %s", name, policy, error)
                self._down.add(name)
            return False
        if name in self._down:
            _LOG.warning("The server %s is back", name)
            self._down.discard(name)
        return True


def check_none_removed(offsets: Iterable[str], servers: Iterable[str]) -> None:
    """Raise OptionError if an offset has a server that is not in the options."""
    if missing := sorted(set(offsets) - set(servers)):
        raise OptionError(f"the checkpoint has the server {missing[0]}, which the option 'uri' has not")


class _ServerRestart(Exception):
    """A server no longer has the stream's position, and is read again from a snapshot."""

    def __init__(self, server: str, offset: Offset) -> None:
        super().__init__(server)
        self.server = server
        self.offset = offset


def _at_first(stream: ServerStream) -> Offset:
    return {name: value for name, value in stream.initial_offset().items() if name != "initial"}


def _seconds(offset: Offset) -> int:
    return token_of(offset).time.time


def merged_past_partitions(options: SourceOptions) -> list[InputPartition]:
    """Return the partitions of each server's documents at a past time, by the server's own clock."""
    if options.as_of is None or options.as_of.time is None:
        raise OptionError("a token is of one server: several are asked for the collections as of a time")
    each = ((one, end_at(MongoDBStream(one), options.as_of.time)) for one in options.servers)
    return [ServerPartition(number, part) for number, server in enumerate(each) for part in past_partitions(*server)]


def read_merged(
    options: SourceOptions, part: MergedRanges | ServerPartition, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition with the column `server`; merge ranges by (cluster time, server, token)."""
    if isinstance(part, ServerPartition):
        one = options.servers[part.number]
        inner = part.partition
        of_collections = isinstance(inner, CollectionEvents | CollectionSnapshots)
        read: Any = read_collections if of_collections else read_partition
        for batch in read(one, inner, columns):
            yield _named(batch, server_name(one.uri))
        return
    wanted = tuple(columns) if "token" in columns else ("token", *columns)
    inputs = []
    for one, events in zip(options.servers, part.ranges, strict=True):
        if events is not None:
            batches = read_partition(one, events, wanted)
            inputs.append(_Input(server_name(one.uri), batches))
    while sum(each.fill() for each in inputs):
        yield from _merged_once(inputs)


def _merged_once(inputs: list[_Input]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are complete: those before the earliest of the servers' last times that were read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unfinished = [each for each in inputs if not each.ended]
    slowest = min(unfinished, key=_Input.last_time, default=None)
    taken = [each.take(None if slowest is None else slowest.last_time()) for each in inputs]
    table = pa.concat_tables([table for table in taken if table is not None])
    if slowest is not None and not table.num_rows:
        slowest.more()
        return
    order = pc.sort_indices(pc.utf8_slice_codeunits(table["token"], 2, 18))  # stable: servers and tokens stay in order
    yield from table.take(order).combine_chunks().to_batches(max_chunksize=ARROW_ROWS)


def _named(batch: pa.RecordBatch, server: str) -> pa.RecordBatch:
    import pyarrow as pa

    return batch.append_column(SERVER, pa.array([server] * batch.num_rows, type=pa.string()))


class _Input:
    """Rows of one server that were read and not yet returned."""

    def __init__(self, name: str, batches: Iterator[pa.RecordBatch]) -> None:
        self._name = name
        self._batches = batches
        self._table: pa.Table | None = None
        self.ended = False

    def fill(self) -> bool:
        """Return whether there are rows; read a batch first if there are none."""
        # A batch may have no row of the slice.
        while not self._rows() and not self.ended:
            self.more()
        return self._rows() > 0

    def more(self) -> None:
        """Append the next batch; set `ended` at the end of the range."""
        import pyarrow as pa

        batch = next(self._batches, None)
        if batch is None:
            self.ended = True
            return
        table = pa.table(_named(batch, self._name))
        self._table = table if self._table is None else pa.concat_tables([self._table, table])

    def last_time(self) -> str:
        """Return the cluster time of the last row, as the hexadecimal digits in its token."""
        assert self._table is not None
        text: str = self._table["token"][-1].as_py()
        return text[2:18]

    def take(self, before: str | None) -> pa.Table | None:
        """Remove and return the rows before this time; all rows if it is None."""
        import pyarrow.compute as pc

        table = self._table
        if table is None:
            return None
        if before is None:
            self._table = None
            return table
        count = pc.sum(pc.less(pc.utf8_slice_codeunits(table["token"], 2, 18), before)).as_py() or 0
        self._table = table.slice(count) if count < table.num_rows else None
        return table.slice(0, count)

    def _rows(self) -> int:
        return 0 if self._table is None else int(self._table.num_rows)
