"""The namespaces of a command, checked as MongoDB checks them.

Source: MongoDB's restrictions on names; codes as recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeVar

from bson import Binary

from headrace import limits
from headrace.dispatch.arguments import Fields, missing, number, raw_documents, string, uuid, without_effect
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import ENCRYPTION, TIME_SERIES
from headrace.dispatch.reply import write_errors
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.query.expressions.numbers import NUMBERS, double_of, to_long
from headrace.store.catalog import Collection
from headrace.values.bson import decode, first_element, type_name, value_of

R = TypeVar("R")


COLLECTION_UUID: Final = uuid("collectionUUID")
"""The UUID of the collection that a client expects. Source: the field in MongoDB's commands; the fields of its error
361."""


def with_expected_uuid(run: Callable[[CommandContext, Request], R]) -> Callable[[CommandContext, Request], R]:
    """Make a command check its `collectionUUID` first."""

    def checked(context: CommandContext, request: Request) -> R:
        check_collection_uuid(context, _namespace(request), request.body["collectionUUID"])
        return run(context, request)

    return checked


def _namespace(request: Request) -> str:
    name = request.body[request.name]
    if request.name == "aggregate" and type(name) is not str:
        raise CommandError(4928901, "'collectionUUID' is not supported for a pipeline without a collection")
    return str(name) if request.name == "renameCollection" else f"{request.db}.{name}"


def check_collection_uuid(context: CommandContext, namespace: str, uuid: bytes | None) -> None:
    """Raise 361 unless the namespace is a collection with this UUID. None: accept any.

    The error's `actualCollection` is the collection of the same database that has the UUID, or null.
    """
    if uuid is None:
        return
    uuid = bytes(uuid)  # a Binary never equals bytes
    collection = context.view.collection(namespace)
    if collection is not None and collection.uuid == uuid:
        return
    database, _, expected = namespace.partition(".")
    collections = context.view.catalog.in_database(database)
    actual = next((item.name for item in collections if item.uuid == uuid), None)
    raise CommandError(
        361, "Collection UUID does not match that specified",
        extra={
            "db": database, "collectionUUID": Binary(uuid, 4), "expectedCollection": expected,
            "actualCollection": actual,
        },
    )  # fmt: skip


OPLOG: Final = "local.oplog.rs"
PRE_IMAGES: Final = "config.system.preimages"
TRANSACTIONS: Final = "config.transactions"
VERSIONS: Final = "admin.system.version"
_WITHOUT_IDL: Final = frozenset({
    "createIndexes", "planCacheClear", "planCacheClearFilters", "planCacheListFilters", "planCacheSetFilter", "reIndex",
    "validate",
})  # fmt: skip
"""The commands for which a collection name that is no string is error 73, not 2."""
_DATABASE_REFUSED: Final = frozenset('/\\. "$\x00')


def check_database(name: str) -> str:
    """Return the name of a database, or raise 73."""
    if "\0" in name:
        raise CommandError(73, "database names cannot have embedded null characters")
    if not name or len(name.encode()) > limits.DATABASE_NAME_BYTES_MAX or _DATABASE_REFUSED & set(name):
        raise CommandError(73, f"Invalid database name: '{name}'")
    return name


def check_without_collection(name: Any) -> None:
    """Raise 73 or 2 unless the number 1 stands in place of a collection name in an aggregation."""
    if type(name) not in NUMBERS:
        raise CommandError(73, f"collection name has invalid type {type_name(name)}")
    if double_of(name) != 1:
        raise CommandError(2, "The 'aggregate' field must specify a collection name or 1")


@lru_cache(4096)
def check_namespace(namespace: str) -> str:
    """Return `db.coll`, or raise 73."""
    database, _, name = namespace.partition(".")
    check_database(database)
    if "\0" in name:
        raise CommandError(73, "namespaces cannot have embedded null characters")
    if name.startswith("."):
        raise CommandError(73, f"Collection names cannot start with '.': {name}")
    if not name or name.endswith("."):
        raise CommandError(73, f"Invalid namespace specified '{namespace}'")
    if len(namespace.encode()) > limits.NAMESPACE_BYTES_MAX:
        raise CommandError(
            73, f"Fully qualified namespace is too long. Namespace: {namespace} Max: {limits.NAMESPACE_BYTES_MAX}"
        )
    return namespace


def target(request: Request) -> str:
    """Return the namespace of a command's first field, `{find: "coll"}`, and its database. Raise 2 or 73."""
    name = request.body[request.name]
    if type(name) is not str:
        code = 73 if request.name in _WITHOUT_IDL else 2
        raise CommandError(code, f"collection name has invalid type {type_name(name)}")
    return check_namespace(f"{request.db}.{name}")


_SYSTEM_NAMES: Final = {
    "admin": frozenset({"system.backup_users", "system.keys", "system.new_users", "system.roles", "system.version"}),
    "config": frozenset({
        "system.change_collection", "system.indexBuilds", "system.preimages", "system.sessions",
        "system.sharding_ddl_coordinators",
    }),
    "local": frozenset({"system.collections_to_restore", "system.healthlog", "system.replset"}),
}  # fmt: skip
"""The names of system collections that may exist in these databases only."""
_ANYWHERE: Final = frozenset({"system.js", "system.profile", "system.users", "system.views"})
_FAMILIES: Final = ("system.buckets.", "system.resharding.", "system.statistics.")


