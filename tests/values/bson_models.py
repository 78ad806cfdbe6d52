"""Hypothesis strategies for BSON values, and a plain model of MongoDB's order to hold keystrings against."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import strategies as st

from headrace.values import bson

EDGES = [0, 1, 2, 127, 128, 255, 2**15, 2**31, 2**47, 2**53, 2**55, 2**62, 2**63, 2**64, 2**70]


def decimal(negative: bool, exponent: int, coefficient: int) -> Decimal128:
    return Decimal128.from_bid((int(negative) << 127 | (exponent + 6176) << 113 | coefficient).to_bytes(16, "little"))


def near_integer(base: int, step: int, digits: int) -> Decimal128:
    """A decimal some units of its last digit away from an integer."""
    coefficient = min(abs(base * 10**digits + step), 10**34 - 1)
    return decimal(base < 0, -digits, coefficient)


def near_double(number: float, step: int) -> Decimal128:
    """A decimal of 17 digits close to a double."""
    mantissa, _, exponent = f"{abs(number):.16e}".partition("e")
    return decimal(number < 0, int(exponent) - 16, max(int(mantissa.replace(".", "")) + step, 0))


FINITE = st.floats(allow_nan=False, allow_infinity=False)
DECIMALS = st.one_of(
    st.builds(decimal, st.booleans(), st.integers(-40, 10), st.integers(0, 10**34 - 1)),
    st.builds(decimal, st.booleans(), st.integers(-6176, 6111), st.integers(0, 10**34 - 1)),
    st.builds(decimal, st.booleans(), st.integers(-345, -290), st.integers(0, 10**20)),
    st.builds(near_integer, st.sampled_from(EDGES + [-e for e in EDGES]), st.integers(-3, 3), st.integers(0, 14)),
    st.builds(near_double, FINITE, st.integers(-3, 3)),
    st.builds(near_double, st.floats(-10, 10), st.integers(-3, 3)),
    st.sampled_from([Decimal128(text) for text in "NaN Infinity -Infinity 0 -0 0E-50 -0E+6111 0.1 1.10".split()]),
)
INTEGERS = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-300, 300),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.builds(
        lambda edge, step, sign: Int64(min(max(sign * (edge + step), -(2**63)), 2**63 - 1)),
        st.sampled_from(EDGES), st.integers(-2, 2), st.sampled_from([-1, 1]),
    ),
)  # fmt: skip
DOUBLES = st.one_of(
    st.floats().map(lambda number: math.nan if math.isnan(number) else number),
    st.sampled_from([-0.0, 0.0, 0.1, 2.0**-255, 2.0**-256, 5e-324, 2.0**63, -(2.0**63), math.inf, -math.inf]),
    st.builds(
        lambda edge, step: math.nextafter(float(edge), math.inf * step),
        st.sampled_from(EDGES),
        st.sampled_from([-1, 1]),
    ),
)
NUMBERS = st.one_of(INTEGERS, DOUBLES, DECIMALS)
TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
SCALARS = st.one_of(
    NUMBERS,
    TEXT,
    st.binary(max_size=6),
    st.builds(Binary, st.binary(min_size=250, max_size=260), st.sampled_from([3, 5, 128])),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1).map(DatetimeMS),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.builds(Regex, NAMES, st.just(0)),
    st.builds(Code, TEXT),
    st.sampled_from([None, MinKey(), MaxKey()]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(NAMES, inner, max_size=3),
        st.builds(Code, TEXT, st.dictionaries(NAMES, inner, max_size=2)),
    ),
    max_leaves=6,
)


def raw(value: Any) -> tuple[int, bytes]:
    """(type byte, value bytes) of a Python value."""
    document = bson.encode({"": value})
    return document[4], document[6:-1]


def model_key(value: Any) -> tuple[Any, ...]:
    """A tuple that sorts as MongoDB sorts values, written from its documentation's comparison order."""
    kind = type(value)
    if kind in (int, Int64, float, Decimal128):
        return 30, *_number(value)
    if kind is Code:
        text = str(value).encode()
        return (150, text) if value.scope is None else (160, text, _fields(value.scope))
    return _PLAIN[kind](value)


def _number(value: Any) -> tuple[int, Any]:
    if type(value) is Decimal128:
        value = value.to_decimal()
    if value != value:
        return 0, 0
    infinite = not isinstance(value, int) and value in (math.inf, -math.inf)
    return 1, float(value) if infinite else Fraction(value)


def _fields(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(model_key(item)[0], name.encode(), model_key(item)) for name, item in document.items()]


_PLAIN: dict[type, Any] = {
    MinKey: lambda value: (0,),
    type(None): lambda value: (20,),
    str: lambda value: (40, value.encode()),
    dict: lambda value: (50, _fields(value)),
    list: lambda value: (60, [model_key(item) for item in value]),
    bytes: lambda value: (70, len(value), 0, value),
    Binary: lambda value: (70, len(value), value.subtype, bytes(value)),
    ObjectId: lambda value: (80, value.binary),
    bool: lambda value: (90, value),
    DatetimeMS: lambda value: (100, int(value)),
    Timestamp: lambda value: (110, value.time, value.inc),
    Regex: lambda value: (120, value.pattern.encode()),
    MaxKey: lambda value: (200,),
}
