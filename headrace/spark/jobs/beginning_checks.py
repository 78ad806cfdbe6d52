"""Checks that a table of state gets every document, wherever its job begins.

A mirror, a history, or a copy on a server or in a database is right only if it begins with a snapshot or with the
collection's creation. A stream that begins at a time or a token has the later changes, but not the earlier documents.
"""

from __future__ import annotations

from headrace.spark.jobs.job_file import JobError
from headrace.spark.mongodb.collection_creation import begins_with_creation
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.sink_options import SinkOptions


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
