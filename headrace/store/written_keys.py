"""The keys written while clients' transactions are open. A transaction that writes one of them conflicts.

A transaction conflicts with a key of documents, ids or indexes that a commit has written since it began, or that the
open, unpublished write transaction has written. As in MongoDB, the values do not matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, cast

from headrace import limits
from headrace.memory_budget import Account
from headrace.store.kv import Cursor, Table, TableKey, Transaction


class WrittenKeys:
    """The keys written from the start of the first open transaction to the end of the last."""

    def __init__(self, account: Account) -> None:
        """`account`: counts the memory of the keys."""
        self.sequence = 0
        """The number of the last recorded commit."""
        self.open: set[TableKey] = set()
        """The keys of the open write transaction."""
        self._account = account
        self._last: dict[TableKey, int] = {}  # the last commit that wrote each key
        self._commits: deque[tuple[int, set[TableKey]]] = deque()

    def has_changed(self, key: TableKey, since: int) -> bool:
        """Return whether a key was written after the commit `since`."""
        return key in self.open or self._last.get(key, 0) > since

    def begin(self) -> set[TableKey]:
        """Return a new set for the keys of a write transaction."""
        self.open = set()
        return self.open

    def publish(self) -> None:
        """Record the keys of the write transaction, which was just published."""
        keys, self.open = self.open, set()
        self.sequence += 1
        self._last.update(dict.fromkeys(keys, self.sequence))
        self._commits.append((self.sequence, keys))
        self._account.add(limits.VERSION_BYTES * len(keys))  # this may end transactions and call `forget`

    def forget(self, through: int) -> None:
        """Forget the commits up to the number `through`. No open transaction began before them."""
        while self._commits and self._commits[0][0] <= through:
            sequence, keys = self._commits.popleft()
            self._account.add(-limits.VERSION_BYTES * len(keys))
            for key in keys:
                if self._last[key] == sequence:
                    del self._last[key]


class RecordingTransaction:
    """A KV write transaction that adds the keys it writes to a set, and otherwise calls the wrapped one."""

    __slots__ = ("_base", "_tracked", "_written")

    def __init__(self, base: Transaction, written: set[TableKey], tracked: Collection[Table]) -> None:
        """`tracked`: the tables whose keys are recorded."""
        self._base = base
        self._written = written
        self._tracked = tracked

    def get(self, key: bytes, *, db: Table) -> bytes | None:
        """Return the value of a key."""
        return self._base.get(key, db=db)

    def put(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Note and put."""
        if db in self._tracked:
            self._written.add((db, key))
        return self._base.put(key, value, db=db)

    def put_new(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Note and put, unless the key is there."""
        return self._base.get(key, db=db) is None and self.put(key, value, db=db)

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Note and delete."""
        if db in self._tracked:
            self._written.add((db, key))
        return self._base.delete(key, db=db)

    def drop(self, db: Table, *, delete: bool) -> None:
        """Drop a table without recording it: only the oplog's tables are dropped, while no transaction is open."""
        self._base.drop(db, delete=delete)

    def cursor(self, db: Table) -> Cursor:
        """Return a cursor that records its `put_many`."""
        cursor = self._base.cursor(db)
        return cast("Cursor", RecordingCursor(self._written, cursor, db)) if db in self._tracked else cursor

    def stat(self, db: Table) -> dict[str, int]:
        """Return the sizes of a table."""
        return self._base.stat(db)

    def commit(self) -> None:
        """Commit."""
        self._base.commit()

    def abort(self) -> None:
        """Abort."""
        self._base.abort()


class RecordingCursor:
    """A cursor that records its `put_many`. It does not record `delete`, which only removes rows that no client can
    see."""

    __slots__ = ("_cursor", "_db", "_written")

    def __init__(self, written: set[TableKey], cursor: Cursor, db: Table) -> None:
        self._written = written
        self._cursor = cursor
        self._db = db

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes], **options: bool) -> int:
        self._written.update((self._db, key) for key in keys)
        return self._cursor.put_many(keys, values, **options)

    def __enter__(self) -> RecordingCursor:
        self._cursor.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._cursor.__exit__(*failure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)
