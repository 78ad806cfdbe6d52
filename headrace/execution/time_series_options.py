"""The option `timeseries` as clients send it and as it is stored, and the collections that it creates.

    create X {timeseries, ...}   →  system.buckets.X {validator, clusteredIndex, timeseries, ...}
                                    X, a view of the buckets, with a stage that unpacks them
                                    the index {meta: 1, time: 1}, if there is a meta field

Source: MongoDB's documentation of time series collections; its codes.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Field, Fields, document, number, string
from headrace.errors import CommandError
from headrace.query.expressions.numbers import to_long
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.store.write_transaction import WriteTransaction
from headrace.timeseries.bucket import VERSION
from headrace.timeseries.index_keys import to_buckets
from headrace.timeseries.series import PREFIX, SPANS, Series

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
