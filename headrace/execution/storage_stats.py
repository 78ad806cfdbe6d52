"""The sizes of collections, for `collStats`, `dbStats` and `$collStats`."""

from __future__ import annotations

from typing import Any, Final

from headrace import limits
from headrace.cursors.collection_scan import Scan
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import OPLOG
from headrace.errors import CommandError
from headrace.execution.time_series import buckets_of
from headrace.query.expressions.numbers import NUMBERS, to_long
from headrace.running_command import running_command
from headrace.store.catalog import Collection
from headrace.store.indexes.index_rows import rows_of
from headrace.store.write_transaction import WriteTransaction


def size_of(context: CommandContext, collection: Collection) -> int:
    """Return the bytes of a collection's documents."""
    if collection.is_view:
        return 0
    return sum(len(document) for document in Scan(lambda: context.view, collection))


def index_sizes(context: CommandContext, collection: Collection) -> dict[str, int]:
    """Return the bytes of each index: its keys, and the record numbers stored as their values."""
    sizes = {}
    for index in collection.indexes:
        if index.is_clustered:
            continue  # the documents are the index
        size, after, rows = 0, None, rows_of(collection, index)
        while rows is not None and (keys := rows.keys(context.view, after)):
            has_records = rows.table == "ids" or index.unique
            size += sum(map(len, keys)) + (8 * len(keys) if has_records else 0)
            after = keys[-1]
        sizes[index.name] = size
    return sizes


def count_of(context: CommandContext, collection: Collection) -> int:
    """Return the number of documents in a collection. The first call since the server's start counts them, with pauses.

    A read that holds an older state counts in the published state, so that later commands can use the count. 0 if a
    write finds that the collection was dropped in a pause.
    """
    turn = running_command()
    if turn is None or context.view.is_counted(collection):
        return _count_of(context, collection)
    turn.stays = True
    count = _count_of(context, collection)
    turn.stays = False
    return count


def _count_of(context: CommandContext, collection: Collection) -> int:
    while True:
        view = context.view
        if isinstance(view, WriteTransaction) and collection.number not in view.catalog.by_number:
            return 0  # the count of a dropped collection is lost at a pause
        if isinstance(view, WriteTransaction) or view.is_counted(collection) or view.state is context.store.state:
            view.count_on(collection, limits.COUNT_COUNT)
            if view.is_counted(collection):
                return view.count(collection)
            continue
        with context.store.reading() as newest:
            if collection.number not in newest.catalog.by_number:
                return view.count(collection)
            newest.count_on(collection, limits.COUNT_COUNT)
            if newest.is_counted(collection):
                return newest.count(collection)


_INT_MAX: Final = 2**31 - 1


def check_scale(scale: Any) -> int:
    """Return the divisor for sizes. Raise 2 if it is below 1."""
    divisor = to_long(scale) if type(scale) in NUMBERS else 0
    if divisor < 1:
        raise CommandError(2, "Scale factor must be a number of at least 1")
    return min(divisor, _INT_MAX)


def storage_stats(context: CommandContext, namespace: str, scale: Any) -> dict[str, Any]:
    """Return the sizes of a collection in units of `scale` bytes. Raise 166 for a view, 2 for a scale below 1."""
    scale = check_scale(scale)
    if namespace == OPLOG and context.store.oplog_enabled:
        return _oplog_stats(context, scale)
    collection = context.view.collection(namespace)
    buckets = buckets_of(context.view, collection)
    if buckets is not None:
        collection = buckets.collection
    if collection is not None and collection.is_view:
        raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
    if collection is None:
        return {
            "ns": namespace, "size": 0, "count": 0, "numOrphanDocs": 0, "storageSize": 0, "totalSize": 0,
            "nindexes": 0, "totalIndexSize": 0, "indexDetails": {}, "indexSizes": {}, "scaleFactor": scale,
        }  # fmt: skip
    size, count = size_of(context, collection), count_of(context, collection)
    capped = collection.capped
    stats = _stats(
        namespace, size, count, scale, None if capped is None else (capped.count_max, capped.bytes_max),
        indexes=index_sizes(context, collection), index_count=len(collection.indexes),
    )  # fmt: skip
    if "timeseries" in collection.options:
        average = stats.pop("avgObjSize")
        stats["timeseries"] = {
            "bucketsNs": collection.namespace, "bucketCount": stats.pop("count"), "avgBucketSize": average,
        }  # fmt: skip
    return stats


def oplog_size(context: CommandContext) -> tuple[int, int]:
    """Return the bytes on disk and the number of entries of the oplog."""
    view = context.view
    count = int(view.kv.stat(view.tables["oplog"])["entries"])
    return view.table_bytes("oplog"), count


def _oplog_stats(context: CommandContext, scale: int) -> dict[str, Any]:
    size, count = oplog_size(context)
    bounds = context.engine.parameters["oplogEntriesMax"], context.engine.oplog_bytes_max
    return _stats(OPLOG, size, count, scale, bounds, indexes={})


def _stats(
    namespace: str, size: int, count: int, scale: int, capped: tuple[int | None, int | None] | None, *,
    indexes: dict[str, int], index_count: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """`capped`: the maximum documents and bytes of a capped collection; None or 0: no such limit."""
    stats = {
        "ns": namespace, "size": size // scale, "count": count, "avgObjSize": size // count if count else 0,
        "storageSize": size // scale, "freeStorageSize": 0, "capped": capped is not None,
    }  # fmt: skip
    if capped is not None:
        stats |= {"max": capped[0] or 0, "maxSize": (capped[1] or 0) // scale}
    total = sum(indexes.values())
    return {
        **stats, "nindexes": index_count, "indexBuilds": [], "totalIndexSize": total // scale,
        "totalSize": (size + total) // scale, "indexSizes": {name: size // scale for name, size in indexes.items()},
        "scaleFactor": scale,
    }  # fmt: skip
