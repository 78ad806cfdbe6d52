"""Rows of typed tables against documents, by nothing of Headrace's: as a reader of the table sees their values.

Both sides are flat: a path and a value, as text, for each field that is no object. A value in the rest counts like one
in a column. Not compared is what only the column `_shape` has: the order of fields, nulls, and the types of numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

from bson import Binary, DBRef, Decimal128, ObjectId, json_util
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS

Values = frozenset[tuple[str, str]]

OPTIONS: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL, datetime_conversion=DatetimeConversion.DATETIME_MS, document_class=dict
)
_TABLE_COLUMNS: Final = frozenset({"_key", "_token", "_server", "_rest", "_shape"})
_UNNAMED: Final = re.compile(r"[^\w-]")
"""What becomes `_` in the name of a column (docs/spark/typed-tables.md)."""
_UUID_SUBTYPE: Final = 4


def values_of_document(document: dict[str, Any]) -> Values:
    """The values of a document, as the driver gives it with `datetime_conversion="DATETIME_MS"`."""
    return frozenset(_flat(document, ""))


def values_of_row(row: dict[str, Any]) -> Values:
    """The values of a row of a typed mirror: those of its columns, and those in its rest."""
    rest = json_util.loads(row["_rest"], json_options=OPTIONS) if row["_rest"] else {}
    columns = {name: value for name, value in row.items() if name not in _TABLE_COLUMNS}
    return frozenset([*_flat(columns, ""), *_flat(rest, "")])


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, DBRef):
        value = value.as_doc()
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(item, f"{path}/{_UNNAMED.sub('_', name)}")
    elif value is not None:
        yield path, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return str([sorted(_flat(item, "")) for item in value])
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return str(Fraction(value)) if math.isfinite(value) else str(float(value))
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, Binary) and value.subtype == _UUID_SUBTYPE and len(value) == 16:
        return str(UUID(bytes=value))
    if isinstance(value, datetime):
        value = DatetimeMS(value)
    return value if type(value) is str else json_util.dumps(value, json_options=OPTIONS)
