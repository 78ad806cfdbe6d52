"""Stages of one document each, in the form in which workers get them; workers parse them into closures.

Rule: only `headrace.query` evaluates stages; this package does not interpret them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from headrace.query.collation import parse_collation
from headrace.query.pipeline import PipelineContext, Stage, parse_pipeline
from headrace.query.stages.joins import LookupStage
from headrace.query.stages.match_stage import Match
from headrace.query.stages.reshaping import with_nested
from headrace.query.stages.stage import ReadCollection
from headrace.values import bson

Document = dict[str, Any]
Flow = Callable[[Document], Iterable[Document]]

ONE_DOCUMENT: Final = frozenset(
    {"$addFields", "$fill", "$match", "$project", "$redact", "$replaceRoot", "$replaceWith", "$set", "$unset",
     "$unwind"}
)  # fmt: skip
"""The stages whose result depends on one document only; `$fill` only in the form with values."""


def canonical(value: Any) -> Any:
    """Return the value as `headrace.values.bson` decodes it. Raise bson's errors for values that BSON does not have."""
    return bson.decode(bson.encode({"value": value}))["value"]


@dataclass(frozen=True, slots=True)
class Setting:
    """The names that a pipeline's stages may refer to: `let` variables with `$$NOW`, and a collation document."""

    variables: Document = field(default_factory=dict)
    collation: Document | None = None

    def context(self, read: ReadCollection | None = None) -> PipelineContext:
        """Return the context for parsing stages."""
        collation = None if self.collation is None else parse_collation(self.collation)
        return PipelineContext(collation=collation, variables=self.variables, read_collection=read)


@dataclass(frozen=True, slots=True)
class Program:
    """Stages to send to workers. `tables` has the documents that a `$lookup` reads, as BSON, by their name."""

    documents: tuple[Document, ...]
    setting: Setting = Setting()
    tables: Mapping[str, Sequence[bytes]] = field(default_factory=dict)

    def stages(self) -> tuple[Stage, ...]:
        """Return the parsed stages. Raise the `CommandError` of the first invalid stage."""
        context = self.setting.context(lambda database, name, depth: map(bson.decode, self.tables[name]))
        return parse_pipeline(list(self.documents), context=context)


def flow_of(stages: Sequence[Stage]) -> Flow:
    """Return the function from a document to the documents that the stages make of it. A `$lookup` reads its table
    once."""
    steps = [_joined(stage) if isinstance(stage, LookupStage) else getattr(stage, "each", None) for stage in stages]
    if all(steps):
        return _single(steps)
    runs = [
        partial(map, step) if isinstance(stage, LookupStage) else stage.apply
        for stage, step in zip(stages, steps, strict=True)
    ]

    def flow(document: Document) -> Iterable[Document]:
        documents: Iterator[Document] = iter((document,))
        for run in runs:
            documents = run(documents)
        return documents

    return flow


def _joined(stage: LookupStage) -> Callable[[Document], Document]:
    find = stage.finder(stage.context.memory.stage(stage.name))
    return lambda document: with_nested(document, stage.into, find(document))


def _single(steps: list[Any]) -> Flow:
    def flow(document: Document) -> Iterable[Document]:
        result: Document | None = document
        for step in steps:
            result = step(result)
            if result is None:
                return ()
        return (result,) if result is not None else ()

    return flow


def fields_of(stages: Sequence[Stage]) -> frozenset[str] | None:
    """Return the top-level fields that the stages read if all of them are filters; None if they may read any field."""
    result: set[str] = set()
    for stage in stages:
        fields = stage.predicate.fields() if isinstance(stage, Match) else None
        if fields is None:
            return None
        result |= fields
    return frozenset(result)
