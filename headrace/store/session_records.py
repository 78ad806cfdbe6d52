"""The records of logical sessions: list them, and delete unused ones, in bounded pieces.

Retryable writes write the records. This module reads only their `usedAt`, without decoding other fields. Keys longer
than a session's key are pieces of the state of a paused write; the same rule deletes them.
"""

from __future__ import annotations

import contextlib
from typing import Final

from headrace.store.checksums.transaction import DamagedValue
from headrace.store.view import View
from headrace.store.write_transaction import WriteTransaction
from headrace.values.bson import find_element

SESSION_BYTES: Final = 16
"""The length of a session's own key, in bytes."""


def used(view: View, start: bytes, count_max: int) -> tuple[dict[bytes, int], bytes]:
    """Return the last use of `count_max` records from the key `start` on, by key, in ms since the Unix epoch; and the
    key to continue from (empty: done). Damaged records are left out."""
    times: dict[bytes, int] = {}
    with view.kv.cursor(view.tables["sessions"]) as cursor:
        moved = cursor.set_range(start) if start else cursor.first()
        for _ in range(count_max):
            if not moved:
                return times, b""
            with contextlib.suppress(DamagedValue):  # only the session's client gets an error
                times[cursor.key()] = _used_ms(cursor.value())
            moved = cursor.next()
        return times, cursor.key() if moved else b""


def unused(view: View, start: bytes, before_ms: int, count_max: int) -> tuple[list[bytes], bytes]:
    """Return the records last used before `before_ms` among `count_max` from the key `start` on, and the key to
    continue from."""
    times, following = used(view, start, count_max)
    return [key for key, used_ms in times.items() if used_ms < before_ms], following


def forget(txn: WriteTransaction, sessions: list[bytes], before_ms: int) -> None:
    """Delete the records of these sessions, except sessions that were used again meanwhile."""
    for key in sessions:
        record = txn.kv.get(key, db=txn.tables["sessions"])
        if record is not None and _used_ms(record) < before_ms:
            txn.kv.delete(key, db=txn.tables["sessions"])


def _used_ms(record: bytes) -> int:
    element = find_element(record, b"usedAt")
    assert element is not None
    return int.from_bytes(record[element[1] : element[2]], "little", signed=True)
