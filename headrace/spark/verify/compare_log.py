"""Whether a log of events (`changes`, `parquet`) has every event of its range once, as the server tells it now.

Only what the server's oplog still has can be compared: the range is from the log's last snapshot, or its first event,
to the log's position. Of several servers each one's events are compared by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.rows.events import SERVER, SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.rows.tokens import Token
from headrace.spark.tables.event_log import EventLog
from headrace.spark.tables.progress import Progress

_SNAPSHOTS = frozenset({SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END})


@dataclass(frozen=True, slots=True)
class LogComparison:
    """Counts of both sides in the range, and the tokens that the log lacks, has besides, or has twice."""

    event_count: int
    row_count: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.twice)

    def __str__(self) -> str:
        told = f"{self.row_count} rows, {self.event_count} events"
        kinds = (("missing", self.missing), ("extra", self.extra), ("twice", self.twice))
        return "; ".join([told, *(f"{len(tokens)} {name}, first {tokens[0]}" for name, tokens in kinds if tokens)])


def compare_log(log: EventLog, options: SourceOptions) -> LogComparison:
    """Reads the range on both sides; raises PositionLost if the server has no longer all of it."""
    progress, table = log.progress(), log.read()
    if not options.others:
        return _compared(table, progress, options)
    named = [(server_name(one.uri), one) for one in options.servers]
    each = [
        _compared(table.filter(pc.equal(table[SERVER], name)), progress.of_server(name), one)
        for name, one in named
        if progress.of_server(name).token
    ]
    return LogComparison(
        sum(found.event_count for found in each),
        sum(found.row_count for found in each),
        tuple(token for found in each for token in found.missing),
        tuple(token for found in each for token in found.extra),
        tuple(token for found in each for token in found.twice),
    )


def _compared(table: pa.Table, progress: Progress, options: SourceOptions) -> LogComparison:
    """Of one server."""
    kinds, tokens = (column.to_pylist() for column in table.select(["operationType", "token"]).columns)
    events = sorted(token for kind, token in zip(kinds, tokens, strict=True) if kind not in _SNAPSHOTS)
    start = progress.begun or (events[0] if events else progress.token)
    kept = [token for token in events if token > start]
    told = [event["_id"]["_data"] for event in MongoDBStream(options).read(Token(start), Token(progress.token))]
    twice = [after for before, after in pairwise(kept) if before == after]
    missing, extra = sorted(set(told) - set(kept)), sorted(set(kept) - set(told))
    return LogComparison(len(told), len(kept), tuple(missing), tuple(extra), tuple(twice))
