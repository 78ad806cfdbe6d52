"""Regular expressions by PCRE2, MongoDB's engine, with MongoDB's limit on backtracking.

A pattern is compiled twice, the second time only when it is needed:

    quick      for short texts, with a low limit: every search ends within a few milliseconds
    guarded    for long texts, and if the quick pattern reached its limit. It has MongoDB's limit, which restarts at
               each position of the text. A callout at each position lets the command pause.

Rule: `\\d \\w \\s \\b` match ASCII only. Case is ignored for all of Unicode (PCRE2_UTF without PCRE2_UCP).
A search that reaches the limit is error 51156.

Source: MongoDB's `$regex` and `$regexMatch`; pcre2api on match limits and callouts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import pcre2

from headrace import limits
from headrace.errors import CommandError

FLAGS: Final = {"i": pcre2.I, "m": pcre2.M, "s": pcre2.S, "u": pcre2.NOFLAG, "x": pcre2.X}
_VERBS: Final = re.compile(r"(?:\(\*[A-Z0-9_=]+\))*")
_LITERALS: Final = re.compile(r"\^?(?:[\w \-:/@,;=<>!\"'%&~`]|\\[^\w\s]|\.\*)*", re.ASCII)
"""Literal characters, and any number of others between them."""
_HEX_ESCAPE: Final = re.compile(r"(\\Q.*?(?:\\E|\Z)|\\[^x]|\\x(?!\{))|\\x\{([0-9A-Fa-f]+)\}", re.DOTALL)


class Pattern:
    """A compiled pattern. `compile_pattern` makes it."""

    __slots__ = ("_flags", "_guarded", "_is_anchored", "_literals", "_quick", "_text", "_verbs")

    def __init__(self, text: str, options: str) -> None:
        """Compile a pattern. Raises 51091, 51108."""
        if len(text) > limits.PATTERN_BYTES_MAX or len(text.encode("utf-8", "replace")) > limits.PATTERN_BYTES_MAX:
            raise CommandError(51091, "Regular expression is invalid: pattern string is longer than the limit")
        flags = pcre2.A
        for letter in options:
            if letter not in FLAGS:
                raise CommandError(51108, f"invalid flag in regex options: {letter}")
            flags |= FLAGS[letter]
        if "\0" in text:
            raise CommandError(51091, "Regular expression cannot contain an embedded null byte")
        verbs = _VERBS.match(text)
        assert verbs is not None
        self._verbs, self._flags = verbs.group(), flags
        self._text = _HEX_ESCAPE.sub(_escaped_character, text[verbs.end() :])
        self._literals: list[str] | None = None
        self._is_anchored = text.startswith("^")
        if flags == pcre2.A and text.isascii() and _LITERALS.fullmatch(text):
            self._literals = [re.sub(r"\\(.)", r"\1", part) for part in text.removeprefix("^").split(".*")]
        self._quick = _compile(f"(*LIMIT_MATCH={limits.PATTERN_QUICK_STEPS_MAX}){self._verbs}{self._text}", flags)
        self._guarded: pcre2.Pattern | None = None

    def matches(self, text: str) -> bool:
        """Whether the pattern occurs in `text`. Raises 51156."""
        literals = self._literals  # the most common patterns: ten times as quick
        if literals is None or (len(literals) > 1 and "\n" in text):
            return self.find(text) is not None
        if self._is_anchored and not text.startswith(literals[0]):
            return False
        at = 0
        for literal in literals:
            at = text.find(literal, at)
            if at < 0:
                return False
            at += len(literal)
        return True

    @property
    def is_linear(self) -> bool:
        """Whether a search always takes no longer than it takes to read the text."""
        return self._literals is not None

    def find(self, text: str, start: int = 0) -> pcre2.Match | None:
        """The first match at or after `start`, a number of characters. Raises 51156."""
        try:
            if len(text) <= limits.PATTERN_QUICK_CHARACTERS_MAX:
                try:
                    return self._quick.search(text, start)
                except pcre2.LibraryError:  # the quick pattern's limit decides nothing
                    pass
            return self._guarded_pattern().search(text, start)
        except pcre2.LibraryError as error:
            raise CommandError(51156, f"Error occurred while executing the regular expression: {error.msg}") from error

    def _guarded_pattern(self) -> pcre2.Pattern:
        if self._guarded is None:
            text = f"(*LIMIT_MATCH={limits.PATTERN_STEPS_MAX}){self._verbs}(?C1)(?:{self._text}\n)"
            if not self._flags & pcre2.X:  # with `x`, the end of a line ends a comment
                text = text[:-2] + ("\\E)" if _is_open_quote(self._text) else ")")
            self._guarded = pcre2.compile(text, self._flags, callout=_before_position)
        return self._guarded


@lru_cache(maxsize=256)
def compile_pattern(text: str, options: str = "") -> Pattern:
    """Return the pattern. Raises 51091 if it is invalid or too long, 51108 for an unknown option.

    The cache is bounded and its values immutable, so all servers of a process share it.
    """
    return Pattern(text, options)


def _compile(text: str, flags: int) -> pcre2.Pattern:
    try:
        return pcre2.compile(text, flags)
    except (pcre2.PatternError, pcre2.LibraryError, UnicodeEncodeError) as error:
        reason = str(error).partition("; ")[2] or str(error)
        raise CommandError(51091, f"Regular expression is invalid: {reason}") from error


def _before_position(block: pcre2.CalloutBlock) -> None:
    """PCRE2's callout before each position of the text at which it tries to match."""


def _escaped_character(match: re.Match[str]) -> str:
    """The character that `\\x{...}` means: the library reads `\\x` as JavaScript does."""
    if match[2] is None:
        return match[0]
    try:
        character = chr(int(match[2], 16))
        character.encode()
    except (OverflowError, ValueError) as error:
        raise CommandError(51091, f"Regular expression is invalid: {match[0]} is no character") from error
    return f"\\{character}" if character.isascii() and not character.isalnum() else character


def _is_open_quote(text: str) -> bool:
    """Whether `\\Q` is still open at the end of a pattern."""
    opened = False
    for escape in re.findall(r"\\(.)", text, re.DOTALL):
        if escape in "QE":
            opened = escape == "Q"
    return opened
