"""The commit of a client's transaction: its writes go into the tables, and one entry into the oplog.

    {lsid, txnNumber, op: "c", ns: "admin.$cmd", o: {applyOps: [...]}, ts, t, v, wall, prevOpTime}
    above 16 MiB, a chain: applyOps + partialTxn: true ... ← prevOpTime ← applyOps + count

Rule: a commit cannot be refused. Each statement locks the keys it writes, and reports conflicts as its own errors. The
commit replaces provisional records and numbers by real ones, in the order of the statements. So the natural order of
the documents is the order of commits.
"""

from __future__ import annotations

from typing import Final

from headrace import limits
from headrace.store import entries, pre_images
from headrace.store.catalog import Collection, Index
from headrace.store.client_transaction import AppliedOperation, ClientTransaction
from headrace.store.indexes import index_entries
from headrace.store.indexes.index_keys import NO_TRAITS
from headrace.store.kv import Table
from headrace.store.transaction_registry import RECORD_START
from headrace.store.write_transaction import WriteTransaction

PROVISIONAL: Final = RECORD_START.to_bytes(8, "big")


def commit(txn: WriteTransaction, transaction: ClientTransaction, lsid: bytes) -> None:
    """Write the whole transaction. It ends when `txn` is published, and stays open if `txn` is abandoned.

    `lsid` is the raw document of the entry.
    """
    numbers: dict[bytes, bytes] = {}
    for made in transaction.created.values():
        for provisional in (made.number, *(index.number for index in made.indexes)):
            numbers[_key(provisional)] = _key(txn.catalog.new_number(txn.kv))
    collections = _collections(txn, transaction, numbers)
    records = _records(txn, transaction, collections)
    _write(txn, transaction, collections, numbers, records)
    if transaction.operations:
        _log(txn, transaction, entries.session_head(lsid, transaction.number))
    _end(txn, transaction)


def _end(txn: WriteTransaction, transaction: ClientTransaction) -> None:
    for made in transaction.created.values():
        txn.catalog_changes.append((made.database, {"create": made.name}))
        for index in made.indexes:
            if not index.is_of_id:
                txn.catalog_changes.append((made.database, {"createIndexes": made.name, **index.spec}))
    transaction.committing = txn
    txn.commits.append(transaction)


def _key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _collections(
    txn: WriteTransaction, transaction: ClientTransaction, numbers: dict[bytes, bytes]
) -> dict[bytes, Collection]:
    """Return the transaction's collections by number key; a collection that it created has a provisional number.

    `numbers`: real number keys by provisional ones. The traits of new documents are saved in the catalog.
    """
    touched = [(key, txn.catalog.collections.get(name)) for name, key in transaction.touched.items()]
    collections = {key: there for key, there in touched if there is not None}  # a view that it read may be gone
    for made in transaction.created.values():
        collections[made.number_key] = _create(txn, made, numbers)
    for key, collection in collections.items():
        for index in collection.maintained if transaction.traits else ():
            index_entries.note_traits(txn, collection, index, transaction.traits.get(index.number, NO_TRAITS))
        if collection.number in transaction.long_ids:
            txn.catalog.set_long_ids(txn.kv, collection)
        collections[key] = txn.catalog.current(collection)
    return collections


def _create(txn: WriteTransaction, made: Collection, numbers: dict[bytes, bytes]) -> Collection:
    """Create a collection of the transaction with its indexes."""
    catalog = txn.catalog
    number = int.from_bytes(numbers[made.number_key], "big")
    indexes = tuple(
        Index(int.from_bytes(numbers[_key(index.number)], "big"), index.spec, index.traits) for index in made.indexes
    )
    real = catalog.create(
        txn.kv, made.namespace, made.kind, made.options, None, uuid=made.uuid, number=number, indexes=indexes
    )
    return real if not made.long_ids else catalog.save(txn.kv, real.changed(long_ids=True))


def _records(
    txn: WriteTransaction, transaction: ClientTransaction, collections: dict[bytes, Collection]
) -> dict[bytes, bytes]:
    """Return the real record of each provisional record, in the order of insertion."""
    documents, values = txn.tables["documents"], transaction.overlay.values
    records: dict[bytes, bytes] = {}
    for prefix, keys in transaction.overlay.changed.by_collection(documents):
        for key in keys:
            if key[4:] >= PROVISIONAL and values[(documents, key)] is not None:
                records[key[4:]] = txn.next_record(collections[prefix]).to_bytes(8, "big")
    return records


