"""$dateAdd, $dateSubtract, $dateDiff and $dateTrunc.

Rule: days and longer units are counted in local time, shorter units in elapsed time. Adding months keeps the day of the
month, or takes the last day if the month is shorter. Bins of $dateTrunc are counted from 2000-01-01, weeks from the
first start of a week in 2000.
"""

from __future__ import annotations

from typing import Any, Final

from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions.calendar_days import DAY_MS, UTC, Zone, civil_of, days_of, month_length, weekday_of
from headrace.query.expressions.dates import date_of, is_date_like, read_zone
from headrace.query.expressions.expression import Env, Evaluate, Operator
from headrace.query.expressions.numbers import fits_long, int64_of, is_nullish, to_long
from headrace.query.expressions.operator_parser import NamedArguments, OperatorParser
from headrace.query.expressions.value_text import as_text
from headrace.values.bson import type_name

_SHORT: Final = {"hour": 3_600_000, "millisecond": 1, "minute": 60_000, "second": 1000}
_DAYS: Final = {"day": 1, "week": 7}
MILLISECONDS: Final = _SHORT | {unit: days * DAY_MS for unit, days in _DAYS.items()}
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
UNITS: Final = frozenset({*MILLISECONDS, *_MONTHS})
_WEEKDAYS: Final = {
    name: number
    for number, long in enumerate("monday tuesday wednesday thursday friday saturday sunday".split())
    for name in (long, long[:3])
}
_SUNDAY: Final = 6
_MONTH_BINS_MAX: Final = 100_000_000_000
"""MongoDB's largest bin of months, quarters or years."""
_REFERENCE_DAYS: Final = days_of(2000, 1, 1)


def read_unit(name: str, value: Any, code: int = 5439013) -> str:
    """A time unit. Raises `code` if the value is not a string, 9 if the unit is unknown."""
    if type(value) is not str:
        raise CommandError(code, f"{name} requires 'unit' to be a string, but got {type_name(value)}")
    if value not in UNITS:
        raise CommandError(
            9, f"{name} parameter 'unit' value parsing failed :: caused by :: unknown time unit: {value}"
        )
    return value


def _read_weekday(name: str, value: Any) -> int:
    if type(value) is not str:
        raise CommandError(5439015, f"{name} requires 'startOfWeek' to be a string, but got {type_name(value)}")
    if value.lower() not in _WEEKDAYS:
        message = f"{name} parameter 'startOfWeek' value cannot be recognized as a day of a week: {value}"
        raise CommandError(5439016, message)
    return _WEEKDAYS[value.lower()]


def _adder(name: str, sign: int) -> OperatorParser:
    def make(start: Evaluate, unit: Evaluate, amount: Evaluate, timezone: Evaluate | None) -> Evaluate:
        def evaluate(env: Env) -> Any:
            date, which = start(env), unit(env)
            if is_nullish(date) or is_nullish(which):
                return None
            step = read_unit(name, which, 5166404)
            count = amount(env)
            if is_nullish(count) or (zone := read_zone(timezone, env)) is None:
                return None
            if not is_date_like(date):
                raise CommandError(5166403, f"{name} requires startDate to be convertible to a date")
            number = int64_of(count)
            if number is None:
                raise CommandError(5166405, f"{name} expects integer amount of time units")
            if sign < 0 and number == -(2**63):
                raise CommandError(6045000, f"invalid {name[1:]} 'amount' parameter value: {number}")
            return DatetimeMS(_added(name, date_of(date), step, sign * number, zone))

        return evaluate

    required = dict.fromkeys(("startDate", "unit", "amount"), 5166402)
    names = ("startDate", "unit", "amount", "timezone")
    return NamedArguments(Operator(name, make), names, required, not_object=5166400, unknown=5166401).parse


def _added(name: str, instant: int, unit: str, amount: int, zone: Zone) -> int:
    moved = _moved(instant, unit, amount, zone)
    if not fits_long(moved):
        if unit == "millisecond":
            raise CommandError(5166406, f"{name[1:]} overflowed")
        raise CommandError(5976500, f"invalid {name[1:]} 'amount' parameter value: {amount} {unit}")
    return moved


def shifted(date: DatetimeMS, unit: str, amount: Any) -> DatetimeMS:
    """The date `amount` whole units later (earlier if negative), in UTC. Raises 15 if the date is out of range."""
    moved = _moved(int(date), unit, to_long(amount), UTC)
    if not fits_long(moved):
        raise CommandError(15, "a step in time leads beyond what a date can hold")
    return DatetimeMS(moved)


def _moved(instant: int, unit: str, amount: int, zone: Zone) -> int:
    """The instant `amount` units later, which may be out of range."""
    if unit in _SHORT:
        return instant + amount * _SHORT[unit]
    days, rest = divmod(zone.local(instant), DAY_MS)
    moved = _moved_days(days, unit, amount) * DAY_MS + rest
    return zone.utc(moved) if fits_long(moved) else moved


def _moved_days(days: int, unit: str, amount: int) -> int:
    if unit in _DAYS:
        return days + amount * _DAYS[unit]
    year, month, day = civil_of(days)
    months = year * 12 + month - 1 + amount * _MONTHS[unit]
    year, month = months // 12, months % 12 + 1
    return days_of(year, month, min(day, month_length(year, month)))


