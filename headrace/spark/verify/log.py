"""Whether a log of events (`changes`, `parquet`) has every event of its range once, as the server tells it now.

Only what the server's oplog still has can be compared: the range is from the log's last snapshot, or its first event,
to the log's position.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.log import Log
from headrace.spark.source.feed import Feed
from headrace.spark.source.options import SourceOptions

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


def compare_log(log: Log, options: SourceOptions) -> LogComparison:
    """Reads the range on both sides; raises PositionLost if the server has no longer all of it."""
    progress = log.progress()
    table = log.read().select(["operationType", "token"])
    kinds, tokens = (column.to_pylist() for column in table.columns)
    events = sorted(token for kind, token in zip(kinds, tokens, strict=True) if kind not in _SNAPSHOTS)
    start = progress.begun or (events[0] if events else progress.token)
    kept = [token for token in events if token > start]
    told = [event["_id"]["_data"] for event in Feed(options).read(Token(start), Token(progress.token))]
    twice = [after for before, after in pairwise(kept) if before == after]
    missing, extra = sorted(set(told) - set(kept)), sorted(set(kept) - set(told))
    return LogComparison(len(told), len(kept), tuple(missing), tuple(extra), tuple(twice))
