"""Capped collections: the oldest documents make room for the newest.

These deletions have no oplog entry and no event, as in MongoDB, where each member of a set caps by itself. The
documents of a capped collection and their bytes are counted once by reading them (`View.count_on`), then with each
change.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from headrace import limits
from headrace.store.catalog import CappedLimits, Collection
from headrace.store.checksums.transaction import DamagedValue
from headrace.store.identity import identify
from headrace.store.indexes import index_entries
from headrace.store.state import DocumentCount
from headrace.store.view import View, bounded_key

if TYPE_CHECKING:
    from headrace.store.write_transaction import WriteTransaction


def measure_on(view: View, collection: Collection, count_max: int = limits.CAPPED_PIECE_COUNT) -> bool:
    """Measure up to `count_max` more documents; return whether all are measured."""
    if collection.capped is not None and not view.is_counted(collection):
        view.count_on(collection, count_max)
        return view.is_counted(collection)
    return True


def make_room(txn: WriteTransaction, collection: Collection) -> bool:
    """Delete some of the oldest documents while the collection exceeds its limits; return whether it still does.

    The newest document stays, whatever its size. A collection that is not measured yet is not changed.
    """
    capped, count = collection.capped, txn.known_count(collection)
    if capped is None or count is None or count.through is not None or not _exceeds(capped, count):
        return False
    count_max = min(limits.CAPPED_PIECE_COUNT, count.documents - 1)
    records = list(islice(txn.records(collection), count_max))
    for record in records:
        _remove(txn, collection, record)
        left = txn.known_count(collection)
        if left is None or not _exceeds(capped, left):
            return False
    return bool(records)  # none is left if the count is wrong


def _exceeds(capped: CappedLimits, count: DocumentCount) -> bool:
    return count.documents > 1 and (
        (capped.count_max is not None and count.documents > capped.count_max)
        or (capped.bytes_max is not None and count.size > capped.bytes_max)
    )


def _remove(txn: WriteTransaction, collection: Collection, record: bytes) -> None:
    document = _document(txn, collection, record)
    if document is not None:
        if collection.maintained:
            index_entries.change(txn, collection, record, document, None)
        txn.kv.delete(bounded_key(collection.number_key, identify(document)[0]), db=txn.tables["ids"])
    txn.kv.delete(collection.number_key + record, db=txn.tables["documents"])
    txn.add_count(collection, -1, -len(document or b""), record)


def _document(view: View, collection: Collection, record: bytes) -> bytes | None:
    """Return the document of a record; None for a damaged document, which is deleted without its index entries."""
    try:
        return view.by_record(collection, record)
    except DamagedValue:
        return None
