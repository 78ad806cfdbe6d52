"""Regular expressions as MongoDB means them (PCRE), compiled for Python's `re`.

Rule: `\\d \\w \\s \\b` know ASCII only, case is ignored for all of Unicode, `\\Z` may stand before a last
newline and `\\z` may not. Translated are what the two languages spell differently: `\\h \\H \\R \\Q..\\E
(?<name>...)` and POSIX classes. Constructs that `re` does not know at all (`\\K`, recursion, `\\p{...}`) are
refused as invalid patterns, 51091.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Final

from headrace.errors import CommandError

FLAGS: Final = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "u": re.NOFLAG, "x": re.VERBOSE}

_WORD: Final = "A-Za-z0-9_"
_SPACE: Final = " \\t\\n\\r\\f\\v"
_BOUNDARY: Final = f"(?:(?<=[{_WORD}])(?![{_WORD}])|(?<![{_WORD}])(?=[{_WORD}]))"
_NO_BOUNDARY: Final = f"(?:(?<=[{_WORD}])(?=[{_WORD}])|(?<![{_WORD}])(?![{_WORD}]))"

_OUTSIDE: Final = {
    "B": _NO_BOUNDARY, "D": "[^0-9]", "H": "[^ \\t\\xa0]", "N": "[^\\n]",
    "R": "(?:\\r\\n|[\\n\\v\\f\\r\\x85\\u2028\\u2029])",
    "S": f"[^{_SPACE}]", "W": f"[^{_WORD}]", "Z": "(?=\\n?\\Z)", "a": "\\x07", "b": _BOUNDARY, "d": "[0-9]",
    "e": "\\x1b", "h": "[ \\t\\xa0]", "s": f"[{_SPACE}]", "w": f"[{_WORD}]", "z": "\\Z",
}  # fmt: skip
_IN_CLASS: Final = {
    "a": "\\x07", "b": "\\x08", "d": "0-9", "e": "\\x1b", "h": " \\t\\xa0", "s": _SPACE, "w": _WORD,
}  # fmt: skip
_POSIX: Final = {
    "alnum": "A-Za-z0-9", "alpha": "A-Za-z", "ascii": "\\x00-\\x7f", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@\\[-`{-~", "space": _SPACE,
    "upper": "A-Z", "word": _WORD, "xdigit": "0-9A-Fa-f",
}  # fmt: skip


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str, options: str = "") -> re.Pattern[str]:
    """The pattern ready for `.search`; raises 51108 for an unknown option, 51091 for a bad pattern."""
    flags = re.NOFLAG
    for letter in options:
        if letter not in FLAGS:
            raise CommandError(51108, f"invalid flag in regex options: {letter}")
        flags |= FLAGS[letter]
    if "\0" in pattern:
        raise CommandError(51091, "Regular expression cannot contain an embedded null byte")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(_translated(pattern), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise CommandError(51091, f"Regular expression is invalid: {error}") from error


def _translated(pattern: str) -> str:
    pattern = re.sub(r"\A(\(\*[A-Z0-9_]+\))+", "", pattern)  # (*UTF8) and its kind say nothing new here
    out: list[str] = []
    position = 0
    while position < len(pattern):
        letter = pattern[position]
        if letter == "\\":
            piece, position = _escape(pattern, position, _OUTSIDE)
        elif letter == "[":
            piece, position = _character_class(pattern, position)
        elif pattern.startswith("(?<", position) and pattern[position + 3 : position + 4] not in ("=", "!"):
            piece, position = "(?P<", position + 3
        elif pattern.startswith("(?'", position):
            name, _, _ = pattern[position + 3 :].partition("'")
            piece, position = f"(?P<{name}>", position + 4 + len(name)
        else:
            piece, position = letter, position + 1
        out.append(piece)
    return "".join(out)


def _escape(pattern: str, position: int, meanings: dict[str, str]) -> tuple[str, int]:
    """The translation of the escape at `position`, and where it ends."""
    letter = pattern[position + 1 : position + 2]
    if letter == "Q":
        quoted, _, _ = pattern[position + 2 :].partition("\\E")
        return re.escape(quoted), min(len(pattern), position + 4 + len(quoted))
    if letter == "E":
        return "", position + 2
    if letter == "x" and pattern[position + 2 : position + 3] == "{":
        digits, _, _ = pattern[position + 3 :].partition("}")
        try:
            return re.escape(chr(int(digits, 16))), position + 4 + len(digits)
        except (OverflowError, ValueError) as error:
            raise re.error("bad hexadecimal escape") from error
    return meanings.get(letter, "\\" + letter), position + 1 + len(letter)


def _character_class(pattern: str, start: int) -> tuple[str, int]:
    """The class that opens at `start`, translated, and where it ends."""
    position = start + 1
    out = ["["]
    if pattern.startswith("^", position):
        out.append("^")
        position += 1
    if pattern.startswith("]", position):
        out.append("\\]")
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        posix = re.compile(r"\[:(\^?)([a-z]+):\]").match(pattern, position)
        if posix and not posix[1] and posix[2] in _POSIX:
            piece, position = _POSIX[posix[2]], posix.end()
        elif pattern[position] == "\\":
            piece, position = _escape(pattern, position, _IN_CLASS)
        else:
            letter = pattern[position]
            piece, position = ("\\" + letter if letter in "[&~|" else letter), position + 1
        out.append(piece)
    return "".join(out) + "]" * (position < len(pattern)), position + 1
