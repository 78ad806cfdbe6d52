"""The sizes of collections, for `collStats`, `dbStats` and `$collStats`."""

from __future__ import annotations

from typing import Any

from headrace import limits
from headrace.cursors.document_cursor import Scan
from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.store.catalog import Collection
from headrace.turns import current_turn


def size_of(context: CommandContext, collection: Collection) -> int:
    """The bytes of a collection's documents."""
    if collection.is_view:
        return 0
    return sum(len(document) for document in Scan(lambda: context.view, collection))


def count_of(context: CommandContext, collection: Collection) -> int:
    """How many documents a collection has. The first time since the start they are counted, with pauses."""
    while not (view := context.view).is_counted(collection):
        if not view.count_on(collection, limits.COUNT_COUNT):
            turn = current_turn()
            if turn is None:
                break
            turn.pause()
        collection = context.view.collection(collection.namespace) or collection
    return context.view.count(collection)


def storage_stats(context: CommandContext, namespace: str, scale: Any) -> dict[str, Any]:
    """How large a collection is, in units of `scale` bytes. Raises 166 for a view, 2 for a scale below 1."""
    if isinstance(scale, bool) or not isinstance(scale, int | float) or scale < 1:
        raise CommandError(2, "Scale factor must be a number of at least 1")
    collection = context.view.collection(namespace)
    if collection is not None and collection.is_view:
        raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
    if collection is None:
        return {"ns": namespace, "size": 0, "count": 0, "storageSize": 0, "nindexes": 0, "indexSizes": {}}
    size, count = size_of(context, collection), count_of(context, collection)
    return {
        "ns": namespace, "size": size // int(scale), "count": count, "avgObjSize": size // count if count else 0,
        "storageSize": size // int(scale), "scaleFactor": int(scale),
        "capped": bool(collection.options.get("capped")), "nindexes": len(collection.indexes),
    }  # fmt: skip
