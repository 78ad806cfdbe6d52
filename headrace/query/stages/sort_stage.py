"""The order and the number of documents: `$sort`, `$limit`, `$skip` and `$sample`.

If a `$limit` follows, a `$sort` keeps only as many documents as the limit needs. For a sample, documents are sorted by
random numbers and the first are taken, within the memory of a `$sort`, as in MongoDB.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from sys import maxsize
from typing import Any, Final

from bson import Int64

from headrace.errors import CommandError
from headrace.query.expressions.expression import Evaluate
from headrace.query.expressions.numbers import NUMBERS, int64_of, no_long, to_long
from headrace.query.operation_memory import UNBOUNDED, OperationMemory, encoded_between
from headrace.query.sort import SortColumns, Sorter, SortKey, parse_sort
from headrace.query.stages.stage import Document, DocumentStage, PipelineContext, Stage
from headrace.time_limit import limited
from headrace.values.bson import decode, to_string
from headrace.values.bson.columns import batches


@dataclass(frozen=True, slots=True)
class Limit(Stage):
    """Lets the first `count` documents pass, and reads no further."""

    name: str
    spec: Any
    count: int

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The first `count` documents."""
        return islice(documents, self.count)


@dataclass(frozen=True, slots=True)
class Skip(Stage):
    """Leaves out the first `count` documents."""

    name: str
    spec: Any
    count: int

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents after the first `count`."""
        return islice(documents, self.count, None)


def parse_limit(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$limit: positive number}`."""
    if type(spec) in (int, Int64, float) and spec <= 0:
        raise CommandError(15958, "the limit must be positive")
    count = non_negative_int64(name, spec, 5107201)
    if not count:
        raise CommandError(15958, "the limit must be positive")
    return (Limit(name, spec, count),)


def parse_skip(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$skip: number, zero or more}`."""
    return (Skip(name, spec, non_negative_int64(name, spec, 5107200)),)


def non_negative_int64(name: str, value: Any, code: int) -> int:
    """The argument as an integer of zero or more that fits 64 bits. Raises `code` for any other value."""
    complaint = f"invalid argument to {name} stage: "
    number = int64_of(value)
    if number is None:
        raise CommandError(code, complaint + no_long(name, value))
    if number < 0:
        raise CommandError(code, f"{complaint}Expected a non-negative number in: {name}: {to_string(value)}")
    return int(number)


_NUMBER_BYTES: Final = 8
"""The size of the random number at the beginning of a record."""


@dataclass(frozen=True, slots=True)
class Sample(Stage):
    """Picks `size` documents, each equally likely, in random order."""

    name: str
    spec: Any
    size: int
    generator: random.Random
    memory: OperationMemory = UNBOUNDED

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """`size` documents, or all if there are fewer. Reads all input first. Raises 292."""
        with self.memory.stage("$sort") as memory:
            sorter = Sorter(memory, _key_of, count_max=self.size)
            for document in documents:
                number = self.generator.randbytes(_NUMBER_BYTES)
                if sorter.wants((number,)):
                    sorter.add((number,), number + encoded_between(document))
            for record in sorter.sorted():
                yield decode(record[_NUMBER_BYTES:])


def _key_of(record: bytes) -> tuple[bytes]:
    return (record[:_NUMBER_BYTES],)


def parse_sample(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$sample: {size: n}}`."""
    if type(spec) is not dict:
        raise CommandError(28745, "the $sample stage specification must be an object")
    for option, value in spec.items():
        if option != "size":
            raise CommandError(28748, f"unrecognized option to $sample: {option}")
        if type(value) not in NUMBERS:
            raise CommandError(28746, "size argument to $sample must be a number")
    if "size" not in spec:
        raise CommandError(28749, "$sample stage must specify a size")
    value = spec["size"]
    size = to_long(value)
    if size <= 0:
        raise CommandError(28747, "size argument to $sample must be a positive integer")
    return (Sample(name, spec, size, context.generator, context.memory),)


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
