"""compact, dataSize, dbHash, reIndex: commands that read all data of a collection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from bson import Binary, Int64

from headrace.cursors.collection_scan import Scan
from headrace.cursors.index_scan import IdScan
from headrace.dispatch.arguments import Fields, array, boolean, document, number, string, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import check_database, check_namespace, target
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement, on_collection, on_database
from headrace.dispatch.server_info import host_of
from headrace.errors import CommandError
from headrace.execution.integrity import inspect
from headrace.execution.storage_stats import count_of
from headrace.hashing import md5
from headrace.running_command import running_command
from headrace.store.catalog import Collection
from headrace.store.compaction import Compacted, Compaction
from headrace.store.data_file import UnusableDirectory
from headrace.store.lmdb import LmdbError
from headrace.store.view import id_bounds
from headrace.thread_calls import call_in_thread
from headrace.values.bson import MISSING, decode, to_string
from headrace.values.order import compare
from headrace.values.paths import get_path, split_path

if TYPE_CHECKING:
    pass

COLLECTIONS: Final = array("collections", "string")
DRY_RUN: Final = boolean("dryRun")
FORCE: Final = boolean("force")
KEY_PATTERN: Final = document("keyPattern")
MAX: Final = document("max")
MIN: Final = document("min")
TARGET: Final = number("freeSpaceTargetMB", default=20, least=1)


def compact(context: CommandContext, request: Request) -> dict[str, Any]:
    """compact: return the free pages of the data file to the file system, if they are `freeSpaceTargetMB` or more.

    All collections share the data file: see `store/compaction.py`. Raise 14031 without room for a copy, 20 on a replica
    set without `force`, 26, 117 during another compaction, or 166."""
    namespace = target(request)
    dry_run = DRY_RUN.of(request.body)
    if context.store.oplog_enabled and not FORCE.of(request.body) and not dry_run:
        raise CommandError(
            20,
            "will not run compact on an active replica set primary as this will slow down other running operations. "
            "use force:true to force",
        )
    _stored(context, namespace)
    free = context.view.free_bytes
    if dry_run:
        return {"bytesFreed": Int64(free)}
    return {"bytesFreed": Int64(_compacted(context) if free >= TARGET.of(request.body) * 1_000_000 else 0)}


def _compacted(context: CommandContext) -> int:
    """Compact the data file. Return the number of freed bytes."""
    store = context.store
    try:
        compaction = store.begin_compaction(store.environment.file_bytes - context.view.free_bytes)
        try:
            return _freed_by(compaction)
        finally:
            store.end_compaction(compaction)
    except UnusableDirectory as error:
        raise CommandError(301, str(error)) from error
    except (LmdbError, OSError) as error:
        raise CommandError(14031, f"the data file cannot be copied: {error}") from error


def _freed_by(compaction: Compaction) -> int:
    command = running_command()
    assert command is not None
    command.pause()  # commits earlier writes of this transaction
    copying = compaction.copy()
    call_in_thread(copying.wait)
    sizes: Compacted = copying.result()
    if sizes.after >= sizes.before:
        return 0
    while not compaction.catch_up():
        command.pause()
    syncing = compaction.sync()
    call_in_thread(syncing.wait)
    syncing.result()
    while compaction.result is None:
        compaction.is_due = compaction.catch_up()
        command.pause()  # the files are exchanged after the commit of this turn
    return compaction.result.before - compaction.result.after


def _stored(context: CommandContext, namespace: str) -> Collection:
    collection = context.view.collection(namespace)
    if collection is None:
        raise CommandError(26, "collection does not exist")
    if collection.is_view:
        raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
    return collection


def rebuild_indexes(context: CommandContext, request: Request) -> dict[str, Any]:
    """reIndex: repair every missing or wrong row of every index. Raise 20 on a replica set."""
    namespace = target(request)
    if context.store.oplog_enabled:
        raise CommandError(20, "reIndex is only allowed on a standalone mongod instance.")
    collection = _stored(context, namespace)
    inspect(context, collection, repairs=True)
    specs = [index.spec for index in collection.indexes]
    return {"nIndexesWas": len(specs), "nIndexes": len(specs), "indexes": specs}


def data_size(context: CommandContext, request: Request) -> dict[str, Any]:
    """dataSize: answer the size of a collection, or of the documents between two keys of an index. Raise 2 if no index
    has the keys, or 166."""
    body = request.body
    namespace = check_namespace(str(body[request.name]))
    began_ms = context.clock.monotonic_ms()
    collection = context.view.collection(namespace)
    size = count = 0
    if collection is not None:
        if collection.is_view:
            raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
        between = _between(collection, body)
        if between is None:
            count = count_of(context, collection)
            size = sum(len(raw) for raw in Scan(lambda: context.view, collection))
        else:
            for raw in Scan(lambda: context.view, collection):
                if between(decode(raw)):
                    size, count = size + len(raw), count + 1
    return {
        "estimate": False, "size": Int64(size), "numObjects": Int64(count),
        "millis": Int64(context.clock.monotonic_ms() - began_ms),
    }  # fmt: skip


def _between(collection: Collection, body: dict[str, Any]) -> Any:
    """Return the test whether a document is from `min`, inclusive, to `max`, exclusive; None without either."""
    low, high, pattern = MIN.of(body), MAX.of(body), KEY_PATTERN.of(body)
    if not low and not high:
        return None
    if not low or not high or list(low) != list(high):
        raise CommandError(2, "dataSize needs both min and max, with the same fields")
    pattern = pattern or dict.fromkeys(low, 1)
    if list(pattern) != list(low) or all(index.spec["key"] != pattern for index in collection.indexes):
        raise CommandError(2, f"couldn't find valid index containing key pattern {to_string(pattern)}")
    first, last, paths = list(low.values()), list(high.values()), [split_path(path) for path in pattern]

    def between(candidate: dict[str, Any]) -> bool:
        key = [None if (value := get_path(candidate, path)) is MISSING else value for path in paths]
        return compare(first, key) <= 0 < compare(last, key)

    return between


def hash_database(context: CommandContext, request: Request) -> dict[str, Any]:
    """dbHash: answer an MD5 of each collection's documents, and one of all these.

    Documents are hashed in `_id` order, so the order of writes does not matter; capped collections in natural order."""
    database = check_database(request.db)
    if database == "local":
        raise CommandError(2, "dbHash of the database local says nothing: it is each member's own")
    began_ms = context.clock.monotonic_ms()
    wanted = COLLECTIONS.of(request.body)
    hashes: dict[str, str] = {}
    capped: list[str] = []
    uuids: dict[str, Binary] = {}
    for collection in context.view.catalog.in_database(database):
        if collection.is_view or collection.name.startswith("system.profile"):
            continue
        if wanted and collection.name not in wanted:
            continue
        assert collection.uuid is not None
        uuids[collection.name] = Binary(collection.uuid, 4)
        if collection.capped is not None:
            capped.append(collection.name)
        hashes[collection.name] = _hash(context, collection)
    return {
        "host": host_of(context.engine, request.client), "collections": hashes, "capped": capped, "uuids": uuids,
        "md5": _joined(hashes), "timeMillis": int(context.clock.monotonic_ms() - began_ms),
    }  # fmt: skip


def _hash(context: CommandContext, collection: Collection) -> str:
    scan: Iterable[bytes]
    if collection.capped is not None:
        scan = Scan(lambda: context.view, collection)
    else:
        scan = IdScan(lambda: context.view, collection, [id_bounds(None, None)])
    digest = md5()
    for raw in scan:
        digest.update(raw)
        context.tick()
    return digest.hexdigest()


def _joined(hashes: dict[str, str]) -> str:
    digest = md5()
    for item in hashes.values():
        digest.update(item.encode())
    return digest.hexdigest()


_COMPACT: Final = Fields(DRY_RUN, FORCE, TARGET)
_DATA_SIZE: Final = Fields(
    string("dataSize", required=True), KEY_PATTERN, MAX, MIN, *without_effect("bool", "estimate")
)
_HASH: Final = Fields(COLLECTIONS, *without_effect("bool", "skipTempCollections"), strict=False)

COMMANDS: Final = (
    Command(
        "compact",
        compact,
        _COMPACT,
        pauses=True,
        writes=lambda request: not DRY_RUN.of(request.body),
        requires=on_collection("compact"),
    ),
    Command(
        "dataSize",
        data_size,
        _DATA_SIZE,
        aliases=("datasize",),
        pauses=True,
        requires=Requirement(
            "find on the collection that it names with its database",
            lambda engine, request, grants: ((str(request.body.get(request.name)), frozenset({"find"})),),
        ),
    ),
    Command("dbHash", hash_database, _HASH, aliases=("dbhash",), pauses=True, requires=on_database("dbHash")),
    Command("reIndex", rebuild_indexes, Fields(), pauses=True, writes=True, requires=on_collection("reIndex")),
)
