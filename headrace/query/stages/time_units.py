"""Steps in time by calendar unit, for ranges of dates in `$setWindowFields` and `$densify`.

Rule: weeks and shorter units have fixed lengths. Months, quarters and years keep the day of the month, or take the
month's last day if that is earlier. All times are in UTC.
"""

from __future__ import annotations

import calendar
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions.numbers import fits_long, to_long

_DAY_MS: Final = 86_400_000
MILLISECONDS: Final = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": _DAY_MS,
    "week": 7 * _DAY_MS,
}
MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
UNITS: Final = frozenset({*MILLISECONDS, *MONTHS})


def shifted(date: DatetimeMS, unit: str, amount: Any) -> DatetimeMS:
    """The date `amount` whole units later (earlier if negative). Raises 15 if the date is out of range."""
    count = amount if type(amount) is int else to_long(amount)
    if unit in MILLISECONDS:
        return _date(int(date) + count * MILLISECONDS[unit])
    days, rest = divmod(int(date), _DAY_MS)
    year, month, day = _civil(days)
    month_index = year * 12 + (month - 1) + count * MONTHS[unit]
    year, month = month_index // 12, month_index % 12 + 1
    day = min(day, calendar.monthrange(2000 + year % 400, month)[1])
    return _date(_days(year, month, day) * _DAY_MS + rest)


def _date(ms: int) -> DatetimeMS:
    if not fits_long(ms):
        raise CommandError(15, "a step in time leads beyond what a date can hold")
    return DatetimeMS(ms)


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of a day counted from 1970, by the proleptic Gregorian calendar."""
    shifted_days = days + 719_468
    era, day_of_era = divmod(shifted_days, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    return year_of_era + era * 400 + (month <= 2), month, day


def _days(year: int, month: int, day: int) -> int:
    """The inverse of `_civil`."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468
