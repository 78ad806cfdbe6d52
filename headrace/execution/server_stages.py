"""The documents of stages that produce their own: `$collStats`, `$currentOp`, `$geoNear`, `$indexStats`, sessions.

Rule: a number that the server does not count is refused or omitted, never estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace.dispatch.cluster_wide import stored_settings
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import OPLOG
from headrace.dispatch.request import Request
from headrace.dispatch.server_info import host_of
from headrace.errors import CommandError
from headrace.execution.collections_shown import catalog_shown
from headrace.execution.current_operations import operations, sessions
from headrace.execution.explain_plan import access_stage, tried
from headrace.execution.near_documents import geo_near_documents
from headrace.execution.planner.query import Order
from headrace.execution.planner.trial import plan_cache_of
from headrace.execution.sources import in_order
from headrace.execution.storage_stats import count_of, oplog_size, storage_stats
from headrace.query.command_shape import command_shape
from headrace.query.expressions import with_more
from headrace.query.stages.geo_near import GeoNear
from headrace.query.stages.match_stage import Search
from headrace.query.stages.server_stage import ServerStage
from headrace.store.catalog import Collection, Index
from headrace.values.bson import decode, to_string


def documents(
    context: CommandContext, request: Request, namespace: str, stage: ServerStage
) -> Iterator[dict[str, Any]]:
    """Return the documents of a stage for a namespace. Raise the stage's error if the namespace does not exist."""
    if isinstance(stage, GeoNear):
        return geo_near_documents(context, namespace, stage, request.body.get("hint"))
    if isinstance(stage, Search):
        return _found(context, namespace, stage)
    return _SOURCES[stage.name](context, request, namespace, stage.spec)


def _found(context: CommandContext, namespace: str, stage: Search) -> Iterator[dict[str, Any]]:
    """Return the documents of the text search at the beginning of a sub-pipeline."""
    of, scored = stage.context, stage.score.is_read
    variables = with_more(of.variables, of.bound)
    found = in_order(context, namespace, stage.spec, of.collation, Order(), variables=variables, scored=scored)
    return map(decode, found.documents)


def _collection_stats(
    context: CommandContext, request: Request, namespace: str, spec: dict[str, Any]
) -> Iterator[dict[str, Any]]:  # fmt: skip
    for name, options in spec.items():
        if name not in ("count", "latencyStats", "queryExecStats", "storageStats"):
            raise CommandError(40415, f"BSON field '$collStats.{name}' is an unknown field.")
        if type(options) is not dict:
            raise CommandError(14, f"BSON field '$collStats.{name}' is the wrong type, expected type 'object'")
    if spec.get("count"):
        raise CommandError(31170, f"$collStats 'count' takes no options, found: {to_string(spec['count'])}")
    stats: dict[str, Any] = {
        "ns": namespace, "host": host_of(context.engine, request.client),
        "localTime": DatetimeMS(context.clock.now_ms()),
    }  # fmt: skip
    if "latencyStats" in spec:
        histograms = spec["latencyStats"].get("histograms", False)
        if type(histograms) is not bool:
            raise CommandError(
                14, "BSON field '$collStats.latencyStats.histograms' is the wrong type, expected type 'bool'"
            )
        stats["latencyStats"] = context.engine.usage.latencies(namespace, histograms=histograms)
    if "storageStats" in spec:
        stats["storageStats"] = storage_stats(context, namespace, spec["storageStats"].get("scale", 1))
        del stats["storageStats"]["ns"]
    if "queryExecStats" in spec:
        number, uses = _existing(context, namespace, "queryExecStats").number, context.store.uses
        scans, tailable = uses.scans[number], uses.tailable_scans[number]  # since the server's start
        shown = {"total": Int64(scans + tailable), "nonTailable": Int64(scans)}
        stats["queryExecStats"] = {"collectionScans": shown}
    if "count" in spec and namespace == OPLOG and context.store.oplog_enabled:
        stats["count"] = oplog_size(context)[1]
    elif "count" in spec:
        stats["count"] = count_of(context, _existing(context, namespace, "count"))
    return iter((stats,))


