"""The languages of text indexes, by name and by two-letter code; `none` has no stems and no stop words.

An index of version 1 takes names as they are written, including three-letter codes. Only full names have stop words
there, and an unknown language is `none`.

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
"""The first version that folds letters beyond ASCII to lower case and ignores marks."""


def language_of(name: str, version: int = UNICODE_VERSION) -> str | None:
    """Return the full name of a language, given its name or two-letter code in any case; None if it is unknown.

    In an index of version 1, return the given name.
    """
    if version == 1:
        return name if name in _OF_VERSION_1 else NONE
    lower = name.lower()
    return lower if lower in _NAMES else _BY_CODE.get(lower)
