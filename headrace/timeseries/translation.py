"""Translates filters, indexes and updates of a time series to those of its buckets.

    filter   {time: {$gte: a, $lt: b}}   →  _id between the first and the last that fit, control.max.time: {$gte: a},
                                            control.min.time: {$lte: b}
             {sensor: x, "sensor.y": z}  →  {meta: x, "meta.y": z}
    index    {sensor: 1, "sensor.x": 1}  →  {meta: 1, "meta.x": 1}
             {time: 1}                   →  {"control.min.time": 1, "control.max.time": 1}
             {time: -1}                  →  {"control.max.time": -1, "control.min.time": -1}

Rule of filters: the result may include buckets without a match, and never excludes a bucket that has one. Conditions
that cannot be decided by bucket are dropped; in an `$or` they drop the complete `$or`. The filter itself is then
applied to the measurements.

Rule of indexes: other fields are translated like the time. Source: the indexes that MongoDB lists for a time series and
its buckets.

Rule of updates: only the meta field may be updated. The update changes all measurements of a source at once, so
neither the filter nor the update may name another field. Source: MongoDB's limitations of updates of time series
collections; its error 72.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
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


# Keys of indexes.


_MIN: Final = "control.min."
_MAX: Final = "control.max."


def to_buckets(series: Series, key: dict[str, Any]) -> dict[str, Any]:
    """The key of the buckets' index. Raises `ValueError` for a field without a direction, unless it is the meta
    field."""
    made: dict[str, Any] = {}
    for path, kind in key.items():
        renamed = meta_path(series, path)
        if renamed is not None:
            made[renamed] = kind
        elif isinstance(kind, str) or path == "$**":
            raise ValueError(path)
        else:
            first, second = (_MIN, _MAX) if kind >= 0 else (_MAX, _MIN)
            made |= {first + path: kind, second + path: kind}
    return made


def from_buckets(series: Series, key: dict[str, Any]) -> dict[str, Any] | None:
    """The key of the time series' index; None if no index of the time series has this key in its buckets."""
    made: dict[str, Any] = {}
    for path, kind in key.items():
        if path == "meta" or path.startswith("meta."):
            if series.meta_field is None:
                return None
            made[series.meta_field + path[len("meta") :]] = kind
        elif path.startswith((_MIN, _MAX)):
            made[path[len(_MIN) :]] = kind
        else:
            return None
    return made if to_buckets(series, made) == key else None


# Updates of the meta field.


_OF_SEVERAL: Final = frozenset({"$and", "$nor", "$or"})
_ON: Final = "on a time-series collection"


def check_update(series: Series, *, multi: bool, upsert: bool) -> None:
    """Raise 72 for an update without `multi`, for an upsert, and if the series has no meta field."""
    if not multi:
        raise _refused(f"Cannot perform a non-multi update {_ON}")
    if upsert:
        raise _refused(f"Cannot perform an upsert {_ON}")
    if series.meta_field is None:
        raise _refused(f"Cannot perform an update {_ON} that does not have a metaField")


def filter_of_meta(series: Series, spec: dict[str, Any]) -> dict[str, Any]:
    """A filter on the meta field as a filter on buckets. Raises 72 if it names another field."""
    made: dict[str, Any] = {}
    for name, value in spec.items():
        if name in _OF_SEVERAL and type(value) is list:
            made[name] = [filter_of_meta(series, item) if type(item) is dict else item for item in value]
        elif name == "$expr":
            made[name] = _expression(series, value)
        elif name == "$comment":
            made[name] = value
        else:
            made[_path(series, name)] = value
    return made


def update_of_meta(series: Series, update: Any) -> dict[str, Any]:
    """An update of the meta field as an update of buckets. Raises 72 for any other update."""
    if type(update) is list:
        raise _refused(f"Cannot perform an update {_ON} using a pipeline update")
    if not all(name.startswith("$") for name in update) or not update:
        raise _refused(f"Cannot perform an update {_ON} using a replacement document")
    made: dict[str, Any] = {}
    for operator, changes in update.items():
        if type(changes) is not dict:
            made[operator] = changes  # the parser refuses this
            continue
        renamed: dict[str, Any] = {}
        for path, value in changes.items():
            if operator == "$rename" and type(value) is str:
                value = _changed_path(series, value)
            renamed[_changed_path(series, path)] = value
        made[operator] = renamed
    return made


def _path(series: Series, path: str) -> str:
    renamed = meta_path(series, path)
    if renamed is None:
        raise _refused(
            f"Cannot perform an update or delete {_ON} when querying on a field that is not the metaField "
            f"'{series.meta_field}'"
        )
    return renamed


def _changed_path(series: Series, path: str) -> str:
    renamed = meta_path(series, path)
    if renamed is None:
        raise _refused(
            f"Cannot perform an update {_ON} which updates a field that is not the metaField '{series.meta_field}'"
        )
    return renamed


def _expression(series: Series, value: Any) -> Any:
    """An expression in which the meta field has its name in buckets."""
    if type(value) is dict:
        return value if "$literal" in value else {name: _expression(series, item) for name, item in value.items()}
    if type(value) is list:
        return [_expression(series, item) for item in value]
    if type(value) is not str or not value.startswith("$"):
        return value
    if not value.startswith("$$"):
        return "$" + _path(series, value[1:])
    variable, _, rest = value[2:].partition(".")
    if variable not in ("CURRENT", "ROOT"):
        return value
    return f"$${variable}.{_path(series, rest)}"


def _refused(message: str) -> CommandError:
    return CommandError(72, message)
