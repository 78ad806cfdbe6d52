"""Time series collections: their buckets, and reading measurements from them.

A time series collection `X` is a view of the collection `system.buckets.X`, as in MongoDB, and is read like any view.
The filter after the stage that unpacks the buckets is first applied to the buckets as far as possible
(`timeseries/bucket_filter.py`).
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
    """Return the namespace of the buckets of a time series collection."""
    database, _, name = namespace.partition(".")
    return f"{database}.{PREFIX}{name}"


def buckets_of(view: View, collection: Collection | None, *, must_exist: bool = True) -> Buckets | None:
    """Return the buckets of a time series collection; None for any other collection. If the buckets have been dropped,
    raise 26 if they must exist, otherwise return None."""
    if collection is None or not collection.is_time_series:
        return None
    buckets = view.collection(buckets_namespace(collection.namespace))
    if buckets is None or "timeseries" not in buckets.options:
        if not must_exist:
            return None
        raise CommandError(26, f"the buckets of the time-series collection {collection.namespace} do not exist")
    return Buckets(buckets, Series.of(buckets.options["timeseries"]))


def is_of_buckets(context: CommandContext, namespace: str, pipeline: list[dict[str, Any]]) -> bool:
    """Whether a pipeline on a time series begins with a stage about its buckets rather than its measurements."""
    collection = context.view.collection(namespace)
    first = next(iter(pipeline[0]), "") if pipeline else ""
    return collection is not None and collection.is_time_series and first in _OF_BUCKETS


_OF_BUCKETS: Final = frozenset({"$collStats", "$indexStats", "$planCacheStats"})


COMPATIBLE: Final = frozenset({
    "collation", "expireAfterSeconds", "indexOptionDefaults", "storageEngine", "timeseries",
})  # fmt: skip
"""The options that a time series collection may have."""


def shown_options(buckets: Collection) -> dict[str, Any]:
    """Return the options of a time series collection, as its client gave them."""
    return {name: value for name, value in buckets.options.items() if name in COMPATIBLE}


class PipelineSource(NamedTuple):
    """The beginning of a pipeline: the filter that finds its documents, and the remaining stages."""

    spec: dict[str, Any]
    stages: tuple[Stage, ...]
    """The remaining stages, parsed."""
    rest: list[dict[str, Any]]
    """The remaining stages as given."""
    unpack: UnpackBucket | None
    """The stage that unpacks the documents if they are buckets. It is not among the remaining stages."""
    hint: Any
    """The index to use."""


def source_of(pipeline: list[dict[str, Any]], stages: tuple[Stage, ...], hint: Any) -> PipelineSource:
    """Return the source of a pipeline, which may begin with a `$match` or with a stage that unpacks buckets."""
    if pipeline and type(pipeline[0].get("$match")) is dict:
        return PipelineSource(pipeline[0]["$match"], stages[1:], pipeline[1:], None, hint)
    if not stages or not isinstance(stages[0], UnpackBucket):
        return PipelineSource({}, stages, pipeline, None, hint)
    unpack, rest = stages[0], pipeline[1:]
    spec: dict[str, Any] = {}
    for stage in rest:  # filters: maybe of a view on the time series, then of the client
        if type(stage.get("$match")) is not dict:
            break
        spec = {"$and": [*spec.get("$and", []), stage["$match"]]}
    hint = bucket_hint(unpack.series, hint)
    return PipelineSource(bucket_filter(unpack.series, spec), stages[1:], rest, unpack, hint)


def bucket_hint(series: Series, hint: Any) -> Any:
    """Translate a hint for an index of the time series to the buckets' index. Raise 2 for an impossible key."""
    if type(hint) is not dict or not hint or "$natural" in hint:
        return hint
    try:
        return to_buckets(series, hint)
    except (TypeError, ValueError):
        raise CommandError(2, f"the hint {to_string(hint)} is no index of a time-series collection") from None


def unpacked(source: PipelineSource, documents: Iterator[bytes]) -> Iterator[bytes]:
    """Return the documents of a source, with buckets unpacked to measurements."""
    return documents if source.unpack is None else source.unpack.apply_raw(documents)
