"""A view that writes into memory: what it changed overlays what it reads, and the tables stay as they are.

It offers the whole write API of `WriteTransaction`, so that every command that writes runs on it unchanged. What
becomes of the writes is the subclass's: `transaction.TransactionView` keeps them until the client commits,
`locks.TrialView` throws them away.

    a key      the own write, else what the key held at the snapshot, else what the tables hold
    a record   8 bytes from 2^63 on: provisional, sorted behind all that are stored
    a number   4 bytes from 2^31 on: that of a collection or an index which exists nowhere else yet
"""

from __future__ import annotations

import heapq
import uuid as uuids
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from headrace.store.catalog import Collection, Index
from headrace.store.history import ORDERED, History, KeyOrder
from headrace.store.view import View
from headrace.store.writes import RetryableWrite, WriteTransaction

RECORD_START: Final = 1 << 63
NUMBER_START: Final = 1 << 31
_ABSENT: Final = object()
_Item = TypeVar("_Item", bound=tuple[bytes, ...])

Place = tuple[Any, bytes]
"""A table and a key of it."""


class Overlay:
    """Writes by place, None for a deletion; and the keys that are walked in order, by table and collection."""

    __slots__ = ("_ordered", "order", "values")

    def __init__(self, tables: dict[str, Any]) -> None:
        self.values: dict[Place, bytes | None] = {}
        self.order: dict[tuple[str, bytes], KeyOrder] = {}
        self._ordered = {tables[name]: name for name in ORDERED}

    def put(self, place: Place, value: bytes | None) -> None:
        db, key = place
        self.values[place] = value
        if db in self._ordered:
            self.order.setdefault((self._ordered[db], key[:4]), KeyOrder()).add(key)


class OverlaidTransaction:
    """The part of a KV transaction's API that views and writes use, over an `Overlay`."""

    __slots__ = ("_base", "_history", "_overlay", "_snapshot", "_view")

    def __init__(
        self, view: BufferedView, base: Any, overlay: Overlay, history: History | None, snapshot: int
    ) -> None:  # fmt: skip
        self._view = view
        self._base = base
        self._overlay = overlay
        self._history = history
        self._snapshot = snapshot

    def get(self, key: bytes, *, db: Any) -> bytes | None:
        place = (db, key)
        found: Any = self._overlay.values.get(place, _ABSENT)
        if found is not _ABSENT:
            return found  # type: ignore[no-any-return]
        if self._history is not None:
            before = self._history.before(place, self._snapshot)
            if before is not None:
                return before[0]
        found = self._base.get(key, db=db)
        return found  # type: ignore[no-any-return]

    def put(self, key: bytes, value: bytes, *, db: Any) -> bool:
        self._view.claim((db, key))
        self._overlay.put((db, key), value)
        return True

    def delete(self, key: bytes, *, db: Any) -> bool:
        there = self.get(key, db=db) is not None
        if there:
            self._view.claim((db, key))
            self._overlay.put((db, key), None)
        return there

    def abort(self) -> None:
        self._base.abort()


class Additions:
    """The catalog as a buffered view changes it: it can only add."""

    __slots__ = ("_view",)

    def __init__(self, view: BufferedView) -> None:
        self._view = view

    def create(
        self, kv: Any, namespace: str, kind: str, options: dict[str, Any], id_index: dict[str, Any] | None
    ) -> Collection:  # fmt: skip
        view = self._view
        view.claim((view.tables["catalog"], namespace.encode()))
        made = Collection(namespace, self.new_number(kv), uuids.uuid4().bytes, kind, options, [])
        if id_index is not None:
            made.set_indexes([Index(self.new_number(kv), id_index)])
        view.created[namespace] = made
        return made

    def save(self, kv: Any, collection: Collection) -> None:
        """What was added stays in memory: there is nothing to do."""

    def new_number(self, kv: Any) -> int:
        numbers = self._view.store.transactions
        numbers.number = max(NUMBER_START, (numbers.number + 1) & 0xFFFFFFFF)
        return numbers.number


