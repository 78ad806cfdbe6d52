"""Which texts of keys are one key: 1, 1.0 and Decimal128 "1.00" are three texts, and one `_id` in MongoDB.

Rule: two keys have the same identity exactly if MongoDB's comparison calls them equal. A table has each key as the text
of the document's own `_id`; code that looks a key up, or counts documents by it, uses the identity.
"""

from __future__ import annotations

import math
from typing import Final

from bson import Decimal128

from headrace.spark.rows.extjson import dumps, loads
from headrace.values.keystring import encode_value

_INT: Final = '{"$numberInt":"'
_LONG: Final = '{"$numberLong":"'
_UNIQUE: Final = (_INT, '{"$oid":', '{"$date":')
_DECIMAL: Final = '{"$numberDecimal":"'
_LONG_END: Final = 1 << 63


def key_identity(text: str) -> str:
    """The identity of a key, whose canonical Extended JSON `text` is; nearly always the text itself."""
    if text.startswith(_UNIQUE) or '"$number' not in text:
        return text
    if text.startswith(_LONG):
        return _INT + text[len(_LONG) :]
    value = loads(text)
    if isinstance(value, float | Decimal128) and (integral := _integral(value)) is not None:
        return f'{_INT}{integral}"}}'
    return encode_value(value).hex()


def has_numbers(text: str) -> bool:
    """Whether a number is the key or within it, so that other texts may be the same key."""
    return '"$number' in text


def is_plain_number(text: str) -> bool:
    """Whether the key is an int, a long or a double: `number_texts` of any number that is equal has its text."""
    return text.startswith('{"$number') and not text.startswith(_DECIMAL)


def number_texts(text: str) -> list[str]:
    """The texts of the int, the long and the doubles that are this key; none if it is no number by itself."""
    value = loads(text)
    if not isinstance(value, int | float | Decimal128):
        return []
    integral = value if isinstance(value, int) else _integral(value)
    texts = [] if integral is None else [f'{start}{integral}"}}' for start in (_INT, _LONG)]
    doubles = (0.0, -0.0) if integral == 0 else (_double(value),)
    return texts + [each for each in map(dumps, doubles) if key_identity(each) == key_identity(text)]


def same_document_key(document: str, key: str) -> str:
    """The text of the document's `_id`: `key`, unless a replacement has given it another type (1 for 1.0)."""
    if '"$number' not in key or document.startswith(f'{{"_id":{key}'):
        return key
    return dumps(loads(document)["_id"])


def _double(value: float | Decimal128) -> float:
    """The double nearest to it."""
    if not isinstance(value, Decimal128):
        return float(value)
    number = value.to_decimal()
    return math.nan if number.is_nan() else float(number)


def _integral(value: float | Decimal128) -> int | None:
    """The value as an integer; None if it is none, or beyond those that BSON has."""
    number = value.to_decimal() if isinstance(value, Decimal128) else value
    # Comparisons with NaN are false, or raise for a signaling one.
    if isinstance(value, Decimal128) and not number.is_finite():  # type: ignore[union-attr]
        return None
    if not -_LONG_END <= number < _LONG_END or number != int(number):
        return None
    return int(number)
