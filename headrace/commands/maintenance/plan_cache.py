"""planCacheClear; index filters: planCacheSetFilter, planCacheListFilters, planCacheClearFilters.

A filter is for a shape: a filter, a sort, a projection and a collation, whose values do not count.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Fields, array, document, string
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import COLLATION
from headrace.dispatch.namespaces import target
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection
from headrace.errors import CommandError
from headrace.execution.plan import collation_of
from headrace.execution.planner.index_filters import IndexFilter, filters_of
from headrace.execution.planner.plan_cache import clear_plan_cache, plan_cache_of
from headrace.execution.planner.query import Shape, shape_of
from headrace.query.match import parse_filter
from headrace.query.sort import parse_sort
from headrace.store.catalog import Collection

COMMENT: Final = string("comment")
PROJECTION: Final = document("projection")
QUERY: Final = document("query")
SORT: Final = document("sort")
_SHAPE: Final = (COLLATION, PROJECTION, QUERY, SORT)
INDEXES: Final = array("indexes", error=(2, "required field indexes must be an array"))


def _shape(request: Request, collection: Collection | None) -> Shape | None:
    """The shape that is named, if any. Raises 2 for a sort or a projection without a query."""
    body = request.body
    if body.get("query") is None:
        if any(body.get(name) is not None for name in ("collation", "projection", "sort")):
            raise CommandError(2, "sort, projection, or collation provided without query")
        return None
    spec, sort = QUERY.of(body), SORT.of(body)
    collation = collation_of(collection, body.get("collation"))
    node = parse_filter(spec, collation=collation).node if spec else None
    return shape_of(node, parse_sort(sort, collation) if sort else None, collation)


def clear(context: CommandContext, request: Request) -> dict[str, Any]:
    """planCacheClear: forget the plans of a shape, or all of a collection."""
    collection = context.view.collection(target(request))
    shape = _shape(request, collection)
    if collection is not None and shape is None:
        clear_plan_cache(collection)
    elif collection is not None and shape is not None:
        plan_cache_of(collection).forget(shape)
    return {}


def set_filter(context: CommandContext, request: Request) -> dict[str, Any]:
    """planCacheSetFilter: from now on plans of the shape use these indexes only. Raises 2."""
    collection = context.view.collection(target(request))
    if collection is None or collection.is_view:
        raise CommandError(2, "no such collection")
    body = request.body
    if body.get("query") is None:
        raise CommandError(2, "required field query missing")
    chosen = INDEXES.of(body)
    if body.get("indexes") is None:
        raise CommandError(2, "required field indexes missing")
    if not chosen:
        raise CommandError(2, "required field indexes must contain at least one index")
    for item in chosen:
        if type(item) not in (dict, str):
            raise CommandError(2, "each item in indexes must be an object or string")
        if not item and type(item) is dict:
            raise CommandError(2, "index specification cannot be empty")
    shape = _shape(request, collection)
    assert shape is not None
    made = IndexFilter(QUERY.of(body), SORT.of(body), PROJECTION.of(body), body.get("collation") or {}, chosen)
    filters_of(context.view, collection)[shape] = made
    plan_cache_of(collection).forget(shape)
    return {}


def list_filters(context: CommandContext, request: Request) -> dict[str, Any]:
    """planCacheListFilters: all filters of a collection."""
    collection = context.view.collection(target(request))
    listed = [] if collection is None else filters_of(context.view, collection).values()
    return {
        "filters": [
            {"query": item.spec, "sort": item.sort, "projection": item.projection}
            | ({"collation": item.collation} if item.collation else {})
            | {"indexes": item.indexes}
            for item in listed
        ]
    }


def clear_filters(context: CommandContext, request: Request) -> dict[str, Any]:
    """planCacheClearFilters: remove the filter of a shape, or all."""
    collection = context.view.collection(target(request))
    shape = _shape(request, collection)
    if collection is not None:
        filters = filters_of(context.view, collection)
        if shape is None:
            filters.clear()
        else:
            filters.pop(shape, None)
        clear_plan_cache(collection)
    return {}


COMMANDS: Final = (
    Command("planCacheClear", clear, Fields(COMMENT, *_SHAPE), requires=on_collection("planCacheWrite")),
    Command(
        "planCacheClearFilters", clear_filters, Fields(COMMENT, *_SHAPE), requires=on_collection("planCacheIndexFilter")
    ),
    Command("planCacheListFilters", list_filters, Fields(COMMENT), requires=on_collection("planCacheIndexFilter")),
    Command(
        "planCacheSetFilter", set_filter, Fields(COMMENT, INDEXES, *_SHAPE),
        requires=on_collection("planCacheIndexFilter"),
    ),
)  # fmt: skip
