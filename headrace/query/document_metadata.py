"""Metadata of documents for `$meta`: values that are not fields, such as the score of a search or a distance.

While documents are sorted, their metadata is stored in additional fields, the marks. `note` removes the marks and keeps
the values for the next computation. `carry` adds the marks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.errors import CommandError
from headrace.values.bson import MISSING

if TYPE_CHECKING:
    from headrace.query.expressions.expression import Evaluate

_PREFIX: Final = "\x01"
SCORE: Final = "score"
SCORE_DETAILS: Final = "scoreDetails"
TEXT_SCORE: Final = "textScore"
MARK: Final = _PREFIX + TEXT_SCORE
"""The mark that holds the score of a search."""

_NAMES: Final = {
    "geoNearDistance": "$geoNear distance", "geoNearPoint": "$geoNear point", "indexKey": "", "randVal": "",
    "recordId": "", SCORE: "score", SCORE_DETAILS: "scoreDetails", "searchHighlights": "",
    "searchScore": "", "searchScoreDetails": "", "searchSequenceToken": "", "sortKey": "sortKey",
    TEXT_SCORE: "text score", "timeseriesBucketMaxTime": "", "timeseriesBucketMinTime": "",
    "vectorSearchScore": "$vectorSearch distance",
}  # fmt: skip
"""The arguments of `$meta`, each with the metadata that its error names; empty if a missing value is no error."""

Readers: TypeAlias = Mapping[str, "Callable[[], Evaluate]"]
"""Functions by argument of `$meta`. Each returns the expression of the value, and notes that the value is read."""


class DocumentMetadata:
    """The values of the document that was noted last, by argument of `$meta`; MISSING if it has none."""

    __slots__ = ("is_read", "values")

    def __init__(self, *names: str) -> None:
        self.values: dict[str, Any] = dict.fromkeys(names, MISSING)
        self.is_read = False
        """Whether an expression reads the values, so that documents must be marked."""

    def readers(self) -> Readers:
        """Return the readers of the values. They work even if the document has been reshaped since."""
        readers = {name: partial(self._reader, name) for name in self.values}
        if self.source_of(SCORE) == TEXT_SCORE:
            readers[SCORE] = readers[TEXT_SCORE]
        return readers

    def source_of(self, name: str) -> str | None:
        """Return the argument of `$meta` that has the value of `name`; None if there is none. The score of a text
        search is the `score`, too, until a stage computes another one."""
        if name == SCORE and SCORE not in self.values:
            name = TEXT_SCORE
        return name if name in self.values else None

    def _reader(self, name: str) -> Evaluate:
        self.is_read = True
        return lambda env: self.values[name]

    def note(self, document: dict[str, Any]) -> dict[str, Any]:
        """Note the values of a marked document, and return the document without the marks."""
        plain = dict(document)
        self.values = {name: plain.pop(_PREFIX + name, MISSING) for name in self.values}
        return plain

    def carry(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document with its marks."""
        marks = {_PREFIX + name: value for name, value in self.values.items() if value is not MISSING}
        return {**document, **marks}


def check_unavailable(name: str) -> None:
    """Raise 17308 or 40218 for an argument of `$meta` without a value. Return if a missing value is no error."""
    if name not in _NAMES:
        raise CommandError(17308, f"Unsupported argument to $meta: {name}")
    if _NAMES[name]:
        raise CommandError(40218, f"query requires {_NAMES[name]} metadata, but it is not available")


def mark_of(name: str) -> str:
    """Return the mark of an argument of `$meta`: the path to sort marked documents by the value."""
    return _PREFIX + name


def search_score() -> DocumentMetadata:
    """Return the metadata of documents that a search finds."""
    return DocumentMetadata(TEXT_SCORE)
