"""The records of logical sessions that are not used any more: listed and deleted in bounded pieces.

The records are written for retryable writes; here only their `usedAt` is read.
"""

from __future__ import annotations

import contextlib

from headrace.store.checksums.transaction import DamagedValue
from headrace.store.view import View
from headrace.store.write_transaction import WriteTransaction
from headrace.values.bson import decode


def unused(view: View, start: bytes, before_ms: int, count_max: int) -> tuple[list[bytes], bytes]:
    """The sessions last used before `before_ms` among `count_max` from the key `start` on, and where to go on."""
    unused_keys: list[bytes] = []
    with view.kv.cursor(view.tables["sessions"]) as cursor:
        moved = cursor.set_range(start) if start else cursor.first()
        for _ in range(count_max):
            if not moved:
                return unused_keys, b""
            with contextlib.suppress(DamagedValue):  # an error for its client alone
                if _used_ms(cursor.value()) < before_ms:
                    unused_keys.append(cursor.key())
            moved = cursor.next()
        return unused_keys, cursor.key() if moved else b""


def forget(txn: WriteTransaction, sessions: list[bytes], before_ms: int) -> None:
    """Delete the records of these sessions, less those that were used again meanwhile."""
    for key in sessions:
        record = txn.kv.get(key, db=txn.tables["sessions"])
        if record is not None and _used_ms(record) < before_ms:
            txn.kv.delete(key, db=txn.tables["sessions"])


def _used_ms(record: bytes) -> int:
    return int(decode(record)["usedAt"])
