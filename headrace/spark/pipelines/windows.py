"""The time windows of a group on a stream: told by the caller, or found in the group's `$dateTrunc`.

Rule: a group on a stream must end, so that it can be given out and forgotten. It ends when the watermark has passed
its window. A `$dateTrunc` is a window by the calendar, in whatever unit and time zone: the evaluator cuts the date, as
the server would, and finds where the next bin begins. Before that moment no document of the bin can be missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression
from headrace.query.stages.time_units import UNITS
from headrace.spark.pipelines.refusals import refused

CLUSTER_TIME: Final = "$clusterTime"
_TRIES: Final = 4


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

    def __str__(self) -> str:
        return f"window {self.duration}"


@dataclass(frozen=True, slots=True)
class Bins:
    """The bins of a `$dateTrunc`, whose argument is `truncation`; see `Window` for the delay."""

    truncation: dict[str, Any]
    delay: str | None = None

    @property
    def date(self) -> Any:
        return self.truncation.get("date")

    def __str__(self) -> str:
        size, zone = self.truncation.get("binSize", 1), self.truncation.get("timezone", "UTC")
        return f"bins of {size} {self.truncation['unit']} in {zone}"

    def end(self, start: DatetimeMS) -> DatetimeMS:
        """Where the bin that begins at `start` has ended: no date before it is cut to a later bin, and none of this
        bin is at it or later."""
        step = {name: self.truncation[name] for name in ("unit", "timezone") if name in self.truncation}
        size = int(self.truncation.get("binSize", 1))
        for count in range(1, _TRIES):
            # A bin across a change of the clocks may be longer than its name says.
            later = _computed({"$dateAdd": step | {"startDate": start, "amount": size * count}})
            following: DatetimeMS = _computed({"$dateTrunc": self.truncation | {"date": later}})
            if following > start:
                return following
        raise CommandError(15, f"no bin of {size} {self.truncation['unit']} begins behind {start!r}")


def window_of_key(identity: Any, delay: str | None) -> Bins | None:
    """The bins of the first `$dateTrunc` in a group's `_id`; None if there is none. Raises StageRefused."""
    truncation = _truncation(identity)
    if truncation is None:
        return None
    for name, value in truncation.items():
        if name != "date" and (isinstance(value, dict | list) or (type(value) is str and value[:1] == "$")):
            raise refused("$group", f"on a stream $dateTrunc takes a constant {name}")
    if truncation.get("unit") not in UNITS:
        raise refused("$group", "on a stream $dateTrunc takes a constant unit")
    # What is wrong with a constant is told now, not by a worker.
    _computed({"$dateTrunc": truncation | {"date": DatetimeMS(0)}})
    return Bins(truncation, delay)


def _computed(expression: Any) -> Any:
    return parse_expression(expression)(Env({}))


def delay_of(window: Window | Bins) -> str:
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
    return next((inner for inner in map(_truncation, value.values()) if inner is not None), None)
