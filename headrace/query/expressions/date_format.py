"""Dates of the proleptic Gregorian calendar, for any year; time zones; dates as text, for $dateToString.

milliseconds since 1970 in UTC  <->  milliseconds of the local clock  <->  year, month, day, time of day
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
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


ISO_UTC: Final = "%Y-%m-%dT%H:%M:%S.%LZ"
ISO_LOCAL: Final = "%Y-%m-%dT%H:%M:%S.%L"
MONTHS: Final = (
    "January February March April May June July August September October November December".split()
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocalDateTime:
    """A local date and time: `days` since 1970-01-01, `milliseconds` of the day, `offset` in seconds ahead of UTC."""

    days: int
    milliseconds: int
    offset: int

    @property
    def civil(self) -> tuple[int, int, int]:
        """(year, month, day)."""
        return civil_of(self.days)

    @property
    def hour(self) -> int:
        """0 to 23."""
        return self.milliseconds // 3_600_000

    @property
    def minute(self) -> int:
        """0 to 59."""
        return self.milliseconds // 60_000 % 60

    @property
    def second(self) -> int:
        """0 to 59."""
        return self.milliseconds // 1000 % 60

    @property
    def millisecond(self) -> int:
        """0 to 999."""
        return self.milliseconds % 1000

    @property
    def day_of_year(self) -> int:
        """1 to 366."""
        return self.days - days_of(self.civil[0], 1, 1) + 1

    @property
    def day_of_week(self) -> int:
        """1 for Sunday to 7 for Saturday."""
        return (weekday_of(self.days) + 1) % 7 + 1

    @property
    def iso_day_of_week(self) -> int:
        """1 for Monday to 7 for Sunday."""
        return weekday_of(self.days) + 1

    @property
    def week(self) -> int:
        """0 to 53: weeks begin on Sunday, and the days before the first Sunday are in week 0."""
        return (self.day_of_year + 7 - self.day_of_week) // 7

    @property
    def iso_week(self) -> tuple[int, int]:
        """(ISO 8601 year, week)."""
        return iso_week_of(self.days)


def local_date_time(utc_ms: int, zone: Zone) -> LocalDateTime:
    """The local date and time in a zone of an instant, in milliseconds since the epoch."""
    offset = zone.offset(utc_ms)
    days, rest = divmod(utc_ms + 1000 * offset, DAY_MS)
    return LocalDateTime(days, rest, offset)


def _offset(local: LocalDateTime) -> str:
    hours, minutes = divmod(abs(local.offset) // 60, 60)
    return f"{'-' if local.offset < 0 else '+'}{hours:02d}{minutes:02d}"


_FIELDS: Final[dict[str, Callable[[LocalDateTime], str]]] = {
    "%": lambda local: "%",
    "B": lambda local: MONTHS[local.civil[1] - 1],
    "G": lambda local: f"{_printable(local.iso_week[0]):04d}",
    "H": lambda local: f"{local.hour:02d}",
    "L": lambda local: f"{local.millisecond:03d}",
    "M": lambda local: f"{local.minute:02d}",
    "S": lambda local: f"{local.second:02d}",
    "U": lambda local: f"{local.week:02d}",
    "V": lambda local: f"{local.iso_week[1]:02d}",
    "Y": lambda local: f"{_printable(local.civil[0]):04d}",
    "Z": lambda local: f"{int(local.offset / 60)}",
    "b": lambda local: MONTHS[local.civil[1] - 1][:3],
    "d": lambda local: f"{local.civil[2]:02d}",
    "j": lambda local: f"{local.day_of_year:03d}",
    "m": lambda local: f"{local.civil[1]:02d}",
    "u": lambda local: f"{local.iso_day_of_week}",
    "w": lambda local: f"{local.day_of_week}",
    "z": _offset,
}


def _printable(year: int) -> int:
    if not 0 <= year <= 9999:
        raise CommandError(18537, f"$dateToString is only defined on year 0-9999, tried to use year {year}")
    return year


def check_format(text: str, fields: str) -> None:
    """Raise 18535 or 18536 unless every % in a format is followed by one of `fields`."""
    index = 0
    while (index := text.find("%", index)) >= 0:
        if index + 1 == len(text):
            raise CommandError(18535, "Unmatched '%' at end of format string")
        if text[index + 1] not in fields:
            raise CommandError(18536, f"Invalid format character '%{text[index + 1]}' in format string")
        index += 2


def check_output_format(text: str) -> None:
    """Raise 18535 or 18536 for a format that $dateToString does not support."""
    check_format(text, "".join(_FIELDS))


def formatted(utc_ms: int, text: str, zone: Zone) -> str:
    """An instant as text in a checked format. Raises 18537 for a year outside 0 to 9999."""
    local = local_date_time(utc_ms, zone)
    _printable(local.civil[0])
    segments = text.split("%")
    pieces = [segments[0]]
    index = 1
    while index < len(segments):
        if segments[index]:
            pieces.append(_FIELDS[segments[index][0]](local) + segments[index][1:])
            index += 1
        else:  # "%%" leaves an empty piece; the next piece is plain text
            pieces.append("%" + (segments[index + 1] if index + 1 < len(segments) else ""))
            index += 2
    return "".join(pieces)


def iso_text(utc_ms: int) -> str:
    """An instant as ISO 8601 text in UTC with milliseconds, as conversions to string write it."""
    return formatted(utc_ms, ISO_UTC, UTC)
