"""The records of logical sessions: listed, and deleted when they are not used any more, in bounded pieces.

The records are written for retryable writes; here only their `usedAt` is read, without decoding the rest. Keys longer
than a session's are pieces of what a write that has paused has done: they go by the same rule.
"""

from __future__ import annotations

import contextlib
from typing import Final

from headrace.store.checksums.transaction import DamagedValue
from headrace.store.view import View
from headrace.store.write_transaction import WriteTransaction
from headrace.values.bson import find_element

SESSION_BYTES: Final = 16
"""The length of a session's own key."""


def used(view: View, start: bytes, count_max: int) -> tuple[dict[bytes, int], bytes]:
    """When `count_max` records from the key `start` on were last used, in milliseconds since the Unix epoch, by their
    keys; and where to go on, empty for nowhere. Damaged records are left out."""
    times: dict[bytes, int] = {}
    with view.kv.cursor(view.tables["sessions"]) as cursor:
        moved = cursor.set_range(start) if start else cursor.first()
        for _ in range(count_max):
            if not moved:
                return times, b""
            with contextlib.suppress(DamagedValue):  # an error for its client alone
                times[cursor.key()] = _used_ms(cursor.value())
            moved = cursor.next()
        return times, cursor.key() if moved else b""


def unused(view: View, start: bytes, before_ms: int, count_max: int) -> tuple[list[bytes], bytes]:
    """The records last used before `before_ms` among `count_max` from the key `start` on, and where to go on."""
    times, following = used(view, start, count_max)
    return [key for key, used_ms in times.items() if used_ms < before_ms], following


def forget(txn: WriteTransaction, sessions: list[bytes], before_ms: int) -> None:
    """Delete the records of these sessions, less those that were used again meanwhile."""
    for key in sessions:
        record = txn.kv.get(key, db=txn.tables["sessions"])
        if record is not None and _used_ms(record) < before_ms:
            txn.kv.delete(key, db=txn.tables["sessions"])


def _used_ms(record: bytes) -> int:
    element = find_element(record, b"usedAt")
    assert element is not None
    return int.from_bytes(record[element[1] : element[2]], "little", signed=True)
