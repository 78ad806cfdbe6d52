"""Text for people: colour on a terminal, tables, sizes, durations, and documents in one line."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any, Final

from bson import json_util

_STYLES: Final = {"blue": "34", "bold": "1", "cyan": "36", "dim": "2", "green": "32", "red": "31", "yellow": "33"}
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))}
"""Control characters, which a document's text must not send to a terminal, and their escapes."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


class Painter:
    """Colours text for one stream. In a pipe, with NO_COLOR and on a dumb terminal the text stays plain."""

    def __init__(self, stream: IO[str] | None = None, enabled: bool | None = None) -> None:
        self.enabled = shows_colour(stream or sys.stdout) if enabled is None else enabled

    def __call__(self, text: str, *styles: str) -> str:
        """Return the text in styles: bold, dim, red, green, yellow, blue, cyan."""
        if not self.enabled or not styles:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"


def shows_colour(stream: IO[str]) -> bool:
    """Return whether a stream is a terminal with colour, and the user allows colour (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Return the terminal's number of columns; 80 without a terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return the lines of a table with columns as wide as their cells; columns in `right` are aligned to the right."""
    widths = [max(len(plain(line[column])) for line in (titles, *rows)) for column in range(len(titles))]

    def line(cells: Sequence[str]) -> str:
        padded = []
        for column, cell in enumerate(cells):
            space = " " * (widths[column] - len(plain(cell)))
            padded.append(space + cell if column in right else cell + space)
        return "  ".join(padded).rstrip()

    return [line(titles), *(line(row) for row in rows)]


def plain(text: str) -> str:
    """Return the text without colours."""
    return _ESCAPE.sub("", text)


def shortened(text: str, length: int) -> str:
    """Return the text; if it is longer than `length` characters, `…` replaces its end."""
    return text if len(text) <= length else f"{text[: max(length - 1, 0)]}…"


def printable(text: str) -> str:
    """Return the text with control characters escaped."""
    return text.translate(_CONTROL)


def one_line(value: Any, canonical: bool = False) -> str:
    """Return a value as Extended JSON in one line."""
    options = json_util.CANONICAL_JSON_OPTIONS if canonical else json_util.RELAXED_JSON_OPTIONS
    return str(json_util.dumps(value, json_options=options, ensure_ascii=False))


def shown(document: Mapping[str, Any] | Any) -> str:
    """Return a value as one line of Extended JSON with control characters escaped."""
    return printable(one_line(document))


def size(count: float) -> str:
    """Return a number of bytes as text, such as `1.5 MiB`."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Return a time span in its two largest units, such as `2 d 3 h`."""
    rest = int(seconds)
    if rest < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    units = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            units.append(f"{count} {unit}")
    return " ".join(units[:2])


def moment(milliseconds: int) -> str:
    """Return milliseconds since the Unix epoch as a date, such as `2026-11-22T10:28:20.766Z`."""
    try:
        at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
