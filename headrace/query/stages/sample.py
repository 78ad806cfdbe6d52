"""`$sample`: a random selection of the documents.

As in MongoDB, documents are sorted by random numbers and the first are taken, within the memory of a `$sort`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.expansion import encoded_between
from headrace.query.expressions.numbers import NUMBERS, to_long
from headrace.query.external_sort import Sorter
from headrace.query.operation_memory import UNBOUNDED, OperationMemory
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import decode

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
