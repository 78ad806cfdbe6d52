"""What keys held before: how a client's transaction reads as of its start while others go on writing.

While transactions are open, every write transaction (a *sequence* of its own) notes what a key of documents, ids and
indexes held before its first change of it. A transaction that started after sequence s reads, for each key, the
oldest note later than s, and where there is none what the tables hold.

    sequence   1 ──────── 2 ──────── 3 ─────▶        notes of key k:  (2, old)  (3, older is not needed twice)
                    ▲ a transaction starts: it reads k as `old`

Rule: no transaction starts while a write transaction is open, so that a sequence is wholly before or wholly after it.
What this does not do: survive a restart. A client's transaction does not either.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from headrace.store.lmdb import Transaction

TRACKED: Final = ("documents", "ids", "indexes")
ORDERED: Final = ("documents", "ids")  # those of them that are walked


class KeyOrder:
    """A set of keys that can be walked in order; sorted when it is walked, not when it grows."""

    __slots__ = ("_keys", "_sorted")

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._sorted: list[bytes] | None = None

    def add(self, key: bytes) -> None:
        if key not in self._keys:
            self._keys.add(key)
            self._sorted = None

    def discard(self, key: bytes) -> None:
        if key in self._keys:
            self._keys.remove(key)
            self._sorted = None

    def walk(self, after: bytes | None, *, backward: bool) -> Iterator[bytes]:
        """The keys strictly past `after`, in order or backward; as they are now, whatever is added meanwhile."""
        if self._sorted is None:
            self._sorted = sorted(self._keys)
        keys = self._sorted
        if backward:
            for place in range(len(keys) if after is None else bisect_left(keys, after), 0, -1):
                yield keys[place - 1]
            return
        for place in range(0 if after is None else bisect_right(keys, after), len(keys)):
            yield keys[place]


class History:
    """The notes of one store, from the first open transaction's start to the last one's end."""

    def __init__(self, tables: dict[str, Any]) -> None:
        self.sequence = 0
        """The last write transaction that took notes."""
        self.order: dict[tuple[str, bytes], KeyOrder] = {}
        """The keys that have notes, by table and collection."""
        self._ordered = {tables[name]: name for name in ORDERED}
        self._notes: dict[tuple[Any, bytes], list[tuple[int, bytes | None]]] = {}
        self._journal: deque[tuple[int, tuple[Any, bytes]]] = deque()

    def __len__(self) -> int:
        return len(self._journal)

    def noted(self, place: tuple[Any, bytes], sequence: int) -> bool:
        notes = self._notes.get(place)
        return notes is not None and notes[-1][0] == sequence

    def note(self, place: tuple[Any, bytes], sequence: int, before: bytes | None) -> None:
        """A write transaction is about to change a key for the first time; it held `before`, None: nothing."""
        self._notes.setdefault(place, []).append((sequence, before))
        self._journal.append((sequence, place))
        db, key = place
        if db in self._ordered:
            self.order.setdefault((self._ordered[db], key[:4]), KeyOrder()).add(key)

    def before(self, place: tuple[Any, bytes], snapshot: int) -> tuple[bytes | None] | None:
        """(what the key held) after sequence `snapshot`; None where it has not changed since."""
        notes = self._notes.get(place)
        if notes is None or notes[-1][0] <= snapshot:
            return None
        return next((value,) for sequence, value in notes if sequence > snapshot)

    def forget(self, through: int) -> None:
        """No transaction reads as of a sequence before `through` any more."""
        while self._journal and self._journal[0][0] <= through:
            _, place = self._journal.popleft()
            self._drop(place, 0)

    def take_back(self, sequence: int) -> None:
        """The write transaction of this sequence, the last one, was given up."""
        while self._journal and self._journal[-1][0] == sequence:
            _, place = self._journal.pop()
            self._drop(place, -1)

    def _drop(self, place: tuple[Any, bytes], which: int) -> None:
        notes = self._notes[place]
        del notes[which]
        if notes:
            return
        del self._notes[place]
        db, key = place
        if db in self._ordered:
            self.order[self._ordered[db], key[:4]].discard(key)

    def clear(self) -> None:
        self._notes.clear()
        self._journal.clear()
        self.order.clear()


class NotingTransaction:
    """A KV write transaction that notes what it overwrites; in everything else the one it wraps."""

    __slots__ = ("_history", "_kv", "_sequence", "_tracked")

    def __init__(self, kv: Transaction, history: History, tables: dict[str, Any]) -> None:
        history.sequence += 1
        self._kv = kv
        self._history = history
        self._sequence = history.sequence
        self._tracked = {id(tables[name]) for name in TRACKED}

    def get(self, key: bytes, *, db: Any) -> bytes | None:
        found: bytes | None = self._kv.get(key, db=db)
        return found

    def put(self, key: bytes, value: bytes, *, db: Any) -> bool:
        if id(db) in self._tracked:
            self._note(db, key)
        return bool(self._kv.put(key, value, db=db))

    def delete(self, key: bytes, *, db: Any) -> bool:
        if id(db) in self._tracked:
            self._note(db, key)
        return bool(self._kv.delete(key, db=db))

    def cursor(self, db: Any) -> Any:
        cursor = self._kv.cursor(db)
        return _NotingCursor(self, cursor, db) if id(db) in self._tracked else cursor

    def _note(self, db: Any, key: bytes) -> None:
        place = (db, key)
        if not self._history.noted(place, self._sequence):
            self._history.note(place, self._sequence, self._kv.get(key, db=db))

    def commit(self) -> None:
        self._kv.commit()

    def abort(self) -> None:
        self._history.take_back(self._sequence)
        self._kv.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)


class _NotingCursor:
    """A cursor whose `putmulti` is noted. Its `delete` is not: only what nobody can see any more goes that way."""

    __slots__ = ("_cursor", "_db", "_txn")

    def __init__(self, txn: NotingTransaction, cursor: Any, db: Any) -> None:
        self._txn = txn
        self._cursor = cursor
        self._db = db

    def putmulti(self, items: list[tuple[bytes, bytes]], **options: Any) -> Any:
        for key, _ in items:
            self._txn._note(self._db, key)
        return self._cursor.putmulti(items, **options)

    def __enter__(self) -> Any:
        self._cursor.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._cursor.__exit__(*failure)

    def __iter__(self) -> Any:
        return iter(self._cursor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)
