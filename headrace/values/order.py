"""MongoDB's total order over all values: comparing, equality, sort keys and hash keys.

Rule: types come in this order. Numbers of all types are one type and are compared exactly:

    minKey < missing < null < numbers (NaN first) < string < object < array < binData < objectId
    < bool < date < timestamp < regex < javascript < javascript with scope < maxKey

Objects are compared field by field in their own order: type of the value, then name, then value. A prefix is less.
Arrays are compared in the same way, without names. Binary data is compared by length, subtype, bytes.

Missing is less than null here, as in expressions. `query/sort.py` treats a missing field as null for sorting.
`query/match/value_tests.py` has the type bracketing of filters (a number is neither less nor greater than a string).

Source: MongoDB's documentation, "Comparison/Sort Order".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Protocol

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.values.bson import Missing

RANK_NUMBER: Final = 10
RANK_STRING: Final = 15

RANKS: Final[dict[type, int]] = {
    MinKey: -1, Missing: 0, type(None): 5, float: 10, int: 10, Int64: 10, Decimal128: 10, str: 15, dict: 20, list: 25,
    bytes: 30, Binary: 30, ObjectId: 35, bool: 40, DatetimeMS: 45, Timestamp: 47, Regex: 50, Code: 60, MaxKey: 127,
}  # fmt: skip


class StringOrder(Protocol):
    """The part of a collation that comparisons use."""

    def key(self, text: str) -> Any:
        """A hashable key that compares as the collation orders strings."""


class _LeastNumber:
    """NaN in keys: equal to itself and less than every number."""

    __slots__ = ()

    def __reduce__(self) -> str:
        return "NAN_KEY"

    def __lt__(self, other: object) -> bool:
        return other is not self

    def __gt__(self, other: object) -> bool:
        return False

    def __le__(self, other: object) -> bool:
        return True

    def __ge__(self, other: object) -> bool:
        return other is self


NAN_KEY: Final = _LeastNumber()

Key = tuple[int, Any]


def rank(value: Any) -> int:
    """The rank of the value's type in the order. Types that are compared by value have equal ranks."""
    if type(value) is Code and value.scope is not None:
        return 65
    return RANKS[type(value)]


def number_key(value: Any) -> Any:
    """A Python number (or `NAN_KEY`) that compares and hashes exactly as the BSON number."""
    if type(value) is Decimal128:
        decimal = value.to_decimal()
        return NAN_KEY if decimal.is_nan() else decimal
    return NAN_KEY if value != value else value  # noqa: PLR0124  (only NaN differs from itself)


def regex_options(pattern: Regex[Any]) -> str:
    """The options of a regular expression as BSON stores them: letters in alphabetical order."""
    flags = int(pattern.flags)
    return "".join(letter for letter, bit in _REGEX_LETTERS if flags & bit)


_REGEX_LETTERS: Final = (("i", 2), ("l", 4), ("m", 8), ("s", 16), ("u", 32), ("x", 64))


def sort_key(value: Any, collation: StringOrder | None = None) -> Key:
    """A hashable key. Two keys of this function compare like their values."""
    if collation is None:
        return _PLAIN_KEYS[type(value)](value)
    kind = type(value)
    if kind is str:
        return (RANK_STRING, collation.key(value))
    if kind is dict:
        return _object_key(value, collation)
    if kind is list:
        return (25, tuple([sort_key(item, collation) for item in value]))
    return _PLAIN_KEYS[kind](value)


def _object_key(value: dict[str, Any], collation: StringOrder | None = None) -> Key:
    fields = []
    for name, item in value.items():
        type_rank, payload = sort_key(item, collation)
        fields.append((type_rank, name, payload))
    return (20, tuple(fields))


def _array_key(value: list[Any]) -> Key:
    return (25, tuple([_PLAIN_KEYS[type(item)](item) for item in value]))


def _float_key(value: float) -> Key:
    return (10, NAN_KEY) if value != value else (10, value)  # noqa: PLR0124


def _code_key(value: Code) -> Key:
    return (60, str(value)) if value.scope is None else (65, (str(value), _object_key(dict(value.scope))))


_PLAIN_KEYS: Final[dict[type, Callable[[Any], Key]]] = {
    MinKey: lambda value: (-1, 0),
    Missing: lambda value: (0, 0),
    type(None): lambda value: (5, 0),
    int: lambda value: (10, value),
    float: _float_key,
    Int64: lambda value: (10, int(value)),
    Decimal128: lambda value: (10, number_key(value)),
    str: lambda value: (15, value),
    dict: _object_key,
    list: _array_key,
    bytes: lambda value: (30, (len(value), 0, value)),
    Binary: lambda value: (30, (len(value), value.subtype, bytes(value))),
    ObjectId: lambda value: (35, value.binary),
    bool: lambda value: (40, value),
    DatetimeMS: lambda value: (45, int(value)),
    Timestamp: lambda value: (47, (value.time, value.inc)),
    Regex: lambda value: (50, (value.pattern, regex_options(value))),
    Code: _code_key,
    MaxKey: lambda value: (127, 0),
}

_SELF_COMPARED: Final = frozenset({bool, int, Int64, DatetimeMS, ObjectId, Timestamp})


def hash_key(value: Any, collation: StringOrder | None = None) -> Hashable:
    """A hashable key: equal for equal values (1, 1.0, Decimal128("1")), different for different values.

    It is not a sort key: keys of different types may not be comparable.
    """
    kind = type(value)
    if kind is int or (kind is str and collation is None):
        return value  # type: ignore[no-any-return]
    if kind is ObjectId:
        return value.binary  # type: ignore[no-any-return]
    key = sort_key(value, collation)
    if key[0] == RANK_NUMBER:
        return key[1]  # type: ignore[no-any-return]
    return key


def hash_keys(values: Sequence[Any], collation: StringOrder | None = None) -> Iterable[Hashable]:
    """The keys of many values, as `hash_key` makes them."""
    if collation is None:
        kinds = set(map(type, values))
        if kinds <= _OWN_KEYS:
            return values
        if kinds == {dict}:
            return map(_object_key, values)
    return (hash_key(value, collation) for value in values)


_OWN_KEYS: Final = frozenset({int, str})
"""The types of values that are their own keys."""


def compare(left: Any, right: Any, collation: StringOrder | None = None) -> int:
    """-1, 0 or 1 if `left` is before, equal to or after `right`, in the order of the module's docstring."""
    kind = type(left)
    if kind is type(right) and (kind in _SELF_COMPARED or (kind is str and collation is None)):
        return -1 if left < right else int(left > right)
    left_key, right_key = sort_key(left, collation), sort_key(right, collation)
    if left_key == right_key:
        return 0
    return -1 if left_key < right_key else 1


def equal(left: Any, right: Any, collation: StringOrder | None = None) -> bool:
    """Whether the values compare equal: numbers across types, objects with the same order of fields."""
    kind = type(left)
    if kind is type(right):
        if kind in _SELF_COMPARED or (kind is str and collation is None):
            return bool(left == right)
        if kind is list:
            return len(left) == len(right) and all(equal(a, b, collation) for a, b in zip(left, right))
        if kind is dict:
            fields = left.items()
            return len(left) == len(right) and all(
                name == other and equal(a, b, collation) for (name, a), (other, b) in zip(fields, right.items())
            )
    elif rank(left) != rank(right):
        return False
    return sort_key(left, collation) == sort_key(right, collation)
