"""Collations: comparing strings by the rules of a language, with ICU's tables.

A collation gives every string a sort key, as bytes. Strings that are equal in the collation have equal keys, and keys
sort like the strings. Omitted options have the locale's defaults (Danish puts upper case first, Thai ignores
punctuation). Locale `simple` is no collation: `parse_collation` returns None for it.

Source of the option rules: MongoDB's documentation, "Collation".
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.expressions.numbers import nearest_int
from headrace.query.options import check_options, one_of
from headrace.values.bson import to_string
from headrace.values.collator import Collator, UnknownLocale

VERSION: Final = "57.1"
"""The version of ICU that MongoDB reports. Only characters added by later Unicode versions sort differently."""
OPTIONS: Final = {
    "alternate": "string?", "backwards": "bool", "caseFirst": "string?", "caseLevel": "bool?", "locale": "string?",
    "maxVariable": "string?", "normalization": "bool?", "numericOrdering": "bool?", "strength": "number?",
    "version": "string?",
}  # fmt: skip
"""The options, and their types as `check_options` takes them."""
CHOICES: Final = {
    "alternate": ("non-ignorable", "shifted"),
    "caseFirst": ("lower", "off", "upper"),
    "maxVariable": ("punct", "space"),
}
FLAGS: Final = ("backwards", "caseLevel", "normalization", "numericOrdering")
LOCALE: Final = re.compile(r"[A-Za-z]{2,8}(_[A-Za-z0-9]{2,8})*(@collation=[a-z0-9]+)?\Z")
_ORDER: Final = (
    "locale", "caseLevel", "caseFirst", "strength", "numericOrdering", "alternate", "maxVariable", "normalization",
    "backwards", "version",
)  # fmt: skip
"""The order of the options in a stored collation."""
_CACHED_LENGTH: Final = 64
_CACHED_COUNT: Final = 4096


class Collation:
    """A parsed collation; `document` is the specification with every option filled in."""

    __slots__ = ("_hash", "_short_key", "_sort_key", "document")

    def __init__(self, document: tuple[tuple[str, Any], ...], collator: Collator) -> None:
        self.document = document
        self._hash = hash(document)
        self._sort_key = collator.sort_key
        self._short_key = lru_cache(_CACHED_COUNT)(collator.sort_key)

    def key(self, text: str) -> bytes:
        """A key without zero bytes. Keys are equal for strings that the collation treats as equal, and sort like the
        strings."""
        return self._short_key(text) if len(text) <= _CACHED_LENGTH else self._sort_key(text)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Collation) and self.document == other.document)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        return parse_collation, (dict(self.document),)


def parse_collation(document: dict[str, Any] | None) -> Collation | None:
    """The collation that a command names; None for no collation, for `{}` and for locale `simple`.

    Raises 40414 without a locale, 40415 for an unknown option, 14 for a wrong type, 2 for a wrong value, 161 for
    another version of ICU; 115 without ICU's library.
    """
    if not document:
        return None
    check_options("collation", document, OPTIONS)
    document = {name: value for name, value in document.items() if value is not None}
    check_options("collation", document, OPTIONS, ["locale"])
    locale = document["locale"]
    if locale == "simple":
        if len(document) > 1:
            raise CommandError(2, "If locale=simple, then no other fields should be present in the collation")
        return None
    if document.get("version", VERSION) != VERSION:
        raise CommandError(
            161,
            f"Requested collation version {document['version']} but the only available collator version was {VERSION}.",
        )
    if not LOCALE.match(locale):
        raise CommandError(2, f"Field 'locale' is invalid in: {to_string(document)}")
    given: dict[str, Any] = {name: document[name] for name in FLAGS if name in document}
    for name, choices in CHOICES.items():
        if name in document:
            given[name] = one_of(f"collation.{name}", document[name], choices)
    if "strength" in document:
        given["strength"] = _strength(document)
    try:
        collation = _collation(locale, tuple(sorted(given.items())))
    except UnknownLocale:
        if "version" not in document:  # stored collations stay usable
            raise CommandError(2, f"Field 'locale' is invalid in: {to_string(document)}") from None
        collation = _collation(locale, tuple(sorted(given.items())), stored=True)
    if "version" not in document:
        _check_together(dict(collation.document))
    return collation


@lru_cache(64)
def _collation(locale: str, given: tuple[tuple[str, Any], ...], *, stored: bool = False) -> Collation:
    """A collation with its options. `stored`: it may be from an earlier version, which knew no locales."""
    collator = Collator("root" if stored else locale, dict(given))
    filled = {"locale": locale, **collator.options(), "version": VERSION}
    return Collation(tuple((name, filled[name]) for name in _ORDER), collator)


def _check_together(filled: dict[str, Any]) -> None:
    """Raise 2 for options that make no sense together."""
    if filled["backwards"] and filled["strength"] == 1:
        raise CommandError(2, "'backwards' is invalid with 'strength' of 1")
    if filled["caseFirst"] != "off" and filled["strength"] <= 2 and not filled["caseLevel"]:
        raise CommandError(2, "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2")


def filled_collation(document: dict[str, Any]) -> dict[str, Any] | None:
    """A collation as catalogs and entries store it, with every option; None if there is none. Raises as
    `parse_collation`."""
    collation = parse_collation(document)
    return None if collation is None else dict(collation.document)


def _strength(document: dict[str, Any]) -> int:
    value = document["strength"]
    number = nearest_int(value)
    if not 1 <= number <= 5:
        raise CommandError(2, f"Enumeration value '{value}' for field 'collation.strength' is not a valid value.")
    return number