class BufferedView(WriteTransaction):
    """Reads of `base` overlaid with writes of its own. `history` and `snapshot`: as of when it reads."""

    __slots__ = ("_base", "_history", "_overlay", "_snapshot", "created")

    def __init__(self, base: View, overlay: Overlay, history: History | None = None, snapshot: int = 0) -> None:
        kv = OverlaidTransaction(self, base.kv, overlay, history, snapshot)
        super().__init__(base.store, kv)
        self.catalog: Any = Additions(self)
        self._base = base
        self._overlay = overlay
        self._history = history
        self._snapshot = snapshot
        self.created: dict[str, Collection] = {}
        """Collections that were made here, by namespace."""
        if isinstance(base, WriteTransaction):
            self.clock_position = base.clock_position

    # For the subclasses.

    def claim(self, place: Place) -> None:
        """Called before a key is written; raises what stands against it."""
        raise NotImplementedError

    def collection(self, namespace: str) -> Collection | None:
        return self.created.get(namespace) or self._base.collection(namespace)

    # Reading.

    def scan(
        self, collection: Collection, *, after: bytes | None = None, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """(record, document) in natural order or backward, those strictly past `after`."""
        prefix = collection.number_key
        past = None if after is None else prefix + after
        keys = self._changed("documents", prefix, past, backward)
        stored = self._base.scan(collection, after=after, backward=backward)
        if keys is None:
            return stored

        def own(record: bytes) -> tuple[bytes, bytes] | None:
            document = self.by_record(collection, record)
            return None if document is None else (record, document)

        return _merged(stored, keys, own, backward)

    def scan_ids(
        self, collection: Collection, low: bytes, high: bytes, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """(id key, record, document) in the order of `_id`, as `View.scan_ids`."""
        prefix, ids = collection.number_key, self.tables["ids"]
        keys = self._changed("ids", prefix, None, backward) or iter(())
        inside = (key for key in keys if low <= key[4:] <= high)

        def own(id_key: bytes) -> tuple[bytes, bytes, bytes] | None:
            record = self.kv.get(prefix + id_key, db=ids)
            document = None if record is None else self.by_record(collection, record)
            return None if record is None or document is None else (id_key, record, document)

        stored = self._base.scan_ids(collection, low, high, backward=backward)
        as_seen = (item for item in map(own, (found[0] for found in stored)) if item is not None)
        return _merged(as_seen, inside, own, backward)

    def _changed(self, table: str, prefix: bytes, after: bytes | None, backward: bool) -> Iterator[bytes] | None:
        """Keys that this view may hold otherwise than the tables, in order, some twice; None if there are none."""
        order = self._overlay.order.get((table, prefix))
        orders = [] if order is None else [order]
        if self._history is not None and (order := self._history.order.get((table, prefix))) is not None:
            orders.append(order)
        if not orders:
            return None
        return heapq.merge(*(order.walk(after, backward=backward) for order in orders), reverse=backward)

    def count(self, collection: Collection) -> int:
        return sum(1 for _ in self.scan(collection))

    # Writing.

    def next_record(self, collection: Collection, count: int = 1) -> int:
        """Provisional records, unlike all others that any view has given out."""
        records = self.store.transactions
        first = max(RECORD_START, records.record)
        records.record = first + count
        return first

    def insert_many(
        self, collection: Collection, documents: Sequence[bytes], retryable: RetryableWrite | None = None
    ) -> int | None:
        """There is no short way here: the caller inserts one by one."""
        return None

    def log_command(
        self, database: str, uuid: bytes | None, o: dict[str, Any], o2: dict[str, Any] | None = None,
        *, also: tuple[str, ...] = (),
    ) -> int:  # fmt: skip
        return 0

    def _log_insert(
        self, collection: Collection, document: bytes, key: bytes, position: int, retryable: RetryableWrite | None
    ) -> None:  # fmt: skip
        """Nothing is logged before it happens."""

    def _log_change(
        self, collection: Collection, head: bytes, o: bytes, o2: bytes | None, old: bytes,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        """Nothing is logged before it happens."""

    def counted(self, collection: Collection, change: int) -> None:
        """The counts in memory are those of what is committed."""


def _merged(
    stored: Iterator[_Item], keys: Iterator[bytes], own: Callable[[bytes], _Item | None], backward: bool
) -> Iterator[_Item]:
    """What is stored, each item beginning with its key, with what `own` has under `keys` in its place."""
    key = next(keys, None)
    for item in stored:
        while key is not None and (key[4:] > item[0] if backward else key[4:] < item[0]):
            if (found := own(key[4:])) is not None:
                yield found
            key = _next_after(key, keys)
        if key is None or key[4:] != item[0]:
            yield item
            continue
        if (found := own(key[4:])) is not None:
            yield found
        key = _next_after(key, keys)
    while key is not None:
        if (found := own(key[4:])) is not None:
            yield found
        key = _next_after(key, keys)


def _next_after(key: bytes, keys: Iterator[bytes]) -> bytes | None:
    """The next other key: both orders may hold one."""
    for following in keys:
        if following != key:
            return following
    return None
