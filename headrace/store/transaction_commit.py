"""The commit of a client's transaction: its writes into the tables, and one entry into the oplog.

    {lsid, txnNumber, op: "c", ns: "admin.$cmd", o: {applyOps: [...]}, ts, t, v, wall, prevOpTime}
    above 16 MiB a chain:  applyOps + partialTxn: true ... ← prevOpTime ← applyOps + count

Rule: nothing can stand against a commit. What it writes it has locked since the statement that wrote it, and a
conflict has been answered to that statement. The provisional records and numbers become real ones here, in the
order of the statements, so that documents come to stand in natural order at the time of the commit.
"""

from __future__ import annotations

from typing import Final

from headrace import limits
from headrace.store import entries, images
from headrace.store.buffered import RECORD_START
from headrace.store.catalog import Collection, Index
from headrace.store.transaction import ClientTransaction, Operation
from headrace.store.writes import WriteTransaction

PROVISIONAL: Final = RECORD_START.to_bytes(8, "big")


def commit(txn: WriteTransaction, transaction: ClientTransaction, lsid: bytes) -> None:
    """Write everything; the transaction has ended once `txn` is published, and goes on if `txn` is given up.

    `lsid` is the raw document of the entry.
    """
    numbers: dict[bytes, bytes] = {}
    for made in transaction.created.values():
        _create(txn, made, numbers)
    collections = {key: txn.catalog.collections[name] for name, key in transaction.touched.items()}
    collections |= {made.number_key: txn.catalog.collections[name] for name, made in transaction.created.items()}
    records = _records(txn, transaction, collections)
    _write(txn, transaction, collections, numbers, records)
    if transaction.operations:
        _log(txn, transaction, entries.session_head(lsid, transaction.number))
    transaction.committing = txn
    txn.commits.append(transaction)


def _create(txn: WriteTransaction, made: Collection, numbers: dict[bytes, bytes]) -> None:
    """Make a collection of the transaction with its indexes; `numbers` gets the real ones of the provisional."""
    catalog = txn.catalog
    real = catalog.create(txn.kv, made.namespace, made.kind, made.options, None, uuid=made.uuid)
    numbers[made.number_key] = real.number_key
    indexes = [Index(catalog.new_number(txn.kv), index.spec) for index in made.indexes]
    for index, provisional in zip(indexes, made.indexes):
        numbers[provisional.number.to_bytes(4, "big")] = index.number.to_bytes(4, "big")
    real.set_indexes(indexes)
    catalog.save(txn.kv, real)


def _records(
    txn: WriteTransaction, transaction: ClientTransaction, collections: dict[bytes, Collection]
) -> dict[bytes, bytes]:
    """The real record of every provisional one, in the order in which they were inserted."""
    documents, values = txn.tables["documents"], transaction.overlay.values
    records: dict[bytes, bytes] = {}
    for (table, prefix), order in transaction.overlay.order.items():
        if table != "documents":
            continue
        for key in order.walk(None, backward=False):
            if key[4:] >= PROVISIONAL and values[(documents, key)] is not None:
                records[key[4:]] = txn.next_record(collections[prefix]).to_bytes(8, "big")
    return records


def _write(
    txn: WriteTransaction, transaction: ClientTransaction, collections: dict[bytes, Collection],
    numbers: dict[bytes, bytes], records: dict[bytes, bytes],
) -> None:  # fmt: skip
    """Put what the transaction wrote into the tables; what it made and removed again leaves nothing."""
    documents, kv = txn.tables["documents"], txn.kv
    for (db, key), value in transaction.overlay.values.items():
        prefix, rest = numbers.get(key[:4], key[:4]), key[4:]
        if db is not documents:
            if value is None:
                kv.delete(prefix + rest, db=db)
            else:
                kv.put(prefix + rest, records.get(value, value), db=db)
        elif value is not None:
            kv.put(prefix + records.get(rest, rest), value, db=db)
            if rest in records:
                txn.counted(collections[key[:4]], 1)
        elif rest < PROVISIONAL:
            kv.delete(key, db=db)
            txn.counted(collections[key[:4]], -1)


def _log(txn: WriteTransaction, transaction: ClientTransaction, head: bytes) -> None:
    """The entry, or a chain of them. Streams find the last, under every namespace, and the others from there."""
    parts = _parts(transaction.operations)
    first = txn.reserve(len(parts))
    for place, part in enumerate(parts):
        position, is_last = first + place, place == len(parts) - 1
        items = [operation.item for operation in part]
        count = len(transaction.operations) if is_last and len(parts) > 1 else None
        previous = position - 1 if place else 0
        entry = entries.transaction_entry(
            head, items, position, txn.wall_ms, previous=previous, partial=not is_last, count=count
        )
        topics = tuple(dict.fromkeys(operation.topic for operation in transaction.operations)) if is_last else ()
        txn.log(position, entry, topics)
        for index, operation in enumerate(part):
            if operation.image is not None:
                images.put(txn, operation.image[0], position, index, txn.wall_ms, operation.image[1])


def _parts(operations: list[Operation]) -> list[list[Operation]]:
    """The operations, cut so that no entry is larger than a document may be; a single one may be a little larger."""
    parts: list[list[Operation]] = []
    size = limits.DOCUMENT_BYTES_MAX
    for operation in operations:
        size += len(operation.item) + entries.ARRAY_ELEMENT_BYTES_MAX
        if size > limits.DOCUMENT_BYTES_MAX:
            parts.append([])
            size = len(operation.item) + entries.ARRAY_ELEMENT_BYTES_MAX
        parts[-1].append(operation)
    return parts
