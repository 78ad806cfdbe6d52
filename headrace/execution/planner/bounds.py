"""The values of a path that a condition allows: a superset of the matches, because the filter is applied afterwards.

The intervals of a field are positions between its keys in an index:

    ascending   [low, high) in bytes of the field's key:  k 01 is before all keys of the value k, k FF after them
    descending  the same of the inverted key, the ends exchanged

The keystring of a value is followed by the next field's keystring or 04, so the next byte is from 04 to F5, also when
inverted. If a string continues with a NUL, this byte is FF, inverted 00, and so is on the right side of both positions.
An end that is not at a value (all strings, all dates) is at a prefix of keystrings.

Source: MongoDB's index bounds; its rules for arrays are in `index_access.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.query.match.match_expression import (
    AlwaysBoolean,
    And,
    ElemMatchExpression,
    LeafMatchExpression,
    MatchExpression,
    MatchType,
    Not,
)
from headrace.store.indexes.index_keys import INVERTED
from headrace.turns import paced
from headrace.values.bson import MISSING
from headrace.values.keystring.encoding import encode_value
from headrace.values.order import NAN_KEY, number_key, regex_options

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


_NUMBERS: Final = frozenset({Decimal128, Int64, float, int})
_PLAIN: Final = _NUMBERS | {Binary, DatetimeMS, ObjectId, Timestamp, bool, bytes, str}
POINTS: Final = _PLAIN | {MaxKey, MinKey, dict, type(None)}
_EXACT: Final = _PLAIN | {type(None)}
_RANGES: Final = frozenset({MatchType.GT, MatchType.GTE, MatchType.LT, MatchType.LTE})
_LEADING_TEXT: Final = re.compile(r"\^([\w \-:/@,;=<>!\"'%&~`]+)([*?+{]?)", re.ASCII)
_UNDEFINED: Final = b"\x0f"


class PathCondition(NamedTuple):
    """A condition that every match fulfils. `element`: the enclosing `$elemMatch`, by identity and path."""

    path: str
    intervals: Intervals | None
    """The allowed values; None: any value, or no value."""
    is_exact: bool
    """Whether a document without arrays matches if its value is in the intervals."""
    needs_value: bool
    """Whether a document without a value at the path cannot match."""
    element: tuple[int, str] | None
    node: MatchExpression
    is_single: bool = False
    """Whether the intervals are valid only if no document has an array on the path."""
    sure: Intervals | None = None
    """The part of the intervals in which every document without arrays matches."""


def conditions_of(node: MatchExpression) -> list[PathCondition]:
    """Return the conditions on paths that all matches of a filter fulfil and that an index can use."""
    return list(_conditions(node, "", None))


def _conditions(node: MatchExpression, prefix: str, element: tuple[int, str] | None) -> Iterator[PathCondition]:
    if isinstance(node, And):
        for child in node.children:
            yield from _conditions(child, prefix, element)
    elif isinstance(node, LeafMatchExpression):
        intervals = leaf_intervals(node)
        needs_value = not node.test(MISSING)
        is_exact = _is_exact(node) or _is_prefix(node)
        yield PathCondition(_joined(prefix, node.path), intervals, is_exact, needs_value, element, node)
    elif isinstance(node, Not):
        if isinstance(node.inner, LeafMatchExpression):
            yield from _negated(node, node.inner, prefix, element)
    elif isinstance(node, ElemMatchExpression):
        path = _joined(prefix, node.path)
        yield PathCondition(path, None, False, True, element, node)
        yield from _conditions(node.inner, path, (id(node), path))


def _negated(
    node: Not, inner: LeafMatchExpression, prefix: str, element: tuple[int, str] | None
) -> Iterator[PathCondition]:
    """Yield the condition of a negated leaf: the complement of its intervals, if these are exact."""
    if inner.kind is MatchType.EXISTS:
        if element is None:
            yield PathCondition(inner.path, [point(None)], False, False, None, node)
        return
    intervals = leaf_intervals(inner) if _is_exact(inner) else None
    with_null = inner.wanted is None or (inner.kind is MatchType.IN and any(item is None for item in inner.argument))
    if intervals is None or (with_null and element is not None):
        return
    path = _joined(prefix, inner.path)
    needs_value = inner.test(MISSING) and "." not in path  # {a: []} matches {a.b: {$ne: null}}, without any a.b
    yield PathCondition(path, complement(intervals), True, needs_value, element, node, is_single=with_null)


def equality_condition(path: str, values: list[Any]) -> PathCondition:
    """Return the condition that one of the values is at a path. Regular expressions are plain values here."""
    made = [_equal(value) for value in values]
    known = [interval for intervals in made if intervals is not None for interval in intervals]
    intervals = None if None in made else union(known)
    return PathCondition(path, intervals, False, False, None, AlwaysBoolean(True))


def _joined(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path


def leaf_intervals(leaf: LeafMatchExpression) -> Intervals | None:
    """Return the intervals that contain a value of every match at the path; None: any value."""
    if leaf.kind is MatchType.EQ:
        return _equal(leaf.wanted)
    if leaf.kind in _RANGES:
        return _range(leaf.kind, leaf.argument)
    if leaf.kind is MatchType.IN:
        return _in(leaf.argument)
    if leaf.kind is MatchType.REGEX and type(leaf.argument) is tuple:
        return union(_pattern(*leaf.argument))
    if leaf.kind is MatchType.MOD:
        return [_NUMBER]
    if leaf.kind is MatchType.TYPE and type(leaf.argument) is frozenset and leaf.argument <= _BY_TYPE.keys():
        return union([_BY_TYPE[number] for number in leaf.argument])
    return None


def _is_exact(leaf: LeafMatchExpression) -> bool:
    if leaf.kind is MatchType.EQ:
        return type(leaf.wanted) in _EXACT
    if leaf.kind in _RANGES:
        return type(leaf.argument) in _PLAIN and type(leaf.argument) not in (Binary, bytes)
    return leaf.kind is MatchType.IN and all(type(item) in _EXACT for item in leaf.argument)


def _is_prefix(leaf: LeafMatchExpression) -> bool:
    """Whether a pattern only tests the beginning of a text."""
    if leaf.kind is not MatchType.REGEX or type(leaf.argument) is not tuple:
        return False
    pattern, options = leaf.argument
    leading = _LEADING_TEXT.match(pattern)
    return leading is not None and not options and not leading[2] and leading.end() == len(pattern)


def _equal(value: Any) -> Intervals | None:
    if type(value) in POINTS:
        return [point(value)]
    if type(value) is not list:
        return None
    first = point(value[0]) if value else point([], _UNDEFINED)
    if value and type(value[0]) not in POINTS and type(value[0]) is not list:
        return None
    return union([first, point(value)])


def _in(values: list[Any]) -> Intervals | None:
    made: Intervals = []
    for value in paced(values):
        intervals = _pattern(value.pattern, regex_options(value)) if type(value) is Regex else _equal(value)
        if intervals is None:
            return None
        made += intervals
    return union(made)


def _pattern(pattern: str, options: str) -> Intervals:
    """Return the intervals of the strings with the pattern's literal prefix, and of the equal stored pattern."""
    regex = Regex(pattern, options)
    itself = point(regex)
    if options:  # stored options may be in any order
        itself = Interval(End(b"\x8c", regex, is_prefix=True), End(b"\x8c", regex, is_prefix=True))
    leading = _LEADING_TEXT.match(pattern)
    if leading is None or "|" in pattern or set(options) - {"s", "u"}:
        return [_bracket(b"<", "", {}), itself]
    text = leading[1][:-1] if leading[2] else leading[1]
    if not text:
        return [_bracket(b"<", "", {}), itself]
    prefix = b"<" + text.encode()
    behind = text[:-1] + chr(ord(text[-1]) + 1)
    return [Interval(End(prefix, text, is_prefix=True), End(prefix, Before(behind), is_prefix=True)), itself]


