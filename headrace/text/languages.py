"""The languages of text indexes, by their names and two letters; `none` has no stems and no stop words.

An index of version 1 takes the names as they are written, also those of three letters: only full names have stop words,
and an unknown language is `none`.

Source: MongoDB's documentation, "Text Search Languages".
"""

from __future__ import annotations

from typing import Final

NONE: Final = "none"
_BY_CODE: Final = {
    "da": "danish", "de": "german", "en": "english", "es": "spanish", "fi": "finnish", "fr": "french",
    "hu": "hungarian", "it": "italian", "nb": "norwegian", "nl": "dutch", "pt": "portuguese", "ro": "romanian",
    "ru": "russian", "sv": "swedish", "tr": "turkish",
}  # fmt: skip
_NAMES: Final = frozenset(_BY_CODE.values()) | {NONE}


_OF_VERSION_1: Final = frozenset(
    "da dan danish de deu dut dutch en eng english es esl fi fin finnish fr fra fre french ger german hu hun hungarian "
    "it ita italian nl nld no nor norwegian por porter portuguese pt ro romanian ron ru rum rus russian spa spanish sv "
    "swe swedish tr tur turkish".split()
)
VERSIONS: Final = (1, 2, 3)
UNICODE_VERSION: Final = 3
"""The version from which on letters beyond ASCII have a lower case, and marks do not count."""


def language_of(name: str, version: int = UNICODE_VERSION) -> str | None:
    """Return the name of a language that is given by its name or its two letters, in any case; None: unknown.

    In an index of version 1: the name itself.
    """
    if version == 1:
        return name if name in _OF_VERSION_1 else NONE
    lower = name.lower()
    return lower if lower in _NAMES else _BY_CODE.get(lower)
