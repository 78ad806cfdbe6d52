"""planCacheClear; index filters: planCacheSetFilter, planCacheListFilters, planCacheClearFilters.

An index filter is for a query shape: a filter, sort, projection and collation without their values.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Fields
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import target
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection
from headrace.errors import CommandError
from headrace.execution.plan import collation_of
from headrace.execution.planner.choice import IndexFilter, filters_of
from headrace.execution.planner.query import Shape, shape_of
from headrace.execution.planner.trial import clear_plan_cache, plan_cache_of
from headrace.query.match import parse_filter
from headrace.query.sort import parse_sort
from headrace.store.catalog import Collection

_SHAPE: Final = ("collation", "projection", "query", "sort")


def _documents(request: Request) -> dict[str, dict[str, Any]]:
    """Return the given parts of a query shape. An array counts as a document. Raise 2 for any other value."""
    parts: dict[str, dict[str, Any]] = {}
    for name in _SHAPE:
        if name in request.body:
            value = request.body[name]
            if type(value) is list and name != "collation":
                value = {str(index): item for index, item in enumerate(value)}
            if type(value) is not dict:
                raise CommandError(2, f"{'required' if name == 'query' else 'optional'} field {name} must be an object")
            parts[name] = value
    return parts


def _shape(parts: dict[str, dict[str, Any]], collection: Collection) -> Shape | None:
    """Return the given query shape, or None. Raise 2 for a sort, projection or collation without a query."""
    if "query" not in parts:
        if parts:
            raise CommandError(2, "sort, projection, or collation provided without query")
        return None
    spec, sort = parts["query"], parts.get("sort")
    collation = collation_of(collection, parts.get("collation"))
    node = parse_filter(spec, collation=collation).node if spec else None
    return shape_of(node, parse_sort(sort, collation) if sort else None, collation)


def _collection(context: CommandContext, request: Request) -> Collection | None:
    """Return the named collection, or None if it does not exist. Raise 166 for a view."""
    collection = context.view.collection(target(request))
    if collection is not None and collection.is_view:
        raise CommandError(166, f"Namespace {collection.namespace} is a view, not a collection")
    return collection


def clear(context: CommandContext, request: Request) -> dict[str, Any]:
    """planCacheClear: remove the cached plan of a query shape, or all plans of a collection."""
    collection = _collection(context, request)
    if collection is not None:
        shape = _shape(_documents(request), collection)
        if shape is None:
            clear_plan_cache(collection)
        else:
            plan_cache_of(collection).forget(shape)
    return {}


def set_filter(context: CommandContext, request: Request) -> dict[str, Any]:
    """planCacheSetFilter: limit plans of a query shape to these indexes. Raise 2."""
    collection = _collection(context, request)
    if collection is None:
        raise CommandError(2, "no such collection")
    parts = _documents(request)
    if "query" not in parts:
        raise CommandError(2, "required field query missing")
    chosen = request.body.get("indexes")
    if chosen is None:
        raise CommandError(2, "required field indexes missing")
    if type(chosen) is not list:
        raise CommandError(2, "required field indexes must be an array")
    if not chosen:
        raise CommandError(2, "required field indexes must contain at least one index")
    for item in chosen:
        if type(item) not in (dict, str):
            raise CommandError(2, "each item in indexes must be an object or string")
        if not item and type(item) is dict:
            raise CommandError(2, "index specification cannot be empty")
    shape = _shape(parts, collection)
    assert shape is not None
    query, sort, projection, collation = (parts.get(name, {}) for name in ("query", "sort", "projection", "collation"))
    filters_of(context.view, collection)[shape] = IndexFilter(query, sort, projection, collation, chosen)
    plan_cache_of(collection).forget(shape)
    return {}


def list_filters(context: CommandContext, request: Request) -> dict[str, Any]:
    """planCacheListFilters: answer all index filters of a collection."""
    collection = _collection(context, request)
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
    """planCacheClearFilters: remove the index filter of a query shape, or all filters of a collection."""
    collection = _collection(context, request)
    if collection is not None:
        filters, shape = filters_of(context.view, collection), _shape(_documents(request), collection)
        if shape is None:
            filters.clear()
        else:
            filters.pop(shape, None)
        clear_plan_cache(collection)
    return {}


_FIELDS: Final = Fields(strict=False)
"""No declared fields: MongoDB has no IDL for these commands, checks fields only of collections that exist, and ignores
others."""
COMMANDS: Final = (
    Command("planCacheClear", clear, _FIELDS, requires=on_collection("planCacheWrite")),
    Command("planCacheClearFilters", clear_filters, _FIELDS, requires=on_collection("planCacheIndexFilter")),
    Command("planCacheListFilters", list_filters, _FIELDS, requires=on_collection("planCacheIndexFilter")),
    Command("planCacheSetFilter", set_filter, _FIELDS, requires=on_collection("planCacheIndexFilter")),
)
