"""Retention of the oplog: prune entries by time, size and number, with their runs and images.

Pruning is a write of its own. The server calls `prune` in the background, with a bounded number of entries per
transaction and any `now_ms`. The newest entry always stays, so that new positions continue from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from headrace import limits
from headrace.store.checksums.transaction import DamagedValue
from headrace.store.kv import Cursor
from headrace.store.view import View
from headrace.store.write_transaction import WriteTransaction
from headrace.values.bson import find_element
from headrace.values.position import LAST, from_key, position, seconds, to_key

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Retention:
    """Bounds of the oplog. The oldest entries are pruned by the bound that is exceeded first. None or 0: no such
    bound."""

    hours: float | None
    bytes_max: int | None
    entries_max: int | None


def default_bytes_max(free_bytes: int) -> int:
    """Return the default size limit of an oplog. `free_bytes`: free space on the disk and in the data file."""
    least = min(limits.OPLOG_BYTES_MIN, int(free_bytes * limits.OPLOG_DISK_SHARE_MAX))
    return max(least, int(free_bytes * limits.OPLOG_DISK_SHARE_DEFAULT))


class AgedScan:
    """A search for old entries in an oplog whose positions are ahead of the clock, because the clock was ahead once.

    The positions of such entries do not show their age, but their `wall` does. If an entry's `wall` is in the wrong
    future, too, the entries after it decide. Each call reads a bounded number of entries, and the next call continues
    there.
    """

    def __init__(self) -> None:
        self._next = 0
        self._keep = 0

    def first_to_keep(self, view: View, limit_ms: int, now_ms: int) -> int:
        """Return the position after the last entry that is known to be older than `limit_ms`."""
        try:
            for at, entry in islice(view.entries(self._next), limits.PRUNE_COUNT_MAX):
                element = find_element(entry, b"wall")
                assert element is not None
                wall_ms = int.from_bytes(entry[element[1] : element[2]], "little", signed=True)
                if wall_ms < limit_ms:
                    self._keep = at + 1
                elif wall_ms <= now_ms:
                    break
                self._next = at + 1
        except DamagedValue:  # the following entries decide
            with view.kv.cursor(view.tables["oplog"]) as cursor:
                cursor.set_range(to_key(self._next))
                self._next = from_key(cursor.key()) + 1
        return self._keep


def first_to_keep(view: View, retention: Retention, now_ms: int, aged: AgedScan | None = None) -> int:
    """Return the position of the oldest entry within all bounds. `aged` continues from its last call."""
    newest = view.newest_position()
    if newest is None:
        return 0
    keep = 0
    if retention.hours:
        limit_ms = now_ms - int(retention.hours * HOUR_MS)
        keep = max(keep, min(position(max(limit_ms // 1000, 0), 0), newest))
        if seconds(newest) * 1000 > now_ms:
            keep = max(keep, min((aged or AgedScan()).first_to_keep(view, limit_ms, now_ms), newest))
    count = view.kv.stat(view.tables["oplog"])["entries"]
    too_many = count - retention.entries_max if retention.entries_max else 0
    if retention.bytes_max:
        table_bytes = view.table_bytes("oplog")
        if table_bytes > retention.bytes_max:
            too_many = max(too_many, -(-count * (table_bytes - retention.bytes_max) // table_bytes))
    if too_many > 0:
        keep = max(keep, _position_after(view, too_many, newest))
    return keep


def _position_after(view: View, count: int, newest: int) -> int:
    """Return the position of the oldest entry after `count` entries are removed. A large `count` is capped."""
    count = min(count, limits.PRUNE_ROUND_COUNT_MAX)
    with view.kv.cursor(view.tables["oplog"]) as cursor:
        for index, key in enumerate(cursor.iternext(keys=True, values=False)):
            if index == count:
                return from_key(key)
    return newest


def prune(txn: WriteTransaction, keep: int, count_max: int) -> int:
    """Delete up to `count_max` entries older than `keep`, with their runs and images; return the number of entries."""
    removed = prune_entries(txn, keep, count_max)
    for table in ("runs", "images") if removed else ():
        following, begun = b"", False
        while following or not begun:
            keys, following = outlived(txn, table, following, count_max)
            remove(txn, table, keys)
            begun = True
    return removed


def prune_entries(txn: WriteTransaction, keep: int, count_max: int) -> int:
    """Delete entries as `prune` does, but keep their runs and images, which `outlived` then finds."""
    removed, last = 0, b""
    with txn.kv.cursor(txn.tables["oplog"]) as cursor:
        moved = cursor.first()
        while moved and removed < count_max and from_key(cursor.key()) < keep:
            last = cursor.key()
            cursor.delete()
            removed += 1
            moved = bool(cursor.key())
    if removed:
        txn.kv.put(b"pruned", last, db=txn.tables["meta"])
        txn.pruned_through = from_key(last)
    return removed


def outlived(view: View, table: str, start: bytes, count_max: int) -> tuple[list[bytes], bytes]:
    """Return the keys of `runs` or `images` whose entries are gone, after `count_max` steps from the key `start` on,
    and the key to continue from (empty: done). A step is one such key, or a topic or collection that has none."""
    oldest = view.oldest_position()
    keys: list[bytes] = []
    if oldest is None:
        return keys, b""
    with view.kv.cursor(view.tables[table]) as cursor:
        moved = cursor.set_range(start) if start else cursor.first()
        for _ in range(count_max):
            if not moved:
                return keys, b""
            key = cursor.key()
            if (_ends(cursor) if table == "runs" else from_key(key[16:24])) < oldest:
                keys.append(key)
                moved = cursor.next()
            elif table == "runs":
                moved = cursor.set_range((int.from_bytes(key[:4], "big") + 1).to_bytes(4, "big"))
            else:
                moved = cursor.set_range(_past_collection(key))
        return keys, cursor.key() if moved else b""


def _ends(cursor: Cursor) -> int:
    """Return the last position of a run. For a damaged run return `LAST`, so that `headrace check` still finds it."""
    try:
        return from_key(cursor.value())
    except DamagedValue:
        return LAST


def _past_collection(key: bytes) -> bytes:
    """Return a key after all images of this image's collection."""
    return key[:16] + b"\xff" * 13


def expired_images(view: View, seconds: int, now_ms: int, count_max: int) -> list[bytes]:
    """Return the keys of up to `count_max` images older than `seconds`, for `remove`."""
    limit_ms = now_ms - seconds * 1000
    keys: list[bytes] = []
    with view.kv.cursor(view.tables["images"]) as cursor:
        moved = cursor.first()
        while moved and len(keys) < count_max:
            key = cursor.key()
            try:
                is_old = int.from_bytes(cursor.value()[:8], "big", signed=True) < limit_ms
            except DamagedValue:  # an unreadable image expires
                is_old = True
            if is_old:
                keys.append(key)
                moved = cursor.next()
            else:
                moved = cursor.set_range(_past_collection(key))
    return keys


def remove(txn: WriteTransaction, table: str, keys: list[bytes]) -> None:
    """Delete these rows. Rows that are already gone are ignored."""
    for key in keys:
        txn.kv.delete(key, db=txn.tables[table])
