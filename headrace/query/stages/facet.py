"""`$facet`: several pipelines over the same documents, with their results in one document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import CommandError
from headrace.query.expressions.field_paths import check_field_name
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import type_name


@dataclass(frozen=True, slots=True)
class Facet(Stage):
    """Runs each named pipeline over all documents."""

    name: str
    spec: Any
    pipelines: tuple[tuple[str, tuple[Stage, ...]], ...]

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """One document with an array for each pipeline; reads everything first."""
        from headrace.query.pipeline import run_pipeline

        inputs = list(documents)
        yield {field: list(run_pipeline(stages, inputs)) for field, stages in self.pipelines}


def parse_facet(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$facet: {field: [stage, ...], ...}}`."""
    if type(spec) is not dict or not spec:
        raise CommandError(40169, "the $facet specification must be a non-empty object")
    pipelines = []
    for field, value in spec.items():
        check_field_name(field)
        if type(value) is not list:
            raise CommandError(40170, f"arguments to $facet must be arrays, {field} is type {type_name(value)}")
        pipelines.append((field, context.subpipeline(value, "$facet")))
    return (Facet(name, spec, tuple(pipelines)),)
