"""`$limit` and `$skip`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from bson import Int64

from headrace.errors import CommandError
from headrace.query.expressions.numbers import int64_of, no_long
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson.to_string import to_string


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
