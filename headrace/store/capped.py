"""Capped collections: the oldest documents make room for the newest.

These deletions have no oplog entry and no event, as in MongoDB, where every member of a set caps by itself. What a
capped collection holds is measured once, by reading it, and then counted with each change.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from headrace import limits
from headrace.store.catalog import CappedSize, Collection
from headrace.store.checksums.transaction import DamagedValue
from headrace.store.identity import identify
from headrace.store.indexes import index_entries
from headrace.store.view import View, bounded_key

if TYPE_CHECKING:
    from headrace.store.write_transaction import WriteTransaction


def measure_on(view: View, collection: Collection, count_max: int = limits.CAPPED_PIECE_COUNT) -> bool:
    """Measure up to so many documents more; whether all are measured, as in a collection that is not capped."""
    capped = collection.capped
    if capped is None or capped.measured:
        return True
    records = list(islice(view.records(collection, after=capped.through or None), count_max))
    for record in records:
        capped.size += _size(view, collection, record)
    capped.count += len(records)
    if records:
        capped.through = records[-1]
    capped.measured = len(records) < count_max
    return capped.measured


def inserted(txn: WriteTransaction, collection: Collection, capped: CappedSize, size: int) -> None:
    """A document of `size` bytes is new: make some room for it. The rest of a long way is for `make_room`, in turns."""
    if capped.measured:
        capped.count += 1
        capped.size += size
    make_room(txn, collection)


def changed(capped: CappedSize, record: bytes, size: int, count: int = 0) -> None:
    """A document has grown by `size` bytes, or is gone with `count` -1."""
    if capped.measured or record <= capped.through:
        capped.size += size
        capped.count += count


def make_room(txn: WriteTransaction, collection: Collection) -> bool:
    """Delete some of the oldest documents while the collection exceeds its limits; whether it still does.

    The newest stays, whatever its size. A collection that is not measured yet is left as it is.
    """
    capped = collection.capped
    if capped is None or not capped.measured or not _exceeds(capped):
        return False
    count_max = min(limits.CAPPED_PIECE_COUNT, capped.count - 1)
    for record in list(islice(txn.records(collection), count_max)):
        _remove(txn, collection, capped, record)
        if not _exceeds(capped):
            return False
    return True


def _exceeds(capped: CappedSize) -> bool:
    return capped.count > 1 and (
        (capped.count_max is not None and capped.count > capped.count_max)
        or (capped.bytes_max is not None and capped.size > capped.bytes_max)
    )


def _remove(txn: WriteTransaction, collection: Collection, capped: CappedSize, record: bytes) -> None:
    document = _document(txn, collection, record)
    if document is not None:
        if collection.maintained:
            index_entries.change(txn, collection, record, document, None)
        txn.kv.delete(bounded_key(collection.number_key, identify(document)[0]), db=txn.tables["ids"])
    txn.kv.delete(collection.number_key + record, db=txn.tables["documents"])
    txn.add_count(collection, -1, record)
    changed(capped, record, -len(document or b""), -1)


def _size(view: View, collection: Collection, record: bytes) -> int:
    return len(_document(view, collection, record) or b"")


def _document(view: View, collection: Collection, record: bytes) -> bytes | None:
    """The document of a record; None for one that is damaged, which makes room with the keys that lead to it left."""
    try:
        return view.by_record(collection, record)
    except DamagedValue:
        return None