def check_system_name(namespace: str) -> None:
    """Raise 73 for a name that begins with `system.` and is none of MongoDB's, 2 for a name with `.system.` in it."""
    database, _, name = namespace.partition(".")
    if name.startswith("system."):
        there = name in _ANYWHERE or name.startswith(_FAMILIES) or name in _SYSTEM_NAMES.get(database, ())
        if not there:
            raise CommandError(73, f"Invalid system namespace: {namespace}")
    elif ".system." in name and database != "config":
        raise CommandError(2, f"Invalid namespace: {namespace}")


def for_changing(namespace: str) -> None:
    """Refuse a namespace that no client may change or drop: `check_writable`, except the profiler's."""
    if not namespace.endswith(".system.profile"):
        _check_reserved(namespace)


def for_creating(namespace: str) -> None:
    """Refuse a namespace that no client may create. Raise 2, 13 or 73."""
    for_changing(namespace)
    check_system_name(namespace)


@lru_cache(4096)
def check_writable(namespace: str) -> None:
    """Refuse a namespace that no client may write: the oplog, the profiler's collections, virtual collections, and
    names that MongoDB reserves."""
    _check_reserved(namespace)
    check_system_name(namespace)


def _check_reserved(namespace: str) -> None:
    if namespace.endswith(".system.profile"):
        raise CommandError(73, f"cannot write to '{namespace}'")
    if "$" in namespace:
        raise CommandError(73, f"Invalid collection name: {namespace.partition('.')[2]}")
    if namespace in (OPLOG, PRE_IMAGES, TRANSACTIONS):
        raise CommandError(13, f"not authorized on {namespace.partition('.')[0]} to write to {namespace}")
    if namespace.endswith(".system.views"):
        raise CommandError(73, f"cannot write to '{namespace}'; use create, collMod and drop with the view's name")


def writable(context: CommandContext, namespace: str) -> Collection | None:
    """Return the collection to write to, None if it does not exist yet. Raise 166 for a view or a time series."""
    collection = taking_writes(context, namespace)
    if collection is not None and collection.is_view:
        raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
    return collection


def taking_writes(context: CommandContext, namespace: str) -> Collection | None:
    """Return the collection to write to, like `writable`, but allow a time series, which takes some writes."""
    check_writable(namespace)
    collection = context.txn.collection(namespace)
    if collection is not None and collection.is_view and not collection.is_time_series:
        raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
    return collection


def refused(collection: Collection | None, count: int, *, ordered: bool) -> list[dict[str, Any]] | None:
    """Return the `writeErrors` of a write to a view: one, or one per statement if unordered. None: not a view."""
    if collection is None or not collection.is_view or collection.is_time_series:
        return None
    error = CommandError(166, f"Namespace {collection.namespace} is a view, not a collection")
    return write_errors([(index, error) for index in range(1 if ordered else count)])


OPERATION_KINDS: Final = ("delete", "insert", "update")
_INDEX: Final = {kind: number(kind, required=True) for kind in OPERATION_KINDS}


def operation_target(raw: bytes) -> tuple[str, int]:
    """Return the kind of a bulkWrite operation and the number of its namespace, from its first field alone.

    Raise 40415 for an unknown kind, 14 if the value is not a number, 2 if it is negative.
    """
    element = first_element(raw)
    kind = "" if element is None else element[1].decode(errors="replace")
    if element is None or kind not in _INDEX:
        raise CommandError(40415, f"BSON field 'bulkWrite.{kind}' is an unknown field.")
    value = value_of(element[0], raw, element[2], element[3])
    if value is None:
        raise missing(f"bulkWrite.ops.{kind}")
    _INDEX[kind].examine(f"bulkWrite.ops.{kind}", value)
    index = to_long(value)
    if index < 0:
        raise CommandError(2, f"BSON field '{kind}' value must be >= 0, actual value '{index}'")
    return kind, index


NAMESPACE_INFO: Final = Fields(
    string("ns", required=True), COLLECTION_UUID, *ENCRYPTION, *TIME_SERIES,
    *without_effect("object", "databaseVersion", "shardVersion"),
)  # fmt: skip
"""The fields of an element of `nsInfo`."""


def namespaces_of(request: Request) -> list[str]:
    """Return the checked namespaces of a request's `nsInfo`. Raise 14, 73, 40414 or 40415."""
    return [namespace for namespace, _ in expected_namespaces_of(request)]


def expected_namespaces_of(request: Request) -> list[tuple[str, bytes | None]]:
    """Return (namespace, `collectionUUID`) for each `nsInfo` element, checked. Raise 14, 73, 40414 or 40415."""
    namespaces = []
    for raw in raw_documents(request, "nsInfo"):
        info = decode(raw)
        NAMESPACE_INFO.check("bulkWrite.nsInfo", info)
        database, _, name = info["ns"].partition(".")
        if not database or not name:
            shown = info["ns"] if name else info["ns"].removesuffix(".")
            raise CommandError(73, f"Invalid namespace specified for bulkWrite: '{shown}'")
        if "$" in name:
            raise CommandError(73, f"Invalid collection name: {name}")
        namespaces.append((check_namespace(info["ns"]), COLLECTION_UUID.of(info)))
    return namespaces
