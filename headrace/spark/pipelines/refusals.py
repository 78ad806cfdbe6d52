"""The stages that a pipeline on Spark refuses, with reasons, and those that a server runs in a change stream."""

from __future__ import annotations

from typing import Final

_ALL_ROWS: Final = "it needs all documents at once, and a stream has no last one"
_SERVER: Final = "only a server can run it"
_WRITES: Final = "write with a sink of Spark's, or one of headrace.spark.sinks"

REFUSED: Final[dict[str, str]] = {
    "$bucket": "group by a $switch in $group instead",
    "$bucketAuto": _ALL_ROWS,
    "$changeStream": "the source is the change stream; its options are the source's",
    "$changeStreamSplitLargeEvent": "give it to the source, in its option 'pipeline'",
    "$collStats": _SERVER,
    "$count": "use $group with $count",
    "$currentOp": _SERVER,
    "$densify": _ALL_ROWS,
    "$documents": "make a DataFrame of them",
    "$facet": "run one pipeline for each",
    "$geoNear": _SERVER,
    "$graphLookup": "it reads a collection again and again for each document",
    "$indexStats": _SERVER,
    "$limit": _ALL_ROWS,
    "$merge": _WRITES,
    "$out": _WRITES,
    "$sample": _ALL_ROWS,
    "$search": _SERVER,
    "$setWindowFields": _ALL_ROWS,
    "$skip": _ALL_ROWS,
    "$sort": _ALL_ROWS,
    "$sortByCount": "use $group with $count, and sort the DataFrame",
    "$unionWith": "use DataFrame.union",
    "$vectorSearch": _SERVER,
}


IN_STREAM: Final = frozenset(
    {"$addFields", "$changeStreamSplitLargeEvent", "$match", "$project", "$redact", "$replaceRoot", "$replaceWith",
     "$set", "$unset"}
)  # fmt: skip
"""The stages that every server allows after `$changeStream`."""


class StageRefused(ValueError):
    """A valid stage that cannot run on Spark, or not in this position; the message names the stage."""


def refused(name: str, why: str | None = None) -> StageRefused:
    """Return the error that refuses the stage, with the reason `why` or the one in `REFUSED`."""
    return StageRefused(f"{name} cannot be run on Spark: {why or REFUSED.get(name, _SERVER)}")
