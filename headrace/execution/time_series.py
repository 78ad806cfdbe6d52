"""Time series collections: their option `timeseries`, their buckets, and reading measurements from them.

A time series collection `X` is a view of the collection `system.buckets.X`, as in MongoDB, and is read like any view.
The filter after the stage that unpacks the buckets is first applied to the buckets as far as possible
(`timeseries/translation.py`).

    create X {timeseries, ...}   →  system.buckets.X {validator, clusteredIndex, timeseries, ...}
                                    X, a view of the buckets, with a stage that unpacks them
                                    the index {meta: 1, time: 1}, if there is a meta field

Source: MongoDB's documentation of time series collections; its codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from headrace.dispatch.arguments import Field, Fields, document, number, string
from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.query.expressions.numbers import to_long
from headrace.query.pipeline import Stage
from headrace.query.stages.unpack_bucket import UnpackBucket
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.store.view import View
from headrace.store.write_transaction import WriteTransaction
from headrace.timeseries.bucket import VERSION
from headrace.timeseries.series import PREFIX, SPANS, Series
from headrace.timeseries.translation import bucket_filter, to_buckets
from headrace.values.bson import to_string


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


# The option `timeseries`, and the collections that it creates.


OPTION: Final = "timeseries"
_SECONDS_MAX: Final = 31_536_000
_LATER: Final = {"hours": 2, "minutes": 1, "seconds": 0}
"""The order of granularities. collMod may only change to a later one."""


def _in_range(path: str, value: Any) -> None:
    if not 1 <= to_long(value) <= _SECONDS_MAX:
        raise CommandError(
            2, f"BSON field '{path}' value must be >= 1 and <= {_SECONDS_MAX}, actual value '{to_long(value)}'"
        )


_GRANULARITY: Final = string("granularity", choices=SPANS)
_SPAN: Final = number("bucketMaxSpanSeconds", check=_in_range)
_ROUNDING: Final = number("bucketRoundingSeconds", check=_in_range)
_BUCKETING: Final = (_GRANULARITY, _SPAN, _ROUNDING)
FIELD: Final[Field[Any]] = document(
    OPTION, Fields(string("timeField", required=True), string("metaField"), *_BUCKETING)
)
CHANGE: Final[Field[Any]] = document(OPTION, Fields(*_BUCKETING))
"""The field `timeseries` of collMod."""


def checked(value: dict[str, Any]) -> dict[str, Any]:
    """Return the option as it is stored. Raise 2 or 72 if it is invalid."""
    time_field, meta_field = value["timeField"], value.get("metaField")
    for name in ("timeField", "metaField"):
        if "\0" in (value.get(name) or ""):
            raise CommandError(2, f"'{name}' must not contain null bytes")
        if "." in (value.get(name) or ""):
            raise CommandError(72, f"'{name}' must be a top-level field and not contain a '.'")
    if meta_field is not None and meta_field in ("_id", time_field):
        raise CommandError(72, "The 'metaField' cannot be either '_id' or same as 'timeField'")
    meta = {} if meta_field is None else {"metaField": meta_field}
    return {"timeField": time_field, **meta, **bucketing(value)}


def bucketing(value: dict[str, Any]) -> dict[str, Any]:
    """Return the stored fields for the time span of a bucket. Raise 72 for fields that do not go together."""
    granularity = _GRANULARITY.of(value) or None
    span, rounding = _SPAN.of(value), _ROUNDING.of(value)
    if granularity is None and (span is not None or rounding is not None):
        if span is None or rounding is None:
            raise CommandError(
                72, "'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' must be set together or not at all"
            )
        if span != rounding:
            raise CommandError(72, "'bucketRoundingSeconds' must be equal to 'bucketMaxSpanSeconds'")
        return {"bucketMaxSpanSeconds": span, "bucketRoundingSeconds": rounding}
    granularity = granularity or "seconds"
    if rounding is not None:
        raise CommandError(72, "'bucketRoundingSeconds' cannot be set together with 'granularity'")
    if span not in (None, SPANS[granularity]):
        raise CommandError(
            72,
            f"Timeseries 'bucketMaxSpanSeconds' is not configurable to a value other than the default of "
            f"{SPANS[granularity]} for the provided granularity",
        )
    return {"granularity": granularity, "bucketMaxSpanSeconds": SPANS[granularity]}


def create_buckets(txn: WriteTransaction, namespace: str, options: dict[str, Any]) -> Collection:
    """Create the bucket collection of a time series with these options, and its first index."""
    series = Series.of(options[OPTION])
    stored = {
        "validator": _validator(series),
        "clusteredIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_", "unique": True},
        **options,
    }  # fmt: skip
    buckets = catalog_changes.create(txn, namespace, stored)
    if series.meta_field is not None:
        key = {series.meta_field: 1, series.time_field: 1}
        spec = {"v": 2, "key": to_buckets(series, key), "name": "_".join(f"{name}_1" for name in key)}
        if "collation" in options:
            spec["collation"] = options["collation"]
        catalog_changes.create_indexes(txn, buckets, [spec])
    return txn.catalog.current(buckets)


def create_series_view(txn: WriteTransaction, namespace: str, options: dict[str, Any]) -> None:
    """Create the view that shows the buckets of a time series with these options."""
    name = namespace.partition(".")[2]
    view: dict[str, Any] = {"viewOn": PREFIX + name, "pipeline": [Series.of(options[OPTION]).view_stage()]}
    if "collation" in options:
        view["collation"] = options["collation"]
    catalog_changes.create_view(txn, namespace, view)


def _validator(series: Series) -> dict[str, Any]:
    """Return the validator of the buckets, so that no client can store a document that cannot be unpacked."""
    time: dict[str, Any] = {"bsonType": "object", "required": [series.time_field]}
    time["properties"] = {series.time_field: {"bsonType": "date"}}
    control = {
        "bsonType": "object", "required": ["version", "min", "max", "count", "size"],
        "properties": {
            "version": {"enum": [VERSION]}, "min": time, "max": time, "count": {"bsonType": "int", "minimum": 1},
            "size": {"bsonType": "int"},
        },
    }  # fmt: skip
    return {"$jsonSchema": {
        "bsonType": "object", "required": ["_id", "control", "data", "rows"],
        "properties": {
            "_id": {"bsonType": "objectId"}, "control": control, "data": {"bsonType": "object"}, "meta": {},
            "rows": {"bsonType": "object"},
        },
        "additionalProperties": False,
    }}  # fmt: skip


def identity(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the option that never change."""
    return {name: options[name] for name in ("timeField", "metaField") if name in options}


def is_shorter(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether buckets with the stored option `new` would be shorter than with `old`."""
    if "granularity" in old and "granularity" in new:
        return _LATER[new["granularity"]] < _LATER[old["granularity"]]
    before, after = Series.of(old), Series.of(new)
    return after.span_seconds < before.span_seconds or after.rounding_seconds < before.rounding_seconds
