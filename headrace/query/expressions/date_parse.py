"""Parses dates, for $dateFromString and conversions to date.

Rule: text that cannot be parsed is error 241, so that `onError` applies. Without a format, the usual forms of ISO 8601
are supported, and dates with slashes or the name of the month. Forms that only MongoDB's parser supports (weekdays,
ordinals, words like "midnight") are refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from headrace.errors import CommandError
from headrace.query.expressions.calendar_days import DAY_MS, UTC, Zone, days_of, days_of_iso_week, month_length, zone_of
from headrace.query.expressions.date_format import MONTHS, check_format

_CLOCK: Final = (
    r"(?:[Tt ]\s*(?P<hour>\d{1,2})(?::?(?P<minute>\d{2})(?::?(?P<second>\d{2})(?:[.,:](?P<fraction>\d{1,9}))?)?)?)?"
)
_ZONE: Final = r"\s*(?P<zone>Z|z|UTC|GMT|(?:UTC|GMT)?[+-]\d{1,2}(?::?\d{2})?)?"
_MONTH: Final = r"(?P<name>[A-Za-z]{3,9})\.?"
_FORMS: Final = tuple(
    re.compile(rf"\s*{date}{_CLOCK}{_ZONE}\s*\Z")
    for date in (
        r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})",
        r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})",
        r"(?P<year>\d{4})/(?P<month>\d{1,2})/(?P<day>\d{1,2})",
        r"(?P<year>\d{4})-?W(?P<week>\d{2})(?:-?(?P<weekday>[1-7]))?",
        r"(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})",
        r"(?P<day>\d{1,2})[-.](?P<month>\d{1,2})[-.](?P<year>\d{4})",
        rf"(?P<day>\d{{1,2}})[ -]?{_MONTH}[ -]?,?\s*(?P<year>\d{{4}})",
        rf"{_MONTH}\s*(?P<day>\d{{1,2}}),?\s+(?P<year>\d{{4}})",
        rf"(?P<year>\d{{4}})-{_MONTH}-(?P<day>\d{{1,2}})",
    )
)
_SECONDS: Final = re.compile(r"@(-?\d{1,15})\Z")
_MONTH_NUMBERS: Final = {name.lower(): number for number, name in enumerate(MONTHS, 1)} | {
    name[:3].lower(): number for number, name in enumerate(MONTHS, 1)
}

_FIELD_PATTERNS: Final = {
    "%": "%", "B": r"(?P<B>[A-Za-z]+)", "G": r"(?P<G>\d{1,4})", "H": r"(?P<H>\d{1,2})", "L": r"(?P<L>\d{1,3})",
    "M": r"(?P<M>\d{1,2})", "S": r"(?P<S>\d{1,2})", "V": r"(?P<V>\d{1,2})", "Y": r"(?P<Y>\d{4})",
    "Z": r"(?P<Z>[+-]?\d{1,4})", "b": r"(?P<b>[A-Za-z]{3})", "d": r"(?P<d>\d{1,2})", "j": r"(?P<j>\d{1,3})",
    "m": r"(?P<m>\d{1,2})", "u": r"(?P<u>[1-7])", "z": r"(?P<z>[A-Za-z]+|[+-]\d{1,2}(?::?\d{2})?)",
}  # fmt: skip


def parse_date(text: str, zone: Zone = UTC) -> int:
    """The instant of a text without a given format, in milliseconds since the epoch. `zone` applies if the text has
    none.

    Raises 241.
    """
    seconds = _SECONDS.match(text.strip())
    if seconds is not None:
        return int(seconds.group(1)) * 1000
    for form in _FORMS:
        match = form.match(text)
        if match is not None and (local := _local(match.groupdict())) is not None:
            return _instant(text, local, match["zone"], zone)
    raise _failure(text)


def _failure(text: str) -> CommandError:
    return CommandError(241, f"Error parsing date string '{text}'")


def _local(groups: dict[str, str | None]) -> int | None:
    """The local time that the parts denote, or None if they are out of range."""
    days = _days(groups)
    hour, minute, second = (int(groups[name] or 0) for name in ("hour", "minute", "second"))
    if days is None or hour > 24 or minute > 59 or second > 59:
        return None
    milliseconds = int(((groups["fraction"] or "") + "000")[:3])
    return days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + milliseconds


def _days(groups: dict[str, str | None]) -> int | None:
    year = int(groups["year"] or 0)
    if groups.get("week"):
        week = int(groups["week"] or 0)
        return days_of_iso_week(year, week, int(groups["weekday"] or 1)) if 1 <= week <= 53 else None
    name = groups.get("name")
    month = _MONTH_NUMBERS.get(name.lower(), 0) if name else int(groups.get("month") or 0)
    day = int(groups["day"] or 0)
    return days_of(year, month, day) if 1 <= month <= 12 and 1 <= day <= 31 else None


def _instant(text: str, local: int, zone_text: str | None, zone: Zone) -> int:
    if zone_text is None:
        return zone.utc(local)
    if not zone.is_utc:
        message = "you cannot pass in a date/time string with time zone information"
        raise CommandError(241, f"{message} ('{zone_text}') together with a timezone argument")
    return _parse_zone(text, zone_text).utc(local)


def _parse_zone(text: str, text_zone: str) -> Zone:
    if text_zone.upper() in ("Z", "UTC", "GMT"):
        return UTC
    sign, digits = text_zone.removeprefix("UTC").removeprefix("GMT")[0], re.sub(r"\D", "", text_zone)
    hours, minutes = (digits, "00") if len(digits) <= 2 else (digits[:-2], digits[-2:])
    try:
        return zone_of(f"{sign}{int(hours):02d}:{minutes}")
    except CommandError as error:
        raise _failure(text) from error


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
    days = _formatted_days(text, fields)
    hour, minute, second = (int(fields.get(name, 0)) for name in "HMS")
    if hour > 24 or minute > 59 or second > 59:
        raise _failure(text)
    fraction = int((fields.get("L", "0") + "00")[:3]) if "L" in fields else 0
    local = days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + fraction
    if "Z" in fields:
        return local - int(fields["Z"]) * 60_000
    return _instant(text, local, fields.get("z"), zone)


def _formatted_days(text: str, fields: dict[str, str]) -> int:
    if "G" in fields:
        return days_of_iso_week(int(fields["G"]), int(fields.get("V", 1)), int(fields.get("u", 1)))
    if "Y" not in fields:
        raise CommandError(241, f'an incomplete date/time string has been found, with elements missing: "{text}"')
    year = int(fields["Y"])
    if "j" in fields:
        return days_of(year, 1, int(fields["j"]))
    name = fields.get("B") or fields.get("b")
    month = _MONTH_NUMBERS.get(name.lower(), 0) if name else int(fields.get("m", 0))
    day = int(fields.get("d", 0))
    if not (1 <= month <= 12 and 1 <= day <= month_length(year, month)):
        raise _failure(text)
    return days_of(year, month, day)
