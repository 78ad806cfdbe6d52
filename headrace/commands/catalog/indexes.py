"""createIndexes, listIndexes, dropIndexes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from bson import Binary, Decimal128

from headrace import limits
from headrace.commands.catalog.clustered_index import check_new_indexes as check_clustered
from headrace.commands.catalog.index_specification import checked, is_like, is_there, with_collation
from headrace.commands.catalog.time_series import bucket_index, series_index
from headrace.dispatch.arguments import (
    TYPES,
    Field,
    Fields,
    FieldType,
    any_type,
    array,
    boolean,
    without_effect,
)
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import BATCH_SIZE, CURSOR, TIME_SERIES
from headrace.dispatch.lock_waits import wait_until_unused
from headrace.dispatch.namespaces import COLLECTION_UUID, VERSIONS, target, writable
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection
from headrace.dispatch.transactions import check_new_indexes
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.execution.batches import open_cursor
from headrace.execution.index_builds import build_indexes
from headrace.execution.storage_stats import count_of
from headrace.execution.time_series import bucket_hint, buckets_of
from headrace.execution.writes.matches import may_create, missing
from headrace.query.expressions.numbers import to_long
from headrace.store import catalog_changes
from headrace.store.catalog import Collection, Index
from headrace.store.indexes import index_builds
from headrace.store.store import Store
from headrace.timeseries.series import Series
from headrace.values.bson import encode, to_string, type_name
from headrace.values.order import equal

BUILD_INFO: Final = boolean("includeIndexBuildInfo")
BUILD_UUIDS: Final = boolean("includeBuildUUIDs")
IGNORE_UNKNOWN: Final = boolean("ignoreUnknownIndexOptions")
INDEXES: Final = array("indexes", "object", required=True)
_MEMBER_COUNT_MAX: Final = 50  # MongoDB's maximum for a replica set


class _IndexNames(FieldType):
    """A name, a key, or a list of names, which MongoDB's message leaves out."""

    def error(self, path: str, value: Any) -> CommandError:
        """Return the error for a value of any other type."""
        return FieldType(("string", "object")).error(path, value)


def _check_names(path: str, value: Any) -> None:
    for name in value if type(value) is list else ():
        if type(name) is not str:
            message = f"BSON field '{path}' is the wrong type '{type_name(name)}', expected types '[string]'"
            raise CommandError(14, message)


INDEX: Final[Field[Any]] = Field(
    "index", _IndexNames(("string", "object", "array")), None, required=True, check=_check_names
)


def create(context: CommandContext, request: Request) -> dict[str, Any] | Wait:
    """createIndexes: create indexes, and the collection if it is missing. An equal existing index is no error.

    If another client builds the same index, wait for its build.
    """
    namespace = target(request)
    ignore = IGNORE_UNKNOWN.of(request.body)
    specs = [checked(spec, ignore_unknown=ignore) for spec in INDEXES.of(request.body)]
    if not specs:
        raise CommandError(2, "Must specify at least one index to create")
    if (buckets := buckets_of(context.txn, context.txn.collection(namespace))) is not None:
        namespace, specs = buckets.collection.namespace, [bucket_index(buckets.series, spec) for spec in specs]
    quorum = _commit_quorum(context, request.body)
    catalog_changes.require_room(context.txn, len(request.raw))
    if context.transaction is None and (there := writable(context, namespace)) is not None:
        count_of(context, there)  # may pause
        wait_until_unused(context, namespace)  # no pause from here until the build has begun
    collection = writable(context, namespace)
    check_clustered(collection, specs)
    made_now = collection is None
    wanted = _wanted(missing(namespace) if collection is None else collection, specs, made_now)
    if collection is None:
        if not may_create(context, namespace, {}):
            return create(context, request)
        collection = catalog_changes.create(context.txn, namespace, {})
    before = len(collection.indexes)
    wait = None if context.transaction is not None else _wait_for_builds(context, request, collection, wanted)
    if wait is not None:
        return wait
    if wanted:
        check_new_indexes(context, collection)
        is_empty = context.transaction is not None or not context.txn.count(collection)
        if not is_empty:  # an empty collection needs no votes
            _check_satisfiable(quorum)
        build_indexes(context, collection, wanted, is_empty=is_empty)
        collection = context.txn.catalog.current(collection)
    reply: dict[str, Any] = {"numIndexesBefore": before, "numIndexesAfter": len(collection.indexes)}
    if not wanted:
        return {**reply, "note": "all indexes already exist"}
    return {"createdCollectionAutomatically": made_now, **reply, "commitQuorum": quorum}


