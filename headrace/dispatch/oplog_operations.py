"""Oplog entries in an `applyOps`, parsed. A command among the entries becomes an equivalent request.

    {op: "i" | "u" | "d" | "n", ns, o, [o2], [ui], [b]}     changes of documents; `ui` is the collection's UUID
    {op: "c", ns: "db.$cmd", o: {create: ..., ...}, [ui]}   a command, or `{applyOps: [...]}` with operations inside

In an oplog, views are documents of `system.views`. Changes of these documents become commands about views.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.dispatch.arguments import TYPES, Field, Fields, boolean, document, string
from headrace.dispatch.namespaces import COLLECTION_UUID
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.query.update.update import Update, UpdateContext
from headrace.query.update.update_parser import parse_entry
from headrace.store.catalog import Catalog, Collection
from headrace.values.bson import decode, encode, find_element, iter_elements, to_string
from headrace.values.position import to_timestamp

_DEPTH_MAX: Final = 10
"""MongoDB's limit on `applyOps` inside `applyOps`."""
_VIEWS: Final = ".system.views"


UUID: Final[Field[Any]] = Field("ui", "binData", None, check=COLLECTION_UUID.check)
UPSERT: Final = boolean("b")
OPERATION: Final = Fields(
    string("op", choices=("c", "d", "i", "n", "u"), required=True), string("ns", required=True), document("o"),
    document("o2"), UUID, UPSERT, strict=False,
)  # fmt: skip
"""The fields of an entry that are read. Others, such as drivers' sessions and times, have no effect."""


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """One parsed oplog entry, with its `o` both decoded and raw."""

    kind: str
    namespace: str
    o: dict[str, Any]
    raw_o: bytes
    key: Any
    """The `_id` of the changed document; None for a command."""
    uuid: bytes | None
    upserts: bool = False
    inner: tuple[LoggedOperation, ...] | None = None
    """The operations of an `applyOps`; None for other operations."""

    @property
    def database(self) -> str:
        """The database of the operation."""
        return self.namespace.partition(".")[0]

    @property
    def is_of_view(self) -> bool:
        """Whether the operation changes the definition of a view."""
        return self.kind in ("d", "i", "u") and self.namespace.endswith(_VIEWS)

    @property
    def is_of_views(self) -> bool:
        """Whether the operation creates or drops the collection `system.views`."""
        return self.kind == "c" and "system.views" in (self.o.get("create"), self.o.get("drop"))

    @property
    def update(self) -> Update:
        """The change of an update. Raises 9 or 4772600 if the change is not valid."""
        return parse_entry(self.o)


def operations_of(request: Request) -> tuple[LoggedOperation, ...]:
    """Return the operations of an `applyOps` request. Raise the error of any invalid operation."""
    element = find_element(request.raw, b"applyOps")
    assert element is not None
    return _parsed(request.raw[element[1] : element[2]], 1)


def _parsed(array: bytes, depth: int) -> tuple[LoggedOperation, ...]:
    if depth > _DEPTH_MAX:
        raise CommandError(9, "Too many nested applyOps")
    made = []
    for kind, index, low, high in list(iter_elements(array)):
        if kind != _DOCUMENT:
            raise CommandError(14, f"BSON field 'applyOps.{index.decode()}' is the wrong type, expected type 'object'")
        made.append(operation_of(array[low:high], depth))
    return tuple(made)


_ARRAY: Final = 0x04
_DOCUMENT: Final = 0x03


def operation_of(raw: bytes, depth: int = 0) -> LoggedOperation:
    """Parse one entry that is nested in `depth` `applyOps`. Raise an error if the entry is invalid."""
    item = decode(raw)
    OPERATION.check("applyOps", item)
    kind, namespace, o = item["op"], item["ns"], item.get("o")
    if kind == "n":
        return LoggedOperation(kind, namespace, {}, b"", None, None)
    database, _, name = namespace.partition(".")
    if not database or not name:
        raise CommandError(73, f"Invalid namespace specified '{namespace}'")
    if o is None:
        raise CommandError(4, f"the operation '{kind}' on {namespace} has no field 'o'")
    element = find_element(raw, b"o")
    assert element is not None
    raw_o = raw[element[1] : element[2]]
    uuid = None if item.get("ui") is None else bytes(item["ui"])
    if kind == "c":
        inner = None
        if next(iter(o), "") == "applyOps":
            if type(o["applyOps"]) is not list:
                raise TYPES["array"].error("applyOps.o.applyOps", o["applyOps"])
            array = find_element(raw_o, b"applyOps")
            assert array is not None
            inner = _parsed(raw_o[array[1] : array[2]], depth + 1)
        return LoggedOperation(kind, namespace, o, raw_o, None, uuid, inner=inner)
    keyed = item.get("o2") if kind == "u" else o
    if keyed is None or "_id" not in keyed:
        raise CommandError(4, f"the operation '{kind}' on {namespace} does not say the _id of its document")
    return LoggedOperation(kind, namespace, o, raw_o, keyed["_id"], uuid, UPSERT.of(item))


def leaves(operations: tuple[LoggedOperation, ...]) -> Iterator[LoggedOperation]:
    """Yield the operations, with each `applyOps` replaced by the operations inside."""
    for operation in operations:
        if operation.inner is None:
            yield operation
        else:
            yield from leaves(operation.inner)


