"""Intervals of one field's values in an index, as positions between keys.

    ascending   [low, high) in bytes of the field's key:  k 01 is before all keys of the value k, k FF after them
    descending  the same of the inverted key, the ends exchanged

The keystring of a value is followed by the next field's keystring or 04, so the next byte is from 04 to F5, also when
inverted. If a string continues with a NUL, this byte is FF, inverted 00, and so is on the right side of both positions.
An end that is not at a value (all strings, all dates) is at a prefix of keystrings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from bson import MaxKey, MinKey

from headrace.store.indexes.index_keys import INVERTED
from headrace.turns import paced
from headrace.values.keystring import encode_value

BEFORE: Final = b"\x01"
BEHIND: Final = b"\xff"


@dataclass(frozen=True, slots=True)
class End:
    """An end of an interval: at the keystring `key` of `value`, or at all keystrings that begin with `key`."""

    key: bytes
    value: Any
    """The value that explain shows."""
    included: bool = True
    is_prefix: bool = False

    def as_low(self, key: bytes) -> bytes:
        """Return the position from which keys are in the interval. `key`: the key of the end, maybe inverted."""
        if self.is_prefix:
            return key if self.included else after_prefix(key)
        return key + (BEFORE if self.included else BEHIND)

    def as_high(self, key: bytes) -> bytes:
        """Return the position before which keys are in the interval. `key`: the key of the end, maybe inverted."""
        if self.is_prefix:
            return after_prefix(key) if self.included else key
        return key + (BEHIND if self.included else BEFORE)


@dataclass(frozen=True, slots=True)
class Interval:
    """The values from `low` to `high`."""

    low: End
    high: End

    @property
    def is_point(self) -> bool:
        """Whether the interval is a single value."""
        return self.low.key == self.high.key and not self.low.is_prefix and not self.high.is_prefix

    def positions(self, descending: bool = False) -> tuple[bytes, bytes]:
        """Return [low, high) in bytes of the field's key."""
        if not descending:
            return self.low.as_low(self.low.key), self.high.as_high(self.high.key)
        return self.high.as_low(self.high.key.translate(INVERTED)), self.low.as_high(self.low.key.translate(INVERTED))

    def piece(self, descending: bool) -> bytes:
        """Return the bytes of a point in a key."""
        return self.low.key.translate(INVERTED) if descending else self.low.key


Intervals = list[Interval]
"""Disjoint intervals, ascending; empty: no value is possible."""


def after_prefix(prefix: bytes) -> bytes:
    """Return the position after all keys that begin with `prefix`."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes((rest[-1] + 1,)) if rest else b"\xff"


def point(value: Any, key: bytes | None = None) -> Interval:
    """Return the interval of a single value. `key`: its key, if not the value's keystring."""
    end = End(encode_value(value) if key is None else key, value)
    return Interval(end, end)


def _low(interval: Interval) -> bytes:
    return interval.positions()[0]


def union(intervals: Iterable[Interval]) -> Intervals:
    """Return the values that are in any of the intervals. Pauses, because an `$in` may have a million values."""
    given = list(paced(intervals))
    if len(given) < 2:
        return given
    made: Intervals = []
    end = b""
    for interval in paced(sorted(given, key=_low)):
        low, high = interval.positions()
        if not made or low > end:
            made.append(interval)
            end = high
        elif high > end:
            made[-1] = Interval(made[-1].low, interval.high)
            end = high
    return made


def key_pieces(intervals: Intervals, *, descending: bool) -> list[bytes]:
    """Return the bytes of points in a key, ascending."""
    ordered = reversed(intervals) if descending else intervals
    return [interval.piece(descending) for interval in paced(ordered)]


def key_positions(intervals: Intervals, *, descending: bool) -> list[tuple[bytes, bytes]]:
    """Return the positions [low, high) of the intervals in a key, ascending."""
    ordered = reversed(intervals) if descending else intervals
    return [interval.positions(descending) for interval in paced(ordered)]


_FIRST: Final = End(encode_value(MinKey()), MinKey())
_LAST: Final = End(encode_value(MaxKey()), MaxKey())


def complement(intervals: Intervals) -> Intervals:
    """Return the values that are in none of the intervals."""
    made: Intervals = []
    low = _FIRST
    for interval in intervals:
        made.append(Interval(low, _turned(interval.low)))
        low = _turned(interval.high)
    made.append(Interval(low, _LAST))
    return [interval for interval in made if interval.positions()[0] < interval.positions()[1]]


def _turned(end: End) -> End:
    """Return the end of the interval on the other side."""
    value = end.value.turned() if hasattr(end.value, "turned") else end.value
    return End(end.key, value, not end.included, end.is_prefix)


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """Return the values that are in both `left` and `right`."""
    made: Intervals = []
    at = start = 0
    while at < len(left) and start < len(right):
        (low, high), (other_low, other_high) = left[at].positions(), right[start].positions()
        if max(low, other_low) < min(high, other_high):
            first = left[at].low if low >= other_low else right[start].low
            made.append(Interval(first, left[at].high if high <= other_high else right[start].high))
        if high < other_high:
            at += 1
        else:
            start += 1
    return made