def _wanted(collection: Collection, specs: list[dict[str, Any]], made_now: bool) -> list[dict[str, Any]]:
    """Return the specifications of the indexes that do not exist yet.

    Raise 85 or 86 for indexes that conflict with another one, 67 for too many. Raise 96 for a new index that is
    specified twice, 68 if the command makes the collection.
    """
    wanted: list[dict[str, Any]] = []
    for spec in specs:
        spec = with_collation(spec, collection.options.get("collation"))
        if not is_there(collection, spec, wanted):
            wanted.append(spec)
        elif spec["key"] != {"_id": 1} and not is_there(collection, spec, []):
            if made_now:
                raise CommandError(68, f"Identical index already exists: {spec['name']}")
            raise CommandError(96, "Cannot build two identical indexes. Try again without duplicate indexes.")
    if len(collection.indexes) + len(wanted) > limits.INDEX_COUNT_MAX:
        raise CommandError(67, f"add index fails, too many indexes for {collection.namespace}")
    return wanted


def _commit_quorum(context: CommandContext, body: dict[str, Any]) -> int | str:
    """Return `commitQuorum`: a number of members, or a mode. Raise 9 for other types, 2 without an oplog."""
    quorum = body.get("commitQuorum")
    if quorum is None:
        return "votingMembers"
    if type(quorum) is str:
        if not quorum:
            raise CommandError(9, "commitQuorum can't be an empty string")
    elif type(quorum) is bool or not isinstance(quorum, Decimal128 | float | int):
        raise CommandError(9, "commitQuorum has to be a number or a string")
    else:
        quorum = to_long(quorum)
        if not 0 <= quorum <= _MEMBER_COUNT_MAX:
            text = f"commitQuorum has to be a non-negative number and not greater than {_MEMBER_COUNT_MAX}"
            raise CommandError(9, text)
        quorum = max(quorum, 1)
    if not context.store.oplog_enabled:
        raise CommandError(2, "Standalones can't specify commitQuorum")
    return quorum  # type: ignore[no-any-return]


def _check_satisfiable(quorum: int | str) -> None:
    """Raise 278 for more than one member, 79 for an unknown mode."""
    if type(quorum) is int and quorum > 1:
        raise CommandError(278, "Not enough data-bearing nodes to satisfy commit quorum")
    if type(quorum) is str and quorum not in ("majority", "votingMembers"):
        raise CommandError(79, f"No write concern mode named '{quorum}' found in replica set configuration")


def _wait_for_builds(
    context: CommandContext, request: Request, collection: Collection, wanted: list[dict[str, Any]]
) -> Wait | None:
    """Return the wait for another client's build of one of the indexes, or None. Raise 85 or 86 for a conflict."""
    for build in context.txn.catalog.builds_on(collection):
        if any(is_like(index.spec, spec) for index in build.indexes for spec in wanted):
            if request.time_is_up:
                raise CommandError(50, "operation exceeded time limit")
            over = partial(_has_ended, context.store, build.uuid)
            return Wait(limits.AWAIT_MS_MAX, f"{collection.database}.$cmd", over=over)
    return None


def _has_ended(store: Store, uuid: bytes) -> bool:
    return uuid not in store.catalog.builds


def list_indexes(context: CommandContext, request: Request) -> bytes:
    """listIndexes: answer a cursor over the specifications. Raise 26 without a collection, 166 for a view."""
    namespace = target(request)
    collection = context.view.collection(namespace)
    if collection is None and namespace == VERSIONS:
        return open_cursor(context, request, namespace, iter([encode(catalog_changes.ID_INDEX)]), None, id_first=True)
    if collection is None:
        raise CommandError(26, f"ns does not exist: {namespace}")
    series = None
    if (buckets := buckets_of(context.view, collection)) is not None:
        collection, series = buckets
    if collection.is_view:
        raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
    with_uuids, with_info = BUILD_UUIDS.of(request.body), BUILD_INFO.of(request.body)
    if with_uuids and with_info:
        raise CommandError(72, "includeBuildUUIDs and includeIndexBuildInfo cannot both be set to true")
    size = BATCH_SIZE.of(CURSOR.of(request.body))
    shown = [{"spec": index.spec} if with_info else index.spec for index in collection.indexes]
    for build in context.view.catalog.builds_on(collection):
        uuid = Binary(build.uuid, 4)
        for index in build.indexes:
            if any(other.name == index.name for other in collection.indexes):
                continue  # the build will replace it
            if with_info:
                shown.append({"spec": index.spec, "indexBuildInfo": {"buildUUID": uuid, "ready": False}})
            else:
                shown.append({"spec": index.spec, "buildUUID": uuid} if with_uuids else index.spec)
    documents = map(encode, shown if series is None else _of_series(series, shown))
    return open_cursor(context, request, namespace, iter(documents), size, id_first=True)


