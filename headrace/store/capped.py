"""Capped collections: the oldest documents make room for the newest.

These deletions have no oplog entry and no event, as in MongoDB, where every member of a set caps by itself.
"""

from __future__ import annotations

from headrace.store import unique
from headrace.store.catalog import Collection
from headrace.store.checksums.transaction import DamagedValue
from headrace.store.identity import identify
from headrace.store.view import bounded_key
from headrace.store.write_transaction import WriteTransaction


def enforce(txn: WriteTransaction, collection: Collection) -> None:
    """Delete the oldest documents until the collection is within its `max` documents and `size` bytes."""
    if not collection.options.get("capped"):
        return
    count_max = int(collection.options.get("max", 0)) or None
    bytes_max = int(collection.options.get("size", 0)) or None
    sizes = [(record, len(_document(txn, collection, record) or b"")) for record in txn.records(collection)]
    total = sum(size for _, size in sizes)
    for removed, (record, size) in enumerate(sizes):
        over_count = count_max is not None and len(sizes) - removed > count_max
        over_bytes = bytes_max is not None and total > bytes_max
        if not (over_count or over_bytes) or removed == len(sizes) - 1:
            return
        _remove(txn, collection, record)
        total -= size


def _remove(txn: WriteTransaction, collection: Collection, record: bytes) -> None:
    document = _document(txn, collection, record)
    if document is not None:
        if collection.unique_indexes:
            unique.change(txn, collection, record, document, None)
        txn.kv.delete(bounded_key(collection.number_key, identify(document)[0]), db=txn.tables["ids"])
    txn.kv.delete(collection.number_key + record, db=txn.tables["documents"])
    txn.add_count(collection, -1, record)


def _document(txn: WriteTransaction, collection: Collection, record: bytes) -> bytes | None:
    """The document of a record; None for one that is damaged, which makes room with the keys that lead to it left."""
    try:
        return txn.by_record(collection, record)
    except DamagedValue:
        return None
