"""Formats dates as text, for $dateToString."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.errors import CommandError
from headrace.query.expressions.calendar_days import DAY_MS, UTC, Zone, civil_of, days_of, iso_week_of, weekday_of

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