def located(catalog: Catalog, namespace: str, uuid: bytes | None) -> Collection | None:
    """Return the collection of an operation: by its UUID, if any, whatever the current name; otherwise by name."""
    collection = catalog.collections.get(namespace)
    if uuid is None or (collection is not None and collection.uuid == uuid):
        return collection
    return next((item for item in catalog.collections.values() if item.uuid == uuid), None)


def command_of(operation: LoggedOperation, catalog: Catalog, request: Request) -> Request:
    """Return the request equivalent to a `c` operation or a change of a view. Raise 9 or 115 if there is none."""
    if operation.is_of_view:
        body = _of_view(operation, catalog)
        name, database = next(iter(body)), operation.database
    else:
        name, database, body = _command(operation, catalog)
    body["$db"] = database
    return Request(name, database, encode(body), {}, request.client, body)


def renaming_of(operation: LoggedOperation, catalog: Catalog, request: Request) -> Request | None:
    """Return the rename that a `create` means if its UUID belongs to a collection of another name; otherwise None."""
    namespace = f"{operation.database}.{operation.o.get('create')}"
    there = None if operation.uuid is None else located(catalog, namespace, operation.uuid)
    if there is None or there.namespace == namespace:
        return None
    body = {"renameCollection": there.namespace, "to": namespace, "$db": "admin"}
    return Request("renameCollection", "admin", encode(body), {}, request.client, body)


def _command(operation: LoggedOperation, catalog: Catalog) -> tuple[str, str, dict[str, Any]]:
    name = next(iter(operation.o), "")
    rest = {field: value for field, value in operation.o.items() if field not in (name, *_INTERNAL)}
    if name in _REFUSED:
        raise CommandError(115, f"The {name} operation is not supported in applyOps mode")
    command = _COMMANDS.get(name)
    if command is None:
        raise CommandError(9, f"Unrecognized command in op: {name}")
    database, about = operation.database, operation.o[name]
    if command in ("create", "dropDatabase"):
        return command, database, {command: about, **rest}
    if type(about) is not str:
        raise TYPES["string"].error(f"applyOps.o.{name}", about)
    source = about if command == "renameCollection" else f"{database}.{about}"
    if operation.uuid is not None:
        collection = located(catalog, source, operation.uuid)
        if collection is None:
            raise CommandError(26, f"there is no collection with the UUID of the operation on {source}")
        source = collection.namespace
    if command == "renameCollection":
        dropping = {"dropTarget": True} if rest.get("dropTarget") else {}
        return command, "admin", {command: source, "to": rest.get("to"), **dropping}
    database, _, about = source.partition(".")
    if command == "createIndexes":
        return command, database, {command: about, "indexes": [{"collation": {"locale": "simple"}, **rest}]}
    return command, database, {command: about, **rest}


_COMMANDS: Final = {
    "collMod": "collMod",
    "convertToCapped": "convertToCapped",
    "create": "create",
    "createIndexes": "createIndexes",
    "deleteIndex": "dropIndexes",
    "deleteIndexes": "dropIndexes",
    "drop": "drop",
    "dropDatabase": "dropDatabase",
    "dropIndex": "dropIndexes",
    "dropIndexes": "dropIndexes",
    "renameCollection": "renameCollection",
}
"""The commands in an oplog, and the equivalent commands of clients."""
_INTERNAL: Final = ("recordIdsReplicated", "temp")
_REFUSED: Final = frozenset({"abortIndexBuild", "commitIndexBuild", "startIndexBuild"})


def _of_view(operation: LoggedOperation, catalog: Catalog) -> dict[str, Any]:
    """Return the body of the command that makes the same change to a view as this change of `system.views`."""
    namespace = operation.key
    if type(namespace) is not str or not namespace.startswith(f"{operation.database}."):
        raise CommandError(73, f"the _id of a view's document must be its namespace, not {to_string(namespace)}")
    name = namespace.partition(".")[2]
    if operation.kind == "d":
        return {"drop": name}
    there = catalog.collections.get(namespace)
    new = operation.o
    if operation.kind == "u":
        old = {"_id": namespace, **(there.options if there is not None else {})}
        new = operation.update.apply(old, UpdateContext(0, to_timestamp(0))).document
    definition = {field: value for field, value in new.items() if field != "_id"}
    if there is None:
        return {"create": name, **definition}
    definition.pop("collation", None)  # a view's collation never changes
    return {"collMod": name, **definition}


def changed_namespaces(request: Request, catalog: Catalog) -> list[str]:
    """Return the collections whose catalog entries the operations change. A name with a final dot is a database."""
    changed: list[str] = []
    for operation in leaves(operations_of(request)):
        if operation.is_of_view:
            changed.append(str(operation.key))
        elif operation.kind == "c":
            changed += _changed(operation, catalog)
    return changed


def _changed(operation: LoggedOperation, catalog: Catalog) -> list[str]:
    name, about = next(iter(operation.o.items()), ("", None))
    if name == "dropDatabase" or operation.is_of_views:
        return [f"{operation.database}."]
    named = (
        [str(about), str(operation.o.get("to"))] if name == "renameCollection" else [f"{operation.database}.{about}"]
    )
    collection = None if operation.uuid is None else located(catalog, named[0], operation.uuid)
    return named if collection is None else [*named, collection.namespace]
