"""Parses dates, for $dateFromString and conversions to date.

Rule: text that cannot be parsed is error 241, so that `onError` applies. Without a format, ISO 8601 is read here and
every other form in `date_words`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from headrace.errors import CommandError
from headrace.query.expressions.calendar_days import DAY_MS, UTC, Zone, days_of, days_of_iso_week, month_length
from headrace.query.expressions.date_format import check_format
from headrace.query.expressions.date_words import MONTH_NUMBERS, ZONE, offset_minutes, read_pieces, time_of

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
