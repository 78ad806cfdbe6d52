"""What can be read: documents and oplog entries, as one KV transaction sees them.

    documents  collection number (4) + record (8)   → the document's BSON
    ids        collection number (4) + key of _id   → record (8)
    oplog      position (8)                         → the entry's BSON
    runs       topic (4) + first position (8)       → last position (8)

A *record* numbers documents in the order they were inserted, MongoDB's natural order. A *run* says that
the oplog from its first to its last position, both inclusive, holds entries of that topic and no other.
All numbers are big-endian, so that keys sort as numbers do.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.store.catalog import Collection
from headrace.store.lmdb import Transaction

if TYPE_CHECKING:
    from headrace.store.store import Store

POSITION_MAX: Final = 2**64 - 1


KEY_CUT: Final = limits.KEY_BYTES_MAX - 32


def id_bounds(low: bytes | None, high: bytes | None) -> tuple[bytes, bytes]:
    """Bounds for `scan_ids` that let nothing out between two keys; None is no bound."""
    return (low or b"")[:KEY_CUT], (b"\xff" if high is None else high[:KEY_CUT]) + b"\xff" * 40


def bounded_key(prefix: bytes, key: bytes) -> bytes:
    """`prefix + key`, or where that is too long for LMDB a key as unique (but not as ordered) in its stead."""
    if len(key) <= limits.KEY_BYTES_MAX:
        return prefix + key
    return prefix + key[:KEY_CUT] + hashlib.sha256(key).digest()


class View:
    """One KV transaction, read. Short-lived: it never outlives the function that opened it."""

    __slots__ = ("catalog", "kv", "store", "tables")

    has_id_order = True
    """Whether `scan_ids` may be asked; a view that shows more than the tables hold says no."""

    def __init__(self, store: Store, kv: Transaction) -> None:
        self.store = store
        self.kv = kv
        self.catalog = store.catalog
        self.tables = store.tables

    def collection(self, namespace: str) -> Collection | None:
        return self.catalog.collections.get(namespace)

    # Documents.

    def record_of(self, collection: Collection, id_key: bytes) -> bytes | None:
        """The record (8 bytes) of the document whose `_id` has this key."""
        found = self.kv.get(bounded_key(collection.number_key, id_key), db=self.tables["ids"])
        return found if found is None else bytes(found)

    def by_record(self, collection: Collection, record: bytes) -> bytes | None:
        found: bytes | None = self.kv.get(collection.number_key + record, db=self.tables["documents"])
        return found

    def by_id(self, collection: Collection, id_key: bytes) -> tuple[bytes, bytes] | None:
        """(record, document) of an `_id`, or None."""
        record = self.record_of(collection, id_key)
        if record is None:
            return None
        document = self.by_record(collection, record)
        if document is None:
            raise RuntimeError(f"the id index of {collection.namespace} names a record that is not there")
        return record, document

    def scan(
        self, collection: Collection, *, after: bytes | None = None, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """(record, document) in natural order or backward, those strictly past `after`."""
        prefix = collection.number_key
        with self.kv.cursor(self.tables["documents"]) as cursor:
            if backward:
                limit = prefix + (after if after is not None else b"\xff" * 9)
                moved = cursor.prev() if cursor.set_range(limit) else cursor.last()
                walk = cursor.iterprev(keys=True, values=True)
            else:
                moved = cursor.set_range(prefix + (after + b"\x00" if after is not None else b""))
                walk = cursor.iternext(keys=True, values=True)
            if not moved:
                return
            for key, value in walk:
                if key[:4] != prefix:
                    return
                yield key[4:], value

    def scan_ids(
        self, collection: Collection, low: bytes, high: bytes, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """(id key, record, document) in the order of `_id`, for keys from `low` to `high`, both inclusive.

        Bounds and keys are those of the `ids` table without the collection's number (`bounded_key`); a walk over a
        collection with over-long `_id`s (`long_ids`) is in order only up to where those are cut.
        """
        prefix = collection.number_key
        with self.kv.cursor(self.tables["ids"]) as cursor:
            if backward:
                found = cursor.set_range(prefix + high)
                if not found:
                    found = cursor.last()
                elif cursor.key() != prefix + high:
                    found = cursor.prev()
                walk = cursor.iterprev(keys=True, values=True)
            else:
                found = cursor.set_range(prefix + low)
                walk = cursor.iternext(keys=True, values=True)
            if not found:
                return
            for key, record in walk:
                id_key = key[4:]
                if key[:4] != prefix or (id_key < low if backward else id_key > high):
                    return
                document = self.by_record(collection, record)
                if document is not None:
                    yield id_key, record, document

    def count(self, collection: Collection) -> int:
        """How many documents the collection holds; counted once, then kept in memory.

        What is counted beside a write transaction that is on its way to the disk is not kept: it lacks its changes.
        """
        if collection.document_count is not None:
            return collection.document_count
        count = sum(1 for _ in self.scan(collection))
        if self.store.writing in (None, self):
            collection.document_count = count
        return count

    # The oplog.

    def entry(self, position: int) -> bytes | None:
        found: bytes | None = self.kv.get(position.to_bytes(8, "big"), db=self.tables["oplog"])
        return found

    def entries(self, first: int, last: int = POSITION_MAX, *, backward: bool = False) -> Iterator[tuple[int, bytes]]:
        """(position, entry) of every entry from `first` to `last`, both inclusive; backward begins at `last`."""
        low, high = first.to_bytes(8, "big"), last.to_bytes(8, "big")
        with self.kv.cursor(self.tables["oplog"]) as cursor:
            if backward:
                found = cursor.set_range(high)
                if found and cursor.key() != high:
                    found = cursor.prev()
                elif not found:
                    found = cursor.last()
                if not found:
                    return
                for key, value in cursor.iterprev(keys=True, values=True):
                    if key < low:
                        return
                    yield int.from_bytes(key, "big"), value
                return
            if not cursor.set_range(low):
                return
            from_bytes = int.from_bytes
            for key, value in cursor.iternext(keys=True, values=True):
                if key > high:
                    return
                yield from_bytes(key, "big"), value

    def oldest(self) -> tuple[int, bytes] | None:
        """The first entry the oplog still holds."""
        return next(self.entries(0), None)

    def newest(self) -> tuple[int, bytes] | None:
        return next(self.entries(0, backward=True), None)

    def runs(self, topic: int, first: int) -> Iterator[tuple[int, int]]:
        """(first, last) of the topic's runs that hold a position of `first` or later, in order."""
        prefix = topic.to_bytes(4, "big")
        with self.kv.cursor(self.tables["runs"]) as cursor:
            if not self._seek_run(cursor, prefix, first):
                return
            for key, value in cursor.iternext(keys=True, values=True):
                if key[:4] != prefix:
                    return
                yield int.from_bytes(key[4:], "big"), int.from_bytes(value, "big")

    @staticmethod
    def _seek_run(cursor: Any, prefix: bytes, first: int) -> bool:
        """Put the cursor on the run that holds `first`, else on the next one; False where there is none."""
        key = prefix + first.to_bytes(8, "big")
        found = cursor.set_range(key)
        if found and cursor.key() == key:
            return True
        before = cursor.prev() if found else cursor.last()
        if not before:
            return bool(found and cursor.first())
        if cursor.key()[:4] == prefix and int.from_bytes(cursor.value(), "big") >= first:
            return True
        return bool(cursor.next())

    def entries_of(self, topics: Iterable[int], first: int) -> Iterator[tuple[int, bytes]]:
        """(position, entry) from `first` on, of these topics only, in order and each once."""
        done = first - 1
        for run_first, run_last in heapq.merge(*(self.runs(topic, first) for topic in topics)):
            if run_last <= done:
                continue
            yield from self.entries(max(run_first, done + 1), run_last)
            done = run_last
