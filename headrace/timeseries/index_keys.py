"""Translates indexes of a time series to indexes of its buckets, and back.

    {sensor: 1, "sensor.x": 1}   {meta: 1, "meta.x": 1}
    {time: 1}                    {"control.min.time": 1, "control.max.time": 1}
    {time: -1}                   {"control.max.time": -1, "control.min.time": -1}

Other fields are translated like the time. Source: the indexes that MongoDB lists for a time series and its buckets.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.timeseries.bucket_filter import meta_path
from headrace.timeseries.series import Series

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
