"""Which texts of keys are one key: 1, 1.0 and Decimal128 "1.00" are three texts, and one `_id` in MongoDB.

Rule: two keys have the same identity exactly if MongoDB's comparison calls them equal. A table has each key as the text
of the document's own `_id`; whatever looks a key up, or counts documents by it, goes by the identity.
"""

from __future__ import annotations

from typing import Final

from bson import Decimal128

from headrace.spark.rows.extjson import dumps, loads
from headrace.values.keystring import encode_value

_INT: Final = '{"$numberInt":"'
_LONG: Final = '{"$numberLong":"'
_UNIQUE: Final = (_INT, '{"$oid":', '{"$date":')
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


def same_document_key(document: str, key: str) -> str:
    """The text of the document's `_id`: `key`, unless a replacement has given it another type (1 for 1.0)."""
    if '"$number' not in key or document.startswith(f'{{"_id":{key}'):
        return key
    return dumps(loads(document)["_id"])


def _integral(value: float | Decimal128) -> int | None:
    """The value as an integer; None if it is none, or beyond those that BSON has."""
    number = value.to_decimal() if isinstance(value, Decimal128) else value
    # Comparisons with NaN are false, or raise for a signaling one.
    if isinstance(value, Decimal128) and not number.is_finite():  # type: ignore[union-attr]
        return None
    if not -_LONG_END <= number < _LONG_END or number != int(number):
        return None
    return int(number)
