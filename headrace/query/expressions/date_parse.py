"""Parses dates, for $dateFromString and conversions to date.

Rule: text that cannot be parsed is error 241, so that `onError` applies. Without a format, ISO 8601 is read first, then
every other form, such as "July 4th, 2017 11am". Such a text is a row of pieces (a date, a time, a zone, a weekday or a
word), divided by spaces, points and commas. At each place the longest form that fits is read. A second date or time is
refused, and so is a date that does not exist. Relative amounts ("+1 day", "last monday of") are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from headrace.errors import CommandError
from headrace.query.expressions.date_format import (
    DAY_MS,
    MONTHS,
    UTC,
    Zone,
    check_format,
    days_of,
    days_of_iso_week,
    month_length,
    weekday_of,
)

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
        rf"{_YEAR4}/{_MONTH_NUMBER}/(?P<day>[0-2]?\d|3[01])(?!\d)",
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


_ISO: Final = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})"
    r"(?:[Tt ](?P<hour>[01]\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d)(?:\.(?P<fraction>\d{1,9}))?)?)?"
    r"(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?\Z"
)
_SECONDS: Final = re.compile(r"@(-?)(\d{1,15})(?:\.(\d{1,6}))?\Z")

_FIELD_PATTERNS: Final = {
    "%": "%", "B": r"(?P<B>[A-Za-z]+)", "G": r"(?P<G>\d{1,4})", "H": r"(?P<H>\d{1,2})", "L": r"(?P<L>\d{1,3})",
    "M": r"(?P<M>\d{1,2})", "S": r"(?P<S>\d{1,2})", "V": r"(?P<V>\d{1,2})", "Y": r"(?P<Y>\d{4})",
    "Z": r"(?P<Z>[+-]?\d{1,4})", "b": r"(?P<b>[A-Za-z]{3})", "d": r"(?P<d>\d{1,2})", "j": r"(?P<j>\d{1,3})",
    "m": r"(?P<m>\d{1,2})", "u": r"(?P<u>[1-7])", "z": ZONE,
}  # fmt: skip


def parse_date(text: str, zone: Zone = UTC) -> int:
    """The instant of a text without a given format, in milliseconds since the epoch. `zone` applies if the text has
    none.

    Raises 241.
    """
    match = _ISO.match(text)
    if match is not None:
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        year, month, day = (int(groups[name]) for name in ("year", "month", "day"))
        if not (1 <= month <= 12 and 1 <= day <= month_length(year, month)):
            raise _failure(text)
        return _instant(text, days_of(year, month, day) * DAY_MS + time_of(groups), match["zone"], zone)
    seconds = _SECONDS.match(text.strip())
    if seconds is not None:
        sign, whole, fraction = seconds.groups(default="")
        return int(f"{sign}{whole}{(fraction + '000')[:3]}")
    try:
        parts = read_pieces(text)
        local = parts.local_ms()
    except ValueError as error:
        raise CommandError(241, f"Error parsing date string '{text}'; {error}") from error
    if local is None:
        raise _incomplete(text)
    return _instant(text, local, parts.zone, zone)


def _failure(text: str) -> CommandError:
    return CommandError(241, f"Error parsing date string '{text}'")


def _incomplete(text: str) -> CommandError:
    return CommandError(241, f'an incomplete date/time string has been found, with elements missing: "{text}"')


def _instant(text: str, local: int, zone_text: str | None, zone: Zone) -> int:
    if zone_text is None:
        return zone.utc(local)
    if not zone.is_utc:
        message = "you cannot pass in a date/time string with time zone information"
        raise CommandError(241, f"{message} ('{zone_text}') together with a timezone argument")
    minutes = offset_minutes(zone_text)
    if minutes is None:
        raise _failure(text)
    return local - minutes * 60_000


def check_input_format(text: str) -> None:
    """Raise 18535 or 18536 for a format that $dateFromString does not support."""
    check_format(text, "".join(_FIELD_PATTERNS))


@lru_cache(maxsize=256)
def _form(layout: str) -> re.Pattern[str] | None:
    """The pattern of a checked format; None if the format names a field twice."""
    pieces, index = [], 0
    while index < len(layout):
        if layout[index] == "%":
            pieces.append(_FIELD_PATTERNS[layout[index + 1]])
            index += 2
        else:
            pieces.append(re.escape(layout[index]))
            index += 1
    try:
        return re.compile("".join(pieces) + r"\Z")
    except re.error:
        return None


def parse_formatted_date(text: str, layout: str, zone: Zone = UTC) -> int:
    """The instant, in milliseconds since the epoch, of a text in a checked format. Raises 241."""
    form = _form(layout)
    match = None if form is None else form.match(text)
    if match is None:
        raise _failure(text)
    fields = {name: value for name, value in match.groupdict().items() if value is not None}
    if fields.keys() & {"G", "V", "u"} and fields.keys() & {"Y", "m", "d", "j", "b", "B"}:
        raise CommandError(241, f"{_failure(text).message}; Mixing of ISO dates with natural dates is not allowed")
    days = _formatted_days(text, fields)
    hour, minute, second = (int(fields.get(name, 0)) for name in "HMS")
    if hour > 24 or minute > 59 or second > 59:
        raise _failure(text)
    fraction = int((fields.get("L", "0") + "00")[:3]) if "L" in fields else 0
    local = days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + fraction
    if "Z" in fields:
        return local - int(fields["Z"]) * 60_000
    return _instant(text, local, fields.get("zone"), zone)


def _formatted_days(text: str, fields: dict[str, str]) -> int:
    if "G" in fields:
        return days_of_iso_week(int(fields["G"]), int(fields.get("V", 1)), int(fields.get("u", 1)))
    if "Y" not in fields:
        raise _incomplete(text)
    year = int(fields["Y"])
    if "j" in fields:
        return days_of(year, 1, int(fields["j"]) + 1)  # counted from 0, as MongoDB's parser does
    name = fields.get("B") or fields.get("b")
    month = MONTH_NUMBERS.get(name.lower(), 0) if name else int(fields.get("m", 0))
    day = int(fields.get("d", 0))
    if not (1 <= month <= 12 and 1 <= day <= month_length(year, month)):
        raise _failure(text)
    return days_of(year, month, day)
