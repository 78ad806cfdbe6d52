"""The records of sessions that nobody uses any more: found in pieces, and deleted.

The records themselves are `dispatch/retryable_writes`'s; what is known of them here is `usedAt`.
"""

from __future__ import annotations

from headrace.store.view import View
from headrace.store.writes import WriteTransaction
from headrace.values.bson import decode


def unused(view: View, start: bytes, before_ms: int, count_max: int) -> tuple[list[bytes], bytes]:
    """The sessions last used before `before_ms` among `count_max` from the key `start` on, and where to go on."""
    found_unused: list[bytes] = []
    with view.kv.cursor(view.tables["sessions"]) as cursor:
        found = cursor.set_range(start) if start else cursor.first()
        for _ in range(count_max):
            if not found:
                return found_unused, b""
            if _used_ms(cursor.value()) < before_ms:
                found_unused.append(bytes(cursor.key()))
            found = cursor.next()
        return found_unused, bytes(cursor.key()) if found else b""


def forget(txn: WriteTransaction, sessions: list[bytes], before_ms: int) -> None:
    """Delete the records of these sessions, less those that were used again meanwhile."""
    for key in sessions:
        record = txn.kv.get(key, db=txn.tables["sessions"])
        if record is not None and _used_ms(record) < before_ms:
            txn.kv.delete(key, db=txn.tables["sessions"])


def _used_ms(record: bytes) -> int:
    return int(decode(record)["usedAt"])
