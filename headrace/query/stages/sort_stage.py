"""`$sort`, which keeps only the documents wanted where a `$limit` follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import CommandError
from headrace.query.expansion import encoded_between
from headrace.query.operation_memory import UNBOUNDED, OperationMemory
from headrace.query.sort import SortKey, parse_sort
from headrace.query.stages.limit import Limit, Skip
from headrace.query.stages.stage import Document, DocumentStage, PipelineContext, Stage
from headrace.values.bson import decode


@dataclass(frozen=True, slots=True)
class Sort(Stage):
    """Sorts by `order`, equal ones as they came; yields `count_max` at most where that is not None."""

    name: str
    spec: Any
    order: SortKey
    count_max: int | None = None
    memory: OperationMemory = UNBOUNDED

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """All documents, or the first `count_max`, in order; reads everything first. Raises 292."""
        with self.memory.stage("$sort") as memory:
            sorter, key = self.order.sorter(memory, self.count_max), self.order.merge_key
            for document in documents:
                if sorter.wants(order := key(document)):
                    sorter.add(order, encoded_between(document))
            yield from map(decode, sorter.sorted())

    def apply_raw(self, documents: Iterator[bytes]) -> Iterator[bytes]:
        """As `apply`, over encoded documents."""
        with self.memory.stage("$sort") as memory:
            sorter, key = self.order.sorter(memory, self.count_max), self.order.merge_key
            for raw in documents:
                if sorter.wants(order := key(decode(raw))):
                    sorter.add(order, raw)
            yield from sorter.sorted()


def parse_sort_stage(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$sort: {field: 1 or -1, ...}}`."""
    if type(spec) is not dict:
        raise CommandError(15973, "the $sort key specification must be an object")
    if not spec:
        raise CommandError(15976, "$sort stage must have at least one sort key")
    return (Sort(name, spec, parse_sort(spec, context.collation), memory=context.memory),)


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
