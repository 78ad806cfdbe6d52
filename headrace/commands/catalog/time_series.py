"""The option `timeseries`: as a client may send it, as it is stored, what goes with it, and the collections it makes.

    create X {timeseries, ...}   →  system.buckets.X {validator, clusteredIndex, timeseries, ...}
                                    X, a view of it, whose stage unpacks the buckets
                                    the index {meta: 1, time: 1}, where there is a meta field

Source: MongoDB's documentation of time series collections; its codes.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.auth.privileges import is_system
from headrace.commands.catalog.clustered_index import OPTION as CLUSTERED
from headrace.commands.catalog.clustered_index import SECONDS, check_seconds
from headrace.dispatch.arguments import Field, Fields, document, number, string
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import check_namespace
from headrace.errors import CommandError
from headrace.execution.time_series import COMPATIBLE, buckets_namespace, buckets_of, shown_options
from headrace.query.expressions.numbers import to_long
from headrace.store import catalog_changes
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.text_keys import is_text
from headrace.timeseries.bucket import VERSION
from headrace.timeseries.bucket_filter import meta_path
from headrace.timeseries.index_keys import from_buckets, to_buckets
from headrace.timeseries.series import PREFIX, SPANS, Series
from headrace.values.bson.to_string import to_string

OPTION: Final = "timeseries"
PARTIAL: Final = "partialFilterExpression"
_SECONDS_MAX: Final = 31_536_000
_LATER: Final = {"hours": 2, "minutes": 1, "seconds": 0}
"""Granularities, by which may replace which."""


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
"""The same field of collMod."""


def checked(value: dict[str, Any]) -> dict[str, Any]:
    """The option as it is stored. Raises 2 and 72."""
    time_field, meta_field = value["timeField"], value.get("metaField")
    for name in ("timeField", "metaField"):
        if "\0" in (value.get(name) or ""):
            raise CommandError(2, f"'{name}' must not contain null bytes")
        if "." in (value.get(name) or ""):
            raise CommandError(72, f"'{name}' must be a top-level field and not contain a '.'")
    if meta_field is not None and meta_field in ("_id", time_field):
        raise CommandError(72, "The 'metaField' cannot be either '_id' or same as 'timeField'")
    meta = {} if meta_field is None else {"metaField": meta_field}
    return {"timeField": time_field, **meta, **_bucketing(value)}


def _bucketing(value: dict[str, Any]) -> dict[str, Any]:
    """The stored fields that say how long a bucket is. Raises 72 for those that do not go together."""
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


def check_with(context: CommandContext, namespace: str, body: dict[str, Any], names: frozenset[str]) -> None:
    """Raise what does not go with the option, of the options `names`: 72, 73, 263."""
    for name, value in body.items():
        if name in names and name not in COMPATIBLE and value is not None:
            raise CommandError(72, f"the option '{name}' is not compatible with time-series collections")
    if is_system(namespace):
        raise CommandError(73, f"a time-series collection cannot be a system collection: {namespace}")
    if context.transaction is not None:
        raise CommandError(263, f"Cannot create a time-series collection in a multi-document transaction: {namespace}")
    check_namespace(buckets_namespace(namespace))
    if body.get(SECONDS) is not None:
        check_seconds(to_long(body[SECONDS]))


def create_time_series(context: CommandContext, namespace: str, options: dict[str, Any]) -> None:
    """Create a time series collection; nothing if it exists with the same options. Raises 48."""
    txn = context.txn
    existing = txn.collection(namespace)
    if existing is not None:
        there = buckets_of(txn, existing)
        if there is not None and shown_options(there.collection) == options:
            return
        raise CommandError(48, f"Collection {namespace} already exists as another collection or with other options")
    if txn.collection(buckets_namespace(namespace)) is not None:
        raise CommandError(48, f"Collection {buckets_namespace(namespace)} already exists")
    series = Series.of(options[OPTION])
    rest = {name: value for name, value in options.items() if name != OPTION}
    stored = {
        "validator": _validator(series),
        CLUSTERED: {"v": 2, "key": {"_id": 1}, "name": "_id_", "unique": True},
        **rest, OPTION: options[OPTION],
    }  # fmt: skip
    buckets = catalog_changes.create(txn, buckets_namespace(namespace), stored)
    if series.meta_field is not None:
        key = {series.meta_field: 1, series.time_field: 1}
        spec = {"v": 2, "key": to_buckets(series, key), "name": "_".join(f"{name}_1" for name in key)}
        if "collation" in options:
            spec["collation"] = options["collation"]
        catalog_changes.create_indexes(txn, buckets, [spec])
    name = namespace.partition(".")[2]
    view: dict[str, Any] = {"viewOn": PREFIX + name, "pipeline": [series.view_stage()]}
    if "collation" in options:
        view["collation"] = options["collation"]
    catalog_changes.create_view(txn, namespace, view)


def _validator(series: Series) -> dict[str, Any]:
    """The validator of the buckets: no client may store what cannot be unpacked."""
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


def drop_time_series(context: CommandContext, collection: Collection) -> dict[str, Any]:
    """Drop both collections of a time series, of which this is one; return the reply."""
    view, buckets = _both(context, collection)
    count = sum(not index.is_clustered for index in buckets.indexes)
    if view is not None:
        catalog_changes.drop(context.txn, view)
    catalog_changes.drop(context.txn, buckets)
    return {"nIndexesWas": count, "ns": collection.namespace}


def modify_time_series(context: CommandContext, collection: Collection, change: dict[str, Any]) -> None:
    """Give a time series longer buckets or another age. Raises 72 for shorter buckets and for other options.

    `collection` is the time series or its buckets, as an entry of the oplog names them.
    """
    txn = context.txn
    if collection.is_time_series and change == collection.options:  # an entry about the view, which is as it says
        return
    for name in change:
        if name not in (OPTION, SECONDS):
            raise CommandError(72, f"option not supported on a time-series collection: {name}")
    view, buckets = _both(context, collection)
    options, old = dict(buckets.options), buckets.options[OPTION]
    if change.get(OPTION):
        bucketing = _bucketing(change[OPTION])
        before, after = Series.of(old), Series.of({**_identity(old), **bucketing})
        if _is_shorter(old, before, bucketing, after):
            raise CommandError(72, "Invalid transition for timeseries.granularity: buckets can only become longer")
        options[OPTION] = {**_identity(old), **bucketing}
    if SECONDS in change:
        options.pop(SECONDS, None)
        if change[SECONDS] != "off":
            options[SECONDS] = change[SECONDS]
    first = buckets.indexes[0]
    index = Index(first.number, catalog_changes.id_index_of(options), first.traits, has_entries=first.has_entries)
    catalog_changes.modify(txn, buckets, change, options, index)
    pipeline = [Series.of(options[OPTION]).view_stage()]
    if view is not None and pipeline != view.options["pipeline"]:
        catalog_changes.modify_view(txn, view, {**view.options, "pipeline": pipeline})


def _both(context: CommandContext, collection: Collection) -> tuple[Collection | None, Collection]:
    """The view and the buckets of a time series, of which this is one."""
    if (there := buckets_of(context.txn, collection)) is not None:
        return collection, there.collection
    view = context.txn.collection(f"{collection.database}.{collection.name[len(PREFIX) :]}")
    return (view if view is not None and view.is_time_series else None), collection


def _identity(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("timeField", "metaField") if name in options}


def _is_shorter(old: dict[str, Any], before: Series, new: dict[str, Any], after: Series) -> bool:
    if "granularity" in old and "granularity" in new:
        return _LATER[new["granularity"]] < _LATER[old["granularity"]]
    return after.span_seconds < before.span_seconds or after.rounding_seconds < before.rounding_seconds


def bucket_index(series: Series, spec: dict[str, Any]) -> dict[str, Any]:
    """The index of the buckets for one of a time series. Raises 72 for kinds and options that no time series has."""
    for option, kind in (("unique", "Unique"), ("prepareUnique", "Unique"), (SECONDS, "TTL"), (PARTIAL, "Partial")):
        if spec.get(option) not in (None, False):
            raise CommandError(72, f"{kind} indexes are not supported on time-series collections")
    key = spec["key"]
    if is_text(key):
        raise CommandError(72, "Text indexes are not supported on time-series collections")
    if spec.get("sparse") and any(name != series.time_field and meta_path(series, name) is None for name in key):
        raise CommandError(72, "Sparse indexes are not supported on time-series measurements")
    try:
        if spec["name"] == "_id_":
            raise ValueError("_id")
        return {**spec, "key": to_buckets(series, key)}
    except ValueError:
        raise CommandError(
            72, f"Invalid index spec for time-series collection: {to_string(key)}. Fields other than the meta field "
            "have ascending or descending indexes only"
        ) from None  # fmt: skip


def series_index(series: Series, spec: dict[str, Any]) -> dict[str, Any] | None:
    """An index of the buckets as one of the time series; None for what only the buckets have."""
    key = None if spec.get("clustered") else from_buckets(series, spec["key"])
    return None if key is None else {**spec, "key": key}
