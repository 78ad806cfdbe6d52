"""`$facet`: several pipelines over the same documents, with their results in one document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import CommandError
from headrace.query.expressions.expression import check_field_name
from headrace.query.operation_memory import Tape, size_of
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import to_string, type_name


@dataclass(frozen=True, slots=True)
class Facet(Stage):
    """Runs each named pipeline over all documents."""

    name: str
    spec: Any
    pipelines: tuple[tuple[str, tuple[Stage, ...]], ...]
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """One document with an array for each pipeline. Reads all input first. Raises 292 and 4031700."""
        from headrace.query.pipeline import run_pipeline

        with self.context.memory.stage(self.name) as memory:
            tape = Tape(documents, memory) if len(self.pipelines) > 1 else None
            answer: Document = {}
            size = 0
            for field, stages in self.pipelines:
                array = answer[field] = []
                for document in run_pipeline(stages, documents if tape is None else tape.documents()):
                    array.append(document)
                    size += size_of(document)
                    if size > memory.bytes_max:
                        raise CommandError(
                            4031700,
                            f"document constructed by $facet is {size} bytes, which exceeds the limit of "
                            f"{memory.bytes_max} bytes",
                        )
            memory.add(size)
            yield answer


def parse_facet(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$facet: {field: [stage, ...], ...}}`."""
    if type(spec) is not dict or not spec:
        found = f"{name}: {to_string(spec)}"
        raise CommandError(40169, f"the $facet specification must be a non-empty object, but found: {found}")
    pipelines = []
    for field, value in spec.items():
        check_field_name(field)
        if type(value) is not list:
            raise CommandError(40170, f"arguments to $facet must be arrays, {field} is type {type_name(value)}")
        if any(type(element) is not dict for element in value):
            raise CommandError(
                40171, f"elements of arrays in $facet spec must be non-empty objects, {field} has others"
            )
        pipelines.append((field, context.subpipeline(value, "$facet")))
    return (Facet(name, spec, tuple(pipelines), context),)
