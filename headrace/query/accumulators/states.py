"""What accumulators keep between values: a class each, with `add(value)` and `result()`.

Rule: `result` leaves the state as it was, so that more may be added after it; it gives MISSING for no value.
`$group`, window functions and the expressions of the same names all run these.
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
    """One group's worth of an accumulator."""

    def add(self, value: Any) -> None: ...

    def result(self) -> Any: ...


class Sum:
    """The total of the numbers; other values are passed over."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = Total()

    def add(self, value: Any) -> None:
        if type(value) in NUMBERS:
            self.total.add(value)

    def result(self) -> Any:
        return self.total.result()


class Avg(Sum):
    """The mean of the numbers, null of none."""

    __slots__ = ()

    def result(self) -> Any:
        return self.total.mean()


class MinMax:
    """The least (`sign` 1) or greatest (-1) value that is not null; null of none."""

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
    """The first value, which may be missing."""

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
    """The last value, which may be missing."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = MISSING

    def add(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        return self.value


class Push:
    """All values in order, less those missing."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: list[Any] = []

    def add(self, value: Any) -> None:
        if value is not MISSING:
            self.values.append(value)

    def result(self) -> list[Any]:
        return list(self.values)


class AddToSet:
    """The different values in the order of their first appearance, less those missing."""

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
    """The different elements of all arrays."""

    __slots__ = ()

    def add(self, value: Any) -> None:
        if is_nullish(value):
            return
        if type(value) is not list:
            raise CommandError(14, f"$setUnion requires array inputs, but input is of type {type_name(value)}")
        for item in value:
            super().add(item)


class ConcatArrays(Push):
    """The elements of all arrays in order."""

    __slots__ = ()

    def add(self, value: Any) -> None:
        if is_nullish(value):
            return
        if type(value) is not list:
            raise CommandError(14, f"$concatArrays requires array inputs, but input is of type {type_name(value)}")
        self.values += value


class MergeObjects:
    """All objects laid over one another, later fields winning; nulls are passed over."""

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
    """The standard deviation of the numbers, of a population or (`sample`) of a sample; null of too few."""

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
    """The first `n` values, missing ones as null."""

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
    """The last `n` values, missing ones as null."""

    __slots__ = ()

    def add(self, value: Any) -> None:
        self.values.append(None if value is MISSING else value)
        if len(self.values) > self.n:
            del self.values[0]


class MinMaxN:
    """The `n` least (`sign` 1) or greatest (-1) values that are not null, most extreme first."""

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
    """The outputs of the `n` documents first (`bottom` False) or last in a sort order; adds (key, output) pairs.

    Documents that sort alike stay in the order of their arrival.
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
    """Percentiles of the numbers as doubles; `fractions` from 0 to 1; null for each of no numbers."""

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
