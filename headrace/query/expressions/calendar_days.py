"""Dates of the proleptic Gregorian calendar, for any year, and time zones.

milliseconds since 1970 in UTC  <->  milliseconds of the local clock  <->  year, month, day, time of day
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from headrace.errors import CommandError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

DAY_MS: Final = 86_400_000
_OFFSET: Final = re.compile(r"([+-])(\d{2})(?::?(\d{2}))?\Z")
_EPOCH: Final = dt.datetime(1970, 1, 1)
_CYCLE_MS: Final = 146_097 * DAY_MS  # the calendar repeats after 400 years


def days_of(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a date. `month` and `day` may be out of range and carry over."""
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468 + day - 1


def civil_of(days: int) -> tuple[int, int, int]:
    """(year, month, day) of the date `days` after 1970-01-01."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + (3 if shifted < 10 else -9)
    return year + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def month_length(year: int, month: int) -> int:
    """The number of days of a month, 28 to 31."""
    return days_of(year, month + 1, 1) - days_of(year, month, 1)


def weekday_of(days: int) -> int:
    """The weekday of a date in days since 1970-01-01: 0 for Monday to 6 for Sunday."""
    return (days + 3) % 7


def iso_week_of(days: int) -> tuple[int, int]:
    """(ISO 8601 year, week) of a date in days since 1970-01-01."""
    thursday = days - weekday_of(days) + 3
    year = civil_of(thursday)[0]
    return year, (thursday - days_of(year, 1, 1)) // 7 + 1


def days_of_iso_week(year: int, week: int, weekday: int) -> int:
    """Days from 1970-01-01 to an ISO 8601 date. `weekday` is 1 for Monday. `week` and `weekday` may carry over."""
    fourth = days_of(year, 1, 4)
    return fourth - weekday_of(fourth) + (week - 1) * 7 + weekday - 1


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone: a fixed offset in seconds east of UTC, or `rules`. `is_utc` if no zone was given."""

    seconds: int = 0
    rules: ZoneInfo | None = None
    is_utc: bool = False

    def offset(self, utc_ms: int) -> int:
        """Seconds by which local time is ahead of UTC at an instant."""
        if self.rules is None:
            return self.seconds
        moment = _moment(utc_ms).replace(tzinfo=dt.UTC).astimezone(self.rules)
        return _seconds(moment.utcoffset())

    def local(self, utc_ms: int) -> int:
        """Local time at an instant, in milliseconds since 1970 on the local clock."""
        return utc_ms + 1000 * self.offset(utc_ms)

    def utc(self, local_ms: int) -> int:
        """The instant of a local time in milliseconds. If the time occurs twice, the first; in a gap, later by the
        gap."""
        if self.rules is None:
            return local_ms - 1000 * self.seconds
        return local_ms - 1000 * _seconds(_moment(local_ms).replace(tzinfo=self.rules).utcoffset())


def _moment(milliseconds: int) -> dt.datetime:
    """A datetime with the same rules. A year that Python cannot hold is moved by complete cycles of the calendar."""
    if not -62_135_510_400_000 <= milliseconds < 253_402_214_400_000:
        milliseconds = milliseconds % _CYCLE_MS + (_CYCLE_MS if milliseconds > 0 else -_CYCLE_MS * 4)
    return _EPOCH + dt.timedelta(milliseconds=milliseconds)


def _seconds(offset: dt.timedelta | None) -> int:
    return 0 if offset is None else int(offset.total_seconds())


UTC: Final = Zone(is_utc=True)


@lru_cache(maxsize=1024)
def zone_of(name: str) -> Zone:
    """The zone of an Olson name or of an offset like "+05:30", "+0530", "+05". Raises 40485 for any other name."""
    offset = _OFFSET.match(name)
    if offset is not None:
        sign, hours, minutes = offset.groups()
        seconds = int(hours) * 3600 + int(minutes or 0) * 60
        return Zone(-seconds if sign == "-" else seconds)
    if name in ("UTC", "GMT"):
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # importing it loads Python's build data

    try:
        return Zone(rules=ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise CommandError(40485, f'unrecognized time zone identifier: "{name}"') from error
