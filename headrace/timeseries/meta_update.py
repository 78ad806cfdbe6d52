"""Translates an update of a time series' meta field, the only update allowed, to an update of its buckets.

Rule: the update changes all measurements of a source at once, so neither the filter nor the update may name another
field.
Source: MongoDB's limitations of updates of time series collections; its error 72.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import CommandError
from headrace.timeseries.bucket_filter import meta_path
from headrace.timeseries.series import Series

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
