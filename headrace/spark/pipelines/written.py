"""How a value may be written: the canonical texts of all values that are equal to it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from bson import Binary, Decimal128, Int64, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.spark.rows.extjson import dumps

_ONE_FORM: Final = frozenset({Binary, DatetimeMS, ObjectId, Timestamp, bool, bytes, str, type(None)})
_FORMS_MAX: Final = 27


@dataclass(frozen=True, slots=True)
class Written:
    """All texts of values equal to one; with `numeric`, a text with a decimal in it may be one more."""

    texts: tuple[str, ...]
    numeric: bool = False


def forms(value: Any) -> Written | None:
    """How values equal to this one are written; None where that cannot be told, or is too much."""
    kind = type(value)
    if kind in _ONE_FORM:
        return Written((dumps(value),))
    if kind in (int, Int64, float):
        return Written(_number_forms(value), numeric=True)
    if kind is Decimal128 or kind is not dict:
        return None
    inner = [forms(item) for item in value.values()]
    known = [item for item in inner if item is not None]
    if len(known) < len(inner):
        return None
    texts: list[str] = []
    for parts in product(*[item.texts for item in known]):
        if len(texts) == _FORMS_MAX:
            return None
        texts.append("{" + ",".join(f"{dumps(name)}:{part}" for name, part in zip(value, parts, strict=True)) + "}")
    return Written(tuple(texts), any(item.numeric for item in known))


def _number_forms(value: Any) -> tuple[str, ...]:
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124  (only NaN differs from itself)
        return (dumps(float(value)),)
    found = []
    if value == int(value):
        whole = int(value)
        if -(1 << 31) <= whole < 1 << 31:
            found.append(dumps(whole))
        if -(1 << 63) <= whole < 1 << 63:
            found.append(dumps(Int64(whole)))
    double = float(value)
    if double == value:
        found.append(dumps(double))
        if double == 0:
            found.append(dumps(-double))
    return tuple(dict.fromkeys(found))
