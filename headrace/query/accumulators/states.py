"""The states of accumulators: a class each, with `add(value)` and `result()`.

Rule: `result` does not change the state, so more values may be added after it; it returns MISSING if there is no value.
`$group`, window functions and the expressions of the same names all use these. Source: MongoDB's manual, "$group
Accumulators".
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol

from headrace.errors import CommandError
from headrace.query.expressions.numbers import NUMBERS, double_of, is_nullish
from headrace.query.expressions.summing import Total
from headrace.query.expressions.value_text import as_text
from headrace.values.bson import MISSING, type_name
from headrace.values.order import compare, hash_key, sort_key


class AccumulatorState(Protocol):
    """The state of an accumulator for one group."""

    def add(self, value: Any) -> None:
        """Add the value of one document, MISSING if it has none. Raises 14 or 40400 for a type it does not accept."""

    def result(self) -> Any:
        """The value of the accumulator so far, MISSING if there is none."""


class Sum:
    """$sum: the sum of the numbers; other values are ignored."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = Total()

    def add(self, value: Any) -> None:
        if type(value) in NUMBERS:
            self.total.add(value)

    def result(self) -> Any:
        return self.total.result()


class Avg(Sum):
    """$avg: the mean of the numbers; None if there are none."""

    __slots__ = ()

    def result(self) -> Any:
        return self.total.mean()


class MinMax:
    """$min (`sign` 1) and $max (-1): the extreme value that is neither null nor missing; None if there is none."""

    __slots__ = ("best", "collation", "sign")

    def __init__(self, sign: int, collation: Any) -> None:
        self.sign = sign
        self.collation = collation
        self.best: Any = MISSING

    def add(self, value: Any) -> None:
        if is_nullish(value):
            return
        if self.best is MISSING or compare(value, self.best, self.collation) * self.sign < 0:
            self.best = value

    def result(self) -> Any:
        return None if self.best is MISSING else self.best


class First:
    """$first: the first value, which may be MISSING."""

    __slots__ = ("seen", "value")

    def __init__(self) -> None:
        self.seen = False
        self.value: Any = MISSING

    def add(self, value: Any) -> None:
        if not self.seen:
            self.seen, self.value = True, value

    def result(self) -> Any:
        return self.value


class Last:
    """$last: the last value, which may be MISSING."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = MISSING

    def add(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        return self.value


class Push:
    """$push: all values in order, without missing ones."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: list[Any] = []

    def add(self, value: Any) -> None:
        if value is not MISSING:
            self.values.append(value)

    def result(self) -> list[Any]:
        return list(self.values)


class AddToSet:
    """$addToSet: the distinct values in order of first appearance, without missing ones."""

    __slots__ = ("collation", "values")

    def __init__(self, collation: Any) -> None:
        self.collation = collation
        self.values: dict[Hashable, Any] = {}

    def add(self, value: Any) -> None:
        if value is not MISSING:
            self.values.setdefault(hash_key(value, self.collation), value)

    def result(self) -> list[Any]:
        return list(self.values.values())


class SetUnion(AddToSet):
    """$setUnion: the distinct elements of all arrays."""

    __slots__ = ()

    def add(self, value: Any) -> None:
        if is_nullish(value):
            return
        if type(value) is not list:
            raise CommandError(14, f"$setUnion requires array inputs, but input is of type {type_name(value)}")
        for item in value:
            super().add(item)


class ConcatArrays(Push):
    """$concatArrays: the elements of all arrays, in order."""

    __slots__ = ()

    def add(self, value: Any) -> None:
        if is_nullish(value):
            return
        if type(value) is not list:
            raise CommandError(14, f"$concatArrays requires array inputs, but input is of type {type_name(value)}")
        self.values += value


class MergeObjects:
    """$mergeObjects: all objects merged, later fields overriding earlier ones; nulls are ignored."""

    __slots__ = ("document",)

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}

    def add(self, value: Any) -> None:
        if is_nullish(value):
            return
        if type(value) is not dict:
            message = f"$mergeObjects requires object inputs, but input {as_text(value)} is of type {type_name(value)}"
            raise CommandError(40400, message)
        self.document.update(value)

    def result(self) -> dict[str, Any]:
        return dict(self.document)


class StdDev:
    """$stdDevPop and (`sample`) $stdDevSamp: the standard deviation of the numbers; None for too few."""

    __slots__ = ("count", "mean", "sample", "squares")

    def __init__(self, sample: bool) -> None:
        self.sample = sample
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, value: Any) -> None:
        if type(value) not in NUMBERS:
            return
        number = double_of(value)
        self.count += 1
        delta = number - self.mean
        self.mean += delta / self.count
        self.squares += delta * (number - self.mean)

    def result(self) -> float | None:
        divisor = self.count - 1 if self.sample else self.count
        if divisor <= 0:
            return None
        variance = self.squares / divisor
        return math.sqrt(variance) if variance >= 0 else math.nan


