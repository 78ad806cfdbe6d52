"""The canonical Extended JSON of all values that MongoDB's equality compares as equal to a value."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from bson import Binary, Decimal128, Int64, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.spark.rows.extjson import dumps

_ONE_FORM: Final = frozenset({Binary, DatetimeMS, ObjectId, Timestamp, bool, bytes, str, type(None)})


@dataclass(frozen=True, slots=True)
class CanonicalTexts:
    """The texts of values equal to one; if `numeric`, texts with a decimal may be further ones."""

    texts: tuple[str, ...]
    numeric: bool = False


def canonical_texts(value: Any) -> CanonicalTexts | None:
    """The texts of values equal to this one; None if they cannot be listed, or are too many."""
    kind = type(value)
    if kind in _ONE_FORM:
        return CanonicalTexts((dumps(value),))
    if kind in (int, Int64, float):
        return CanonicalTexts(_number_forms(value), numeric=True)
    if kind is Decimal128 or kind is not dict:
        return None
    items = [canonical_texts(item) for item in value.values()]
    known = [item for item in items if item is not None]
    if len(known) < len(items):
        return None
    texts: list[str] = []
    for combination in product(*[item.texts for item in known]):
        if len(texts) == limits.TEXT_FORM_COUNT_MAX:
            return None
        texts.append(
            "{" + ",".join(f"{dumps(name)}:{text}" for name, text in zip(value, combination, strict=True)) + "}"
        )
    return CanonicalTexts(tuple(texts), any(item.numeric for item in known))


def _number_forms(value: Any) -> tuple[str, ...]:
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124  (only NaN differs from itself)
        return (dumps(float(value)),)
    texts = []
    if value == int(value):
        integral = int(value)
        if -(1 << 31) <= integral < 1 << 31:
            texts.append(dumps(integral))
        if -(1 << 63) <= integral < 1 << 63:
            texts.append(dumps(Int64(integral)))
    double = float(value)
    if double == value:
        texts.append(dumps(double))
        if double == 0:
            texts.append(dumps(-double))
    return tuple(dict.fromkeys(texts))
