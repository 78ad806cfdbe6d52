"""The time series of the simulation: its buckets in the model, and whether the writes of measurements are explained.

The product takes a bucket apart, and nothing is believed of it: the measurements that an insert has added to the
unpacked buckets must be those that the client sent.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import bson

from headrace.timeseries.bucket import measurements_of
from headrace.timeseries.series import Series
from tests.simulation.language import Document, matches, updated

SERIES: Final = "a.m"
"""The namespace of the time series, which may be an ordinary collection, too, after a drop."""
BUCKETS: Final = "a.system.buckets.m"
UNPACK: Final = "$_internalUnpackBucket"


@lru_cache(maxsize=4096)
def _measurements(time_field: str, meta_field: str | None, bucket: bytes) -> tuple[Document, ...]:
    options = {"timeField": time_field, "bucketMaxSpanSeconds": 1, "bucketRoundingSeconds": 1}
    if meta_field is not None:
        options["metaField"] = meta_field
    return tuple(map(bson.decode, measurements_of(Series.of(options), bucket)))


def unpacked(stage: Document, buckets: list[Document]) -> list[Document]:
    """The measurements of buckets, by the stage of the view."""
    names = stage[UNPACK]["timeField"], stage[UNPACK].get("metaField")
    return [item for bucket in buckets for item in _measurements(*names, bson.encode(bucket))]


def by_key(documents: list[Document]) -> dict[Any, Document]:
    """Documents by their `_id`, which the simulator gives once. Raises `ValueError` where one is there twice."""
    made = {document["_id"]: document for document in documents}
    if len(made) != len(documents):
        raise ValueError(f"a measurement is there twice: {documents}")
    return made


class Turn:
    """The measurements that one turn of a write has added, removed and changed."""

    def __init__(self, before: list[Document], after: list[Document]) -> None:
        old, new = by_key(before), by_key(after)
        self.added = [item for key, item in new.items() if key not in old]
        self.removed = [item for key, item in old.items() if key not in new]
        self.changed = [(item, new[key]) for key, item in old.items() if key in new and new[key] != item]


def problem_of(op: Document, turns: list[Turn], reply: Document, steady: list[Document]) -> str | None:
    """Return what a write did wrong, or None. The measurements in `steady` matched its filter all the time."""
    added = [item for turn in turns for item in turn.added]
    removed = [item for turn in turns for item in turn.removed]
    changed = [pair for turn in turns for pair in turn.changed]
    has_failed = reply["ok"] != 1.0 or "writeErrors" in reply
    if op["do"] == "insert":
        if removed or changed or any(item not in op["documents"] for item in added):
            return "other changes than an insert of these documents"
        return None if has_failed or len(added) == len(op["documents"]) == reply["n"] else "not all are there"
    if op["do"] == "delete":
        if added or changed or not all(matches(item, op["filter"]) for item in removed):
            return "other changes than a delete of what matches"
        if has_failed:
            return None
        if reply["n"] != len(removed) or (steady if op["multi"] else steady and not removed):
            return "not all or other documents were deleted"
        return None if op["multi"] or len(removed) <= 1 else "more than one document was deleted"
    if added or removed:
        return "an update has added or removed documents"
    for before, after in changed:
        if not matches(before, op["filter"]) or updated(before, op["change"]) != after:
            return f"a wrong change: {before} became {after}"
    if has_failed:
        return None
    left = [item for item in steady if updated(item, op["change"]) != item]
    return "n is wrong" if left or reply["nModified"] != len(changed) else None
