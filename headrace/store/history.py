"""What keys held before: how a client's transaction reads as of its start while others go on writing.

While transactions are open, every write transaction gets a number (its *sequence*) and records what a key of documents,
ids and indexes held before its first change of it. A transaction that started after sequence s reads, for each key,
the oldest value recorded later than s, and where there is none what the tables hold.

    sequence   1 ──────── 2 ──────── 3 ─────▶        values of key k:  (2, old)  (3, newer)
                    ▲ a transaction starts: it reads k as `old`

Rule: no transaction starts while a write transaction is open, so that all of a sequence is before or after it.
Nothing of this survives a restart, and no client's transaction does.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol, cast

from headrace import limits
from headrace.memory_budget import Account, Memory
from headrace.store.changed_keys import TRACKED, ChangedKeys
from headrace.store.kv import Cursor, Table, TableKey, Transaction
from headrace.turns import PIECE_COUNT


class Layer(Protocol):
    """What many keys held before one write transaction: `before_images.BeforeImages`."""

    def before(self, key: TableKey) -> tuple[bytes | None] | None:
        """(what the key held); None where it was not changed."""


class History:
    """Earlier values of one store's keys, from the first open transaction's start to the last one's end."""

    def __init__(self, tables: dict[str, Table], account: Account | None = None) -> None:
        """`account`: what counts the memory of the values."""
        self._account = account or Memory().account("history")
        self.sequence = 0
        """That of the last write transaction that was recorded."""
        self.is_needed = False
        """Whether a transaction is open. None can start while a write transaction is."""
        self.changed = ChangedKeys(tables)
        """The keys that have earlier values."""
        self._values: dict[TableKey, list[tuple[int, bytes | None]]] = {}
        self._journal: deque[tuple[int, TableKey]] = deque()
        self._sizes: deque[tuple[int, int]] = deque()
        """(sequence, the bytes that were recorded for it) of what is counted: all that is not forgotten."""
        self.layers: list[tuple[int, Layer]] = []
        """(sequence, what it changed) of the commits of large transactions, which are not recorded key by key."""
        self._forgotten = 0
        """The sequence through which nobody reads any more."""

    def __len__(self) -> int:
        return len(self._journal)

    def has_recorded(self, key: TableKey, sequence: int) -> bool:
        """Whether the write transaction of this sequence, the last one, has recorded the key already."""
        values = self._values.get(key)
        return values is not None and values[-1][0] == sequence

    def record(self, key: TableKey, sequence: int, before: bytes | None) -> None:
        """A write transaction is about to change a key for the first time; it held `before`, None: nothing."""
        self._values.setdefault(key, []).append((sequence, before))
        self._journal.append((sequence, key))
        self.changed.add(key)
        size = limits.VERSION_BYTES + (0 if before is None else len(before))
        if self._sizes and self._sizes[-1][0] == sequence:
            self._sizes[-1] = sequence, self._sizes[-1][1] + size
        else:
            self._sizes.append((sequence, size))
        self._account.add(size)  # which may end transactions, and forget

    def before(self, key: TableKey, snapshot: int) -> tuple[bytes | None] | None:
        """(what the key held) after sequence `snapshot`; None where it has not changed since."""
        values = self._values.get(key)
        first = None
        if values is not None and values[-1][0] > snapshot:
            first = next(item for item in values if item[0] > snapshot)
        for sequence, layer in self.layers:
            if sequence > snapshot and (first is None or sequence < first[0]):
                before = layer.before(key)
                if before is not None:
                    return before
        return None if first is None else (first[1],)

    def add_layer(self, sequence: int, layer: Layer) -> None:
        """The write transaction of this sequence, the last one, makes a layer's changes visible."""
        self.layers.append((sequence, layer))

    def forget(self, through: int) -> None:
        """No transaction reads as of a sequence before `through` any more. Values that are not read count no more;
        some go at once, the others with `forget_more`."""
        while self._sizes and self._sizes[0][0] <= through:
            self._account.add(-self._sizes.popleft()[1])
        self.layers = [item for item in self.layers if item[0] > through]
        self._forgotten = max(self._forgotten, through)
        self.forget_more()

    def forget_more(self) -> bool:
        """Remove a piece of what is forgotten; whether there is more of it."""
        for _ in range(PIECE_COUNT):
            if not self.has_forgotten:
                return False
            _, key = self._journal.popleft()
            self._drop(key, 0)
        return self.has_forgotten

    @property
    def has_forgotten(self) -> bool:
        """Whether there are values that nobody reads any more."""
        return bool(self._journal) and self._journal[0][0] <= self._forgotten

    def undo(self, sequence: int) -> None:
        """The write transaction of this sequence, the last one, was abandoned."""
        self.layers = [item for item in self.layers if item[0] != sequence]
        while self._journal and self._journal[-1][0] == sequence:
            _, key = self._journal.pop()
            self._drop(key, -1)
        if self._sizes and self._sizes[-1][0] == sequence:
            self._account.add(-self._sizes.pop()[1])

    def _drop(self, key: TableKey, which: int) -> None:
        values = self._values[key]
        del values[which]
        if not values:
            del self._values[key]
            self.changed.discard(key)

    def clear(self) -> None:
        """No transaction is open any more."""
        self.is_needed = False
        self.layers = []
        self.forget(self.sequence)


