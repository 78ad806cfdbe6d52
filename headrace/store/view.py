"""Views: documents and oplog entries, as one KV transaction sees them.

Every read of a value that does not match its checksum raises `DamagedValue` (301).

    documents  collection number (4) + record (8)   → the document's BSON
    ids        collection number (4) + key of _id   → record (8)
    oplog      position (8)                         → the entry's BSON
    runs       topic (4) + first position (8)       → last position (8)

A *record* (MongoDB: RecordId) numbers documents in the order of their insertion, the natural order. A *run* says that
all oplog entries from its first to its last position, both inclusive, belong to that topic. All numbers are big-endian,
so that keys sort as numbers do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace import limits
from headrace.hashing import sha256
from headrace.store.catalog import Catalog, Collection, Index
from headrace.store.checksums.transaction import CheckedTransaction, DamagedValue, SharedTransaction
from headrace.store.kv import Cursor, Transaction, chunk_of
from headrace.store.overlay_cursor import Item, OverlayCursor
from headrace.store.state import NOT_COUNTED, DocumentCount, StoreState
from headrace.values import position as positions

if TYPE_CHECKING:
    from headrace.store.store import Store

Skip = Callable[[bytes, bool], bytes | None]
"""Decides about an index key, given the key and whether the walk is backward. It returns None if the key counts,
otherwise where the walk continues: forward at the first key from that position on, backward at the last key before
it."""
LEFT_OUT: Final = b""
"""Replaces the record of a key that does not count, or of a document that the view does not show."""
KEY_CUT: Final = limits.KEY_BYTES_MAX - 32
"""Number of bytes kept of a key that is too long for LMDB. A SHA-256 digest of the whole key follows them."""


def id_bounds(low: bytes | None, high: bytes | None) -> tuple[bytes, bytes]:
    """Return the bounds [low, high) for `id_keys`; None: no bound. A key as a bound lies before that key, and a key and
    00 lies after it. Cut keys between the bounds are included, too."""
    if high is None:
        high = b"\xff"
    elif len(high) >= KEY_CUT:
        high = high[:KEY_CUT] + b"\xff" * 40
    return (low or b"")[:KEY_CUT], high


def bounded_key(prefix: bytes, key: bytes) -> bytes:
    """Return `prefix + key`. A key that is too long for LMDB is replaced by one that is unique but not in order."""
    if len(key) <= limits.KEY_BYTES_MAX:
        return prefix + key
    return prefix + key[:KEY_CUT] + sha256(key)


class Counted(NamedTuple):
    """The result of a count: the number of keys that count, the number of keys that were read, and the last key."""

    counting: int
    key_count: int
    last: bytes


class HeldState:
    """A published state and its tables, held until `close`."""

    __slots__ = ("kv", "state")

    def __init__(self, store: Store) -> None:
        self.state = store.state
        self.kv = store.begin_read()

    def close(self) -> None:
        """Release the state, so that commits may use its pages. It must not be read afterwards. Called once."""
        self.kv.abort()
        del self.state  # releases the catalog, too


class View:
    """A read of one KV transaction, with the published state that belongs to it."""

    __slots__ = ("catalog", "kv", "state", "store", "tables")

    kv: Transaction

    def __init__(self, store: Store, kv: SharedTransaction, state: StoreState | None = None) -> None:
        """`kv`: the result of `Store.begin_read`, called just now or together with `state`."""
        self.store = store
        self.kv = kv
        self.state = state or store.state
        self.catalog: Catalog = self.state.catalog
        self.tables = kv.tables

    def collection(self, namespace: str) -> Collection | None:
        """Return a collection or view by its namespace, if this view may see it."""
        return self.catalog.collection(namespace)

    def table_bytes(self, name: str) -> int:
        """Return the size of a table's pages in bytes."""
        stat = self.kv.stat(self.tables[name])
        return int(stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]))

    @property
    def free_bytes(self) -> int:
        """Bytes of the data file that no table uses and that writes can reuse."""
        used = sum(self.table_bytes(name) for name in self.tables)
        return max(0, self.store.environment.file_bytes - used)

    # Documents.

    def record_of(self, collection: Collection, id_key: bytes) -> bytes | None:
        """Return the record (8 bytes) of the document whose `_id` has this key."""
        return self.kv.get(bounded_key(collection.number_key, id_key), db=self.tables["ids"])

    def by_record(self, collection: Collection, record: bytes) -> bytes | None:
        """Return the raw document of a record, or None."""
        return self.kv.get(collection.number_key + record, db=self.tables["documents"])

    def by_id(self, collection: Collection, id_key: bytes) -> tuple[bytes, bytes] | None:
        """Return (record, document) for an `_id`, or None."""
        record = self.record_of(collection, id_key)
        if record is None:
            return None
        document = self.by_record(collection, record)
        if document is None:
            raise DamagedValue(f"the _id index of {collection.namespace}", "names a document that is not there")
        return record, document

    def scan(
        self, collection: Collection, *, after: bytes | None = None, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (record, document) in natural order or backward, strictly past `after`. A document that the view has
        read but does not show is yielded as (record, `LEFT_OUT`)."""
        low, high = _bounds(collection.number_key, after, backward=backward)
        for key, value in self._walk("documents", low, high, backward=backward):
            yield key[4:], LEFT_OUT if value is None else value

    def _walk(self, table: str, low: bytes, high: bytes, *, backward: bool = False) -> Iterator[Item]:
        """Yield the items of a table from `low`, inclusive, to `high`, exclusive, or backward. An item that the view
        has read but does not show is yielded with None."""
        with self.kv.cursor(self.tables[table]) as cursor:
            if isinstance(cursor, OverlayCursor):
                yield from _within(cursor, low, high, backward=backward)
            elif backward:
                if _seek_before(cursor, high):
                    for item in cursor.iterprev():
                        if item[0] < low:
                            return
                        yield item
            elif cursor.set_range(low):
                for item in cursor.iternext():
                    if item[0] >= high:
                        return
                    yield item

    def scan_chunk(
        self, collection: Collection, *, after: bytes | None = None, backward: bool = False,
        count_max: int = limits.VIEW_CHUNK_COUNT, bytes_max: int = limits.VIEW_CHUNK_BYTES,
    ) -> list[tuple[bytes, bytes]]:  # fmt: skip
        """Return the first items of `scan`: up to `count_max` documents or `bytes_max` bytes."""
        prefix = collection.number_key
        low, high = _bounds(prefix, after, backward=backward)
        with self.kv.cursor(self.tables["documents"]) as cursor:
            if isinstance(cursor, OverlayCursor):
                items = _within(cursor, low, high, backward=backward)
                shown = ((key, LEFT_OUT if value is None else value) for key, value in items)
                return chunk_of(shown, prefix, count_max, bytes_max)
            if not (_seek_before(cursor, high) if backward else cursor.set_range(low)):
                return []
            return cursor.chunk(prefix, count_max, bytes_max, backward=backward)

    def last_record(self, collection: Collection) -> bytes | None:
        """Return the greatest record of a collection. Only its key is read, so the document may be damaged."""
        with self.kv.cursor(self.tables["documents"]) as cursor:
            if not _seek_before(cursor, collection.number_key + b"\xff" * 9):
                return None
            key = cursor.key()
            return key[4:] if key[:4] == collection.number_key else None

    def records(self, collection: Collection, *, after: bytes | None = None) -> Iterator[bytes]:
        """Yield the records of a collection strictly past `after`. Only keys are read, no documents."""
        prefix = collection.number_key
        with self.kv.cursor(self.tables["documents"]) as cursor:
            if not cursor.set_range(prefix + (after + b"\x00" if after is not None else b"")):
                return
            for key in cursor.iternext(keys=True, values=False):
                if key[:4] != prefix:
                    return
                yield key[4:]

    def id_keys(
        self, collection: Collection, low: bytes, high: bytes, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (id key, record) in the order of `_id`, or backward, from `low`, inclusive, to `high`, exclusive.

        A document that the view does not show has `LEFT_OUT` for a record. Bounds and keys are keys of the `ids` table
        without the collection's number (`bounded_key`). In a collection with over-long `_id`s (`long_ids`) keys are in
        order only up to the point where they are cut.
        """
        prefix = collection.number_key
        for key, record in self._walk("ids", prefix + low, prefix + high, backward=backward):
            yield key[4:], record or LEFT_OUT

    def count_ids(self, collection: Collection, low: bytes, high: bytes, count_max: int) -> Counted:
        """Count keys of `_id` as `count_keys` does."""
        prefix = collection.number_key
        counted = self._count("ids", prefix + low, prefix + high, count_max)
        return counted._replace(last=counted.last[4:])

    def index_keys(
        self, index: Index, low: bytes, high: bytes, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, record) of an index's entries from `low`, inclusive, to `high`, exclusive, or backward.

        Keys and bounds include the index's number, as in the table. An entry that the view does not show has `LEFT_OUT`
        for a record.
        """
        if not (index.unique or backward):
            return View.index_ranges(self, index, [(low, high)])  # a subclass counts the keys of `index_keys`
        return self._entries_of(index, low, high, backward=backward)

    def _entries_of(self, index: Index, low: bytes, high: bytes, *, backward: bool) -> Iterator[tuple[bytes, bytes]]:
        unique = index.unique
        for key, value in self._walk("indexes", low, high, backward=backward):
            yield key, LEFT_OUT if value is None else value if unique else key[-8:]

    def index_ranges(self, index: Index, ranges: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries as `index_keys` does, of ranges in ascending order. One cursor reads all of them."""
        with self.kv.cursor(self.tables["indexes"]) as cursor:
            if isinstance(cursor, OverlayCursor) or index.unique:
                for low, high in ranges:
                    yield from self._entries_of(index, low, high, backward=False)
                return
            following = b""
            for low, high in ranges:
                if following >= high:
                    continue  # the first key after the last range is beyond this one
                if not cursor.set_range(low):
                    return
                for key in cursor.iternext(values=False):
                    if key >= high:
                        following = key
                        break
                    yield key, key[-8:]
                else:
                    return

    def index_keys_within(
        self, index: Index, low: bytes, high: bytes, skip: Skip, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries as `index_keys` does, but (key, `LEFT_OUT`) for a key that does not count. The walk continues
        at the position that `skip` returns."""
        with self.kv.cursor(self.tables["indexes"]) as cursor:
            if isinstance(cursor, OverlayCursor):
                yield from _within_skipping(cursor, index, low, high, skip, backward=backward)
                return
            moved = _seek_before(cursor, high) if backward else cursor.set_range(low)
            while moved:
                key = cursor.key()
                if key < low if backward else key >= high:
                    return
                position = skip(key, backward)
                if position is None:
                    yield key, cursor.value() if index.unique else key[-8:]
                    moved = cursor.prev() if backward else cursor.next()
                    continue
                yield key, LEFT_OUT
                moved = _seek_before(cursor, position) if backward else cursor.set_range(position)

    def count_keys(self, index: Index, low: bytes, high: bytes, count_max: int) -> Counted:
        """Count keys from `low`, inclusive, to `high`, exclusive. Reads at most `count_max` keys."""
        return self._count("indexes", low, high, count_max)

    def _count(self, table: str, low: bytes, high: bytes, count_max: int) -> Counted:
        count, last = 0, low
        with self.kv.cursor(self.tables[table]) as cursor:
            if isinstance(cursor, OverlayCursor):
                items = list(islice(_within(cursor, low, high), count_max))
                there = sum(value is not None for _, value in items)
                return Counted(there, len(items), items[-1][0] if items else low)
            if cursor.set_range(low):
                for key in islice(cursor.iternext(values=False), count_max):
                    if key >= high:
                        break
                    count, last = count + 1, key
        return Counted(count, count, last)

    def fetch(self, collection: Collection, index: Index, record: bytes) -> bytes:
        """Return the document of an index entry."""
        document = self.by_record(collection, record)
        if document is None:
            raise DamagedValue(
                f"the index {index.name} of {collection.namespace}", "names a document that is not there"
            )
        return document

    def fetch_many(
        self, collection: Collection, index: Index, entries: Sequence[tuple[bytes, bytes]], bytes_max: int
    ) -> list[bytes]:
        """Return the documents of index entries, (key, record) each: the first, and more up to about `bytes_max`."""
        if not isinstance(self.kv, CheckedTransaction):
            documents, size = [], 0
            for _, record in entries:
                documents.append(View.fetch(self, collection, index, record))
                size += len(documents[-1])
                if size >= bytes_max:
                    break
            return documents
        prefix = collection.number_key
        keys = [prefix + record for _, record in entries]
        found = self.kv.get_many(keys, bytes_max, db=self.tables["documents"])
        if None in found:
            self.fetch(collection, index, entries[found.index(None)][1])
        return found  # type: ignore[return-value]

    def known_count(self, collection: Collection) -> DocumentCount | None:
        """Return the full or partial count of a collection; None if there is none."""
        return self.state.counts.get(collection.number)

    def is_counted(self, collection: Collection) -> bool:
        """Return whether all documents are counted, so that `count` is cheap."""
        count = self.known_count(collection)
        return count is not None and count.through is None

    def estimated_count(self, collection: Collection) -> int | None:
        """Return the approximate number of documents, for a plan; None if unknown."""
        if self.is_counted(collection):
            return self.count(collection)
        return self.store.estimates.get(collection.number)

    def count_on(self, collection: Collection, count_max: int) -> None:
        """Count up to `count_max` more documents. The collection `is_counted` after the last one."""
        documents, size, through = self.known_count(collection) or NOT_COUNTED
        if through is None:
            return
        records = list(islice(self.records(collection, after=through or None), count_max))
        if collection.capped is not None:
            size += sum(self._size(collection, record) for record in records)
        is_last = len(records) < count_max
        self.keep_count(collection, DocumentCount(documents + len(records), size, None if is_last else records[-1]))

    def _size(self, collection: Collection, record: bytes) -> int:
        """Return the size of a document in bytes; 0 for a damaged one."""
        try:
            return len(self.by_record(collection, record) or b"")
        except DamagedValue:
            return 0

    def keep_count(self, collection: Collection, count: DocumentCount) -> None:
        """Store a count that this view has taken."""
        self.state = self.store.keep_count(self.state, collection, count)

    def count(self, collection: Collection) -> int:
        """Return the number of documents that the view shows of a collection; cheap if it `is_counted`."""
        while not self.is_counted(collection):
            self.count_on(collection, limits.COUNT_COUNT)
        count = self.known_count(collection)
        assert count is not None
        return count.documents

    # The oplog.

    def entry(self, position: int) -> bytes | None:
        """Return the raw entry at exactly this position, or None."""
        return self.kv.get(positions.to_key(position), db=self.tables["oplog"])

    def entries(self, first: int, last: int = positions.LAST, *, backward: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yield (position, entry) from `first` to `last`, both inclusive; backward begins at `last`."""
        if first > positions.LAST or last < 0:
            return
        low, high = first.to_bytes(8, "big"), min(last, positions.LAST).to_bytes(8, "big")
        with self.kv.cursor(self.tables["oplog"]) as cursor:
            if backward:
                if not _seek_through(cursor, high):
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

    def oldest_position(self) -> int | None:
        """Return the position of the oldest entry of the oplog, or None."""
        with self.kv.cursor(self.tables["oplog"]) as cursor:
            return int.from_bytes(cursor.key(), "big") if cursor.first() else None

    def newest_position(self) -> int | None:
        """Return the position of the newest entry of the oplog, or None."""
        with self.kv.cursor(self.tables["oplog"]) as cursor:
            return int.from_bytes(cursor.key(), "big") if cursor.last() else None

    def runs(self, topic: int, first: int) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of the topic's runs that hold a position of `first` or later, in order."""
        prefix = topic.to_bytes(4, "big")
        with self.kv.cursor(self.tables["runs"]) as cursor:
            if not _seek_run(cursor, prefix, first):
                return
            for key, value in cursor.iternext(keys=True, values=True):
                if key[:4] != prefix:
                    return
                yield int.from_bytes(key[4:], "big"), int.from_bytes(value, "big")

    def entry_chunks(self, first: int, last: int, count_max: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield (position key, entry) from `first` to `last`, both inclusive, in lists of up to `count_max`."""
        if first > positions.LAST:
            return
        low, high = first.to_bytes(8, "big"), last.to_bytes(8, "big")
        count_max = min(count_max, last - first + 1)
        while low <= high:
            with self.kv.cursor(self.tables["oplog"]) as cursor:
                if not cursor.set_range(low):
                    return
                chunk = cursor.chunk(b"", count_max, limits.VIEW_CHUNK_BYTES)
            low = chunk[-1][0] + b"\0"
            while chunk and chunk[-1][0] > high:
                chunk.pop()
            if chunk:
                yield chunk

    def entries_of(self, topics: Iterable[int], first: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position, entry) of these topics from `first` on, in order, each entry once."""
        for range_first, range_last in self.ranges_of(topics, first):
            yield from self.entries(range_first, range_last)

    def ranges_of(self, topics: Iterable[int], first: int) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of the position ranges, from `first` on, whose entries have these topics; in order, each
        once."""
        done = first - 1
        for run_first, run_last in heapq.merge(*(self.runs(topic, first) for topic in topics)):
            if run_last > done:
                yield max(run_first, done + 1), run_last
                done = run_last


def _bounds(prefix: bytes, after: bytes | None, *, backward: bool) -> tuple[bytes, bytes]:
    """Return the bounds [low, high) of a collection's keys past the record `after`."""
    low, high = prefix, prefix + b"\xff" * 9
    if after is None:
        return low, high
    return (low, prefix + after) if backward else (prefix + after + b"\0", high)


def _within(cursor: OverlayCursor, low: bytes, high: bytes, *, backward: bool = False) -> Iterator[Item]:
    """Yield the items from `low`, inclusive, to `high`, exclusive, or backward. A deleted key is yielded with None."""
    for item in cursor.walk(high if backward else low, backward=backward):
        if low <= item[0] < high:
            yield item
        elif item[0] != high:
            return


def _within_skipping(
    cursor: OverlayCursor, index: Index, low: bytes, high: bytes, skip: Skip, *, backward: bool
) -> Iterator[tuple[bytes, bytes]]:  # fmt: skip
    """Yield entries as `View.index_keys_within` does, from an overlay."""
    position: bytes | None = b""
    while position is not None:
        for key, value in _within(cursor, low, high, backward=backward):
            position = None if value is None else skip(key, backward)
            if value is None or position is not None:
                yield key, LEFT_OUT
            else:
                yield key, value if index.unique else key[-8:]
            if position is not None:
                low, high = (low, min(high, position)) if backward else (max(low, position), high)
                break
        else:
            return


def _seek_through(cursor: Cursor, key: bytes) -> bool:
    """Move to the last item whose key is `key` or less. Return False if there is none."""
    if not cursor.set_range(key):
        return cursor.last()
    return cursor.key() == key or cursor.prev()


def _seek_before(cursor: Cursor, key: bytes) -> bool:
    """Move to the last item whose key is less than `key`. Return False if there is none."""
    return cursor.prev() if cursor.set_range(key) else cursor.last()


def _seek_run(cursor: Cursor, prefix: bytes, first: int) -> bool:
    """Move to the topic's run that holds `first`, or to the next run. Return False if there is none."""
    key = prefix + first.to_bytes(8, "big")
    after = cursor.set_range(key)
    if after and cursor.key() == key:
        return True
    if not (cursor.prev() if after else cursor.last()):
        return after and cursor.first()
    if cursor.key()[:4] == prefix and int.from_bytes(cursor.value(), "big") >= first:
        return True
    return cursor.next()
