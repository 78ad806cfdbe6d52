"""Date operators: fields of a date, dates from fields, from text and to text, arithmetic.

Rule of $dateAdd, $dateSubtract, $dateDiff and $dateTrunc: days and longer units are counted in local time, shorter
units in elapsed time. Adding months keeps the day of the month, or takes the last day if the month is shorter. Bins
of $dateTrunc are counted from 2000-01-01, weeks from the first start of a week in 2000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bson import Int64, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions.date_format import (
    DAY_MS,
    ISO_LOCAL,
    ISO_UTC,
    UTC,
    LocalDateTime,
    Zone,
    check_output_format,
    civil_of,
    days_of,
    days_of_iso_week,
    formatted,
    local_date_time,
    month_length,
    weekday_of,
    zone_of,
)
from headrace.query.expressions.date_parse import check_input_format, parse_date, parse_formatted_date
from headrace.query.expressions.expression import Call, Env, Evaluate, Expression, Operator, ParseContext, parse_operand
from headrace.query.expressions.numbers import fits_long, int64_of, int_or_long, is_nullish, to_long
from headrace.query.expressions.operator_parser import NamedArguments, OperatorParser
from headrace.query.expressions.value_text import as_text
from headrace.values.bson import type_name


def is_date_like(value: Any) -> bool:
    """Whether the value has a time: a date, a timestamp, or an ObjectId."""
    return type(value) in (DatetimeMS, ObjectId, Timestamp)


def date_of(value: Any) -> int:
    """Milliseconds since the epoch of a date, timestamp or ObjectId. Raises 16006 for any other type.

    The seconds of a timestamp have no sign; those of an ObjectId have one, so its dates are from 1901 to 2038.
    """
    kind = type(value)
    if kind is DatetimeMS:
        return int(value)
    if kind is Timestamp:
        return int(value.time) * 1000
    if kind is ObjectId:
        return int.from_bytes(value.binary[:4], "big", signed=True) * 1000
    raise CommandError(16006, f"can't convert from BSON type {type_name(value)} to Date")


def read_zone(evaluate: Evaluate | None, env: Env) -> Zone | None:
    """The zone of an operand: UTC if the operand is absent, None if it is null.

    Raises 40517 if it is not a string, 40485 if it is unknown.
    """
    if evaluate is None:
        return UTC
    name = evaluate(env)
    if is_nullish(name):
        return None
    if type(name) is not str:
        raise CommandError(40517, f"timezone must evaluate to a string, found {type_name(name)}")
    return zone_of(name)


def _part(name: str, read: Callable[[LocalDateTime], int], *, long: bool = False) -> OperatorParser:
    def make(date: Evaluate, timezone: Evaluate | None) -> Evaluate:
        def evaluate(env: Env) -> Any:
            value = date(env)
            if is_nullish(value):
                return None
            instant = date_of(value)
            zone = read_zone(timezone, env)
            if zone is None:
                return None
            number = read(local_date_time(instant, zone))
            return Int64(number) if long else int_or_long(number)

        return evaluate

    operator = Operator(name, make)
    named = NamedArguments(operator, ("date", "timezone"), {"date": 40539}, not_object=40535, unknown=40535)

    def parse(argument: Any, context: ParseContext) -> Expression:
        if type(argument) is dict and not next(iter(argument), "").startswith("$"):
            for key in argument:
                if key not in named.names:
                    raise CommandError(40535, f'unrecognized option to {name}: "{key}"')
            return named.parse(argument, context)
        if type(argument) is list:
            if len(argument) != 1:
                message = f"{name} accepts exactly one argument if given an array, but was given {len(argument)}"
                raise CommandError(40536, message)
            argument = argument[0]
        return Call(operator, [parse_operand(argument, context), None])

    return parse


_DATE_FIELDS: Final = (
    "year", "month", "day", "hour", "minute", "second", "millisecond", "isoWeekYear", "isoWeek", "isoDayOfWeek",
    "timezone",
)  # fmt: skip


def _make_date_from_fields(*operands: Evaluate | None) -> Evaluate:
    *numbers, timezone = operands
    read = dict(zip(_DATE_FIELDS, numbers))

    def evaluate(env: Env) -> Any:
        clock = [_number(name, read[name], env, 0, bounded=name in ("hour", "minute")) for name in _DATE_FIELDS[3:7]]
        if None in clock:
            return None
        zone = read_zone(timezone, env)
        if zone is None:
            return None
        days = _days(read, env)
        if days is None:
            return None
        hour, minute, second, millisecond = (number or 0 for number in clock)
        instant = zone.utc(days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + millisecond)
        if not fits_long(instant):
            raise CommandError(159, "$dateFromParts makes a date beyond what a date can hold")
        return DatetimeMS(instant)

    return evaluate


_CIVIL: Final = ("year", "month", "day"), 40523, days_of
_ISO: Final = ("isoWeekYear", "isoWeek", "isoDayOfWeek"), 31095, days_of_iso_week


def _days(read: dict[str, Evaluate | None], env: Env) -> int | None:
    """The days since 1970 of the parts; None if one is null."""
    names, code, days = _CIVIL if read["year"] is not None else _ISO
    numbers: list[int] = []
    for name in names:
        number = _number(name, read[name], env, 1 if numbers else 1970, bounded=bool(numbers))
        if number is None:
            return None
        numbers.append(number)
    if not 1 <= numbers[0] <= 9999:
        message = f"'{names[0]}' must evaluate to an integer in the range 1 to 9999, found {numbers[0]}"
        raise CommandError(code, message)
    return days(*numbers)


def _number(name: str, evaluate: Evaluate | None, env: Env, default: int, *, bounded: bool = True) -> int | None:
    """The given part of a date, or its default; None if the part is null."""
    if evaluate is None:
        return default
    value = evaluate(env)
    if is_nullish(value):
        return None
    number = int64_of(value)
    if number is None:
        actual = f"{type_name(value)} with value {as_text(value)}"
        raise CommandError(40515, f"'{name}' must evaluate to an integer, found {actual}")
    if bounded and not -32768 <= number <= 32767:
        raise CommandError(31034, f"'{name}' must evaluate to a value in the range [-32768, 32767]; got {number}")
    return number


def _parse_date_from_fields(argument: Any, context: ParseContext) -> Expression:
    operator = Operator("$dateFromParts", _make_date_from_fields)
    named = NamedArguments(operator, _DATE_FIELDS, {}, not_object=40519, unknown=40518)
    given = set(named.read(argument))
    if not given & {"year", "isoWeekYear"}:
        raise CommandError(40516, "$dateFromParts requires either 'year' or 'isoWeekYear' to be present")
    if "year" in given and given & {"isoWeekYear", "isoWeek", "isoDayOfWeek"}:
        raise CommandError(40489, "$dateFromParts does not allow mixing natural dates with ISO dates")
    if "isoWeekYear" in given and given & {"month", "day"}:
        raise CommandError(40525, "$dateFromParts does not allow mixing ISO dates with natural dates")
    return named.parse(argument, context)


def _make_date_to_fields(date: Evaluate, timezone: Evaluate | None, iso8601: Evaluate | None) -> Evaluate:
    def evaluate(env: Env) -> Any:
        value = date(env)
        zone = read_zone(timezone, env)
        if zone is None:
            return None
        iso = False if iso8601 is None else iso8601(env)
        if is_nullish(iso):
            return None
        if type(iso) is not bool:
            raise CommandError(40521, f"iso8601 must evaluate to a bool, found {type_name(iso)}")
        if is_nullish(value):
            return None
        local = local_date_time(date_of(value), zone)
        if iso:
            year, week = local.iso_week
            day = {"isoWeekYear": year, "isoWeek": week, "isoDayOfWeek": local.iso_day_of_week}
        else:
            day = dict(zip(("year", "month", "day"), local.civil))
        clock = {name: getattr(local, name) for name in ("hour", "minute", "second", "millisecond")}
        return {**day, **clock}

    return evaluate


def _make_to_string(
    date: Evaluate, layout: Evaluate | None, timezone: Evaluate | None, on_null: Evaluate | None
) -> Evaluate:
    def evaluate(env: Env) -> Any:
        value = date(env)
        text = ... if layout is None else _layout(18533, "$dateToString", layout(env), check_output_format)
        zone = read_zone(timezone, env)
        if is_nullish(value):
            return None if on_null is None else on_null(env)
        if zone is None or text is None:
            return None
        if text is ...:
            text = ISO_UTC if zone.is_utc else ISO_LOCAL
        return formatted(date_of(value), text, zone)

    return evaluate


def _layout(code: int, name: str, value: Any, check: Callable[[str], None]) -> Any:
    """The checked format; None if it is null."""
    if is_nullish(value):
        return None
    if type(value) is not str:
        raise CommandError(code, f"{name} requires that 'format' be a string, found: {type_name(value)}")
    check(value)
    return value


def _make_from_string(
    date_string: Evaluate,
    timezone: Evaluate | None,
    layout: Evaluate | None,
    on_null: Evaluate | None,
    on_error: Evaluate | None,
) -> Evaluate:
    def evaluate(env: Env) -> Any:
        value = date_string(env)
        text = ... if layout is None else _layout(40684, "$dateFromString", layout(env), check_input_format)
        zone = read_zone(timezone, env)
        if is_nullish(value):
            return None if on_null is None else on_null(env)
        try:
            return _from_string(value, text, zone)
        except CommandError as error:
            if error.code != 241 or on_error is None:
                raise
            return on_error(env)

    return evaluate


def _from_string(value: Any, layout: Any, zone: Zone | None) -> Any:
    if type(value) is not str:
        raise CommandError(241, f"$dateFromString requires that 'dateString' be a string, found: {type_name(value)}")
    if zone is None or layout is None:
        return None
    return DatetimeMS(parse_date(value, zone) if layout is ... else parse_formatted_date(value, layout, zone))


# Arithmetic.


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
    "$dateFromParts": _parse_date_from_fields,
    "$dateFromString": NamedArguments(
        Operator("$dateFromString", _make_from_string),
        ("dateString", "timezone", "format", "onNull", "onError"),
        {"dateString": 40542},
        not_object=40540,
        unknown=40541,
    ).parse,
    "$dateSubtract": _adder("$dateSubtract", -1),
    "$dateToParts": NamedArguments(
        Operator("$dateToParts", _make_date_to_fields),
        ("date", "timezone", "iso8601"),
        {"date": 40522},
        not_object=40524,
        unknown=40520,
    ).parse,
    "$dateToString": NamedArguments(
        Operator("$dateToString", _make_to_string),
        ("date", "format", "timezone", "onNull"),
        {"date": 18628},
        not_object=18629,
        unknown=18534,
    ).parse,
    "$dateTrunc": NamedArguments(
        Operator("$dateTrunc", _make_trunc),
        ("date", "unit", "binSize", "timezone", "startOfWeek"),
        {"date": 5439009, "unit": 5439010},
        not_object=5439007,
        unknown=5439008,
    ).parse,
    "$dayOfMonth": _part("$dayOfMonth", lambda local: local.civil[2]),
    "$dayOfWeek": _part("$dayOfWeek", lambda local: local.day_of_week),
    "$dayOfYear": _part("$dayOfYear", lambda local: local.day_of_year),
    "$hour": _part("$hour", lambda local: local.hour),
    "$isoDayOfWeek": _part("$isoDayOfWeek", lambda local: local.iso_day_of_week),
    "$isoWeek": _part("$isoWeek", lambda local: local.iso_week[1]),
    "$isoWeekYear": _part("$isoWeekYear", lambda local: local.iso_week[0], long=True),
    "$millisecond": _part("$millisecond", lambda local: local.millisecond),
    "$minute": _part("$minute", lambda local: local.minute),
    "$month": _part("$month", lambda local: local.civil[1]),
    "$second": _part("$second", lambda local: local.second),
    "$week": _part("$week", lambda local: local.week),
    "$year": _part("$year", lambda local: local.civil[0]),
}
