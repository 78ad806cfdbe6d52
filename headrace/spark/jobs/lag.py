"""The lag of a query: the number of events after its positions, and the age of the first of these events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pymongo

from headrace import limits
from headrace.spark.jobs.checkpoint import ServerPosition
from headrace.spark.mongodb.collection_selection import namespace_of
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, client_of
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition, server_name
from headrace.spark.rows.tokens import Token

_TOKENS_ONLY: Final = ({"$project": {"_id": 1}},)
_NAMES: Final = ({"$project": {"_id": 1, "ns": 1}},)


@dataclass(frozen=True, slots=True)
class Lag:
    """`event_count` events wait (at the limit: or more); the first is `seconds` old by the server's clock."""

    event_count: int
    seconds: int
    collections: Mapping[str, Lag] = field(default_factory=dict)
    """The lag of each of several collections; a collection without waiting events is omitted."""


def lag_of(options: SourceOptions, positions: Sequence[ServerPosition]) -> Lag:
    """Ask each server for its lag. Raise PositionLost, or pymongo's errors if a server does not answer in time."""
    by_name = {server_name(one.uri): one for one in options.servers}
    lags = [_lag_of(by_name.get(position.server, options), position.token) for position in positions]
    collections: dict[str, Lag] = {}
    for name, one in (item for lag in lags for item in lag.collections.items()):
        before = collections.get(name, Lag(0, 0))
        collections[name] = Lag(before.event_count + one.event_count, max(before.seconds, one.seconds))
    return Lag(sum(lag.event_count for lag in lags), max((lag.seconds for lag in lags), default=0), collections)


def documents_of(options: SourceOptions, names: Iterable[str]) -> int:
    """Return the server's estimate of the documents in these collections."""
    client = client_of(options.uri)
    namespaces = map(namespace_of, names)
    return sum(client[database][collection].estimated_document_count() for database, collection in namespaces)


def _lag_of(options: SourceOptions, token: Token) -> Lag:
    feed = MongoDBStream(replace(options, rows_max=None))
    with pymongo.timeout(limits.START_CHECK_SECONDS_MAX):
        now = feed.now()
    count = 0
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    with feed.open(
        StreamPosition("token", token=token), stages=_NAMES if options.several else _TOKENS_ONLY,
        batch_rows=limits.LAG_EVENT_COUNT_MAX,
    ) as cursor:  # fmt: skip
        while count < limits.LAG_EVENT_COUNT_MAX and not cursor.covers(now) and not cursor.closed:
            for event in cursor.next_batch(wait_ms=1):
                reached = Token.of(event["_id"]).time
                if reached <= now and count < limits.LAG_EVENT_COUNT_MAX:
                    name = ".".join(event.get("ns", {}).values())
                    counts[name] += 1
                    first.setdefault(name, reached.time)
                    count += 1
    waiting = {name: Lag(number, max(now.time - first[name], 0)) for name, number in counts.items()}
    seconds = max((each.seconds for each in waiting.values()), default=0)
    return Lag(count, seconds, waiting if options.several else {})
