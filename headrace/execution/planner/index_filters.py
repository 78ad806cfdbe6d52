"""Index filters: the indexes that the planner may choose from for queries of a shape, until the server stops.

Source: MongoDB's documentation of `planCacheSetFilter`. A filter overrides a hint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.execution.planner.query import Order, Query, Shape, shape_of
from headrace.running_command import running_command
from headrace.store.catalog import Collection, Index
from headrace.store.view import View
from headrace.values.order import equal


@dataclass(frozen=True, slots=True)
class IndexFilter:
    """One filter: the parts of its query shape as sent, and names or key patterns of indexes."""

    spec: dict[str, Any]
    sort: dict[str, Any]
    projection: dict[str, Any]
    collation: dict[str, Any]
    indexes: list[Any]


def filters_of(view: View, collection: Collection) -> dict[Shape, IndexFilter]:
    """Return the index filters of a collection, by query shape."""
    filters: dict[Shape, IndexFilter] = view.store.index_filters.setdefault(collection.uuid, {})
    return filters


def allowed_indexes(view: View, collection: Collection, query: Query, order: Order) -> list[Index] | None:
    """Return the indexes that the planner may choose from; None: all. Query settings override index filters."""
    if view.state.cluster_parameters and (command := running_command()) is not None and command.allowed_indexes:
        allowed = command.allowed_indexes.get(collection.namespace)
        if allowed is not None:
            return _named(collection, allowed)
    if not view.store.index_filters:
        return None
    chosen = filters_of(view, collection).get(shape_of(query.node, order.sort, query.collation))
    return None if chosen is None else _named(collection, chosen.indexes)


def _named(collection: Collection, items: list[Any]) -> list[Index]:
    """Return the indexes whose name or key pattern is among the items."""
    return [
        index
        for index in collection.indexes
        if any(
            item == index.name
            or (type(item) is dict and equal(index.spec["key"], item))
            for item in items
        )
    ]  # fmt: skip
