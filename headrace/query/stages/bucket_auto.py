"""`$bucketAuto`: groups of about equal size, with boundaries computed from the values.

Rule: equal values are never split. With a granularity the boundaries are rounded to a series of preferred
numbers (see `granularity.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import CommandError
from headrace.query.expressions import Env
from headrace.query.expressions.numbers import NUMBERS, int32_of
from headrace.query.stages.bucket import COUNT, require_group_by
from headrace.query.stages.granularity import Rounder, parse_granularity
from headrace.query.stages.group import AccumulatedFields, new_states, parse_fields, results
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import MISSING, type_name
from headrace.values.order import compare, sort_key

_OPTIONS = frozenset({"buckets", "granularity", "groupBy", "output"})


@dataclass(frozen=True, slots=True)
class BucketAuto(Stage):
    """Divides the documents, sorted by `value`, into at most `count` buckets."""

    name: str
    spec: Any
    value: Callable[[Document], Any]
    count: int
    fields: AccumulatedFields
    rounder: Rounder | None
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """One document a bucket, in order of their boundaries; reads everything first."""
        collation = self.context.collation
        pairs = [(self._value(document), document) for document in documents]
        pairs.sort(key=lambda pair: sort_key(pair[0], collation))
        size = max(1, int(len(pairs) / self.count + 0.5))
        start, made, lower = 0, 0, None
        while start < len(pairs) and made < self.count:
            end = len(pairs) if made == self.count - 1 else min(start + size, len(pairs))
            end, least, most = self._bounds(pairs, start, end, lower)
            yield self._bucket(pairs[start:end], least, most)
            start, made, lower = end, made + 1, most

    def _bounds(self, pairs: list[Any], start: int, end: int, lower: Any) -> tuple[int, Any, Any]:
        """Where the bucket ends, and its boundaries; `lower` is the upper boundary of the one before."""
        if self.rounder is not None:
            least = self.rounder.down(pairs[0][0]) if start == 0 else lower
            most = self.rounder.up(pairs[end - 1][0])
            while end < len(pairs) and compare(pairs[end][0], most) < 0:
                end += 1
            return end, least, most
        least = pairs[start][0]
        while end < len(pairs) and compare(pairs[end][0], pairs[end - 1][0], self.context.collation) == 0:
            end += 1
        return end, least, pairs[end][0] if end < len(pairs) else pairs[end - 1][0]

    def _value(self, document: Document) -> Any:
        value = self.value(document)
        if self.rounder is not None:
            self.rounder.check(value)
        return None if value is MISSING else value

    def _bucket(self, pairs: list[tuple[Any, Document]], least: Any, most: Any) -> Document:
        states = new_states(self.fields)
        for _, document in pairs:
            env = Env(document, self.context.bound)
            for (_, accumulator), state in zip(self.fields, states):
                accumulator.add(state, env)
        return {"_id": {"min": least, "max": most}, **results(self.fields, states)}


def parse_bucket_auto(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$bucketAuto: {groupBy, buckets, output, granularity}}`."""
    if type(spec) is not dict:
        raise CommandError(40240, f"The argument to $bucketAuto must be an object, but found type: {type_name(spec)}.")
    for option in spec:
        if option not in _OPTIONS:
            raise CommandError(40245, f"Unrecognized option to $bucketAuto: {option}.")
    if "groupBy" in spec:
        require_group_by(name, spec["groupBy"], 40239)
    count = _bucket_count(spec["buckets"]) if "buckets" in spec else 0
    output = spec.get("output", COUNT)
    if type(output) is not dict:
        raise CommandError(
            40244, f"The $bucketAuto 'output' field must be an object, but found type: {type_name(output)}."
        )
    rounder = parse_granularity(spec["granularity"]) if "granularity" in spec else None
    if "groupBy" not in spec or "buckets" not in spec:
        raise CommandError(40246, "$bucketAuto requires 'groupBy' and 'buckets' to be specified.")
    value = context.expression(spec["groupBy"])
    return (BucketAuto(name, spec, value, count, parse_fields(output, context), rounder, context),)


def _bucket_count(value: Any) -> int:
    if type(value) not in NUMBERS:
        raise CommandError(
            40241, f"The $bucketAuto 'buckets' field must be a numeric value, but found type: {type_name(value)}."
        )
    number = int32_of(value)
    if number is None:
        raise CommandError(
            40242, f"The $bucketAuto 'buckets' field must be representable as a 32-bit integer: {value}."
        )
    if number <= 0:
        raise CommandError(40243, f"The $bucketAuto 'buckets' field must be greater than 0, but found: {value}.")
    return number
