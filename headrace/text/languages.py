"""The languages of text indexes of version 3, by their names and two letters; `none` has no stems and no stop words.

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


def language_of(name: str) -> str | None:
    """Return the name of a language that is given by its name or its two letters, in any case; None: unknown."""
    lower = name.lower()
    return lower if lower in _NAMES else _BY_CODE.get(lower)
