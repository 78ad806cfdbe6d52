"""Values that belong to a document and are no fields of it, for `$meta`: the score of a search, a distance.

They go with their document as more fields, the marks, while documents are sorted. `note` takes the marks off and keeps
the values for what is computed next; `carry` puts them on again.
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
TEXT_SCORE: Final = "textScore"
MARK: Final = _PREFIX + TEXT_SCORE
"""The mark that has the score of a search."""

_NAMES: Final = {
    "geoNearDistance": "$geoNear distance", "geoNearPoint": "$geoNear point", "indexKey": "", "randVal": "",
    "recordId": "", "score": "score", "scoreDetails": "scoreDetails", "searchHighlights": "",
    "searchScore": "$search score", "searchScoreDetails": "", "searchSequenceToken": "", "sortKey": "sortKey",
    TEXT_SCORE: "text score", "timeseriesBucketMaxTime": "", "timeseriesBucketMinTime": "",
    "vectorSearchScore": "$vectorSearch distance",
}  # fmt: skip
"""The arguments of `$meta`, with what a query lacks that has no value; empty where the value is then just missing."""

Readers: TypeAlias = Mapping[str, "Callable[[], Evaluate]"]
"""By argument of `$meta`: the function that returns the expression with its value, and notes that it is read."""


class DocumentMetadata:
    """The values of the document that was noted last, by argument of `$meta`; MISSING where it has none."""

    __slots__ = ("is_read", "values")

    def __init__(self, *names: str) -> None:
        self.values: dict[str, Any] = dict.fromkeys(names, MISSING)
        self.is_read = False
        """Whether anything asks for the values, so that documents have to be marked."""

    def readers(self) -> Readers:
        """Return what reads the values, whatever the document has become since."""
        return {name: partial(self._reader, name) for name in self.values}

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
    """Raise the error of an argument of `$meta` that documents have no value of: 17308, 40218. None: it is missing."""
    if name not in _NAMES:
        raise CommandError(17308, f"Unsupported argument to $meta: {name}")
    if _NAMES[name]:
        raise CommandError(40218, f"query requires {_NAMES[name]} metadata, but it is not available")


def mark_of(name: str) -> str:
    """Return the mark of an argument of `$meta`: the path by which marked documents are sorted by the value."""
    return _PREFIX + name


def search_score() -> DocumentMetadata:
    """Return the metadata of documents that a search finds."""
    return DocumentMetadata(TEXT_SCORE)
