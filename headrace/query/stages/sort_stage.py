"""`$sort`, which keeps only the documents wanted where a `$limit` follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Any

from headrace.errors import CommandError
from headrace.query.sort import SortKey, parse_sort
from headrace.query.stages.limit import Limit, Skip
from headrace.query.stages.stage import Document, DocumentStage, PipelineContext, Stage


@dataclass(frozen=True, slots=True)
class Sort(Stage):
    """Sorts by `order`, equal ones as they came; yields `count_max` at most where that is not None."""

    name: str
    spec: Any
    order: SortKey
    count_max: int | None = None

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """All documents, or the first `count_max`, in order; reads everything first."""
        if self.count_max is None:
            yield from self.order.sorted(documents)
        else:
            yield from nsmallest(self.count_max, documents, key=self.order.key)


def parse_sort_stage(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$sort: {field: 1 or -1, ...}}`."""
    if type(spec) is not dict:
        raise CommandError(15973, "the $sort key specification must be an object")
    if not spec:
        raise CommandError(15976, "$sort stage must have at least one sort key")
    return (Sort(name, spec, parse_sort(spec, context.collation)),)


def with_limits(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages, with each `$sort` told how many documents a later `$limit` lets it yield."""
    return tuple(
        replace(stage, count_max=_wanted(stages[index + 1 :])) if isinstance(stage, Sort) else stage
        for index, stage in enumerate(stages)
    )


def _wanted(following: Sequence[Stage]) -> int | None:
    """How many documents the stages after a sort read; None if all. Only stages one to one may lie before."""
    skipped = 0
    for stage in following:
        if isinstance(stage, Skip):
            skipped += stage.count
        elif isinstance(stage, Limit):
            return skipped + stage.count
        elif not isinstance(stage, DocumentStage) or stage.name == "$redact":
            return None
    return None