class Before(NamedTuple):
    """The value of an end that explain shows as excluded."""

    value: Any

    def turned(self) -> From:
        """Return the same point for the interval on its other side."""
        return From(self.value)


class From(NamedTuple):
    """The value of an end that explain shows as included."""

    value: Any

    def turned(self) -> Before:
        """Return the same point for the interval on its other side."""
        return Before(self.value)


def _bracket(prefix: bytes, low: Any, high: Any) -> Interval:
    """Return the interval of all keystrings that begin with `prefix`. `high`: the next value, for explain."""
    return Interval(End(prefix, low, is_prefix=True), End(prefix, Before(high), is_prefix=True))


def _range(kind: MatchType, value: Any) -> Intervals | None:
    """Return the values of the operand's type that fulfil the comparison with the operand."""
    included = kind in (MatchType.GTE, MatchType.LTE)
    if value is None:
        return [point(None)] if included else []
    ends = _ends(value)
    if ends is None:
        return None
    if type(value) in _NUMBERS and number_key(value) is NAN_KEY:
        return [point(value)] if included else []
    low, high = ends
    if type(value) is dict or type(value) in (Binary, bytes):
        return [Interval(low, high)]
    end = End(encode_value(value), value, included)
    made = Interval(end, high) if kind in (MatchType.GT, MatchType.GTE) else Interval(low, end)
    first, last = made.positions()
    return [made] if first < last else []


