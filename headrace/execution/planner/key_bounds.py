"""The values of keys, and tests of keys against the bounds of all fields, which ranges of keys may not express.

A test accepts a key, or returns the position at which the scan continues.

    {a: {$gt: 5}, b: 3}  on  {a, b}     the range is a > 5; after (6, 1) the scan continues at (6, 3),
                                        after (6, 4) with the next value of a

A simple pattern is tested on the text in the key, and a key whose text does not match is skipped.
Source: MongoDB's index bounds, by which a scan seeks, and its filters on keys.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from bson import ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.execution.planner.bounds import Intervals, PathCondition
from headrace.query.match.match_expression import LeafMatchExpression, MatchType
from headrace.store.catalog import Index
from headrace.store.indexes.index_keys import CUT_BYTES, CUT_KEY, INVERTED, descends
from headrace.store.view import Skip
from headrace.values.keystring.decoding import value_end

NUMBER_BYTES: Final = 4
"""The length of the index number with which a key begins. The keys of `_id` have none."""


def key_values(key: bytes, descending: Sequence[bool], at: int) -> list[Any] | None:
    """Return the values of fields from a place in a key on; None if one is ambiguous.

    Strings, booleans, dates, timestamps and ObjectIds can be decoded. Numbers cannot, because 5 and 5.0 have one key.
    Nor can null, whose key a missing field has as well, nor nested values."""
    values: list[Any] = []
    inverted: bytes | None = None
    for down in descending:
        if down and inverted is None:
            inverted = key.translate(INVERTED)
        read = value_at(inverted if down and inverted is not None else key, at)
        if read is None:
            return None
        value, at = read
        values.append(value)
    return values


def value_at(key: bytes, at: int) -> tuple[Any, int] | None:
    """Return (value, start of the next value); None if the key is ambiguous."""
    kind = key[at]
    at += 1
    if kind == 0x3C:
        return _text(key, at)
    if kind == 0x64:
        return ObjectId(key[at : at + 12]), at + 12
    if kind == 0x78:
        return DatetimeMS(int.from_bytes(key[at : at + 8], "big") - (1 << 63)), at + 8
    if kind in (0x6E, 0x6F):
        return kind == 0x6F, at
    if kind == 0x82:
        number = int.from_bytes(key[at : at + 8], "big")
        return Timestamp(number >> 32, number & 0xFFFFFFFF), at + 8
    return None


def _text(key: bytes, at: int) -> tuple[str, int]:
    """Return a text that ends with 00. A 00 inside the text is followed by FF."""
    end = key.index(0, at)
    while key[end + 1 : end + 2] == b"\xff":
        end = key.index(0, end + 2)
    return key[at:end].replace(b"\0\xff", b"\0").decode(), end + 1


_NUMBER_BYTES: Final = 4
_CUT: Final = CUT_BYTES + _NUMBER_BYTES
"""The length from which a key or a position may be truncated."""
_STRING: Final = 0x3C
_INTEGERS: Final = range(0x2B, 0x33)
_QUICK_PATTERN: Final = re.compile(r"(\^?\.\*)?[^*+?{(]{1,100}(\.\*\$?)?")
"""Patterns without repetitions and groups inside."""
_SIZES: Final = {0x14: 1, 0x29: 1, 0x64: 13, 0x6E: 1, 0x6F: 1, 0x78: 9, 0x82: 9}


class FieldBounds(NamedTuple):
    """The intervals of a field, as positions in its keys."""

    descending: bool
    lows: list[bytes] | None
    """The starts of the intervals, in index order; None: all values."""
    highs: list[bytes]
    tests: Sequence[Callable[[Any], bool]] = ()
    """The tests that the text of a match must pass."""


def field_bounds(kind: Any, intervals: Intervals | None, tests: Sequence[Callable[[Any], bool]] = ()) -> FieldBounds:
    """Return the bounds of a field with this kind in the key pattern."""
    down = descends(kind)
    positions = sorted([interval.positions(down) for interval in intervals or ()])
    return FieldBounds(
        down, None if intervals is None else [low for low, _ in positions], [high for _, high in positions], tests
    )


def key_bounds(
    index: Index, bounds: Sequence[Intervals | None], conditions: Sequence[PathCondition], *, are_ranges: bool
) -> Skip | None:
    """Return the function that says whether a key is in the bounds; None if the ranges of keys suffice."""
    patterns = [] if index.traits or "collation" in index.spec else [item for item in conditions if _is_pattern(item)]
    if are_ranges and not patterns:
        return None
    fields = []
    for (path, kind), intervals in zip(index.spec["key"].items(), bounds):
        tests = [item.node.test for item in patterns if item.path == path]  # type: ignore[attr-defined]
        fields.append(field_bounds(kind, intervals, [] if kind == "hashed" else tests))
    while fields and fields[-1].lows is None and not fields[-1].tests:
        fields.pop()
    return _KeyBounds(fields, are_cut=CUT_KEY in index.traits)


def _is_pattern(condition: PathCondition) -> bool:
    """Whether the condition is a fast pattern: a scan cannot pause while it holds an LMDB cursor."""
    node = condition.node
    if condition.element is not None or not isinstance(node, LeafMatchExpression) or node.kind is not MatchType.REGEX:
        return False
    return type(node.argument) is tuple and _QUICK_PATTERN.fullmatch(node.argument[0]) is not None


class _KeyBounds:
    """A `Skip`: called with a key and whether the scan is backward."""

    __slots__ = ("_are_cut", "_fields")

    def __init__(self, fields: list[FieldBounds], *, are_cut: bool) -> None:
        self._fields = fields
        self._are_cut = are_cut
        """Whether the index has truncated keys."""

    def __call__(self, key: bytes, backward: bool) -> bytes | None:
        if self._are_cut and len(key) >= _CUT:
            return None  # maybe truncated
        plain = {False: key}
        at = _NUMBER_BYTES
        last = len(self._fields) - 1
        for number, (down, lows, highs, tests) in enumerate(self._fields):
            if lows is not None:
                rest = key[at:]
                interval = bisect_right(highs, rest)
                if interval == len(highs) or rest < lows[interval]:
                    if backward:
                        return self._cut_high(key[:at] + (highs[interval - 1] if interval else b"\x01"))
                    return self._cut_low(key[:at] + (b"\xff" if interval == len(highs) else lows[interval]))
            if number == last and not tests:
                break
            if down and True not in plain:
                plain[True] = key.translate(INVERTED)
            if tests and plain[down][at] == _STRING:
                read = value_at(plain[down], at)
                if read is not None and not all(test(read[0]) for test in tests):
                    return key if backward else key + b"\0"
            try:
                at = end_of_value(plain[down], at)
            except CommandError:
                return None  # nested too deeply to parse: the filter decides
        return None

    def _cut_low(self, position: bytes) -> bytes:
        """Return a position before all keys that equal this one when truncated."""
        return position[:_CUT] if self._are_cut else position

    def _cut_high(self, position: bytes) -> bytes:
        """Return a position after all keys that equal this one when truncated."""
        if not self._are_cut or len(position) <= _CUT:
            return position
        return position[:_CUT] + b"\xff" * 40


def end_of_value(key: bytes, at: int) -> int:
    """Return the end of the value at `at`, like `value_end`, but faster for the commonest types."""
    kind = key[at]
    if kind in _INTEGERS:
        end = at + kind - 0x29
        if not key[end - 1] & 1:
            return end
    elif kind in _SIZES:
        return at + _SIZES[kind]
    elif kind == _STRING:
        end = key.index(0, at)
        while key[end + 1 : end + 2] == b"\xff":
            end = key.index(0, end + 2)
        return end + 1
    return value_end(key, at)
