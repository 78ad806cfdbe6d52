"""drop, dropDatabase, renameCollection."""

from __future__ import annotations

from typing import Any, Final

from headrace.commands.catalog.time_series import drop_time_series
from headrace.commands.requirements import writes
from headrace.dispatch.access import ACCOUNTS
from headrace.dispatch.arguments import Fields, boolean, number, string, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unused
from headrace.dispatch.namespaces import (
    COLLECTION_UUID,
    VERSIONS,
    check_database,
    check_namespace,
    check_writable,
    for_changing,
    target,
)
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection, on_database
from headrace.errors import CommandError
from headrace.execution.storage_stats import count_of
from headrace.execution.time_series import buckets_namespace
from headrace.execution.writes.copies import move
from headrace.query.expressions.numbers import nearest_int
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.timeseries.series import PREFIX, is_buckets

DROP_TARGET: Final = boolean("dropTarget")
TO: Final = string("to", required=True)


def drop(context: CommandContext, request: Request) -> dict[str, Any]:
    """drop: drop a collection or a view. A missing one is no error."""
    namespace = target(request)
    for_changing(namespace)
    if namespace.endswith(".system.profile") and context.engine.profiler.of(request.db).level:
        raise CommandError(20, "turn off profiling before dropping system.profile collection")
    collection = counted(context, namespace)
    if collection is None:
        return {}
    if namespace in ACCOUNTS:
        raise CommandError(20, f"can't drop system collection {namespace}")
    if collection.is_time_series or is_buckets(collection.name):
        counted(context, buckets_namespace(namespace) if collection.is_time_series else namespace)
        if (collection := context.txn.collection(namespace)) is None:
            return {}
        return drop_time_series(context, collection)
    count = sum(not index.is_clustered for index in collection.indexes)
    catalog_changes.drop(context.txn, collection)
    context.engine.usage.forget(namespace)
    return {"ns": namespace} if collection.is_view else {"nIndexesWas": count, "ns": namespace}


def drop_database(context: CommandContext, request: Request) -> dict[str, Any]:
    """dropDatabase: drop all collections, the newest first, then the views and `system.views`.

    The oplog has one entry for each, then `dropDatabase`. The command may pause between two drops. It also drops
    collections created meanwhile, and a crash leaves the remaining ones.
    """
    if nearest_int(request.body[request.name]) != 1:
        raise CommandError(5255100, "Have to pass 1 as db parameter")
    database = check_database(request.db)
    if database in ("admin", "config", "local"):
        raise CommandError(20, f"Dropping the '{database}' database is prohibited.")
    catalog = context.txn.catalog
    if not catalog.in_database(database) and database not in catalog.views:
        return {}
    while left := context.txn.catalog.in_database(database):
        for namespace in [item.namespace for item in sorted(left, key=lambda item: (item.is_view, -item.number))]:
            context.tick()
            collection = counted(context, namespace)
            if collection is None:
                continue
            if is_buckets(collection.name):
                drop_time_series(context, collection)  # with its view, so that no reader sees it without buckets
            else:
                catalog_changes.drop(context.txn, collection)
            context.engine.usage.forget(namespace)
    catalog_changes.drop_views(context.txn, database)
    context.txn.log_command(database, None, {"dropDatabase": 1})
    return {"dropped": database}


def rename(context: CommandContext, request: Request) -> dict[str, Any]:
    """renameCollection: raise 26 without a source, 48 if the target exists and `dropTarget` is not set."""
    body = request.body
    source, goal = check_namespace(body[request.name]), check_namespace(TO.of(body))
    for end, namespace in (("source", source), ("target", goal)):
        _check_renamed(end, namespace)
    if DROP_TARGET.of(body):
        counted(context, goal)
    wait_until_unused(context, source, goal)
    txn = context.txn
    if source == goal:
        raise CommandError(20, "Can't rename a collection to itself")
    collection, existing = txn.collection(source), txn.collection(goal)
    if collection is None:
        raise CommandError(26, f"Source collection {source} does not exist")
    _check_series(collection, existing, goal)
    if collection.is_view or (existing is not None and existing.is_view):
        raise CommandError(166, f"cannot rename view: {source if collection.is_view else goal}")
    if existing is not None and not DROP_TARGET.of(body):
        raise CommandError(48, "target namespace exists")
    if collection.database == goal.partition(".")[0]:
        catalog_changes.rename(txn, collection, goal, existing)
    else:
        move(context, collection, goal, drops_target=bool(DROP_TARGET.of(body)))
    for namespace in (source, goal):
        context.engine.usage.forget(namespace)
    return {}


def _check_renamed(end: str, namespace: str) -> None:
    """Raise 20 for a namespace that no client may rename. `end` says whether it is the source or the target."""
    try:
        check_writable(namespace)
    except CommandError as error:
        raise CommandError(20, f"error with {end} namespace: {error.message}") from error
    name = namespace.partition(".")[2]
    if namespace in ACCOUNTS or name in ("system.js", "system.users") or namespace == VERSIONS:
        raise CommandError(20, f"renaming {name} collection or renaming to {name} is not allowed")


def _check_series(source: Collection, existing: Collection | None, goal: str) -> None:
    """Raise 20 for a rename that would separate a time series from its buckets. `$out` may rename its new buckets."""
    to_buckets = is_buckets(goal.partition(".")[2])
    if to_buckets and source.name.startswith(f"{PREFIX}tmp.agg_out."):
        return
    both = [item for item in (source, existing) if item is not None]
    if to_buckets or any(item.is_time_series or is_buckets(item.name) for item in both):
        raise CommandError(20, f"Renaming a time-series collection is not allowed: {source.namespace} to {goal}")


def counted(context: CommandContext, namespace: str) -> Collection | None:
    """Return the collection to drop, or None. Count its documents first, because the oplog entry has their number."""
    collection = context.txn.collection(namespace)
    if collection is not None and not collection.is_view:
        count_of(context, collection)
        wait_until_unused(context, namespace)
    return context.txn.collection(namespace)


_DROP: Final = Fields(COLLECTION_UUID)
_RENAME: Final = Fields(
    string("renameCollection", required=True), TO, DROP_TARGET, COLLECTION_UUID,
    *without_effect("strictBool", "stayTemp"),
)  # fmt: skip

COMMANDS: Final = (
    Command("drop", drop, _DROP, pauses=True, writes=True, requires=on_collection("dropCollection")),
    Command(
        "dropDatabase",
        drop_database,
        Fields(number("dropDatabase", required=True)),
        pauses=True,
        writes=True,
        requires=on_database("dropDatabase"),
    ),
    Command("renameCollection", rename, _RENAME, pauses=True, writes=True, admin_only=True, requires=writes.RENAME),
)
