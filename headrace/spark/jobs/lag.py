"""How far a position is behind its server: the events after it, counted, and the age of the first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from headrace.spark.rows.tokens import Token
from headrace.spark.source.feed import Feed
from headrace.spark.source.options import Position, SourceOptions

EVENTS_MAX: Final = 10_000
_TOKENS_ONLY: Final = ({"$project": {"_id": 1}},)


@dataclass(frozen=True, slots=True)
class Lag:
    """`event_count` events wait (`EVENTS_MAX`: or more); the first is `seconds` old by the server's clock."""

    event_count: int
    seconds: int


def lag_of(options: SourceOptions, token: Token) -> Lag:
    """Asks the server; raises what the feed raises (a position that is lost, a server that is away)."""
    feed = Feed(replace(options, rows_max=None))
    now = feed.now()
    count, first = 0, None
    with feed.open(Position("token", token=token), stages=_TOKENS_ONLY, batch_rows=EVENTS_MAX) as cursor:
        while count < EVENTS_MAX and not cursor.covers(now) and not cursor.closed:
            for event in cursor.next_batch(wait_ms=1):
                reached = Token.of(event["_id"])
                if reached.time <= now:
                    first = first or reached.time
                    count += 1
    return Lag(min(count, EVENTS_MAX), max(now.time - first.time, 0) if first else 0)