class RecordingTransaction:
    """A KV write transaction that records what it overwrites; in everything else the one it wraps."""

    __slots__ = ("_base", "_history", "_sequence", "_tracked")

    def __init__(self, base: Transaction, history: History, tables: dict[str, Table]) -> None:
        history.sequence += 1
        self._base = base
        self._history = history
        self._sequence = history.sequence
        self._tracked = {tables[name] for name in TRACKED}

    def get(self, key: bytes, *, db: Table) -> bytes | None:
        """The value of a key."""
        return self._base.get(key, db=db)

    def put(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Record and put."""
        if db in self._tracked:
            self._record(db, key)
        return self._base.put(key, value, db=db)

    def put_new(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Record and put, unless the key is there."""
        return self._base.get(key, db=db) is None and self.put(key, value, db=db)

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Record and delete."""
        if db in self._tracked:
            self._record(db, key)
        return self._base.delete(key, db=db)

    def drop(self, db: Table, *, delete: bool) -> None:
        """Not recorded: only the oplog's tables are dropped, before any transaction is open."""
        self._base.drop(db, delete=delete)

    def cursor(self, db: Table) -> Cursor:
        """A cursor whose `putmulti` is recorded."""
        cursor = self._base.cursor(db)
        return cast("Cursor", _RecordingCursor(self, cursor, db)) if db in self._tracked else cursor

    def stat(self, db: Table) -> dict[str, int]:
        """The sizes of a table."""
        return self._base.stat(db)

    def commit(self) -> None:
        """Commit; what was recorded stays."""
        self._base.commit()

    def abort(self) -> None:
        """Abort, and forget what was recorded."""
        self._history.undo(self._sequence)
        self._base.abort()

    def _record(self, db: Table, key: bytes) -> None:
        if self._history.is_needed and not self._history.has_recorded((db, key), self._sequence):
            self._history.record((db, key), self._sequence, self._base.get(key, db=db))


class _RecordingCursor:
    """A cursor whose `putmulti` is recorded. Its `delete` is not: only what nobody can see any more goes that way."""

    __slots__ = ("_cursor", "_db", "_txn")

    def __init__(self, txn: RecordingTransaction, cursor: Cursor, db: Table) -> None:
        self._txn = txn
        self._cursor = cursor
        self._db = db

    def putmulti(self, items: list[tuple[bytes, bytes]], **options: bool) -> tuple[int, int]:
        for key, _ in items:
            self._txn._record(self._db, key)
        return self._cursor.putmulti(items, **options)

    def __enter__(self) -> _RecordingCursor:
        self._cursor.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._cursor.__exit__(*failure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)
