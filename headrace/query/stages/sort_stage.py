"""`$sort`. If a `$limit` follows, it keeps only as many documents as the limit needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from sys import maxsize
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.expansion import encoded_between
from headrace.query.expressions.expression import Evaluate
from headrace.query.operation_memory import UNBOUNDED, OperationMemory
from headrace.query.sort import SortColumns, SortKey, parse_sort
from headrace.query.stages.limit import Limit, Skip
from headrace.query.stages.stage import Document, DocumentStage, PipelineContext, Stage
from headrace.time_limit import limited
from headrace.values.bson import decode
from headrace.values.bson.columns import batches

ONE_BY_ONE: Final = frozenset({
    "$addFields", "$graphLookup", "$limit", "$lookup", "$match", "$project", "$redact", "$replaceRoot", "$replaceWith",
    "$set", "$skip", "$unset", "$unwind",
})  # fmt: skip
"""Stages that read a document only after they returned all results of the previous document."""


class SortedKey:
    """The sort key of the document that left a `$sort` last, for `{$meta: "sortKey"}` in later stages."""

    __slots__ = ("_key", "_order", "is_read")

    def __init__(self, order: SortKey) -> None:
        self._order = order
        self._key: list[Any] = []
        self.is_read = False

    def note(self, document: Document) -> Document:
        """Note the key of a document, and return the document."""
        self._key = self._order.values(document)
        return document

    def reader(self) -> Evaluate:
        """Return the expression of the key. It works even if the document has been reshaped since."""
        self.is_read = True
        return lambda env: self._key


@dataclass(frozen=True, slots=True)
class Sort(Stage):
    """Sorts by `order`, stable. Yields at most `count_max` documents unless that is None."""

    name: str
    spec: Any
    order: SortKey
    count_max: int | None = None
    memory: OperationMemory = UNBOUNDED
    key: SortedKey | None = None

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """All documents, or the first `count_max`, in order. Reads all input first. Raises 292."""
        with self.memory.stage("$sort") as memory:
            sorter, key = self.order.sorter(memory, self.count_max), limited(self.order.merge_key)
            for document in documents:
                if sorter.wants(order := key(document)):
                    sorter.add(order, encoded_between(document))
            yield from map(decode, sorter.sorted())

    def apply_raw(self, documents: Iterator[bytes]) -> Iterator[bytes]:
        """As `apply`, for encoded documents. Only the fields in the sort are decoded."""
        with self.memory.stage("$sort") as memory:
            sorter, keys = self.order.sorter(memory, self.count_max), SortColumns(self.order)
            for batch in batches(documents):
                sorter.add_all(keys.of(batch), batch)
            yield from sorter.sorted()


def parse_sort_stage(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$sort: {field: 1 or -1, ...}}`."""
    if type(spec) is not dict:
        raise CommandError(15973, "the $sort key specification must be an object")
    if not spec:
        raise CommandError(15976, "$sort stage must have at least one sort key")
    order = parse_sort(spec, context.collation, metadata=context.carried, natural=False)
    return (Sort(name, spec, order, memory=context.memory, key=SortedKey(order)),)


def key_after(stage: Stage, key: SortedKey | None) -> SortedKey | None:
    """Return the key that documents have after a stage. `key` is their key before the stage."""
    return stage.key if isinstance(stage, Sort) else key if stage.name in ONE_BY_ONE else None


def with_sort_keys(stages: Sequence[Stage]) -> Iterator[Stage]:
    """Yield the stages. After each `$sort` whose key is read, a stage that notes the key is added."""
    for stage in stages:
        yield stage
        if isinstance(stage, Sort) and stage.key is not None and stage.key.is_read:
            yield DocumentStage(stage.name, stage.spec, stage.key.note)


def with_limits(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages, with `count_max` set in each `$sort` that a later `$limit` bounds."""
    return tuple(
        replace(stage, count_max=_wanted(stages[index + 1 :])) if isinstance(stage, Sort) else stage
        for index, stage in enumerate(stages)
    )


def _wanted(following: Sequence[Stage]) -> int | None:
    """The number of documents that the stages after a sort read; None if they may read all. Only one-to-one stages may
    stand before the `$limit`."""
    skipped = 0
    for stage in following:
        if isinstance(stage, Skip):
            skipped += stage.count
        elif isinstance(stage, Limit):
            return min(skipped + stage.count, maxsize)
        elif not isinstance(stage, DocumentStage) or stage.name == "$redact":
            return None
    return None
