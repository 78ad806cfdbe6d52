"""The namespace a command is about, checked as MongoDB checks it; and the raw documents it carries.

Source: MongoDB's restrictions on names; codes as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.commands.request import Request
from headrace.errors import CommandError
from headrace.query.expressions.numbers import NUMBERS, to_long, truthy
from headrace.store.catalog import Collection
from headrace.values.bson import MISSING, find_element, iter_elements, type_name

if TYPE_CHECKING:
    from headrace.commands.engine import Engine

OPLOG: Final = "local.oplog.rs"
PRE_IMAGES: Final = "config.system.preimages"
_DATABASE_REFUSED: Final = frozenset('/\\. "$\x00')


def check_database(name: str) -> str:
    if not name or len(name.encode()) > limits.DATABASE_NAME_BYTES_MAX or _DATABASE_REFUSED & set(name):
        raise CommandError(73, f"Invalid database name: '{name}'")
    return name


@lru_cache(4096)
def check_namespace(namespace: str) -> str:
    """`db.coll`, or error 73."""
    database, _, name = namespace.partition(".")
    check_database(database)
    if not name or name.startswith(".") or name.endswith(".") or "\x00" in name:
        raise CommandError(73, f"Invalid namespace specified '{namespace}'")
    if len(namespace.encode()) > limits.NAMESPACE_BYTES_MAX:
        raise CommandError(
            73, f"Fully qualified namespace is too long. Namespace: {namespace} Max: {limits.NAMESPACE_BYTES_MAX}"
        )
    return namespace


def target(request: Request) -> str:
    """The namespace that a command's first field names: `{find: "coll"}` on a database."""
    name = request.body[request.name]
    if type(name) is not str:
        raise CommandError(2, f"collection name has invalid type {type_name(name)}")
    return check_namespace(f"{request.db}.{name}")


def for_writing(engine: Engine, namespace: str) -> None:
    """Refuse what no client may write: the oplog, and the tables that only look like collections."""
    if "$" in namespace:
        raise CommandError(73, f"Invalid collection name: {namespace.partition('.')[2]}")
    if namespace in (OPLOG, PRE_IMAGES):
        raise CommandError(13, f"not authorized on {namespace.partition('.')[0]} to write to {namespace}")
    if namespace.endswith(".system.views"):
        raise CommandError(73, f"cannot write to '{namespace}'; use create, collMod and drop with the view's name")


def writable(engine: Engine, namespace: str) -> Collection | None:
    """The collection to write to, None if it is not there yet; 166 for a view."""
    for_writing(engine, namespace)
    collection = engine.view.collection(namespace)
    if collection is not None and collection.is_view:
        raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
    return collection


def refused(collection: Collection | None, count: int, *, ordered: bool) -> list[dict[str, Any]] | None:
    """The `writeErrors` of a write to a view: one, or one for each statement; None for a collection."""
    if collection is None or not collection.is_view:
        return None
    error = CommandError(166, f"Namespace {collection.namespace} is a view, not a collection")
    return write_errors([(index, error) for index in range(1 if ordered else count)])


def raw_documents(request: Request, field: str) -> list[bytes]:
    """The documents of a write, raw: a kind-1 section's, or those of the array in the body."""
    found = request.sequences.get(field)
    if found is None:
        place = find_element(request.raw, field.encode())
        if place is None:
            raise CommandError(40414, f"BSON field '{request.name}.{field}' is missing but a required field")
        kind, start, _ = place
        if kind != 0x04:
            value = request.body.get(field, MISSING)
            raise CommandError(
                14, f"BSON field '{request.name}.{field}' is the wrong type '{type_name(value)}', expected type 'array'"
            )
        found = []
        for kind, name, low, high in iter_elements(request.raw, start):
            if kind != 0x03:
                place_name = f"{request.name}.{field}.{name.decode()}"
                raise CommandError(14, f"BSON field '{place_name}' is the wrong type, expected type 'object'")
            found.append(request.raw[low:high])
    if not 1 <= len(found) <= limits.WRITE_BATCH_COUNT_MAX:
        raise CommandError(
            16,
            f"Write batch sizes must be between 1 and {limits.WRITE_BATCH_COUNT_MAX}. Got {len(found)} operations.",
        )
    return found


def flag(body: dict[str, Any], name: str, default: bool, command: str) -> bool:
    """A boolean field as MongoDB takes it: true, false, or a number."""
    value = body.get(name, default)
    if value is None:
        return default
    if type(value) is bool:
        return value
    if type(value) in NUMBERS:
        return truthy(value)
    raise CommandError(
        14, f"BSON field '{command}.{name}' is the wrong type '{type_name(value)}', expected type 'bool'"
    )


def object_field(body: dict[str, Any], name: str, command: str) -> dict[str, Any]:
    """A field that must be a document; {} where it is absent."""
    value = body.get(name)
    if value is None:
        return {}
    if type(value) is not dict:
        raise CommandError(
            14, f"BSON field '{command}.{name}' is the wrong type '{type_name(value)}', expected type 'object'"
        )
    return value


def whole_number(body: dict[str, Any], name: str, command: str) -> int | None:
    """A field that must be a number, cut to one that fits 64 bits (a NaN to 0); None where it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) not in NUMBERS:
        raise CommandError(
            14,
            f"BSON field '{command}.{name}' is the wrong type '{type_name(value)}', "
            "expected types '[long, int, decimal, double']",
        )
    return to_long(value)


def write_errors(failures: Sequence[tuple[int, CommandError]]) -> list[dict[str, Any]]:
    """The `writeErrors` of a reply: (index of the statement, what went wrong) in order."""
    return [{"index": index, "code": error.code, **error.extra, "errmsg": error.message} for index, error in failures]
