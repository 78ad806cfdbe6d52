"""The keys written while clients' transactions are open. A transaction that writes one of them conflicts.

A transaction conflicts with a key of documents, ids or indexes that a commit has written since it began, or that the
open, unpublished write transaction has written. As in MongoDB, the values do not matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set

from headrace import limits
from headrace.memory_budget import Account
from headrace.store.kv import Table, TableKey


class WrittenKeys:
    """The keys written from the start of the first open transaction to the end of the last."""

    def __init__(self, account: Account) -> None:
        """`account`: counts the memory of the keys."""
        self.sequence = 0
        """The number of the last recorded commit."""
        self.open: Set[TableKey] = frozenset()
        """The keys of the open write transaction, of all tables."""
        self._tracked: Set[Table] = frozenset()
        self._account = account
        self._last: dict[TableKey, int] = {}  # the last commit that wrote each key
        self._commits: deque[tuple[int, set[TableKey]]] = deque()

    def has_changed(self, key: TableKey, since: int) -> bool:
        """Return whether a key was written after the commit `since`."""
        return (key in self.open and key[0] in self._tracked) or self._last.get(key, 0) > since

    def begin(self, keys: Set[TableKey], tracked: Set[Table]) -> None:
        """Begin a write transaction, which adds the keys that it writes to `keys`. Those of the `tracked` tables
        count."""
        self.open, self._tracked = keys, tracked

    def publish(self) -> None:
        """Record the keys of the write transaction, which was just published."""
        keys = {key for key in self.open if key[0] in self._tracked}
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
