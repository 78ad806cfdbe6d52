"""`$sort`, which keeps only the documents wanted where a `$limit` follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Any

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.query.stages.limit import Limit, Skip
from headrace.query.stages.stage import Document, DocumentStage, PipelineContext, Stage

_KEY_COUNT_MAX = 32


@dataclass(frozen=True, slots=True)
class Sort(Stage):
    """Orders by `key`, equal ones as they came; yields `count_max` at most where that is not None."""

    name: str
    spec: Any
    key: Callable[[Document], Any]
    count_max: int | None = None

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """All documents, or the first `count_max`, in order; reads everything first."""
        if self.count_max is None:
            yield from sorted(documents, key=self.key)
        else:
            yield from nsmallest(self.count_max, documents, key=self.key)


def parse_sort_stage(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$sort: {field: 1 or -1, ...}}`."""
    if type(spec) is not dict:
        raise CommandError(15973, "the $sort key specification must be an object")
    if not spec:
        raise CommandError(15976, "$sort stage must have at least one sort key")
    if len(spec) > _KEY_COUNT_MAX:
        raise CommandError(13103, "too many compound keys")
    for field, direction in spec.items():
        _check_direction(field, direction)
    return (Sort(name, spec, context.sort_key(spec)),)


def _check_direction(field: str, direction: Any) -> None:
    if type(direction) is dict:
        raise CommandError(17312, f"$meta sorting of '{field}' is not supported; it needs a text index")
    if type(direction) not in (int, Int64, float, Decimal128):
        raise CommandError(15974, f"Illegal key in $sort specification: {field}: {direction!r}")
    number = direction.to_decimal() if type(direction) is Decimal128 else direction
    if number not in (1, -1):
        raise CommandError(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)")


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
