"""The identity of a key: 1, 1.0 and Decimal128 "1.00" are three texts, but one `_id` in MongoDB.

Rule: two keys have the same identity exactly if MongoDB compares them as equal. A table stores each key as the text of
the document's own `_id`. Code that looks up a key, or counts documents by key, uses the identity.

Two servers may have documents with the same `_id`. So sinks and tables of several servers identify a document by one
text: the server's name and the `_id`. The table has them in two columns. With one server the text is the `_id` alone. A
newline separates the two: neither a server's name nor Extended JSON contains one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from bson import Decimal128

from headrace.spark.rows.events import Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.values.keystring.encoding import encode_value

_INT: Final = '{"$numberInt":"'
_LONG: Final = '{"$numberLong":"'
_UNIQUE: Final = (_INT, '{"$oid":', '{"$date":')
_DECIMAL: Final = '{"$numberDecimal":"'
_LONG_END: Final = 1 << 63


def key_identity(text: str) -> str:
    """Return the identity of the key with canonical Extended JSON `text`; it is nearly always the text itself."""
    if text.startswith(_UNIQUE) or '"$number' not in text:
        return text
    if text.startswith(_LONG):
        return _INT + text[len(_LONG) :]
    value = loads(text)
    if isinstance(value, float | Decimal128) and (integral := _integral(value)) is not None:
        return f'{_INT}{integral}"}}'
    return encode_value(value).hex()


def has_numbers(text: str) -> bool:
    """Whether the key is or contains a number, so that other texts may be the same key."""
    return '"$number' in text


def is_plain_number(text: str) -> bool:
    """Whether the key is an int, a long or a double: then `number_texts` of any equal number has its text."""
    return text.startswith('{"$number') and not text.startswith(_DECIMAL)


def number_texts(text: str) -> list[str]:
    """Return the texts of the int, the long and the doubles equal to this key; none if the key is not a number."""
    value = loads(text)
    if not isinstance(value, int | float | Decimal128):
        return []
    integral = value if isinstance(value, int) else _integral(value)
    texts = [] if integral is None else [f'{start}{integral}"}}' for start in (_INT, _LONG)]
    doubles = (0.0, -0.0) if integral == 0 else (_double(value),)
    return texts + [each for each in map(dumps, doubles) if key_identity(each) == key_identity(text)]


def same_document_key(document: str, key: str) -> str:
    """Return the text of the document's `_id`: `key`, unless a replacement has changed its type (1 for 1.0)."""
    if '"$number' not in key or document.startswith(f'{{"_id":{key}'):
        return key
    return dumps(loads(document)["_id"])


def _double(value: float | Decimal128) -> float:
    """Return the nearest double."""
    if not isinstance(value, Decimal128):
        return float(value)
    number = value.to_decimal()
    return math.nan if number.is_nan() else float(number)


def _integral(value: float | Decimal128) -> int | None:
    """Return the value as an integer; None if it is not one, or does not fit into 64 bits."""
    number = value.to_decimal() if isinstance(value, Decimal128) else value
    # Comparisons with NaN are false, or raise for a signaling NaN.
    if isinstance(value, Decimal128) and not number.is_finite():  # type: ignore[union-attr]
        return None
    if not -_LONG_END <= number < _LONG_END or number != int(number):
        return None
    return int(number)


_BETWEEN: Final = "\n"

Value = TypeVar("Value")


def server_key(server: str | None, key: str) -> str:
    """Return the text for the document with this `_id` on this server; without a server, the `_id` alone."""
    return f"{server}{_BETWEEN}{key}" if server else key


def split_server_key(text: str) -> tuple[str, str]:
    """Return the server (empty for the only one) and the text of the `_id`."""
    server, _, key = text.rpartition(_BETWEEN)
    return server, key


def of_server(server: str, by_key: Mapping[str, Value]) -> dict[str, Value]:
    """Return the mapping's items of this server, by the `_id` alone."""
    start = f"{server}{_BETWEEN}"
    return {key[len(start) :]: value for key, value in by_key.items() if key.startswith(start)}


def rows_by_server(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each server in order, by its name; an empty name for rows that name no server."""
    rows = list(rows)
    if rows and not any(row.server for row in rows):
        return {"": rows}
    each: dict[str, list[Row]] = {}
    for row in rows:
        each.setdefault(row.server or "", []).append(row)
    return dict(sorted(each.items()))
