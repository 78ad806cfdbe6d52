"""The score of the document that is being computed with: `{$meta: "textScore"}`.

A score goes with its document as one more field, the mark, while documents are sorted. `note` takes the mark off and
keeps the score for what is computed next; `carry` puts it on again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.values.bson import MISSING

if TYPE_CHECKING:
    from headrace.query.expressions.expression import Evaluate

MARK: Final = "\x01textScore"
"""A name that sorts by score have for their path."""


class TextScore:
    """The score of the document that was noted last; MISSING where it has none."""

    __slots__ = ("is_read", "value")

    def __init__(self) -> None:
        self.value: Any = MISSING
        self.is_read = False
        """Whether anything asks for scores, so that documents have to be marked."""

    def reader(self) -> Evaluate:
        """Return the expression that has the score, whatever the document has become since."""
        self.is_read = True
        return lambda env: self.value

    def note(self, document: dict[str, Any]) -> dict[str, Any]:
        """Note the score of a marked document, and return the document without the mark."""
        self.value = document.get(MARK, MISSING)
        return {name: value for name, value in document.items() if name != MARK}

    def carry(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document with its mark."""
        return document if self.value is MISSING else {**document, MARK: self.value}
