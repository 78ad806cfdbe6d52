"""How far a query is behind its servers: the number of events after its positions, and the age of the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace import limits
from headrace.spark.jobs.checkpoint import ServerPosition
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, client_of
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition, server_name
from headrace.spark.rows.tokens import Token

_TOKENS_ONLY: Final = ({"$project": {"_id": 1}},)


@dataclass(frozen=True, slots=True)
class Lag:
    """`event_count` events wait (at its limit: or more); the first is `seconds` old by the server's clock."""

    event_count: int
    seconds: int


def lag_of(options: SourceOptions, positions: Sequence[ServerPosition]) -> Lag:
    """Asks each server. Raises PositionLost, and pymongo's errors for a server that does not answer."""
    by_name = {server_name(one.uri): one for one in options.servers}
    lags = [_lag_of(by_name.get(position.server, options), position.token) for position in positions]
    return Lag(sum(lag.event_count for lag in lags), max((lag.seconds for lag in lags), default=0))


def document_count(options: SourceOptions) -> int | None:
    """How many documents a snapshot has to read, by the servers' estimates; None if it is not of one collection."""
    if not (options.database and options.collection):
        return None
    collections = [client_of(one.uri)[options.database][options.collection] for one in options.servers]
    return sum(collection.estimated_document_count() for collection in collections)


def _lag_of(options: SourceOptions, token: Token) -> Lag:
    feed = MongoDBStream(replace(options, rows_max=None))
    now = feed.now()
    count, first = 0, None
    with feed.open(
        StreamPosition("token", token=token), stages=_TOKENS_ONLY, batch_rows=limits.LAG_EVENT_COUNT_MAX
    ) as cursor:
        while count < limits.LAG_EVENT_COUNT_MAX and not cursor.covers(now) and not cursor.closed:
            for event in cursor.next_batch(wait_ms=1):
                reached = Token.of(event["_id"])
                if reached.time <= now:
                    first = first or reached.time
                    count += 1
    return Lag(min(count, limits.LAG_EVENT_COUNT_MAX), max(now.time - first.time, 0) if first else 0)
