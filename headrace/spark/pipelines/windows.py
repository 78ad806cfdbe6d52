"""The time windows of a group on a stream: given by the caller, or by the group's `$dateTrunc`.

Rule: a group on a stream must end, so that it can be output and its state dropped. It ends when the watermark has
passed its window. A `$dateTrunc` is a window of the calendar, in any unit and time zone. The evaluator truncates the
date, as the server would, and computes where the next bin begins. No document of the bin has that date or a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression
from headrace.query.expressions.dates import UNITS
from headrace.spark.pipelines.refusals import refused

CLUSTER_TIME: Final = "$clusterTime"
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Window:
    """A window of a group. `duration` and `slide` are intervals as Spark writes them ("1 hour").

    `date` is the expression of the date or timestamp that decides a document's window. `delay` is how much older than
    the newest document a document may be and still count. It may be omitted for `$clusterTime`, because events are in
    its order.
    """

    duration: str
    slide: str | None = None
    date: Any = CLUSTER_TIME
    delay: str | None = None
    start: str | None = None

    def __str__(self) -> str:
        return f"window {self.duration}"


@dataclass(frozen=True, slots=True)
class Bins:
    """The bins of a `$dateTrunc` with the argument `truncation`; for `delay` see `Window`."""

    truncation: dict[str, Any]
    delay: str | None = None

    @property
    def date(self) -> Any:
        """The expression of the truncated date."""
        return self.truncation.get("date")

    def __str__(self) -> str:
        size, zone = self.truncation.get("binSize", 1), self.truncation.get("timezone", "UTC")
        return f"bins of {size} {self.truncation['unit']} in {zone}"

    def end(self, start: DatetimeMS) -> DatetimeMS:
        """Return the end of the bin that begins at `start`: the bin has the dates from `start` up to its end,
        exclusive."""
        step = {name: self.truncation[name] for name in ("unit", "timezone") if name in self.truncation}
        size = int(self.truncation.get("binSize", 1))
        for count in range(1, _TRIES):
            # Across a change of daylight saving time a bin may be longer than its nominal size.
            later = _computed({"$dateAdd": step | {"startDate": start, "amount": size * count}})
            following: DatetimeMS = _computed({"$dateTrunc": self.truncation | {"date": later}})
            if following > start:
                return following
        raise CommandError(15, f"no bin of {size} {self.truncation['unit']} begins after {start!r}")


def window_of_key(identity: Any, delay: str | None) -> Bins | None:
    """Return the bins of the first `$dateTrunc` in a group's `_id`, or None. Raise StageRefused."""
    truncation = _truncation(identity)
    if truncation is None:
        return None
    for name, value in truncation.items():
        if name != "date" and (isinstance(value, dict | list) or (type(value) is str and value[:1] == "$")):
            raise refused("$group", f"on a stream $dateTrunc takes a constant {name}")
    if truncation.get("unit") not in UNITS:
        raise refused("$group", "on a stream $dateTrunc takes a constant unit")
    # Errors of constants are raised now and not by a worker.
    _computed({"$dateTrunc": truncation | {"date": DatetimeMS(0)}})
    return Bins(truncation, delay)


def _computed(expression: Any) -> Any:
    return parse_expression(expression)(Env({}))


def delay_of(window: Window | Bins) -> str:
    """Return the watermark's delay. Raise StageRefused if it is required and missing."""
    if window.delay is not None:
        return window.delay
    if window.date != CLUSTER_TIME:
        raise refused("$group", "say how late documents may come (delay=), for they are not in the order of that date")
    return "0 seconds"


def _truncation(value: Any) -> dict[str, Any] | None:
    """Return the argument of a `$dateTrunc` that is a field of the key, not an argument of another operator."""
    if type(value) is not dict:
        return None
    if "$dateTrunc" in value:
        argument = value["$dateTrunc"]
        return argument if type(argument) is dict else None
    if next(iter(value), "$").startswith("$"):
        return None
    return next((inner for inner in map(_truncation, value.values()) if inner is not None), None)
