"""createIndexes, listIndexes, dropIndexes."""

from __future__ import annotations

import math
from typing import Any, Final

from headrace import limits
from headrace.dispatch.arguments import (
    TYPES,
    Field,
    Fields,
    FieldType,
    array,
    boolean,
    document,
    string,
    without_effect,
)
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import BATCH_SIZE, COLLATION, COLLECTION_UUID, CURSOR
from headrace.dispatch.namespaces import target, writable
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection
from headrace.dispatch.transaction_statements import check_new_indexes
from headrace.errors import CommandError
from headrace.execution.batches import open_cursor
from headrace.execution.index_builds import build_indexes
from headrace.query.collation import filled_collation
from headrace.query.match import parse_filter
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.values.bson import encode, type_name

UNSUPPORTED: Final = {
    "$**": (115, "wildcard indexes are not supported"),
    "2d": (115, "2d indexes are not supported"),
    "2dsphere": (115, "2dsphere indexes are not supported"),
    "hashed": (115, "hashed indexes are not supported"),
    "text": (115, "text indexes are not supported"),
}
"""By kind, and by what a path has in it."""

INDEXES: Final = array("indexes", "object", required=True)


def _unknown(path: str, name: str) -> CommandError:
    return CommandError(197, f"The field '{name}' is not valid for an index specification.")


PARTIAL_FILTER: Final = document("partialFilterExpression")
SPECIFICATION: Final = Fields(
    COLLATION, PARTIAL_FILTER, boolean("hidden"), boolean("sparse"), boolean("unique"),
    document("key", error=(14, "The 'key' field must be an object")), document("storageEngine"),
    document("wildcardProjection"), string("default_language"), string("language_override"), string("name"),
    string("ns"),
    Field("expireAfterSeconds", "number", None, error=(67, "TTL index 'expireAfterSeconds' option must be numeric")),
    Field("weights", FieldType(("object", "string")), None),
    *without_effect("any", "background", "clustered"),
    *without_effect(
        "number", "2dsphereIndexVersion", "bits", "bucketSize", "max", "min", "textIndexVersion", "v"
    ),
    unknown=_unknown,
)  # fmt: skip
INDEX: Final[Field[Any]] = Field("index", FieldType(("string", "object", "array")), None, required=True)


def create(context: CommandContext, request: Request) -> dict[str, Any]:
    """createIndexes: creates the collection where it is missing; existing equal indexes are no error."""
    namespace = target(request)
    specs = [_checked(spec) for spec in INDEXES.of(request.body)]
    if not specs:
        raise CommandError(2, "Must specify at least one index to create")
    collection = writable(context, namespace)
    made_now = collection is None
    if collection is None:
        collection = catalog_changes.create(context.txn, namespace, {})
    specs = [_with_collation(spec, collection.options.get("collation")) for spec in specs]
    before = len(collection.indexes)
    wanted: list[dict[str, Any]] = []
    for spec in specs:
        if not _is_there(collection, spec, wanted):
            wanted.append(spec)
    if len(collection.indexes) + len(wanted) > limits.INDEX_COUNT_MAX:
        raise CommandError(67, f"add index fails, too many indexes for {namespace}")
    if wanted:
        check_new_indexes(context, collection)
        build_indexes(context, collection, wanted)
        collection = context.txn.collection(namespace) or collection
    reply: dict[str, Any] = {"numIndexesBefore": before, "numIndexesAfter": len(collection.indexes)}
    if not wanted:
        return {**reply, "note": "all indexes already exist"}
    return {"createdCollectionAutomatically": made_now, **reply, "commitQuorum": "votingMembers"}


def _checked(spec: Any) -> dict[str, Any]:
    """An index specification as it is stored: `v`, `key`, `name` first, then the rest in the order given."""
    SPECIFICATION.check("createIndexes.indexes", spec)
    for name in ("key", "name"):
        if spec.get(name) is None:
            raise CommandError(9, f"The '{name}' field is a required property of an index specification")
    key = spec["key"]
    if not key:
        raise CommandError(67, "Index keys cannot be an empty object.")
    if not spec["name"]:
        raise CommandError(67, "The index name cannot be empty")
    _check_key(key)
    parse_filter(PARTIAL_FILTER.of(spec))
    rest = {name: value for name, value in spec.items() if name not in ("v", "key", "name", "ns", "background")}
    for flag in ("hidden", "sparse", "unique"):
        if flag in rest and not rest[flag]:
            del rest[flag]
    return {"v": 2, "key": key, "name": spec["name"], **rest}


def _with_collation(spec: dict[str, Any], default: dict[str, Any] | None) -> dict[str, Any]:
    """The specification with every option of its collation, which is the collection's unless it names its own."""
    collation = filled_collation(spec["collation"]) if "collation" in spec else default
    rest = {name: value for name, value in spec.items() if name != "collation"}
    return rest if collation is None else {**rest, "collation": collation}


