"""listCollections, listDatabases, dbStats, collStats: lists and sizes of databases and collections."""

from __future__ import annotations

from shutil import disk_usage
from typing import Any, Final

from bson import Int64

from headrace.auth.privileges import CLUSTER, Privileges, allowed, concern_collection, concern_database
from headrace.commands.requirements import pipelines
from headrace.dispatch.arguments import Fields, boolean, document, number, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import BATCH_SIZE, CURSOR
from headrace.dispatch.namespaces import check_database, target
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection, on_database
from headrace.execution.batches import open_cursor
from headrace.execution.collections_shown import collections_shown
from headrace.execution.let import FilterVariables
from headrace.execution.storage_stats import (
    check_scale,
    count_of,
    index_sizes,
    oplog_size,
    size_of,
    storage_stats,
)
from headrace.query.match import parse_filter
from headrace.store.catalog import Collection
from headrace.values.bson import encode

AUTHORIZED_COLLECTIONS: Final = boolean("authorizedCollections", strict=True)
AUTHORIZED_DATABASES: Final = boolean("authorizedDatabases", strict=True)
FILTER: Final = document("filter")
NAME_ONLY: Final = boolean("nameOnly")
FREE_STORAGE: Final = boolean("freeStorage")
SCALE: Final = number("scale", 1, least=1)


def list_collections(context: CommandContext, request: Request) -> bytes:
    """listCollections: answer a cursor over the collections and views that match `filter`."""
    database = check_database(request.db)
    spec = FILTER.of(request.body)
    shown = collections_shown(context, database)
    if context.engine.restricts(request.client) and AUTHORIZED_COLLECTIONS.of(request.body):
        privileges = _privileges(request)
        shown = [item for item in shown if concern_collection(privileges, f"{database}.{item['name']}")]
    if spec:
        predicate = parse_filter(spec, variables=FilterVariables(context, request.client))
        shown = [item for item in shown if predicate(item)]
    if NAME_ONLY.of(request.body):
        shown = [{"name": item["name"], "type": item["type"]} for item in shown]
    size = BATCH_SIZE.of(CURSOR.of(request.body))
    namespace = f"{database}.$cmd.listCollections"
    return open_cursor(
        context, request, namespace, iter([encode(item) for item in context.paced(shown)]), size, id_first=True
    )


def list_databases(context: CommandContext, request: Request) -> dict[str, Any]:
    """listDatabases: answer the databases that match `filter`, with their sizes."""
    names = set(context.view.catalog.databases()) | {"admin", "config"}
    if context.store.oplog_enabled:
        names.add("local")
    if context.engine.restricts(request.client) and not _sees_all_databases(request):
        privileges = _privileges(request)
        names = {name for name in names if concern_database(privileges, name)}
    name_only = NAME_ONLY.of(request.body)
    shown: list[dict[str, Any]] = []
    total = 0
    members: dict[str, list[Collection]] = {}
    for item in context.paced(list(context.view.catalog.collections.values())):
        members.setdefault(item.database, []).append(item)
    for name in sorted(names):
        size = 0 if name_only else _database_size(context, name, members.get(name, []))
        total += size
        shown.append({"name": name} if name_only else {"name": name, "sizeOnDisk": Int64(size), "empty": not size})
    spec = FILTER.of(request.body)
    if spec:
        predicate = parse_filter(spec, variables=FilterVariables(context, request.client))
        shown = [item for item in shown if predicate(item)]
    if name_only:
        return {"databases": shown}
    return {"databases": shown, "totalSize": Int64(total), "totalSizeMb": Int64(total >> 20)}


def _database_size(context: CommandContext, database: str, collections: list[Collection]) -> int:
    size = sum(size_of(context, item) for item in collections)
    if database == "local" and context.store.oplog_enabled:
        size += oplog_size(context)[0]
    return size


def _privileges(request: Request) -> Privileges:
    grants = request.client.grants
    return {} if grants is None else grants.privileges  # type: ignore[no-any-return]


def _sees_all_databases(request: Request) -> bool:
    """Whether the list includes databases on which the user has no privileges."""
    may = allowed(_privileges(request), CLUSTER, _LIST_ALL)
    return may and not AUTHORIZED_DATABASES.of(request.body)


def collection_stats(context: CommandContext, request: Request) -> dict[str, Any]:
    """collStats: answer sizes and counts of a collection. Raise 166 for a view."""
    return storage_stats(context, target(request), SCALE.of(request.body))


def database_stats(context: CommandContext, request: Request) -> dict[str, Any]:
    """dbStats: answer sums over a database's collections, in units of `scale` bytes, and the disk usage."""
    scale = check_scale(SCALE.of(request.body))
    namespaces = context.view.catalog.in_database(check_database(request.db))
    collections = [item for item in namespaces if not item.is_view]
    size = sum(size_of(context, item) for item in collections)
    count = sum(count_of(context, item) for item in collections)
    index_size = sum(sum(index_sizes(context, item).values()) for item in collections)
    if request.db == "local" and context.store.oplog_enabled:
        oplog_bytes, entry_count = oplog_size(context)
        size, count = size + oplog_bytes, count + entry_count
    disk = disk_usage(context.store.environment.path)
    view_count = len(namespaces) - len(collections)
    collection_count = len(collections) + (view_count > 0)  # system.views holds the views

    def free(name: str) -> dict[str, float]:
        return {name: 0.0} if FREE_STORAGE.of(request.body) else {}

    return {
        "db": request.db, "collections": Int64(collection_count), "views": Int64(view_count),
        "objects": Int64(count), "avgObjSize": size / count if count else 0.0, "dataSize": size / scale,
        "storageSize": size / scale, **free("freeStorageSize"),
        "indexes": Int64(sum(len(item.indexes) for item in collections)),
        "indexSize": index_size / scale, **free("indexFreeStorageSize"),
        "totalSize": (size + index_size) / scale, **free("totalFreeStorageSize"), "scaleFactor": Int64(scale),
        "fsUsedSize": disk.used / scale, "fsTotalSize": disk.total / scale,
    }  # fmt: skip


_LIST_ALL: Final = frozenset({"listDatabases"})
_STATISTICS: Final = Fields(SCALE, strict=False)
_LIST_COLLECTIONS: Final = Fields(
    AUTHORIZED_COLLECTIONS, CURSOR, FILTER, NAME_ONLY, *without_effect("bool", "includePendingDrops")
)
_LIST_DATABASES: Final = Fields(AUTHORIZED_DATABASES, FILTER, NAME_ONLY)
COMMANDS: Final = (
    Command(
        "collStats",
        collection_stats,
        _STATISTICS,
        aliases=("collstats",),
        pauses=True,
        requires=on_collection("collStats"),
    ),
    Command(
        "dbStats",
        database_stats,
        Fields(FREE_STORAGE, SCALE),
        aliases=("dbstats",),
        pauses=True,
        requires=on_database("dbStats"),
    ),
    Command("listCollections", list_collections, _LIST_COLLECTIONS, pauses=True, requires=pipelines.LIST_COLLECTIONS),
    Command(
        "listDatabases",
        list_databases,
        _LIST_DATABASES,
        pauses=True,
        admin_only=True,
        requires=pipelines.LIST_DATABASES,
    ),
)
