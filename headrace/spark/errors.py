"""Errors of the source's options, and errors as one line of text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

# The last line of a traceback in a message of Spark's: `module.Kind: text`.
_RAISED: Final = re.compile(r"^(?:\w+\.)*([A-Z]\w*): (.+)$", re.MULTILINE)

# The marks that begin the lines of causes in errors of object stores, and colour codes.
_MARKS: Final = re.compile(r"\x1b\[[\d;]*m|↳")

# The user and password of a connection string, and its options that hold secrets.
_CREDENTIALS: Final = re.compile(r"((?:mongodb|postgresql|mysql|mariadb|oracle|mssql)(?:\+\w+)?://)[^\s\"'/?]*@")
_SECRETS: Final = re.compile(
    r"((?:tlsCertificateKeyFilePassword|sslPEMKeyPassword|authMechanismProperties)=)[^&\s\"']*", re.IGNORECASE
)


_SHOWN_LENGTH_MAX: Final = 100


def redacted(text: str) -> str:
    """Return the text without the credentials of connection strings in it."""
    return _SECRETS.sub(r"\1***", _CREDENTIALS.sub(r"\1", text))


class OptionError(ValueError):
    """An option of the source is missing or has an invalid value. `option` is its name, if it is one option."""

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(message)
        self.option = option


def shown(value: object) -> str:
    """Return the value for a message; a long one is cut."""
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}... ({len(text)} characters)"


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the end of the message about a wrong word: the nearest right word, or nothing if none is near."""
    by_lower = {each.lower(): each for each in words if isinstance(each, str)}
    near = get_close_matches(word.lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def error_line(error: Exception) -> str:
    """Return the error as `Kind: text`; for a failed query, its Python exception without query plans and topologies."""
    kind, text = type(error).__name__, str(error)
    _, traceback, rest = text.partition("Traceback (most recent call last):")
    raised = _RAISED.findall(rest.partition("=== Streaming Query ===")[0]) if traceback else []
    if raised:
        kind, text = raised[-1]
    text = text.partition(", Topology Description")[0].partition(", full error: {")[0]
    return redacted(f"{kind}: {' '.join(_MARKS.sub(' ', text).split())}")
