"""`$unionWith`: appends the documents of another collection, through a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import CommandError
from headrace.query.options import check_object, check_options
from headrace.query.stages.joins import check_joined
from headrace.query.stages.stage import Document, PipelineContext, Stage


@dataclass(frozen=True, slots=True)
class UnionWith(Stage):
    """Appends the documents of `collection` after `stages`. Without a collection, the stages make their own
    documents."""

    name: str
    spec: Any
    collection: str | None
    stages: tuple[Stage, ...]
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The input documents, then the appended ones."""
        from headrace.query.pipeline import run_pipeline

        yield from documents
        others = () if self.collection is None else self.context.read(None, self.collection)
        yield from run_pipeline(self.stages, others)


def parse_union_with(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$unionWith: collection}` or `{$unionWith: {coll, pipeline}}`."""
    options = {"coll": spec} if type(spec) is str else spec
    check_object(options, 9, "the $unionWith stage specification must be an object or string, but found")
    check_options("$unionWith", options, {"coll": "string", "pipeline": "array"})
    collection, pipeline = options.get("coll"), options.get("pipeline", [])
    if collection is not None:
        check_joined(name, context.database, collection)
    stages = context.joining().subpipeline(pipeline, "$unionWith", collection=collection)
    if collection is None and (not stages or stages[0].name != "$documents"):
        raise CommandError(
            9, "$unionWith stage without explicit collection must have a pipeline with $documents as first stage"
        )
    return (UnionWith(name, spec, collection, stages, context),)
