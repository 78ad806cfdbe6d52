"""The time windows of a group on a stream: told by the caller, or found in the group's `$dateTrunc`.

Rule: a group on a stream must end, so that it can be given out and forgotten. It ends when the watermark has passed
its window. `$dateTrunc` is a window when its bins have one length: units up to a week, in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace.query.expressions import Env, parse_expression
from headrace.query.stages.time_units import MILLISECONDS
from headrace.spark.pipelines.refusals import refused

CLUSTER_TIME: Final = "$clusterTime"
_UTC: Final = frozenset({"UTC", "GMT", "Etc/UTC", "Z", "+00:00"})


@dataclass(frozen=True, slots=True)
class Window:
    """A window of a group: `duration` and `slide` as Spark writes intervals ("1 hour").

    `date` is the expression whose date or timestamp a document falls into windows by; `delay` how much older than the
    newest a document may come and still count. Events come in the order of `$clusterTime`: there it may be nothing.
    """

    duration: str
    slide: str | None = None
    date: Any = CLUSTER_TIME
    delay: str | None = None
    start: str | None = None


def found_window(identity: Any, delay: str | None) -> Window | None:
    """The window of the first `$dateTrunc` in a group's `_id`; None if there is none. Raises StageRefused."""
    truncation = _truncation(identity)
    if truncation is None:
        return None
    unit, size = truncation.get("unit"), truncation.get("binSize", 1)
    zone, weekday = truncation.get("timezone", "UTC"), truncation.get("startOfWeek", "sunday")
    if unit not in MILLISECONDS or zone not in _UTC or type(size) is bool or not isinstance(size, int) or size < 1:
        raise refused(
            "$group", "on a stream $dateTrunc takes a constant unit up to 'week', a constant binSize, and UTC"
        )
    if type(weekday) is not str:
        raise refused("$group", "on a stream $dateTrunc takes a constant startOfWeek")
    length_ms = MILLISECONDS[unit] * size
    from bson.datetime_ms import DatetimeMS

    first = parse_expression({"$dateTrunc": truncation | {"date": DatetimeMS(0)}})(Env({}))
    start = f"{int(first) % length_ms} milliseconds"
    return Window(f"{length_ms} milliseconds", date=truncation.get("date"), delay=delay, start=start)


def delay_of(window: Window) -> str:
    """The watermark's delay. Raises StageRefused where it must be told and was not."""
    if window.delay is not None:
        return window.delay
    if window.date != CLUSTER_TIME:
        raise refused("$group", "say how late documents may come (delay=), for they are not in the order of that date")
    return "0 seconds"


def _truncation(value: Any) -> dict[str, Any] | None:
    """The argument of a `$dateTrunc` that stands in the key as itself, not inside another operator."""
    if type(value) is not dict:
        return None
    if "$dateTrunc" in value:
        argument = value["$dateTrunc"]
        return argument if type(argument) is dict else None
    if next(iter(value), "$").startswith("$"):
        return None
    return next((found for found in map(_truncation, value.values()) if found is not None), None)
