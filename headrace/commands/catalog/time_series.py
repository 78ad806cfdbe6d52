"""Time series collections in the commands of the catalog: create, drop, collMod, createIndexes, listIndexes.

Source: MongoDB's documentation of time series collections; its codes.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.auth.privileges import is_system
from headrace.commands.catalog.clustered_index import SECONDS, check_seconds
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import check_namespace
from headrace.errors import CommandError
from headrace.execution.time_series import (
    COMPATIBLE,
    OPTION,
    bucketing,
    buckets_namespace,
    buckets_of,
    create_buckets,
    create_series_view,
    identity,
    is_shorter,
    shown_options,
)
from headrace.query.expressions.numbers import to_long
from headrace.store import catalog_changes
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.text_keys import is_text
from headrace.timeseries.series import PREFIX, Series
from headrace.timeseries.translation import from_buckets, meta_path, of_meta, of_source, to_buckets
from headrace.values.bson import to_string

PARTIAL: Final = "partialFilterExpression"
UNSUPPORTED: Final = {
    PARTIAL: (72, "Partial indexes of a time series have a filter on the meta field alone"),
    "2dsphere": (72, "2dsphere indexes of a time series are on the meta field or its fields"),
}
"""Options and kinds that an index of a time series has in MongoDB, and the errors that refuse them on measurements."""


def check_with(context: CommandContext, namespace: str, body: dict[str, Any], names: frozenset[str]) -> None:
    """Raise 72, 73 or 263 if a `timeseries` collection is not possible. `names`: the options of `create`."""
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
    """Create a time series collection, unless it exists with the same options. Raise 48 if the name is taken."""
    txn = context.txn
    existing = txn.collection(namespace)
    if existing is not None:
        there = buckets_of(txn, existing)
        if there is not None and shown_options(there.collection) == options:
            return
        raise CommandError(48, f"Collection {namespace} already exists as another collection or with other options")
    if txn.collection(buckets_namespace(namespace)) is not None:
        raise CommandError(48, f"Collection {buckets_namespace(namespace)} already exists")
    create_buckets(txn, buckets_namespace(namespace), options)
    create_series_view(txn, namespace, options)


def drop_time_series(context: CommandContext, collection: Collection) -> dict[str, Any]:
    """Drop the view and the buckets of a time series, given one of them. Return the reply."""
    view, buckets = view_and_buckets(context, collection)
    count = sum(not index.is_clustered for index in buckets.indexes)
    if view is not None:
        catalog_changes.drop(context.txn, view)
    catalog_changes.drop(context.txn, buckets)
    return {"nIndexesWas": count, "ns": collection.namespace}


def modify_time_series(context: CommandContext, collection: Collection, change: dict[str, Any]) -> None:
    """Set longer buckets or another `expireAfterSeconds`. Raise 72 for shorter buckets or any other option.

    `collection` is the time series, or its buckets, which oplog entries name.
    """
    txn = context.txn
    if collection.is_time_series and change == collection.options:  # an oplog entry about the view, which is unchanged
        return
    for name in change:
        if name not in (OPTION, SECONDS):
            raise CommandError(72, f"option not supported on a time-series collection: {name}")
    view, buckets = view_and_buckets(context, collection)
    options, old = dict(buckets.options), buckets.options[OPTION]
    if change.get(OPTION):
        new = {**identity(old), **bucketing(change[OPTION])}
        if is_shorter(old, new):
            raise CommandError(72, "Invalid transition for timeseries.granularity: buckets can only become longer")
        options[OPTION] = new
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


def view_and_buckets(context: CommandContext, collection: Collection) -> tuple[Collection | None, Collection]:
    """Return the view and the buckets of a time series, given one of them."""
    if (there := buckets_of(context.txn, collection)) is not None:
        return collection, there.collection
    view = context.txn.collection(f"{collection.database}.{collection.name[len(PREFIX) :]}")
    return (view if view is not None and view.is_time_series else None), collection


def bucket_index(series: Series, spec: dict[str, Any]) -> dict[str, Any]:
    """Translate an index of a time series to its buckets. Raise 67, 72, 85 or 7246201 for kinds and options that no
    time series has."""
    for option, kind in (("unique", "Unique"), ("prepareUnique", "Unique"), (SECONDS, "TTL")):
        if spec.get(option) not in (None, False):
            raise CommandError(72, f"{kind} indexes are not supported on time-series collections")
    key = spec["key"]
    if is_text(key):
        raise CommandError(72, "Text indexes are not supported on time-series collections")
    if spec.get("sparse") and any(name != series.time_field and meta_path(series, name) is None for name in key):
        raise CommandError(72, "Sparse indexes are not supported on time-series measurements")
    if PARTIAL in spec and (covered := of_source(series, spec[PARTIAL])) is None:
        raise CommandError(*UNSUPPORTED[PARTIAL])
    if PARTIAL in spec and spec.get("collation") is not None:
        raise CommandError(85, "A partial index of a time series has no collation of its own")
    if any(kind == "2dsphere" and meta_path(series, name) is None for name, kind in key.items()):
        raise CommandError(*UNSUPPORTED["2dsphere"])
    try:
        if spec["name"] == "_id_":
            raise ValueError("_id")
        made = {**spec, "key": to_buckets(series, key)}
        return {**made, PARTIAL: covered} if PARTIAL in spec else made
    except ValueError:
        # The codes of MongoDB, which finds the errors in the key of the buckets' index.
        code = 7246201 if "$**" in key else 67 if {"2d", "hashed"} & set(map(str, key.values())) else 72
        raise CommandError(
            code, f"Invalid index spec for time-series collection: {to_string(key)}. Fields other than the meta field "
            "have ascending or descending indexes only"
        ) from None  # fmt: skip


def series_index(series: Series, spec: dict[str, Any]) -> dict[str, Any] | None:
    """Translate an index of the buckets to the time series; None for an index that only the buckets have."""
    key = None if spec.get("clustered") else from_buckets(series, spec["key"])
    if key is None or PARTIAL not in spec:
        return None if key is None else {**spec, "key": key}
    covered = of_meta(series, spec[PARTIAL])
    return None if covered is None else {**spec, "key": key, PARTIAL: covered}