def _write(
    txn: WriteTransaction, transaction: ClientTransaction, collections: dict[bytes, Collection],
    numbers: dict[bytes, bytes], records: dict[bytes, bytes],
) -> None:  # fmt: skip
    """Put the writes into the tables, without documents that the transaction both inserted and deleted."""
    documents, kv = txn.tables["documents"], txn.kv
    puts: dict[Table, list[tuple[bytes, bytes]]] = {}
    _change_built(txn, transaction, collections)
    for (db, key), value in transaction.overlay.values.items():
        prefix, rest = numbers.get(key[:4], key[:4]), key[4:]
        if db is not documents:
            if value is None:
                kv.delete(prefix + rest, db=db)
            else:
                if not value and rest[-8:] in records:  # an index entry, which ends with the record
                    rest = rest[:-8] + records[rest[-8:]]
                puts.setdefault(db, []).append((prefix + rest, records.get(value, value)))
        elif value is not None:
            puts.setdefault(db, []).append((prefix + records.get(rest, rest), value))
            if rest in records:
                txn.add_count(collections[key[:4]], 1)
        elif rest < PROVISIONAL:
            kv.delete(key, db=db)
            txn.add_count(collections[key[:4]], -1, removed=rest)
    for db, items in puts.items():
        items.sort()
        with kv.cursor(db) as cursor:
            cursor.put_many(*zip(*items))


def _change_built(
    txn: WriteTransaction, transaction: ClientTransaction, collections: dict[bytes, Collection]
) -> None:  # fmt: skip
    """Change the entries of changed documents in indexes that are being built, and note where they have a unique key
    twice. The statements did not see entries that the builder added after the state that they read, and wrote none if
    their fields are not in the index."""
    documents, values = txn.tables["documents"], transaction.overlay.values
    for prefix, keys in transaction.overlay.changed.by_collection(documents):
        collection = collections[prefix]
        unique = [index for index in collection.building if index.unique]
        for key in keys if collection.building else ():
            old = None if key[4:] >= PROVISIONAL else txn.kv.get(key, db=documents)
            new = values[(documents, key)]
            if old is not None:
                index_entries.change(txn, collection, key[4:], old, new, collection.building)
            elif new is not None and unique:  # new documents are the last ones: the keys of others are gone
                index_entries.to_add(txn, collection, new, None, unique)


def _log(txn: WriteTransaction, transaction: ClientTransaction, head: bytes) -> None:
    """Log the entry, or a chain of entries. Only the last entry is in the oplog's index, under every namespace; it
    leads to the others."""
    chunks = _chunks(transaction.operations)
    first = txn.reserve(len(chunks))
    for number, chunk in enumerate(chunks):
        position, is_last = first + number, number == len(chunks) - 1
        items = [operation.item for operation in chunk]
        count = len(transaction.operations) if is_last and len(chunks) > 1 else None
        previous = position - 1 if number else 0
        entry = entries.transaction_entry(
            head, items, position, txn.wall_ms, previous=previous, partial=not is_last, count=count
        )
        topics = tuple(dict.fromkeys(operation.topic for operation in transaction.operations)) if is_last else ()
        txn.log(position, entry, topics)
        for index, operation in enumerate(chunk):
            if operation.image is not None:
                pre_images.put(txn, operation.image[0], position, index, txn.wall_ms, operation.image[1])


def _chunks(operations: list[AppliedOperation]) -> list[list[AppliedOperation]]:
    """Divide the operations into entries no larger than a document may be. A single operation may exceed that
    slightly."""
    chunks: list[list[AppliedOperation]] = []
    size = limits.TRANSACTION_ENTRY_BYTES
    for operation in operations:
        size += len(operation.item) + entries.ARRAY_ELEMENT_BYTES_MAX
        if size > limits.TRANSACTION_ENTRY_BYTES:
            chunks.append([])
            size = len(operation.item) + entries.ARRAY_ELEMENT_BYTES_MAX
        chunks[-1].append(operation)
    return chunks