def _existing(context: CommandContext, namespace: str, what: str) -> Collection:
    """Return a collection. Raise 26 if it does not exist."""
    collection = context.view.collection(namespace)
    if collection is None:
        raise CommandError(
            26, f"Unable to retrieve {what} in $collStats stage :: caused by :: Collection [{namespace}] not found."
        )
    return collection


def _index_stats(
    context: CommandContext, request: Request, namespace: str, spec: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield every index with its number of uses since the server's start, then the indexes being built."""
    collection, store = context.view.collection(namespace), context.store
    if collection is None:
        return
    host, since = host_of(context.engine, request.client), DatetimeMS(context.engine.started_ms)

    def shown(index: Index, uses: int, **more: bool) -> dict[str, Any]:
        accesses = {"ops": Int64(uses), "since": since}
        return {
            "name": index.name,
            "key": index.spec["key"],
            "host": host,
            "spec": index.spec,
            **more,
            "accesses": accesses,
        }

    for index in collection.indexes:
        if index.is_of_id and collection.clustered:
            continue  # the collection itself
        yield shown(index, store.uses.ids[collection.number] if index.is_of_id else store.uses.indexes[index.number])
    for build in store.catalog.builds_on(collection):
        for index in build.indexes:
            yield shown(index, 0, building=True)


def _plan_cache_stats(
    context: CommandContext, request: Request, namespace: str, spec: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the plan cache of a collection. Raise 40415, 50933, or 4503200 for `allHosts`, an option of mongos."""
    for name in spec:
        if name != "allHosts":
            raise CommandError(40415, f"BSON field '$planCacheStats.{name}' is an unknown field.")
    if spec.get("allHosts"):
        raise CommandError(4503200, "$planCacheStats stage supports allHosts parameter only for sharded clusters")
    collection = context.view.collection(namespace)
    if collection is None:
        raise CommandError(50933, f"collection '{namespace}' does not exist")
    host = host_of(context.engine, request.client)
    for entry in [] if collection is None or collection.is_view else plan_cache_of(collection).entries:
        trials = [tried(trial, entry.spec) for trial in entry.trials]
        yield {
            "version": "1", "queryHash": entry.query_hash, "planCacheShapeHash": entry.query_hash,
            "planCacheKey": entry.key, "isActive": entry.is_active, "works": Int64(entry.works), "worksType": "works",
            "timeOfCreation": DatetimeMS(entry.created_ms),
            "createdFromQuery": {"query": entry.spec, "sort": entry.sort, "projection": {}},
            "cachedPlan": access_stage(entry.trials[0].access, entry.spec), "creationExecStats": trials,
            "candidatePlanScores": [trial.score for trial in entry.trials], "indexFilterSet": False, "host": host,
        }  # fmt: skip


def _query_settings(
    context: CommandContext, request: Request, namespace: str, spec: dict[str, Any]
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield the stored query settings, with the shapes of their queries if requested."""
    for item in stored_settings(context.store):
        shown = dict(item)
        query = item.get("representativeQuery")
        if spec.get("showDebugQueryShape") and query is not None:
            shown["debugQueryShape"] = command_shape(next(iter(query)), query["$db"], query)
        yield shown


_SOURCES: Final[dict[str, Callable[..., Iterator[dict[str, Any]]]]] = {
    "$collStats": _collection_stats,
    "$currentOp": lambda context, request, namespace, spec: operations(context, request, spec),
    "$indexStats": _index_stats,
    "$listClusterCatalog": lambda context, request, namespace, spec: catalog_shown(context, request.db, spec),
    "$listLocalSessions": lambda context, request, namespace, spec: sessions(context, request, spec),
    "$listSampledQueries": lambda *_: iter(()),  # no queries are sampled
    "$listSessions": lambda context, request, namespace, spec: sessions(context, request, spec),
    "$planCacheStats": _plan_cache_stats,
    "$querySettings": _query_settings,
    "$queryStats": lambda *_: iter(()),  # no statistics of queries are kept: `internalQueryStatsRateLimit` is 0
}
