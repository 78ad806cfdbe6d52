"""Unique indexes: their keys, and the refusal of a second document with the same.

    indexes   index number (4) + key of the values (4)   → record (8)

Rule: all keys of a document are checked before the first is put, so that a refused write changes nothing.
Source: MongoDB's rules for unique, sparse, partial and multikey indexes; error 11000 with `keyPattern` and
`keyValue`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import CommandError
from headrace.store.catalog import Collection, Index
from headrace.store.index_keys import UNDEFINED, Row, index_rows
from headrace.store.view import bounded_key
from headrace.turns import uninterrupted
from headrace.values.bson import MISSING, decode
from headrace.values.bson.to_string import to_string
from headrace.values.keystring import encode_element, encode_value

if TYPE_CHECKING:
    from headrace.store.write_transaction import WriteTransaction

_UNDEFINED_KEY: Final = encode_element(0x06, b"")


def duplicate_id(collection: Collection, key_document: bytes) -> CommandError:
    """Error 11000 for a second document with this `_id`; `key_document` is the raw `{_id}`."""
    return _duplicate(collection, "_id_", {"_id": 1}, decode(key_document))


def _duplicate(collection: Collection, name: str, pattern: dict[str, Any], value: dict[str, Any]) -> CommandError:
    message = f"E11000 duplicate key error collection: {collection.namespace} index: {name} dup key: {to_string(value)}"
    return CommandError(11000, message, extra={"keyPattern": pattern, "keyValue": value})


def _covers(index: Index, document: dict[str, Any]) -> bool:
    """Whether a partial index holds the document at all."""
    if "partialFilterExpression" in index.spec:
        if index.partial is None:
            from headrace.query.match import parse_filter

            index.partial = parse_filter(index.spec["partialFilterExpression"])
        return bool(index.partial(document))
    return True


def keys_of(index: Index, document: dict[str, Any]) -> dict[bytes, tuple[Any, ...]]:
    """The keys of a document in one index, each with its values; those without any value are not in a sparse one."""
    if not _covers(index, document):
        return {}
    prefix, sparse = index.number.to_bytes(4, "big"), index.spec.get("sparse")
    fold = _folder(index)
    keys = {}
    for row in index_rows(document, index.spec["key"]):
        if sparse and all(item is MISSING for item in row):
            continue
        plain = tuple(None if item is MISSING or item is UNDEFINED else item for item in row)
        key = b"".join([_UNDEFINED_KEY if item is UNDEFINED else encode_value(fold(item)) for item in _nulled(row)])
        keys[bounded_key(prefix, key)] = plain
    return keys


def _folder(index: Index) -> Callable[[Any], Any]:
    """What makes strings that the index's collation calls equal the same string; nothing, for the simple one."""
    spec = index.spec.get("collation")
    if spec is None:
        return lambda value: value
    from headrace.query.collation import parse_collation

    collation = parse_collation(spec)
    if collation is None:
        return lambda value: value

    def fold(value: Any) -> Any:
        if type(value) is str:
            return repr(collation.key(value))
        if type(value) is dict:
            return {name: fold(item) for name, item in value.items()}
        return [fold(item) for item in value] if type(value) is list else value

    return fold


def _nulled(row: Row) -> list[Any]:
    return [None if item is MISSING else item for item in row]


@uninterrupted()
def keys_to_add(txn: WriteTransaction, collection: Collection, document: bytes, record: bytes | None) -> list[bytes]:
    """Keys of a new document in all unique indexes; raises 11000 where one belongs to another record."""
    decoded = decode(document)
    added = []
    for index in collection.unique_indexes:
        for key, row in keys_of(index, decoded).items():
            holder = txn.kv.get(key, db=txn.tables["indexes"])
            if holder is not None and holder != record:
                raise _duplicate(collection, index.name, index.spec["key"], dict(zip(index.spec["key"], row)))
            added.append(key)
    return added


@uninterrupted()
def change(txn: WriteTransaction, collection: Collection, record: bytes, old: bytes, new: bytes | None) -> None:
    """Move the keys of a record from `old` to `new` (None: the document goes)."""
    added = keys_to_add(txn, collection, new, record) if new is not None else []
    before = decode(old)
    for index in collection.unique_indexes:
        for key in keys_of(index, before):
            if not index.building or txn.kv.get(key, db=txn.tables["indexes"]) == record:
                txn.kv.delete(key, db=txn.tables["indexes"])
    for key in added:
        txn.kv.put(key, record, db=txn.tables["indexes"])


def build(txn: WriteTransaction, collection: Collection, index: Index) -> None:
    """Fill a new unique index; raises 11000 where two documents share a key, and then nothing is left of it."""
    made: dict[bytes, bytes] = {}
    for record, document in txn.scan(collection):
        for key, row in keys_of(index, decode(document)).items():
            if made.get(key, record) != record:
                raise _duplicate(collection, index.name, index.spec["key"], dict(zip(index.spec["key"], row)))
            made[key] = record
    for key, record in made.items():
        txn.kv.put(key, record, db=txn.tables["indexes"])


def add(txn: WriteTransaction, collection: Collection, index: Index, record: bytes, document: bytes) -> None:
    """Put the keys of one document into an index that is being built; raises 11000 where another has one of them."""
    for key, row in keys_of(index, decode(document)).items():
        holder = txn.kv.get(key, db=txn.tables["indexes"])
        if holder is None:
            txn.kv.put(key, record, db=txn.tables["indexes"])
        elif holder != record:
            raise _duplicate(collection, index.name, index.spec["key"], dict(zip(index.spec["key"], row)))


def clear(txn: WriteTransaction, index: Index) -> None:
    """Remove every key of an index that is dropped."""
    prefix = index.number.to_bytes(4, "big")
    with txn.kv.cursor(txn.tables["indexes"]) as cursor:
        while cursor.set_range(prefix) and cursor.key()[:4] == prefix:
            cursor.delete()
