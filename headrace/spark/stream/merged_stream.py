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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp
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
from headrace.spark.stream.server_streams import ServerStreams
from headrace.spark.timetravel.archive import end_at
from headrace.values.position import LAST, to_timestamp

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger(__name__)
_END: Final = to_timestamp(LAST)


class MergedStream(ServerStreams):
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
        rows_max = options.rows_max and share
        super().__init__(options, [ServerStream(replace(one, rows_max=rows_max)) for one in servers])

    def initial_offset(self) -> Offset:
        """Return the offset of `startingPosition` on each server."""
        return {"servers": {name: _at_first(stream) for name, stream in self._streams.items()}, "initial": True}

    def latest_offset(self, start: Offset) -> Offset:
        """Return the end of the next batch, at the frontier; `start` if there is nothing up to the frontier."""
        tokens: dict[str, Offset] = start["servers"]
        if added := self._streams.keys() - tokens.keys():
            return {"servers": tokens | {name: _at_first(self._streams[name]) for name in added}}
        try:
            snapshots = [name for name in self._streams if in_snapshot(tokens[name])]
            if chunks := self._next_chunks(tokens, snapshots):
                return {"servers": tokens | chunks}
            if snapshots and not self.skips:
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
        return {name: self._streams[name].latest_offset(tokens[name]) for name in snapshots if self.is_up(name)}

    def _reach(self, tokens: dict[str, Offset], seen: dict[str, Timestamp]) -> tuple[dict[str, Offset], int]:
        """Return each server's token at the frontier, and the least number of rows up to these tokens."""
        frontier = min(seen.values())
        ends, rows = dict(tokens), 0
        for name in seen:
            end = self._streams[name].until
            until = min(frontier, end) if end else frontier
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
            if self.is_up(name):
                bounds, wait_ms = self._bounds, stream.options.await_ms // len(self._streams)
                try:
                    stream.check_server(token_of(tokens[name]))
                    reachable = stream.ahead.reachable_time(token_of(tokens[name]), bounds, wait_ms=max(wait_ms, 1))
                except PositionLost as error:
                    raise _ServerRestart(name, stream.restart(error, token_of(tokens[name]))) from error
                # With availableNow a server that has reported everything does not hold back the others.
                seen[name] = _END if stream.until and reachable >= stream.until else reachable
            elif not self.skips:
                return {}
        return seen

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the partitions between two offsets. Raise OptionError if a server was removed from the options."""
        before, after = start["servers"], end["servers"]
        self.check_none_removed(after)
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
    each = zip(options.servers, part.ranges, strict=True)
    yield from _merged({server_name(one.uri): read_partition(one, events, wanted) for one, events in each if events})


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
