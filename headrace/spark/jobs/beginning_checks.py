"""Checks that a table of state gets every document, wherever its job begins.

A mirror, a history, or a copy on a server or in a database is right only if it begins with a snapshot or with the
collection's creation. A stream that begins at a time or a token has the later changes, but not the earlier documents.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.spark.jobs.job_file import JobError
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, client_of
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.sink_options import SinkOptions

_KIND: Final = ({"$project": {"operationType": 1}},)


def check_beginning(options: SourceOptions, reached: str, sink: SinkOptions) -> None:
    """Raise JobError if the sink's table, which has everything up to the token `reached`, would miss documents.

    An empty `reached` stands for a new table. `options` are of one server. Raise PositionLost.
    """
    start = MongoDBStream(options).resolve(options.start)
    if reached:
        if start > Token(reached):
            raise JobError(
                f"the sink {sink} has everything up to {reached}, and startingPosition is later: what lies between "
                "would be missing; set it to 'snapshot'"
            )
    elif not begins_with_creation(options, start):
        raise JobError(
            f"the sink {sink}: documents that {options.database}.{options.collection} had before startingPosition "
            f"'{options.start.kind}' would be missing, as its creation is not among the events from there: set "
            "startingPosition to 'snapshot'"
        )


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