class FirstN:
    """$firstN: the first `n` values, missing ones as null."""

    __slots__ = ("n", "values")

    def __init__(self, n: int) -> None:
        self.n = n
        self.values: list[Any] = []

    def add(self, value: Any) -> None:
        if len(self.values) < self.n:
            self.values.append(None if value is MISSING else value)

    def result(self) -> list[Any]:
        return list(self.values)


class LastN(FirstN):
    """$lastN: the last `n` values, missing ones as null."""

    __slots__ = ()

    def add(self, value: Any) -> None:
        self.values.append(None if value is MISSING else value)
        if len(self.values) > self.n:
            del self.values[0]


class MinMaxN:
    """$minN (`sign` 1) and $maxN (-1): the `n` extreme values that are neither null nor missing, most extreme first."""

    __slots__ = ("collation", "n", "ordered", "serial", "sign")

    def __init__(self, n: int, sign: int, collation: Any) -> None:
        self.n = n
        self.sign = sign
        self.collation = collation
        self.serial = 0
        self.ordered: list[tuple[Any, int, Any]] = []

    def add(self, value: Any) -> None:
        if is_nullish(value):
            return
        self.serial += 1
        tie_breaker = self.serial if self.sign > 0 else -self.serial
        insort(self.ordered, (sort_key(value, self.collation), tie_breaker, value), key=lambda item: item[:2])
        if len(self.ordered) > self.n:
            del self.ordered[-1 if self.sign > 0 else 0]

    def result(self) -> list[Any]:
        values = [value for _, _, value in self.ordered]
        return values if self.sign > 0 else values[::-1]


class TopBottom:
    """$top, $topN and (`bottom`) $bottom, $bottomN: the outputs of `n` documents by a sort; adds pairs (key, output).

    Documents with equal keys stay in the order in which they were added.
    """

    __slots__ = ("bottom", "n", "ordered", "serial", "single")

    def __init__(self, n: int, bottom: bool, single: bool) -> None:
        self.n = n
        self.bottom = bottom
        self.single = single
        self.serial = 0
        self.ordered: list[tuple[Any, int, Any]] = []

    def add(self, value: tuple[Any, Any]) -> None:
        key, output = value
        self.serial += 1
        insort(self.ordered, (key, self.serial, None if output is MISSING else output), key=lambda item: item[:2])
        if len(self.ordered) > self.n:
            del self.ordered[0 if self.bottom else -1]

    def result(self) -> Any:
        outputs = [output for _, _, output in self.ordered]
        return (outputs[0] if outputs else MISSING) if self.single else outputs


class Percentile:
    """$percentile and (`single`) $median: percentiles of the numbers as doubles; None for each without numbers."""

    __slots__ = ("continuous", "fractions", "numbers", "single")

    def __init__(self, fractions: tuple[float, ...], continuous: bool, single: bool) -> None:
        self.fractions = fractions
        self.continuous = continuous
        self.single = single
        self.numbers: list[float] = []

    def add(self, value: Any) -> None:
        if type(value) in NUMBERS:
            number = double_of(value)
            if not math.isnan(number):
                insort(self.numbers, number)

    def result(self) -> Any:
        percentiles = [self._at(fraction) for fraction in self.fractions]
        return percentiles[0] if self.single else percentiles

    def _at(self, fraction: float) -> float | None:
        count = len(self.numbers)
        if not count:
            return None
        if not self.continuous:
            return self.numbers[max(0, math.ceil(fraction * count) - 1)]
        rank = fraction * (count - 1)
        low, high = math.floor(rank), math.ceil(rank)
        if low == high:
            return self.numbers[low]
        return self.numbers[low] * (high - rank) + self.numbers[high] * (rank - low)


STATE_FACTORIES: Final[dict[str, Callable[[Any], AccumulatorState]]] = {
    "$addToSet": AddToSet,
    "$avg": lambda collation: Avg(),
    "$concatArrays": lambda collation: ConcatArrays(),
    "$first": lambda collation: First(),
    "$last": lambda collation: Last(),
    "$max": lambda collation: MinMax(-1, collation),
    "$mergeObjects": lambda collation: MergeObjects(),
    "$min": lambda collation: MinMax(1, collation),
    "$push": lambda collation: Push(),
    "$setUnion": SetUnion,
    "$stdDevPop": lambda collation: StdDev(sample=False),
    "$stdDevSamp": lambda collation: StdDev(sample=True),
    "$sum": lambda collation: Sum(),
}
"""States of the accumulators of one expression, made from the collation."""
