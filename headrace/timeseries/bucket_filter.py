"""Translates a filter on measurements to a filter on the buckets that may hold matches.

    {time: {$gte: a, $lt: b}}   →  _id between the first and the last that fit, control.max.time: {$gte: a},
                                   control.min.time: {$lte: b}
    {sensor: x, "sensor.y": z}  →  {meta: x, "meta.y": z}

Rule: the result may include buckets without a match, and never excludes a bucket that has one. Conditions that cannot
be decided by bucket are dropped; in an `$or` they drop the complete `$or`. The filter itself is then applied to the
measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.timeseries.series import Series

_LOWER: Final = frozenset({"$eq", "$gt", "$gte"})
_UPPER: Final = frozenset({"$eq", "$lt", "$lte"})


def bucket_filter(series: Series, spec: dict[str, Any]) -> dict[str, Any]:
    """The filter on buckets; empty if every bucket may have a match."""
    conditions: list[dict[str, Any]] = []
    for name, value in spec.items():
        if name == "$and" and type(value) is list:
            conditions += [part for item in value if type(item) is dict and (part := bucket_filter(series, item))]
        elif name == "$or" and type(value) is list and all(type(item) is dict for item in value):
            parts = [bucket_filter(series, item) for item in value]
            if parts and all(parts):
                conditions.append({"$or": parts})
        elif name == series.time_field:
            conditions += _of_time(series, value)
        elif (renamed := meta_path(series, name)) is not None:
            conditions.append({renamed: value})
    return {} if not conditions else conditions[0] if len(conditions) == 1 else {"$and": conditions}


def meta_path(series: Series, path: str) -> str | None:
    """The path in a bucket for the meta field or a path inside it; None for another path."""
    meta = series.meta_field
    if meta is None or not (path == meta or path.startswith(meta + ".")):
        return None
    return "meta" + path[len(meta) :]


def of_source(series: Series, spec: dict[str, Any]) -> dict[str, Any] | None:
    """The filter on buckets that equals a filter on the meta field alone; None for a filter on other fields."""
    return _renamed(spec, lambda path: meta_path(series, path))


def of_meta(series: Series, spec: dict[str, Any]) -> dict[str, Any] | None:
    """The filter on the meta field of which `of_source` makes this one; None if it makes it of none."""
    meta = series.meta_field
    return _renamed(spec, lambda path: _within(path, meta))


def _within(path: str, meta: str | None) -> str | None:
    is_meta = meta is not None and (path == "meta" or path.startswith("meta."))
    return f"{meta}{path[len('meta') :]}" if is_meta else None


def _renamed(spec: dict[str, Any], rename: Callable[[str], str | None]) -> dict[str, Any] | None:
    made: dict[str, Any] = {}
    for name, value in spec.items():
        if name in ("$and", "$or") and type(value) is list and all(type(item) is dict for item in value):
            parts = [_renamed(item, rename) for item in value]
            if None in parts:
                return None
            made[name] = parts
        elif (renamed := rename(name)) is not None:
            made[renamed] = value
        else:
            return None
    return made


def _of_time(series: Series, value: Any) -> list[dict[str, Any]]:
    operators = value if type(value) is dict and next(iter(value), "").startswith("$") else {"$eq": value}
    lows: list[int] = []
    highs: list[int] = []
    for operator, operand in operators.items():
        if operator == "$in" and type(operand) is list and operand and {*map(type, operand)} == {DatetimeMS}:
            lows.append(min(map(int, operand)))
            highs.append(max(map(int, operand)))
        if type(operand) is not DatetimeMS:
            continue
        if operator in _LOWER:
            lows.append(int(operand))
        if operator in _UPPER:
            highs.append(int(operand))
    conditions: list[dict[str, Any]] = []
    ids: dict[str, Any] = {}
    plain = not series.time_field.startswith("$")
    if lows:
        ids["$gte"] = series.first_id(max(lows))
        if plain:
            conditions.append({f"control.max.{series.time_field}": {"$gte": DatetimeMS(max(lows))}})
    if highs:
        ids["$lte"] = series.last_id(min(highs))
        if plain:
            conditions.append({f"control.min.{series.time_field}": {"$lte": DatetimeMS(min(highs))}})
    return [{"_id": ids}, *conditions] if ids else []
