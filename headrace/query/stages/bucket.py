"""`$bucket`: groups by given boundaries. `$bucketAuto`: groups of about equal size, with computed boundaries.

Rule of `$bucketAuto`: equal values are never split. With a granularity the boundaries are rounded to a series of
preferred numbers: up to the least number of the series greater than the value, down to the greatest less than it. Zero
stays zero.

Source: MongoDB's documentation of `$bucketAuto`, "Granularity".
"""

from __future__ import annotations

import decimal
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, TypeVar

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression
from headrace.query.expressions.expression import AT_EVALUATION
from headrace.query.expressions.numbers import (
    CONTEXT,
    NUMBERS,
    decimal_of,
    decimal_of_double,
    double_of,
    int32_of,
    wrap,
)
from headrace.query.operation_memory import encoded_between
from headrace.query.sort import Sorter
from headrace.query.stages.group import AccumulatedFields, Group, new_states, parse_fields, results
from headrace.query.stages.sort_stage import parse_sort_stage
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import MISSING, decode, to_string, type_name
from headrace.values.order import compare, rank, sort_key

COUNT = {"count": {"$sum": 1}}
_OPTIONS = frozenset({"boundaries", "default", "groupBy", "output"})


def parse_bucket(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stages of `{$bucket: {groupBy, boundaries, default, output}}`: a group and a sort."""
    if type(spec) is not dict:
        raise CommandError(40201, f"Argument to $bucket stage must be an object, but found type: {type_name(spec)}.")
    for option in spec:
        if option not in _OPTIONS:
            raise CommandError(40197, f"Unrecognized option to $bucket: {option}.")
    if "groupBy" in spec:
        require_group_by(name, spec["groupBy"], 40202)
    boundaries = _boundaries(spec["boundaries"], context) if "boundaries" in spec else []
    default = _constant(spec["default"], context, 40195, "default") if "default" in spec else MISSING
    output = spec.get("output", COUNT)
    if type(output) is not dict:
        raise CommandError(40196, f"The $bucket 'output' field must be an object, but found type: {type_name(output)}.")
    if "groupBy" not in spec or "boundaries" not in spec:
        raise CommandError(40198, "$bucket requires 'groupBy' and 'boundaries' to be specified.")
    if "_id" in output:
        raise CommandError(15948, "The $bucket 'output' field cannot contain '_id', which has the lower boundary")
    _check_default(default, boundaries, context)
    key = _bucket_key(context.expression(spec["groupBy"]), boundaries, default, context)
    group = Group("$group", spec, key, parse_fields(output, context), context)
    return (group, *parse_sort_stage("$sort", {"_id": 1}, context))


def require_group_by(name: str, value: Any, code: int) -> None:
    """Raise `code` unless the value is a path or an expression object."""
    is_path = type(value) is str and value.startswith("$")
    is_expression = type(value) is dict and next(iter(value), "").startswith("$")
    if not (is_path or is_expression):
        raise CommandError(
            code,
            f"The {name} 'groupBy' field must be defined as a $-prefixed path or an expression, but found: "
            f"{to_string(value)}.",
        )


def _boundaries(value: Any, context: PipelineContext) -> list[Any]:
    if type(value) is not list:
        raise CommandError(
            40200, f"The $bucket 'boundaries' field must be an array, but found type: {type_name(value)}."
        )
    boundaries = [_constant(item, context, 40191, "boundaries") for item in value]
    if len(boundaries) < 2:
        raise CommandError(
            40192, f"The $bucket 'boundaries' field must have at least 2 values, but found {len(boundaries)} value(s)."
        )
    for lower, upper in pairwise(boundaries):
        if rank(lower) != rank(upper):
            raise CommandError(40193, "All values in the the 'boundaries' option to $bucket must have the same type.")
        if compare(lower, upper, context.collation) >= 0:
            raise CommandError(40194, "The 'boundaries' option to $bucket must be sorted in ascending order.")
    return boundaries


def _constant(value: Any, context: PipelineContext, code: int, option: str) -> Any:
    expression = parse_expression(value, context.parse_context().binding(*AT_EVALUATION))
    if not expression.is_constant:
        found = to_string(value)
        raise CommandError(code, f"The $bucket '{option}' field must be a constant expression, but found: {found}.")
    return expression(Env({}))


def _check_default(default: Any, boundaries: list[Any], context: PipelineContext) -> None:
    if default is MISSING:
        return
    at_or_after_first = compare(default, boundaries[0], context.collation) >= 0
    if at_or_after_first and compare(default, boundaries[-1], context.collation) < 0:
        raise CommandError(
            40199,
            "The $bucket 'default' field must be less than the lowest boundary or not less than the highest.",
        )


def _bucket_key(
    evaluate: Callable[[Document], Any], boundaries: list[Any], default: Any, context: PipelineContext
) -> Callable[[Document], Any]:
    """Return a function from a document to the lower boundary of its bucket, or to the default."""
    collation = context.collation
    keys = [sort_key(boundary, collation) for boundary in boundaries]
    bucket_count = len(boundaries) - 1

    def key(document: Document) -> Any:
        index = bisect_right(keys, sort_key(evaluate(document), collation)) - 1
        if 0 <= index < bucket_count:
            return boundaries[index]
        if default is MISSING:
            raise CommandError(
                40066, "$switch could not find a matching branch for an input, and no default was specified."
            )
        return default

    return key


# $bucketAuto.


_AUTO_OPTIONS = frozenset({"buckets", "granularity", "groupBy", "output"})


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
        self.states = new_states(stage.fields, None, stage.context.bound)

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
        """The upper boundary. `following` has the first value of the next bucket, or is None for the last bucket.

        Zero is in no series, so after a bucket of zeros the next bucket begins at its own value, rounded down.
        """
        rounder = self._stage.rounder
        if rounder is None:
            return self._last if following is None else following[0]
        bound = rounder.up(self._last) if self._bound is None else self._bound
        return bound if following is None or double_of(bound) else rounder.down(following[0])


_MEASURED_COUNT = 4096


def parse_bucket_auto(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$bucketAuto: {groupBy, buckets, output, granularity}}`."""
    if type(spec) is not dict:
        raise CommandError(40240, f"The argument to $bucketAuto must be an object, but found type: {type_name(spec)}.")
    for option in spec:
        if option not in _AUTO_OPTIONS:
            raise CommandError(40245, f"Unrecognized option to $bucketAuto: {option}")
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


_Number = TypeVar("_Number", float, Decimal)
_E192: Final = (
    100, 101, 102, 104, 105, 106, 107, 109, 110, 111, 113, 114, 115, 117, 118, 120, 121, 123, 124, 126, 127, 129, 130,
    132, 133, 135, 137, 138, 140, 142, 143, 145, 147, 149, 150, 152, 154, 156, 158, 160, 162, 164, 165, 167, 169, 172,
    174, 176, 178, 180, 182, 184, 187, 189, 191, 193, 196, 198, 200, 203, 205, 208, 210, 213, 215, 218, 221, 223, 226,
    229, 232, 234, 237, 240, 243, 246, 249, 252, 255, 258, 261, 264, 267, 271, 274, 277, 280, 284, 287, 291, 294, 298,
    301, 305, 309, 312, 316, 320, 324, 328, 332, 336, 340, 344, 348, 352, 357, 361, 365, 370, 374, 379, 383, 388, 392,
    397, 402, 407, 412, 417, 422, 427, 432, 437, 442, 448, 453, 459, 464, 470, 475, 481, 487, 493, 499, 505, 511, 517,
    523, 530, 536, 542, 549, 556, 562, 569, 576, 583, 590, 597, 604, 612, 619, 626, 634, 642, 649, 657, 665, 673, 681,
    690, 698, 706, 715, 723, 732, 741, 750, 759, 768, 777, 787, 796, 806, 816, 825, 835, 845, 856, 866, 876, 887, 898,
    909, 920, 931, 942, 953, 965, 976, 988,
)  # fmt: skip
SERIES: Final[dict[str, tuple[int, ...]]] = {
    "1-2-5": (10, 20, 50),
    "E6": (10, 15, 22, 33, 47, 68),
    "E12": (10, 12, 15, 18, 22, 27, 33, 39, 47, 56, 68, 82),
    "E24": (10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91),
    "E48": _E192[::4],
    "E96": _E192[::2],
    "E192": _E192,
    "R5": (10, 16, 25, 40, 63),
    "R10": (100, 125, 160, 200, 250, 315, 400, 500, 630, 800),
    "R20": (100, 112, 125, 140, 160, 180, 200, 224, 250, 280, 315, 355, 400, 450, 500, 560, 630, 710, 800, 900),
    "R40": (100, 106, 112, 118, 125, 132, 140, 150, 160, 170, 180, 190, 200, 212, 224, 236, 250, 265, 280, 300, 315,
            355, 375, 400, 425, 450, 475, 500, 530, 560, 600, 630, 670, 710, 750, 800, 850, 900, 950),
    "R80": (103, 109, 115, 122, 128, 136, 145, 155, 165, 175, 185, 195, 206, 218, 230, 243, 258, 272, 290, 307, 325,
            345, 365, 387, 412, 437, 462, 487, 515, 545, 575, 615, 650, 690, 730, 775, 825, 875, 925, 975),
}  # fmt: skip
"""The numbers of each series in one range of ten. As integers they decide the last digits of boundaries below 10."""


@dataclass(frozen=True, slots=True)
class Rounder:
    """Rounds to one series. An empty series means the powers of two. A decimal is rounded to a decimal."""

    series: tuple[int, ...]

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
        number = double_of(value)
        if number in (0, math.inf):
            return value
        with decimal.localcontext(CONTEXT):
            if not self.series:
                return _power_of_two(value, math.floor(math.log2(number)) + 1)
            return wrap(self._up(decimal_of(value))) if type(value) is Decimal128 else self._up(number)

    def down(self, value: Any) -> Any:
        """The greatest number of the series less than the value."""
        number = double_of(value)
        if number in (0, math.inf):
            return value
        with decimal.localcontext(CONTEXT):
            if not self.series:
                return _power_of_two(value, math.ceil(math.log2(number)) - 1)
            return wrap(self._down(decimal_of(value))) if type(value) is Decimal128 else self._down(number)

    def _up(self, number: _Number) -> _Number:
        series, factor, ten = self._numbers(number)
        while number >= series[-1] * factor:
            factor *= ten
        while number < series[0] * factor:
            least = series[0] * factor
            factor /= ten
            if number >= series[-1] * factor:
                return least
        return next(item * factor for item in series if item * factor > number)

    def _down(self, number: _Number) -> _Number:
        series, factor, ten = self._numbers(number)
        while number <= series[0] * factor:
            factor /= ten
        while number > series[-1] * factor and factor:
            most = series[-1] * factor
            factor *= ten
            if number <= series[0] * factor:
                return most
        return next((item * factor for item in reversed(series) if item * factor < number), factor)

    def _numbers(self, number: _Number) -> tuple[list[_Number], _Number, _Number]:
        """The series, one and ten in the type of the number."""
        if isinstance(number, Decimal):
            return [decimal_of_double(float(item)) for item in self.series], Decimal(1), Decimal(10)
        return [float(item) for item in self.series], 1.0, 10.0


def _power_of_two(value: Any, exponent: int) -> Any:
    return wrap(Decimal(2) ** exponent) if type(value) is Decimal128 else 2.0**exponent


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
