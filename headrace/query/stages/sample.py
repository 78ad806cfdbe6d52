"""`$sample`: a random selection of the documents."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import CommandError
from headrace.query.expressions.numbers import NUMBERS, to_long
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.turns import gathered


@dataclass(frozen=True, slots=True)
class Sample(Stage):
    """Picks `size` documents, each equally likely, in random order."""

    name: str
    spec: Any
    size: int
    generator: random.Random

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """`size` documents, or all where there are fewer; reads everything first."""
        population = gathered(documents)
        yield from self.generator.sample(population, min(self.size, len(population)))


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
    return (Sample(name, spec, size, context.generator),)
