"""Stages of one document each, in the form in which workers get them: BSON, which workers parse into closures.

Rule: only `headrace.query` evaluates stages; this package does not interpret them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.query.collation import parse_collation
from headrace.query.pipeline import PipelineContext, Stage, parse_pipeline
from headrace.query.stages.match_stage import Match
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
    """Stages of one document each, to send to workers; `body` is the BSON of `{stages, variables, collation}`."""

    body: bytes

    @classmethod
    def of(cls, stages: Sequence[Document], setting: Setting) -> Program:
        """Return the program of canonical stages."""
        decoded = {"stages": list(stages), "variables": setting.variables, "collation": setting.collation}
        return cls(bson.encode(decoded))

    @property
    def setting(self) -> Setting:
        """The names that the stages may refer to."""
        decoded = bson.decode(self.body)
        return Setting(decoded["variables"], decoded["collation"])

    def stages(self) -> tuple[Stage, ...]:
        """Return the parsed stages. Raise the `CommandError` of the first invalid stage."""
        decoded = bson.decode(self.body)
        return parse_pipeline(decoded["stages"], context=Setting(decoded["variables"], decoded["collation"]).context())


def flow_of(stages: Sequence[Stage]) -> Flow:
    """Return the function from a document to the documents that the stages make of it."""
    steps = [getattr(stage, "each", None) for stage in stages]
    if all(steps):
        return _single(steps)

    def flow(document: Document) -> Iterable[Document]:
        documents: Iterator[Document] = iter((document,))
        for stage in stages:
            documents = stage.apply(documents)
        return documents

    return flow


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