def _make_diff(
    start: Evaluate, end: Evaluate, unit: Evaluate, timezone: Evaluate | None, start_of_week: Evaluate | None
) -> Evaluate:
    def evaluate(env: Env) -> Any:
        first = start(env)
        if is_nullish(first):
            return None
        last = end(env)
        if is_nullish(last) or is_nullish(which := unit(env)):
            return None
        step = read_unit("$dateDiff", which)
        weekday = _weekday("$dateDiff", step, start_of_week, env)
        if weekday is None or (zone := read_zone(timezone, env)) is None:
            return None
        instants = [_instant("$dateDiff", what, value) for what, value in (("startDate", first), ("endDate", last))]
        difference = _difference(instants[0], instants[1], step, zone, weekday)
        if not fits_long(difference):
            raise CommandError(5166308, "dateDiff overflowed")
        return Int64(difference)

    return evaluate


def _weekday(name: str, unit: str, operand: Evaluate | None, env: Env) -> int | None:
    """The first day of a week, Sunday by default; None if it is null. It is evaluated only if the unit is week."""
    if unit != "week" or operand is None:
        return _SUNDAY
    value = operand(env)
    return None if is_nullish(value) else _read_weekday(name, value)


def _instant(name: str, what: str, value: Any) -> int:
    if not is_date_like(value):
        raise CommandError(5166307, f"{name} requires '{what}' to be a date, but got {type_name(value)}")
    return date_of(value)


def _difference(first: int, last: int, unit: str, zone: Zone, weekday: int) -> int:
    """The number of starts of the unit between the two instants."""
    if unit in ("millisecond", "second", "minute"):
        return last // _SHORT[unit] - first // _SHORT[unit]
    if unit == "hour":
        shift = zone.offset(last) - zone.offset(first)
        return zone.local(last) // _SHORT[unit] - zone.local(first) // _SHORT[unit] - int(shift / 3600)
    days = [zone.local(instant) // DAY_MS for instant in (first, last)]
    if unit == "day":
        return days[1] - days[0]
    if unit == "week":
        starts = [day - (weekday_of(day) - weekday) % 7 for day in days]
        return (starts[1] - starts[0]) // 7
    months = [year * 12 + month - 1 for year, month, _ in map(civil_of, days)]
    return months[1] // _MONTHS[unit] - months[0] // _MONTHS[unit]


def _make_trunc(
    date: Evaluate,
    unit: Evaluate,
    bin_size: Evaluate | None,
    timezone: Evaluate | None,
    start_of_week: Evaluate | None,
) -> Evaluate:
    def evaluate(env: Env) -> Any:
        value = date(env)
        if is_nullish(value):
            return None
        size = 1 if bin_size is None else _bin_size(bin_size(env))
        if size is None or is_nullish(which := unit(env)):
            return None
        step = read_unit("$dateTrunc", which)
        weekday = _weekday("$dateTrunc", step, start_of_week, env)
        if weekday is None or (zone := read_zone(timezone, env)) is None:
            return None
        return DatetimeMS(_truncated(_instant("$dateTrunc", "date", value), step, size, zone, weekday))

    return evaluate


def _bin_size(value: Any) -> int | None:
    if is_nullish(value):
        return None
    number = int64_of(value)
    if number is None:
        message = f"$dateTrunc requires 'binSize' to be a 64-bit integer, but got value '{as_text(value)}'"
        raise CommandError(5439017, message)
    if number <= 0:
        raise CommandError(5439018, f"$dateTrunc requires 'binSize' to be greater than 0, but got value {number}")
    return number


def _truncated(instant: int, unit: str, size: int, zone: Zone, weekday: int) -> int:
    if unit in _SHORT:
        bin_ms = size * _SHORT[unit]
        if not fits_long(bin_ms):
            raise CommandError(5439002, "dateTrunc overflowed")
        reference = zone.utc(_REFERENCE_DAYS * DAY_MS)
        return instant - (instant - reference) % bin_ms
    days = zone.local(instant) // DAY_MS
    if unit in _DAYS:
        reference = _REFERENCE_DAYS
        if unit == "week":
            reference += (weekday - weekday_of(reference)) % 7
        start = days - (days - reference) % (size * _DAYS[unit])
    else:
        if size > _MONTH_BINS_MAX:
            raise CommandError(5439006, f"dateTrunc unsupported binSize value {size}")
        year, month, _ = civil_of(days)
        months = (year - 2000) * 12 + month - 1
        months -= months % (size * _MONTHS[unit])
        start = days_of(2000 + months // 12, months % 12 + 1, 1)
    if not fits_long(start * DAY_MS):
        raise CommandError(5439001, "dateTrunc overflowed")
    return zone.utc(start * DAY_MS)


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$dateAdd": _adder("$dateAdd", 1),
    "$dateDiff": NamedArguments(
        Operator("$dateDiff", _make_diff),
        ("startDate", "endDate", "unit", "timezone", "startOfWeek"),
        {"startDate": 5166303, "endDate": 5166304, "unit": 5166305},
        not_object=5166301,
        unknown=5166302,
    ).parse,
    "$dateSubtract": _adder("$dateSubtract", -1),
    "$dateTrunc": NamedArguments(
        Operator("$dateTrunc", _make_trunc),
        ("date", "unit", "binSize", "timezone", "startOfWeek"),
        {"date": 5439009, "unit": 5439010},
        not_object=5439007,
        unknown=5439008,
    ).parse,
}
