"""Reads the local time of a text that follows no given format, such as "July 4th, 2017 11am".

Rule: the text is a row of pieces (a date, a time, a zone, a weekday or a word), divided by spaces, points and commas.
At each place the longest form that fits is read. A second date or time is refused, and so is a date that does not
exist. Relative amounts ("+1 day", "last monday of") are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace.query.expressions.calendar_days import DAY_MS, days_of, days_of_iso_week, month_length, weekday_of
from headrace.query.expressions.date_format import MONTHS

MONTH_NUMBERS: Final = (
    {name.lower(): number for number, name in enumerate(MONTHS, 1)}
    | {name[:3].lower(): number for number, name in enumerate(MONTHS, 1)}
    | {"sept": 9}
)
_WEEKDAYS: Final = {
    name: number
    for number, names in enumerate(
        ("mon monday", "tue tues tuesday", "wed wednesday", "thu thur thurs thursday", "fri friday", "sat saturday",
         "sun sunday")
    )
    for name in names.split()
}  # fmt: skip
_ABBREVIATIONS: Final = {
    "utc": 0, "gmt": 0, "wet": 0, "west": 60, "bst": 60, "cet": 60, "cest": 120, "eet": 120, "eest": 180, "sast": 120,
    "ist": 120, "msk": 180, "msd": 240, "est": -300, "edt": -240, "cst": -360, "cdt": -300, "mst": -420, "mdt": -360,
    "pst": -480, "pdt": -420, "akst": -540, "akdt": -480, "hst": -600, "jst": 540, "awst": 480, "acst": 570,
    "acdt": 630, "aest": 600, "aedt": 660, "nzst": 720, "nzdt": 780,
} | {letter: hours * 60 for hours, letter in enumerate("abcdefghiklm", 1)} | {
    letter: -hours * 60 for hours, letter in enumerate("nopqrstuvwxy", 1)
} | {"z": 0}  # fmt: skip
_WORD_DAYS: Final = {"midnight": 0, "noon": 0, "now": 0, "today": 0, "tomorrow": 1, "yesterday": -1}

ZONE: Final = r"[ \t(]*(?P<zone>(?:GMT)?[+-]\d{1,2}(?::?\d{2})?|[A-Za-z]{1,6})\)?(?![A-Za-z/_])"
_OFFSET: Final = re.compile(r"(?:GMT)?([+-])(\d{1,2}?):?(\d{2})?\Z")
_MONTH: Final = "(?P<name>" + "|".join(sorted(MONTH_NUMBERS, key=len, reverse=True)) + ")"
_MONTH_SHORT: Final = r"(?P<name>[A-Za-z]{3})"
_YEAR: Final = r"(?P<year>\d{1,4})"
_YEAR4: Final = r"(?P<year>\d{4})"
_DAY: Final = r"(?P<day>[0-2]?\d|3[01])(?:st|nd|rd|th)?"
_MONTH_NUMBER: Final = r"(?P<month>0?\d|1[0-2])"
_LEADING_ZEROS: Final = r"(?P<month>0\d|1[0-2])", r"(?P<day>[0-2]\d|3[01])"
_CLOCK: Final = (
    r"[tT]?(?P<hour>[01]?\d|2[0-4])[:.](?P<minute>[0-5]?\d)(?:[:.](?P<second>[0-5]?\d)(?:[.,:](?P<fraction>\d+))?)?"
)
_CLOCK_12: Final = (
    r"(?P<hour>0?[1-9]|1[0-2])(?:[:.](?P<minute>[0-5]\d)(?:[:.](?P<second>[0-5]\d))?)?"
    r"[ \t]*(?P<meridian>[aApP])\.?[mM]\.?(?![A-Za-z])"
)
_MONTH_DAY: Final = rf"{_MONTH}[ .\t-]*{_DAY}[,.\t ]*"
_FORMS: Final = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"{_CLOCK}(?!\d)", _CLOCK_12,
        r"[tT](?P<hour>[01]?\d|2[0-4])(?!\d)",
        r"[tT]?(?P<hour>[01]\d|2[0-4])(?P<minute>[0-5]\d)(?P<second>[0-5]\d)?(?!\d)",
        rf"{_YEAR4}-{_LEADING_ZEROS[0]}-{_LEADING_ZEROS[1]}(?!\d)",
        rf"{_YEAR4}{_LEADING_ZEROS[0]}{_LEADING_ZEROS[1]}(?!\d)",
        rf"{_YEAR4}/{_LEADING_ZEROS[0]}/{_LEADING_ZEROS[1]}/?(?!\d)",
        rf"{_YEAR}-{_MONTH_NUMBER}-(?P<day>[0-2]?\d|3[01])(?!\d)",
        rf"{_YEAR4}-{_MONTH_NUMBER}(?![\d-])",
        rf"{_YEAR4}-?W(?P<week>\d{{2}})(?:-?(?P<weekday>[0-7]))?(?!\d)",
        rf"{_YEAR4}\.?(?P<yearday>00[1-9]|0[1-9]\d|[12]\d\d|3[0-5]\d|36[0-6])(?!\d)",
        rf"{_MONTH_NUMBER}/(?P<day>[0-2]?\d|3[01])/{_YEAR}(?!\d)",
        rf"(?P<day>[0-2]?\d|3[01])[.\t-]{_MONTH_NUMBER}[.-]{_YEAR4}(?!\d)",
        rf"(?P<day>[0-2]?\d|3[01])[.\t]{_MONTH_NUMBER}\.(?P<year>\d\d)(?!\d)",
        rf"(?P<day>[0-2]?\d|3[01])/{_MONTH_SHORT}/{_YEAR4}:{_CLOCK}",
        rf"{_YEAR4}:{_LEADING_ZEROS[0]}:{_LEADING_ZEROS[1]}(?= \d\d:)",
        rf"{_DAY}[ \t.-]*{_MONTH}[ \t.,-]*{_YEAR}(?![\d:])",
        rf"{_MONTH}[ .\t-]*{_DAY}[,.\t ]+{_YEAR}(?![\d:])",
        rf"{_MONTH_SHORT}-{_LEADING_ZEROS[1]}-{_YEAR}(?!\d)",
        rf"{_YEAR}-{_MONTH_SHORT}-(?P<day>[0-2]?\d|3[01])(?!\d)",
        rf"{_MONTH}[ .\t-]*{_YEAR4}(?!\d)",
        rf"{_YEAR4}[ .\t-]*{_MONTH}(?![A-Za-z])",
        rf"{_MONTH_DAY}(?![\d:])", rf"{_MONTH_DAY}{_CLOCK}", rf"{_MONTH_DAY}{_CLOCK_12}",
        rf"{_DAY}[ \t.-]*{_MONTH}(?![A-Za-z])",
        rf"{_YEAR4}(?!\d)",
        r"(?P<word>now|today|midnight|noon|yesterday|tomorrow)(?![A-Za-z])",
        "(?P<dayname>" + "|".join(sorted(_WEEKDAYS, key=len, reverse=True)) + r")(?![A-Za-z])",
        ZONE,
    )
)  # fmt: skip
_BETWEEN: Final = re.compile(r"[ \t.,]+")


@dataclass(slots=True)
class DateParts:
    """The parts of a date and time that were read so far. A part that was not read is None."""

    year: int | None = None
    days: int | None = None
    month_day: tuple[int, int] | None = None
    time_ms: int | None = None
    zone: str | None = None
    weekday: int | None = None
    shift: int = 0

    def local_ms(self) -> int | None:
        """The local time in milliseconds since 1970; None if the date is incomplete. Raise ValueError if it does not
        exist."""
        days = self.days
        if self.month_day is not None and self.year is not None:
            days = _checked_days(self.year, *self.month_day)
        if days is None:
            return None
        if self.weekday is not None:
            days += (self.weekday - weekday_of(days)) % 7
        return (days + self.shift) * DAY_MS + (self.time_ms or 0)

    def add(self, groups: dict[str, str]) -> None:
        """Add the groups of one form. Raise ValueError for a second date, time or zone."""
        if "word" in groups:
            self._add_word(groups["word"].lower())
        if "dayname" in groups:
            self.weekday, self.time_ms = _WEEKDAYS[groups["dayname"].lower()], None
        if "hour" in groups:
            if self.time_ms is not None:
                raise ValueError("Double time specification")
            self.time_ms = time_of(groups)
        if "zone" in groups:
            if self.zone is not None:
                raise ValueError("Double timezone specification")
            if offset_minutes(groups["zone"]) is None:
                raise ValueError("The timezone could not be found in the database")
            self.zone = groups["zone"]
        if "year" in groups and len(groups.keys() & {"month", "name", "week", "yearday"}) == 0:
            self.year = int(groups["year"])
        elif groups.keys() & {"month", "name", "week", "yearday"}:
            self._add_date(groups)

    def _add_word(self, word: str) -> None:
        self.shift += _WORD_DAYS[word]
        if word != "now":
            self.time_ms = DAY_MS // 2 if word == "noon" else 0

    def _add_date(self, groups: dict[str, str]) -> None:
        if self.days is not None or self.month_day is not None:
            raise ValueError("Double date specification")
        year = _full_year(groups["year"]) if "year" in groups else self.year
        if "week" in groups:
            week = int(groups["week"])
            if not 1 <= week <= 53:
                raise ValueError("The parsed date was invalid")
            self.days = days_of_iso_week(int(groups["year"]), week, int(groups.get("weekday", 1)))
        elif "yearday" in groups:
            self.days = days_of(int(groups["year"]), 1, int(groups["yearday"]))
        else:
            name = groups.get("name")
            month = MONTH_NUMBERS.get(name.lower(), 0) if name else int(groups["month"])
            self.year, self.month_day = year, (month, int(groups.get("day", 1)))


def read_pieces(text: str) -> DateParts:
    """Read a text piece by piece. Raise ValueError with the reason if it is no date."""
    if not text:
        raise ValueError("Empty string")
    parts, position, end = DateParts(), 0, len(text)
    while position < end:
        between = _BETWEEN.match(text, position)
        if between is not None:
            position = between.end()
            continue
        best = _longest(text, position, parts.time_ms is not None)
        if best is None or best.end() == position:
            raise ValueError("Unexpected character")
        parts.add({name: value for name, value in best.groupdict().items() if value is not None})
        position = best.end()
    return parts


def _longest(text: str, position: int, has_time: bool) -> re.Match[str] | None:
    """The longest form that fits at a position, the first of several. After a time, four digits are a year."""
    best: re.Match[str] | None = None
    for form in _FORMS:
        match = form.match(text, position)
        if match is None or (best is not None and match.end() <= best.end()):
            continue
        is_year = has_time and "hour" in form.groupindex and match.group().isdigit() and len(match.group()) == 4
        if not is_year:
            best = match
    return best


def time_of(groups: dict[str, str]) -> int:
    """The milliseconds since midnight of the groups of a time."""
    hour, minute, second = (int(groups.get(name, 0)) for name in ("hour", "minute", "second"))
    if "meridian" in groups:
        hour = hour % 12 + 12 * (groups["meridian"] in "pP")
    return ((hour * 60 + minute) * 60 + second) * 1000 + int((groups.get("fraction", "") + "000")[:3])


def offset_minutes(zone: str) -> int | None:
    """Minutes east of UTC of an offset or an abbreviation in a text; None if it is not known."""
    match = _OFFSET.match(zone.upper())
    if match is None:
        return _ABBREVIATIONS.get(zone.lower())
    digits = match[2] + (match[3] or "")
    hours, minutes = (int(digits), 0) if len(digits) <= 2 else (int(digits[:-2]), int(digits[-2:]))
    return (hours * 60 + minutes) * (-1 if match[1] == "-" else 1)


def _full_year(text: str) -> int:
    """The year that digits denote: of fewer than four, those below 70 are of this century."""
    year = int(text)
    return year if len(text) >= 4 or year >= 100 else year + (2000 if year < 70 else 1900)


def _checked_days(year: int, month: int, day: int) -> int:
    if not (1 <= month <= 12 and 1 <= day <= month_length(year, month)):
        raise ValueError("The parsed date was invalid")
    return days_of(year, month, day)
