"""The partitions of several servers, and how a worker reads their rows, with the column `server`.

The events of one collection are merged in the order (cluster time, server, token).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.spark.errors import OptionError
from headrace.spark.mongodb.event_ranges import ARROW_ROWS, ReadPartition
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.rows.events import SERVER
from headrace.spark.stream.partitions import EventRange, past_partitions
from headrace.spark.timetravel.archive import end_at

if TYPE_CHECKING:
    import pyarrow as pa


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
