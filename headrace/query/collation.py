"""Collations: comparing strings as a language does, in plain Python.

A collation gives every string a key of up to three levels: letters without accents and case, then
accents, then case (lower case first). `strength` says how many levels count; `caseLevel` adds case to
strengths 1 and 2; `numericOrdering` compares runs of digits as numbers.

It does *not* know the special alphabets of single locales (Swedish å after z): letters are ordered as
in the root collation. Locale `simple` is no collation: `parse_collation` gives None for it.

Source of the option rules: MongoDB's documentation, "Collation".
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError

PUNCTUATION: Final = "_-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$"
OPTIONS: Final = (
    "alternate", "backwards", "caseFirst", "caseLevel", "locale", "maxVariable", "normalization", "numericOrdering",
    "strength", "version",
)  # fmt: skip
CHOICES: Final = {
    "alternate": ("non-ignorable", "shifted"),
    "caseFirst": ("lower", "off", "upper"),
    "maxVariable": ("punct", "space"),
}
LOCALE: Final = re.compile(r"[a-z]{2,3}(_[A-Z][a-z]{3})?(_[A-Z]{2})?(@collation=[a-z]+)?\Z")
DIGITS: Final = re.compile(r"(\d+)")

Weights = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Collation:
    """A parsed collation; `document` is the specification with every option filled in."""

    document: tuple[tuple[str, Any], ...]
    strength: int = 3
    case_level: bool = False
    upper_first: bool = False
    numeric: bool = False
    ignore_punctuation: bool = False
    backwards: bool = False

    def key(self, text: str) -> Weights:
        """A hashable key: equal for strings that are equal under this collation, ordered as they are."""
        return _weights(self, text)

    def __hash__(self) -> int:
        return hash(self.document)


@lru_cache(maxsize=16_384)
def _weights(collation: Collation, text: str) -> Weights:
    units = [unit for unit in _units(text, collation.numeric) if not _ignored(unit, collation)]
    levels: list[tuple[Any, ...]] = [tuple(unit[0] for unit in units)]
    if collation.strength >= 2:
        accents = tuple(unit[1] for unit in units)
        levels.append(accents[::-1] if collation.backwards else accents)
    if collation.strength >= 3 or collation.case_level:
        levels.append(tuple(unit[2] != collation.upper_first for unit in units))
    if collation.strength >= 4:
        levels.append((text,))
    return tuple(levels)


Unit = tuple[tuple[int, Any], str, bool]


def _units(text: str, numeric: bool) -> list[Unit]:
    """The text as (primary weight, accents, is upper case), one for each letter."""
    units: list[Unit] = []
    for piece in DIGITS.split(text) if numeric else (text,):
        if numeric and piece.isdecimal():
            units.append(((3, int(piece)), "", False))
            continue
        for letter in unicodedata.normalize("NFD", piece):
            if unicodedata.combining(letter):
                if units:
                    primary, accents, upper = units[-1]
                    units[-1] = (primary, accents + letter, upper)
            elif unicodedata.category(letter) != "Cc" or letter.isspace():
                upper = letter != letter.lower()
                units.extend((_primary(base), "", upper) for base in letter.casefold())
    return units


def _primary(letter: str) -> tuple[int, Any]:
    """Spaces, punctuation, symbols, digits, letters: in this order."""
    if letter.isspace():
        return (0, ord(letter))
    if letter in PUNCTUATION:
        return (1, PUNCTUATION.index(letter))
    if letter.isdecimal():
        return (3, unicodedata.decimal(letter))
    if letter.isalnum():
        return (4, letter)
    return (2, ord(letter))


def _ignored(unit: Unit, collation: Collation) -> bool:
    return collation.ignore_punctuation and unit[0][0] <= 1


def parse_collation(document: dict[str, Any] | None) -> Collation | None:
    """The collation a command names; None for none, for `{}` and for locale `simple`.

    Raises 40414 without a locale, 40415 for an unknown option, 14 for a wrong type, 2 for a wrong value.
    """
    if not document:
        return None
    for name in document:
        if name not in OPTIONS:
            raise CommandError(40415, f"BSON field 'collation.{name}' is an unknown field.")
    if "locale" not in document:
        raise CommandError(40414, "BSON field 'collation.locale' is missing but a required field")
    locale = _text(document, "locale", "")
    if locale == "simple":
        if len(document) > 1:
            raise CommandError(2, "If locale=simple, then no other fields should be present in the collation")
        return None
    if not LOCALE.match(locale):
        raise CommandError(2, f"Field 'locale' is invalid in: {document}")
    for name, choices in CHOICES.items():
        if (chosen := _text(document, name, choices[0])) not in choices:
            raise CommandError(2, f"Enumeration value '{chosen}' for field 'collation.{name}' is not a valid value.")
    strength = _strength(document)
    return _make(document, locale, strength)


def filled_collation(document: dict[str, Any]) -> dict[str, Any] | None:
    """A collation as catalogs and entries show it, with every option; None for none. Raises as `parse_collation`."""
    collation = parse_collation(document)
    return None if collation is None else dict(collation.document)


def _make(document: dict[str, Any], locale: str, strength: int) -> Collation:
    filled = (
        ("locale", locale), ("caseLevel", _flag(document, "caseLevel")),
        ("caseFirst", _text(document, "caseFirst", "off")), ("strength", strength),
        ("numericOrdering", _flag(document, "numericOrdering")),
        ("alternate", _text(document, "alternate", "non-ignorable")),
        ("maxVariable", _text(document, "maxVariable", "punct")), ("normalization", _flag(document, "normalization")),
        ("backwards", _flag(document, "backwards")), ("version", "57.1"),
    )  # fmt: skip
    options: dict[str, Any] = dict(filled)
    return Collation(
        document=filled,
        strength=strength,
        case_level=options["caseLevel"],
        upper_first=options["caseFirst"] == "upper",
        numeric=options["numericOrdering"],
        ignore_punctuation=options["alternate"] == "shifted",
        backwards=options["backwards"],
    )


def _strength(document: dict[str, Any]) -> int:
    value = document.get("strength", 3)
    if type(value) not in (int, Int64, float, Decimal128):
        raise CommandError(14, "BSON field 'collation.strength' is the wrong type, expected a number")
    number = float(value.to_decimal() if type(value) is Decimal128 else value)
    if number not in (1, 2, 3, 4, 5):
        raise CommandError(51024, f"BSON field 'strength' value must be between 1 and 5, actual value '{value}'")
    return int(number)


def _flag(document: dict[str, Any], name: str) -> bool:
    value = document.get(name, False)
    if type(value) is not bool:
        raise CommandError(14, f"BSON field 'collation.{name}' is the wrong type, expected type 'bool'")
    return value


def _text(document: dict[str, Any], name: str, default: str) -> str:
    value = document.get(name, default)
    if type(value) is not str:
        raise CommandError(14, f"BSON field 'collation.{name}' is the wrong type, expected type 'string'")
    return value
