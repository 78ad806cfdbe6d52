"""`$documents`: documents given in the pipeline itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import CommandError
from headrace.query.expressions import CompiledExpression, Env, parse_expression
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import type_name


@dataclass(frozen=True, slots=True)
class DocumentsStage(Stage):
    """Yields the documents that its expression computes and ignores its input."""

    name: str
    spec: Any
    expression: CompiledExpression
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents of the expression's array."""
        values = self.expression(Env({}, self.context.bound))
        if type(values) is not list:
            raise CommandError(5858203, f"an array is expected, but found {type_name(values)}")
        for document in values:
            if type(document) is not dict:
                raise CommandError(
                    40228, f"$documents' elements must be objects, but one was of type {type_name(document)}"
                )
            yield document


def parse_documents(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$documents: expression}`. It is allowed only if no collection is read."""
    if spec == {}:
        raise CommandError(51270, "Invalid empty sub-projection: _tempDocumentsField")
    if context.collection is not None:
        raise CommandError(73, "$documents can only be run with {aggregate: 1}")
    return (DocumentsStage(name, spec, parse_expression(spec, context.parse_context()), context),)
