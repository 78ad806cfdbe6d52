"""`$match`: returns the documents that match a filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from headrace.errors import CommandError
from headrace.query.stages.stage import Document, PipelineContext, Stage

if TYPE_CHECKING:
    from headrace.query.match import Predicate

_NOT_SUPPORTED: Final = 115
_OUT_OF_PLACE: Final = "$where"
"""The beginning of the message of an operator that MongoDB, too, refuses in `$match`."""


@dataclass(frozen=True, slots=True)
class Match(Stage):
    """Keeps what `predicate` accepts."""

    name: str
    spec: Any
    predicate: Predicate
    allowed_in_change_stream: ClassVar[bool] = True

    def each(self, document: Document) -> Document | None:
        """The document itself, or None where the filter refuses it."""
        return document if self.predicate(document) else None

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents accepted, in order."""
        return filter(self.predicate.test, documents)


def parse_match(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$match: filter}`."""
    if type(spec) is not dict:
        raise CommandError(15959, "the match filter must be an expression in an object")
    try:
        return (Match(name, spec, context.predicate(spec)),)
    except CommandError as error:
        if error.code == _NOT_SUPPORTED and error.message.startswith(_OUT_OF_PLACE):
            raise CommandError(2, f"{error.message}; it is not allowed in this context") from error
        raise
