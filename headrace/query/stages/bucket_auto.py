"""`$bucketAuto`: groups of about equal size, with boundaries computed from the values.

Rule: equal values are never split. With a granularity the boundaries are rounded to a series of preferred
numbers: up to the least number of the series greater than the value, down to the greatest less than it. Zero stays
zero.

Source: MongoDB's documentation of `$bucketAuto`, "Granularity".
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.query.expansion import encoded_between
from headrace.query.expressions import Env
from headrace.query.expressions.numbers import NUMBERS, int32_of
from headrace.query.external_sort import Sorter
from headrace.query.stages.bucket import COUNT, require_group_by
from headrace.query.stages.group import AccumulatedFields, new_states, parse_fields, results
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import MISSING, decode, type_name
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
        """One document for each bucket, in order of their boundaries. Reads all input first. Raises 292."""
        with self.context.memory.stage(self.name) as memory:
            sorter = Sorter(memory, lambda raw: (self._key(decode(raw)["v"]),))
            for document in documents:
                value = self._value(document)
                sorter.add((self._key(value),), encoded_between({"v": value, "d": document}))
            size = max(1, int(len(sorter) / self.count + 0.5))
            yield from self._buckets(sorter.sorted(), size)

    def _buckets(self, records: Iterator[bytes], size: int) -> Iterator[Document]:
        """The buckets of sorted records, each of about `size` records."""
        made, lower = 0, None
        current = next(records, None)
        while current is not None and made < self.count:
            item = decode(current)
            bucket = _Bucket(self, item["v"])
            bucket.add(item)
            least = item["v"] if self.rounder is None else self.rounder.down(item["v"]) if made == 0 else lower
            following, wanted = None, None if made == self.count - 1 else size
            for record in records:
                following = decode(record)
                if wanted is None or bucket.count < wanted or bucket.reaches(following["v"]):
                    bucket.add(following)
                    following = None
                else:
                    break
            upper = bucket.upper(None if following is None else (following["v"],))
            yield {"_id": {"min": least, "max": upper}, **results(self.fields, bucket.states)}
            made, lower = made + 1, upper
            current = None if following is None else record

    def _key(self, value: Any) -> Any:
        return sort_key(value, self.context.collation)

    def _value(self, document: Document) -> Any:
        value = self.value(document)
        if self.rounder is not None:
            self.rounder.check(value)
        return None if value is MISSING else value


class _Bucket:
    """A bucket that is being filled."""

    __slots__ = ("_bound", "_last", "_stage", "count", "states")

    def __init__(self, stage: BucketAuto, value: Any) -> None:
        self._stage = stage
        self._last = value
        self._bound: Any = None
        self.count = 0
        self.states = new_states(stage.fields)

    def add(self, item: Document) -> None:
        """Add a document together with its value."""
        env = Env(item["d"], self._stage.context.bound)
        for (_, accumulator), state in zip(self._stage.fields, self.states):
            accumulator.add(state, env)
        self.count += 1
        if self._bound is None:
            self._last = item["v"]
        if self.count % _MEASURED_COUNT == 0:
            for state in self.states:
                state.held()  # `held` raises if the state is too large

    def reaches(self, value: Any) -> bool:
        """Whether a full bucket takes this value, too: it equals the last value, or is below the rounded boundary."""
        rounder = self._stage.rounder
        if rounder is None:
            return compare(value, self._last, self._stage.context.collation) == 0
        if self._bound is None:
            self._bound = rounder.up(self._last)
        return compare(value, self._bound) < 0

    def upper(self, following: tuple[Any] | None) -> Any:
        """The upper boundary. `following` has the first value of the next bucket, or is None for the last bucket."""
        if self._stage.rounder is None:
            return self._last if following is None else following[0]
        return self._stage.rounder.up(self._last) if self._bound is None else self._bound


_MEASURED_COUNT = 4096


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


# Granularities.


SERIES: Final[dict[str, tuple[float, ...]]] = {
    "1-2-5": (1.0, 2.0, 5.0),
    "E6": (1.0, 1.5, 2.2, 3.3, 4.7, 6.8),
    "E12": (1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2),
    "E24": (1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.8, 2.0, 2.2, 2.4, 2.7, 3.0, 3.3, 3.6,
            3.9, 4.3, 4.7, 5.1, 5.6, 6.2, 6.8, 7.5, 8.2, 9.1),
    "R5": (1.0, 1.6, 2.5, 4.0, 6.3),
    "R10": (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0),
    "R20": (1.0, 1.12, 1.25, 1.4, 1.6, 1.8, 2.0, 2.24, 2.5, 2.8, 3.15, 3.55, 4.0, 4.5, 5.0, 5.6, 6.3, 7.1, 8.0, 9.0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rounder:
    """Rounds to one series. An empty series means the powers of two."""

    series: tuple[float, ...]

    def check(self, value: Any) -> None:
        """Raise an error unless the value can be rounded: a number, not NaN, not negative."""
        if type(value) not in (int, Int64, float, Decimal128):
            raise CommandError(
                40258, f"A value of type '{type_name(value)}' cannot be rounded by a granularity; it must be numeric."
            )
        number = float(value.to_decimal()) if type(value) is Decimal128 else value
        if math.isnan(number):
            raise CommandError(40259, "$bucketAuto can specify a 'granularity' with numeric boundaries only, found NaN")
        if number < 0:
            raise CommandError(
                40260, f"$bucketAuto can specify a 'granularity' with non-negative numbers only: {value}"
            )

    def up(self, value: Any) -> Any:
        """The least number of the series greater than the value."""
        number = _number(value)
        if number in (0, math.inf):
            return value
        if not self.series:
            return 2.0 ** (math.floor(math.log2(number)) + 1)
        factor = self._factor(number)
        index = bisect_right([item * factor for item in self.series], number)
        return self.series[index] * factor if index < len(self.series) else self.series[0] * factor * 10

    def down(self, value: Any) -> Any:
        """The greatest number of the series less than the value."""
        number = _number(value)
        if number in (0, math.inf):
            return value
        if not self.series:
            return 2.0 ** (math.ceil(math.log2(number)) - 1)
        factor = self._factor(number)
        index = bisect_left([item * factor for item in self.series], number)
        return self.series[index - 1] * factor if index else self.series[-1] * factor / 10

    def _factor(self, number: float) -> float:
        """The power of ten that scales the series to the number."""
        factor = 10.0 ** math.floor(math.log10(number))
        return factor if self.series[0] * factor <= number else factor / 10


def _number(value: Any) -> float:
    return float(value.to_decimal()) if type(value) is Decimal128 else float(value)


def parse_granularity(value: Any) -> Rounder:
    """The rounder of a granularity's name."""
    if type(value) is not str:
        raise CommandError(
            40261, f"The $bucketAuto 'granularity' field must be a string, but found type: {type_name(value)}."
        )
    if value == "POWERSOF2":
        return Rounder(())
    if value not in SERIES:
        raise CommandError(40257, f"Unknown rounding granularity '{value}'")
    return Rounder(SERIES[value])
