"""Time series collections: the buckets behind one, and what is read of them.

A time series collection `X` is a view of the collection `system.buckets.X`, as in MongoDB. Commands that read go the
way of all views; the filter after the stage that unpacks the buckets is first applied to the buckets, as far as it says
something of them (`timeseries/bucket_filter.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.query.pipeline import Stage
from headrace.query.stages.unpack_bucket import UnpackBucket
from headrace.store.catalog import Collection
from headrace.store.view import View
from headrace.timeseries.bucket_filter import bucket_filter
from headrace.timeseries.index_keys import to_buckets
from headrace.timeseries.series import PREFIX, Series
from headrace.values.bson.to_string import to_string


class Buckets(NamedTuple):
    """The collection of the buckets of a time series."""

    collection: Collection
    series: Series


def buckets_namespace(namespace: str) -> str:
    """The namespace of the buckets of a time series collection."""
    database, _, name = namespace.partition(".")
    return f"{database}.{PREFIX}{name}"


def buckets_of(view: View, collection: Collection | None, *, must_exist: bool = True) -> Buckets | None:
    """The buckets of a time series collection; None for anything else. Raises 26 where they have been dropped, or
    answers None unless they must exist."""
    if collection is None or not collection.is_time_series:
        return None
    buckets = view.collection(buckets_namespace(collection.namespace))
    if buckets is None or "timeseries" not in buckets.options:
        if not must_exist:
            return None
        raise CommandError(26, f"the buckets of the time-series collection {collection.namespace} do not exist")
    return Buckets(buckets, Series.of(buckets.options["timeseries"]))


def is_of_buckets(context: CommandContext, namespace: str, pipeline: list[dict[str, Any]]) -> bool:
    """Whether a pipeline on a time series begins with a stage that is about its buckets, and not measurements."""
    collection = context.view.collection(namespace)
    first = next(iter(pipeline[0]), "") if pipeline else ""
    return collection is not None and collection.is_time_series and first in _OF_BUCKETS


_OF_BUCKETS: Final = frozenset({"$collStats", "$indexStats", "$planCacheStats"})


COMPATIBLE: Final = frozenset({
    "collation", "expireAfterSeconds", "indexOptionDefaults", "storageEngine", "timeseries",
})  # fmt: skip
"""The options that a time series collection may have."""


def shown_options(buckets: Collection) -> dict[str, Any]:
    """The options of a time series collection, as its client gave them."""
    return {name: value for name, value in buckets.options.items() if name in COMPATIBLE}


class PipelineSource(NamedTuple):
    """The beginning of a pipeline: what filter finds its documents, and how they are read."""

    spec: dict[str, Any]
    stages: tuple[Stage, ...]
    """The stages that are left."""
    rest: list[dict[str, Any]]
    """The same as they were given."""
    unpack: UnpackBucket | None
    """The stage that comes first where the documents are buckets; it is none of those left."""
    hint: Any
    """The index to use."""


def source_of(pipeline: list[dict[str, Any]], stages: tuple[Stage, ...], hint: Any) -> PipelineSource:
    """The source of a pipeline whose first stages may be a `$match`, or unpack buckets."""
    if pipeline and type(pipeline[0].get("$match")) is dict:
        return PipelineSource(pipeline[0]["$match"], stages[1:], pipeline[1:], None, hint)
    if not stages or not isinstance(stages[0], UnpackBucket):
        return PipelineSource({}, stages, pipeline, None, hint)
    unpack, rest = stages[0], pipeline[1:]
    spec: dict[str, Any] = {}
    for stage in rest:  # a filter, perhaps that of a view of it and then that of the client
        if type(stage.get("$match")) is not dict:
            break
        spec = {"$and": [*spec.get("$and", []), stage["$match"]]}
    hint = bucket_hint(unpack.series, hint)
    return PipelineSource(bucket_filter(unpack.series, spec), stages[1:], rest, unpack, hint)


def bucket_hint(series: Series, hint: Any) -> Any:
    """The hint of an index of the time series as that of the buckets' index. Raises 2 for a key that none can have."""
    if type(hint) is not dict or not hint or "$natural" in hint:
        return hint
    try:
        return to_buckets(series, hint)
    except (TypeError, ValueError):
        raise CommandError(2, f"the hint {to_string(hint)} is no index of a time-series collection") from None


def unpacked(source: PipelineSource, documents: Iterator[bytes]) -> Iterator[bytes]:
    """The documents of a source: the measurements where they are buckets."""
    return documents if source.unpack is None else source.unpack.apply_raw(documents)
