"""Whether a stream begins with its collection's creation, so that its events alone give every document."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.spark.mongodb.mongodb_stream import MongoDBStream, client_of
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token

_KIND: Final = ({"$project": {"operationType": 1}},)


def begins_with_creation(options: SourceOptions, start: Token) -> bool:
    """Whether the collection's first event from `start` on is its creation, or the collection has no document yet.

    Look at one event of one server. Raise PositionLost, and pymongo's errors.
    """
    assert options.database
    assert options.collection
    # The stream has only the event's kind, and ignores the options that leave out events.
    mongodb = MongoDBStream(replace(options, pipeline=(), reader=(), stream={"showExpandedEvents": True}))
    empty = client_of(options.uri)[options.database][options.collection].find_one(projection={"_id": 1}) is None
    now = mongodb.now()
    with mongodb.open(StreamPosition("token", token=start), stages=_KIND, batch_rows=1) as cursor:
        while not cursor.covers(now) and not cursor.closed:
            for event in cursor.next_batch(wait_ms=20):
                return bool(event["operationType"] == "create")
    return empty