def _of_series(series: Series, shown: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the indexes of a time series with its own keys, from the indexes of its buckets."""
    for item in shown:
        spec = series_index(series, item.get("spec", item))
        if spec is not None:
            yield {**item, "spec": spec} if "spec" in item else spec


def drop(context: CommandContext, request: Request) -> dict[str, Any]:
    """dropIndexes: drop indexes by name, by key, or all except the `_id` index. Raise 26, 27 or 72."""
    namespace = target(request)
    wanted = INDEX.of(request.body)
    if (buckets := buckets_of(context.txn, context.txn.collection(namespace))) is not None:
        namespace, wanted = buckets.collection.namespace, bucket_hint(buckets.series, wanted)
    collection = writable(context, namespace)
    if collection is None:
        raise CommandError(26, f"ns not found {namespace}")
    count = sum(not index.is_clustered for index in collection.indexes)
    if wanted == "*":
        _abort_builds(context, collection, None)
        for index in [item for item in collection.indexes if not item.is_of_id]:
            catalog_changes.drop_index(context.txn, collection, index)
        return {"nIndexesWas": count, "msg": "non-_id indexes dropped for collection"}
    names = _distinct_names(wanted) if type(wanted) is list else [wanted]
    in_build = [index for build in context.txn.catalog.builds_on(collection) for index in build.indexes]
    building = [name for name in names if any(_is_named(index, name) for index in in_build)]
    indexes = [_named(collection, name) for name in names if name not in building]
    if building:
        _abort_builds(context, collection, building)
    for index in indexes:
        catalog_changes.drop_index(context.txn, collection, index)
    return {"nIndexesWas": count}


def _abort_builds(context: CommandContext, collection: Collection, names: list[Any] | None) -> None:
    """Abort the builds that include one of the named indexes; None: all builds."""
    for build in context.txn.catalog.builds_on(collection):
        if names is None or any(_is_named(index, name) for index in build.indexes for name in names):
            index_builds.abort(context.txn, build, CommandError(276, "dropIndexes command"))


def _is_named(index: Index, wanted: Any) -> bool:
    return index.name == wanted or (type(wanted) is dict and equal(index.spec["key"], wanted))


def _distinct_names(names: list[Any]) -> list[str]:
    """Return the names, each once. Raise 14 if one is no string."""
    for name in names:
        if type(name) is not str:
            raise TYPES["string"].error("dropIndexes.index", name)
    return list(dict.fromkeys(names))


def _named(collection: Collection, wanted: Any) -> Any:
    if type(wanted) not in (str, dict):
        raise TYPES["string"].error("dropIndexes.index", wanted)
    for index in collection.indexes:
        if _is_named(index, wanted):
            if index.is_clustered:
                raise CommandError(5979800, "It is illegal to drop the clusteredIndex")
            if index.is_of_id:
                raise CommandError(72, "cannot drop _id index")
            return index
    if type(wanted) is dict:
        raise CommandError(27, f"can't find index with key: {to_string(wanted)}")
    raise CommandError(27, f"index not found with name [{wanted}]")


_CREATE: Final = Fields(
    IGNORE_UNKNOWN, INDEXES, any_type("commitQuorum"), COLLECTION_UUID, *TIME_SERIES,
    *without_effect("bool", "returnOnStart"), *without_effect("number", "v"),
)  # fmt: skip
_DROP: Final = Fields(INDEX, COLLECTION_UUID, *TIME_SERIES)
_LIST: Final = Fields(BUILD_INFO, BUILD_UUIDS, CURSOR, *TIME_SERIES)

COMMANDS: Final = (
    Command("createIndexes", create, _CREATE, pauses=True, writes=True, requires=on_collection("createIndex")),
    Command("dropIndexes", drop, _DROP, writes=True, aliases=("deleteIndexes",), requires=on_collection("dropIndex")),
    Command("listIndexes", list_indexes, _LIST, requires=on_collection("listIndexes")),
)
