"""The distinct values of a field, or one document of each value, read by skipping through an index.

Rule: the bounds of the index must express the whole filter (`distinct_access` in `choice.py`). The scan skips all keys
with the same values up to the field. If a later field's value is in no interval, it skips to the next interval.

Some values cannot be made from a key: numbers, null, nested values, and strings with a collation. These are read from
the document of their first key. Missing values and null have the same key, so all documents with it may be read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from headrace import limits
from headrace.cursors.index_scan import check_index, plan_summary
from headrace.dispatch.context import CommandContext
from headrace.execution.planner.index_access import IndexAccess
from headrace.execution.planner.key_bounds import end_of_value, field_bounds, value_at
from headrace.running_command import examined
from headrace.store.catalog import Collection
from headrace.store.indexes.field_keys import collated_key
from headrace.store.indexes.index_entries import collation_of_index
from headrace.store.indexes.index_keys import INVERTED
from headrace.store.view import LEFT_OUT, View
from headrace.values.bson import MISSING, decode
from headrace.values.keystring.encoding import encode_value
from headrace.values.paths import spread_values

_UNCLEAR: Final = frozenset({0x0F, 0x14})
"""The first bytes of ambiguous keys: of an empty array or undefined, and of a missing value or null."""


def distinct_values(context: CommandContext, collection: Collection, access: IndexAccess, path: str) -> Iterator[Any]:
    """Yield the values at a path of the index, in its order, each once. Ignore documents without a value."""
    walk = _ValueWalk(access, path)
    for view, key, record in walk.keys(context, collection):
        piece = walk.piece(key)
        read = None if walk.is_collated else value_at(piece, 0)
        if read is not None:
            walk.skip(key)
            yield read[0]
            continue
        value = walk.values_by_key(view, collection, record).get(piece, MISSING)
        walk.skip(key, all_alike=value is not MISSING or piece[0] not in _UNCLEAR)
        if value is not MISSING:
            yield value


def distinct_documents(
    context: CommandContext, collection: Collection, access: IndexAccess, path: str
) -> Iterator[bytes]:  # fmt: skip
    """Yield the first raw document of each value at a path of the index. A missing value counts as null."""
    walk = _ValueWalk(access, path)
    for view, key, record in walk.keys(context, collection):
        walk.skip(key)
        yield view.fetch(collection, access.index, record)


class _ValueWalk:
    """A walk from key to key within the bounds. The caller calls `skip` after each key."""

    def __init__(self, access: IndexAccess, path: str) -> None:
        self._access = access
        self._names = path.split(".")
        pattern = access.index.spec["key"]
        self._at = list(pattern).index(path)
        self._fields = [field_bounds(kind, intervals) for kind, intervals in zip(pattern.values(), access.bounds)]
        bounded = [number for number, field in enumerate(self._fields) if field.lows is not None]
        self._read = self._fields[: max([self._at, *bounded]) + 1]
        collation = collation_of_index(access.index)
        self._sort_key = None if collation is None else collation.key
        self.is_collated = collation is not None
        self._low = b""
        self._start = self._end = 0
        self._recent: dict[bytes, dict[bytes, Any]] = {}
        self._recent_count = 0

    def keys(self, context: CommandContext, collection: Collection) -> Iterator[tuple[View, bytes, bytes]]:
        """Yield (view, key, record) of the next key in the bounds, each time after the caller's `skip`."""
        index, ranges = self._access.index, self._access.ranges
        if not ranges:
            return
        self._low, end = ranges[0][0], ranges[-1][1]
        while True:
            view = context.view
            check_index(view, collection, index)
            first: tuple[bytes, bytes] | None = None
            if self._low < end:
                for first in islice(view.index_keys(index, self._low, end), limits.VIEW_CHUNK_COUNT):
                    if first[1] is not LEFT_OUT:
                        break
            if first is None:
                return
            examined(plan_summary("DISTINCT_SCAN", index), 0, 1)
            other = first[0] + b"\0" if first[1] is LEFT_OUT else self._next_position(first[0])
            if other is None:
                yield view, *first
            else:
                self._low = other
            context.tick()

    def _next_position(self, key: bytes) -> bytes | None:
        """Return None for a key in the bounds, otherwise the next position that may be. Note the value's place."""
        plain: dict[bool, bytes] = {False: key}
        at = 4
        for number, (down, lows, highs, _) in enumerate(self._read):
            if lows is not None:
                rest = key[at:]
                interval = bisect_right(highs, rest)
                if interval == len(highs):
                    return key[:at] + b"\xff"
                if rest < lows[interval]:
                    return key[:at] + lows[interval]
            if down and True not in plain:
                plain[True] = key.translate(INVERTED)
            end = end_of_value(plain[down], at)
            if number == self._at:
                self._start, self._end = at, end
            at = end
        return None

    def piece(self, key: bytes) -> bytes:
        """Return the keystring of the value in the last key."""
        piece = key[self._start : self._end]
        return piece.translate(INVERTED) if self._fields[self._at].descending else piece

    def values_by_key(self, view: View, collection: Collection, record: bytes) -> dict[bytes, Any]:
        """Return the values of a document by their keystrings. Recent documents are cached: an array has many keys."""
        values = self._recent.get(record)
        if values is None:
            values = {}
            for value in spread_values(decode(view.fetch(collection, self._access.index, record)), self._names):
                values.setdefault(self._key_of(value), value)
            self._recent_count += len(values)
            while self._recent and self._recent_count > limits.DISTINCT_VALUE_COUNT:
                self._recent_count -= len(self._recent.pop(next(iter(self._recent))))
            self._recent[record] = values
        return values

    def _key_of(self, value: Any) -> bytes:
        return encode_value(value) if self._sort_key is None else collated_key(self._sort_key, value)

    def skip(self, key: bytes, *, all_alike: bool = True) -> None:
        """Continue after this key. `all_alike`: after all keys with the same values up to the field."""
        self._low = key[: self._end] + b"\xff" if all_alike else key + b"\0"
