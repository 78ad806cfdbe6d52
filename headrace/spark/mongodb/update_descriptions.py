"""How a server is asked to describe updates, so that they can be applied to a stored document exactly."""

from __future__ import annotations

from typing import Final

from pymongo.errors import OperationFailure

from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition

# Best first; `tables/apply_update.py` says what each leaves open.
_DESCRIPTION_OPTIONS: Final = ("showRawUpdateDescription", "showExpandedEvents")
_REFUSAL_CODES: Final = frozenset({323, 9, 40415})


def description_option(uri: str, database: str | None, collection: str | None) -> dict[str, str]:
    """The source's option for the most exact description of updates that the server supports; {} if it has none.

    Opens a change stream to find out. Raises pymongo's errors, except for a refusal of the option.
    """
    for option in _DESCRIPTION_OPTIONS:
        feed = MongoDBStream(SourceOptions(uri, database, collection, stream={option: True}))
        try:
            feed.open(StreamPosition("latest")).close()
            return {option: "true"}
        except OperationFailure as error:
            if error.code not in _REFUSAL_CODES:
                raise
    return {}
