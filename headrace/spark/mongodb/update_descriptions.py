"""How to ask a server to describe updates, so that they can be applied exactly to a stored document."""

from __future__ import annotations

from typing import Final

from pymongo.errors import OperationFailure

from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition

# Best first; `tables/apply_update.py` says where each is inexact.
_DESCRIPTION_OPTIONS: Final = ("showRawUpdateDescription", "showExpandedEvents")
_REFUSAL_CODES: Final = frozenset({323, 9, 40415})


def description_option(uri: str, database: str | None, collection: str | None) -> dict[str, str]:
    """Return the option for the most exact description of updates that the server supports; {} if it supports none.

    Open a change stream to find out. Raise pymongo's errors, except for a refusal of the option.
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