def _check_key(key: dict[str, Any]) -> None:
    for path, kind in key.items():
        if type(kind) is str:
            if kind not in UNSUPPORTED:
                raise CommandError(67, f"Unknown index plugin '{kind}'")
            raise CommandError(*UNSUPPORTED[kind])
        elif isinstance(kind, bool) or not isinstance(kind, int | float):
            raise CommandError(
                67, f"Values in v:2 index key pattern cannot be of type {type_name(kind)}. "
                "Only numbers > 0, numbers < 0, and strings are allowed."
            )  # fmt: skip
        elif not kind or math.isnan(kind):
            raise CommandError(67, "Values in the index key pattern cannot be 0.")
        if not path or path.startswith(".") or path.endswith(".") or ".." in path:
            raise CommandError(67, "Index keys cannot contain an empty field.")
        if path == "$**" or path.endswith(".$**"):
            raise CommandError(*UNSUPPORTED["$**"])
        if path.startswith("$"):
            raise CommandError(
                67, f"Index key contains an illegal field name: field name starts with '$'. Field: {path}"
            )


def _is_there(collection: Collection, spec: dict[str, Any], more: list[dict[str, Any]]) -> bool:
    """Whether the very same index exists; raises 85, 86 for one that is too much like it."""
    for existing in [*(index.spec for index in collection.indexes), *more]:
        same_key = list(existing["key"].items()) == list(spec["key"].items())
        same_name = existing["name"] == spec["name"]
        if same_key and spec["key"] == {"_id": 1}:
            return True
        if same_key and same_name and _comparable(existing) == _comparable(spec):
            return True
        if same_name:
            code = 86 if not same_key or _comparable(existing) != _comparable(spec) else 85
            raise CommandError(
                code,
                f"An existing index has the same name as the requested index, but is another: {spec['name']}",
            )
        if same_key and _identity(existing) == _identity(spec):
            raise CommandError(85, f"Index already exists with a different name: {existing['name']}")
    return False


def _comparable(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in ("v", "ns", "background")}


def _identity(spec: dict[str, Any]) -> Any:
    """What lets two indexes on one key live side by side: collation and partial filter."""
    return spec.get("collation"), spec.get("partialFilterExpression")


def list_indexes(context: CommandContext, request: Request) -> bytes:
    """listIndexes: a cursor over the specifications. Raises 26 without a collection, 166 for a view."""
    namespace = target(request)
    collection = context.view.collection(namespace)
    if collection is None:
        raise CommandError(26, f"ns does not exist: {namespace}")
    if collection.is_view:
        raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
    size = BATCH_SIZE.of(CURSOR.of(request.body))
    specs = iter([encode(index.spec) for index in collection.indexes])
    return open_cursor(context, request, namespace, specs, size, id_first=True)


def drop(context: CommandContext, request: Request) -> dict[str, Any]:
    """dropIndexes: by name, by key, or all but that on `_id`. Raises 26, 27, 72."""
    namespace = target(request)
    collection = writable(context, namespace)
    if collection is None:
        raise CommandError(26, f"ns not found {namespace}")
    wanted = INDEX.of(request.body)
    count = len(collection.indexes)
    if wanted == "*":
        for index in [item for item in collection.indexes if item.name != "_id_"]:
            catalog_changes.drop_index(context.txn, collection, index)
        return {"nIndexesWas": count, "msg": "non-_id indexes dropped for collection"}
    names = _distinct_names(wanted) if type(wanted) is list else [wanted]
    indexes = [_named(collection, name) for name in names]
    for index in indexes:
        catalog_changes.drop_index(context.txn, collection, index)
    return {"nIndexesWas": count}


def _distinct_names(names: list[Any]) -> list[str]:
    """The names, each once. Raises 14 for what is no name."""
    for name in names:
        if type(name) is not str:
            raise TYPES["string"].error("dropIndexes.index", name)
    return list(dict.fromkeys(names))


def _named(collection: Collection, wanted: Any) -> Any:
    if type(wanted) not in (str, dict):
        raise TYPES["string"].error("dropIndexes.index", wanted)
    for index in collection.indexes:
        if index.name == wanted or (type(wanted) is dict and index.spec["key"] == wanted):
            if index.name == "_id_":
                raise CommandError(72, "cannot drop _id index")
            return index
    if type(wanted) is dict:
        raise CommandError(27, f"can't find index with key: {wanted}")
    raise CommandError(27, f"index not found with name [{wanted}]")


_CREATE: Final = Fields(
    INDEXES, *without_effect("any", "commitQuorum"), *without_effect(
        "bool", "ignoreUnknownIndexOptions", "isTimeseriesNamespace", "returnOnStart"
    )
)  # fmt: skip
_DROP: Final = Fields(INDEX, *COLLECTION_UUID, *without_effect("bool", "isTimeseriesNamespace"))
_LIST: Final = Fields(
    CURSOR, *without_effect("bool", "includeBuildUUIDs", "includeIndexBuildInfo", "isTimeseriesNamespace")
)

COMMANDS: Final = (
    Command("createIndexes", create, _CREATE, pauses=True, writes=True, requires=on_collection("createIndex")),
    Command("dropIndexes", drop, _DROP, writes=True, aliases=("deleteIndexes",), requires=on_collection("dropIndex")),
    Command("listIndexes", list_indexes, _LIST, requires=on_collection("listIndexes")),
)
