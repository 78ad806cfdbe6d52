"""Unique indexes: their keys, and the refusal of a second document with the same.

    indexes   index number (4) + key of the values (4)   → record (8)

Rule: all keys of a document are checked before the first is put, so that a refused write changes nothing.
Source: MongoDB's rules for unique, sparse, partial and multikey indexes; error 11000 with `keyPattern` and
`keyValue`.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from headrace.errors import CommandError
from headrace.store.catalog import Collection, Index
from headrace.store.view import bounded_key
from headrace.values.bson import MISSING, decode
from headrace.values.keystring import encode_values
from headrace.values.shown import shown

if TYPE_CHECKING:
    from headrace.store.writes import WriteTransaction


def duplicate_id(collection: Collection, key_document: bytes) -> CommandError:
    return _duplicate(collection, "_id_", {"_id": 1}, decode(key_document))


def _duplicate(collection: Collection, name: str, pattern: dict[str, Any], value: dict[str, Any]) -> CommandError:
    message = f"E11000 duplicate key error collection: {collection.namespace} index: {name} dup key: {shown(value)}"
    return CommandError(11000, message, extra={"keyPattern": pattern, "keyValue": value})


def index_values(document: dict[str, Any], spec: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The value tuples under which the index holds the document: several where a path meets an array."""
    columns = [_values(document, path.split(".")) for path in spec["key"]]
    if sum(len(column) > 1 for column in columns) > 1:
        raise CommandError(171, "cannot index parallel arrays")
    return list(product(*columns))


def _values(value: Any, path: list[str]) -> list[Any]:
    """Every value at the path, arrays spread; [MISSING] where there is none, [None]-like for an empty array."""
    if not path:
        if isinstance(value, list):
            return list(value) or [None]
        return [value]
    if isinstance(value, dict):
        return _values(value[path[0]], path[1:]) if path[0] in value else [MISSING]
    if isinstance(value, list):
        if path[0].isdigit() and int(path[0]) < len(value):
            return _values(value[int(path[0])], path[1:])
        return [found for item in value if isinstance(item, dict) for found in _values(item, path)] or [MISSING]
    return [MISSING]


def _covers(index: Index, document: dict[str, Any], values: list[tuple[Any, ...]]) -> bool:
    """Whether a sparse or partial index holds the document at all."""
    if index.spec.get("sparse") and all(item is MISSING for row in values for item in row):
        return False
    if "partialFilterExpression" in index.spec:
        if index.partial is None:
            from headrace.query.match import parse_filter

            index.partial = parse_filter(index.spec["partialFilterExpression"])
        return bool(index.partial(document))
    return True


def _keys(index: Index, document: dict[str, Any]) -> dict[bytes, tuple[Any, ...]]:
    values = index_values(document, index.spec)
    if not _covers(index, document, values):
        return {}
    prefix = index.number.to_bytes(4, "big")
    keys = {}
    for row in values:
        plain = [None if item is MISSING else item for item in row]
        keys[bounded_key(prefix, encode_values(plain))] = tuple(plain)
    return keys


def keys_to_add(
    txn: WriteTransaction, collection: Collection, document: bytes, record: bytes | None
) -> list[bytes]:
    """Keys of a new document in all unique indexes; raises 11000 where one belongs to another record."""
    decoded = decode(document)
    added = []
    for index in collection.unique_indexes:
        for key, row in _keys(index, decoded).items():
            holder = txn.kv.get(key, db=txn.tables["indexes"])
            if holder is not None and bytes(holder) != record:
                raise _duplicate(collection, index.name, index.spec["key"], dict(zip(index.spec["key"], row)))
            added.append(key)
    return added


def change(txn: WriteTransaction, collection: Collection, record: bytes, old: bytes, new: bytes | None) -> None:
    """Move the keys of a record from `old` to `new` (None: the document goes)."""
    added = keys_to_add(txn, collection, new, record) if new is not None else []
    before = decode(old)
    for index in collection.unique_indexes:
        for key in _keys(index, before):
            txn.kv.delete(key, db=txn.tables["indexes"])
    for key in added:
        txn.kv.put(key, record, db=txn.tables["indexes"])


def build(txn: WriteTransaction, collection: Collection, index: Index) -> None:
    """Fill a new unique index; raises 11000 where two documents share a key, and then nothing is left of it."""
    made: dict[bytes, bytes] = {}
    for record, document in txn.scan(collection):
        for key, row in _keys(index, decode(document)).items():
            if made.get(key, record) != record:
                raise _duplicate(collection, index.name, index.spec["key"], dict(zip(index.spec["key"], row)))
            made[key] = record
    for key, record in made.items():
        txn.kv.put(key, record, db=txn.tables["indexes"])


def clear(txn: WriteTransaction, index: Index) -> None:
    """Remove every key of an index that is dropped."""
    prefix = index.number.to_bytes(4, "big")
    with txn.kv.cursor(txn.tables["indexes"]) as cursor:
        while cursor.set_range(prefix) and cursor.key()[:4] == prefix:
            cursor.delete()