def _ends(value: Any) -> tuple[End, End] | None:
    """Return the ends of all values of the value's type; None if comparisons are not within this type."""
    kind = type(value)
    if kind in _NUMBERS:
        return _INFINITE
    bracket = _BRACKETS.get(kind)
    return None if bracket is None else (bracket.low, bracket.high)


_INFINITE: Final = (
    End(encode_value(float("-inf")), float("-inf")),
    End(encode_value(float("inf")), float("inf")),
)
LOWEST_NUMBER: Final = _INFINITE[0]
"""The low end of all numbers, for a filter without a lower bound."""
_DATE_MAX: Final = (1 << 63) - 1


def _closed(prefix: bytes, low: Any, high: Any) -> Interval:
    return Interval(End(prefix, low, is_prefix=True), End(prefix, high, is_prefix=True))


_BRACKETS: Final[dict[type, Interval]] = {
    Binary: _bracket(b"\x5a", b"", ObjectId("0" * 24)),
    DatetimeMS: _closed(b"\x78", DatetimeMS(-(1 << 63)), DatetimeMS(_DATE_MAX)),
    ObjectId: _closed(b"\x64", ObjectId("0" * 24), ObjectId("f" * 24)),
    Timestamp: _closed(b"\x82", Timestamp(0, 0), Timestamp(0xFFFFFFFF, 0xFFFFFFFF)),
    bool: Interval(End(b"\x6e", False), End(b"\x6f", True)),
    bytes: _bracket(b"\x5a", b"", ObjectId("0" * 24)),
    dict: _bracket(b"\x46", {}, []),
    str: _bracket(b"<", "", {}),
}

_NUMBER: Final = Interval(End(encode_value(float("nan")), float("nan")), _INFINITE[1])
_BY_TYPE: Final[dict[int, Interval]] = {
    -1: point(MinKey()), 1: _NUMBER, 2: _BRACKETS[str], 3: _BRACKETS[dict], 5: _BRACKETS[bytes],
    7: _BRACKETS[ObjectId], 8: _BRACKETS[bool], 9: _BRACKETS[DatetimeMS], 10: point(None),
    11: _bracket(b"\x8c", Regex(""), MaxKey()), 16: _NUMBER, 17: _BRACKETS[Timestamp], 18: _NUMBER, 19: _NUMBER,
    127: point(MaxKey()),
}  # fmt: skip
"""The values of a BSON type. Other types bound nothing, such as arrays, which have no key of their own."""


def end_shown(end: End) -> tuple[Any, bool]:
    """Return (value, included) of an end, as explain shows it."""
    if isinstance(end.value, Before | From):
        return end.value.value, isinstance(end.value, From)
    return end.value, end.included
