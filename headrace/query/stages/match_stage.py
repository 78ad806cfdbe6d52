"""`$match`: returns the documents that match a filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.errors import CommandError
from headrace.query.document_metadata import DocumentMetadata, search_score
from headrace.query.stages.server_stage import ServerStage
from headrace.query.stages.stage import Document, PipelineContext, Stage

if TYPE_CHECKING:
    from headrace.query.match import Predicate


@dataclass(frozen=True, slots=True)
class Match(Stage):
    """Keeps the documents that `predicate` accepts."""

    name: str
    spec: Any
    predicate: Predicate
    allowed_in_change_stream: ClassVar[bool] = True

    def each(self, document: Document) -> Document | None:
        """The document itself, or None if the filter refuses it."""
        return document if self.predicate(document) else None

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The accepted documents, in order."""
        return filter(self.predicate.test, documents)


@dataclass(frozen=True, slots=True)
class Search(ServerStage):
    """A `$match` with a `$text` at the beginning of another stage's pipeline. Its documents come from the text index of
    the other collection, with their marks if `score` is read."""

    context: PipelineContext = field(default_factory=PipelineContext)
    score: DocumentMetadata = field(default_factory=search_score)

    @classmethod
    def instead_of(cls, match: Stage, score: DocumentMetadata, context: PipelineContext) -> Search:
        """Return the search that replaces a parsed `$match`."""
        search = cls(match.name, match.spec, context=context, score=score)
        assert context.describe is not None and context.collection is not None
        return replace(search, made=partial(context.describe, context.collection, match.name, search))


def parse_match(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$match: filter}`."""
    if type(spec) is not dict:
        raise CommandError(15959, "the match filter must be an expression in an object")
    return (Match(name, spec, context.predicate(spec)),)
