"""The line of a key in a TOML file, for messages, because `tomllib` does not report lines.

The file is read line by line, so a key inside an inline table gets the line on which that table begins.
"""

from __future__ import annotations

import re
from typing import Any, Final

_TABLE: Final = re.compile(r"\s*\[(\[)?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_NAME: Final = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, place: tuple[str | int, ...]) -> int:
    """Return the first line of the longest prefix of `place` that the file has; 1 if it has none."""
    lines = _lines(text)
    for length in range(len(place), 0, -1):
        if found := [number for written, number in lines.items() if written[:length] == place[:length]]:
            return min(found)
    return 1


def _lines(text: str) -> dict[tuple[Any, ...], int]:
    lines: dict[tuple[Any, ...], int] = {}
    counts: dict[tuple[Any, ...], int] = {}
    table: tuple[Any, ...] = ()
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        begins_inside = inside
        for mark in re.findall("'''|\"\"\"", line):
            inside = "" if inside == mark else inside or mark
        if begins_inside:
            continue
        if header := _TABLE.match(line):
            table = _numbered(_names(header[2]), counts)
            if header[1]:
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_names(key[1])), number)
    return lines


def _names(text: str) -> list[str]:
    return [name.strip("\"'") for name in _NAME.findall(text)]


def _numbered(names: list[str], counts: dict[tuple[Any, ...], int]) -> tuple[Any, ...]:
    """Return the place of the table. The name of an array of tables stands for its last table."""
    place: tuple[Any, ...] = ()
    for name in names[:-1]:
        place = (*place, name)
        place = (*place, counts[place]) if place in counts else place
    return (*place, names[-1])
