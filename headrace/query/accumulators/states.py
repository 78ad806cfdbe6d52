"""The states of accumulators: one class each, with `add(value)` and `result()`.

Rule: `result` does not change the state, so more values may be added after it. It returns MISSING if there is no value.
`$group`, window functions and the expressions with the same names all use these classes.
Source: MongoDB's manual, "$group Accumulators".
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from bson import Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.numbers import NUMBERS, Total, double_of, is_nullish
from headrace.query.expressions.value_text import as_text
from headrace.query.operation_memory import size_of
from headrace.values.bson import MISSING, Missing, type_name
from headrace.values.order import compare, hash_key, sort_key

ELEMENT_BYTES: Final = 32
"""Bytes counted for each value. The size of a large value is added."""
SMALL: Final = frozenset({bool, int, Int64, float, type(None), ObjectId, DatetimeMS, Missing})
_INT32: Final = {int}
_FEW_COUNT: Final = 64
"""Numbers sorted at once, in some milliseconds."""


class AccumulatorState:
    """The state of an accumulator for one group."""

    __slots__ = ()

    def add(self, value: Any) -> None:
        """Add the value of one document, MISSING if it has none. Raises 14 or 40400 for a type it does not accept."""
        raise NotImplementedError

    def add_all(self, values: list[Any]) -> None:
        """Add the values of several documents, in order. Raises as `add`."""
        for value in values:
            self.add(value)

    def result(self) -> Any:
        """The value of the accumulator so far, MISSING if there is none."""
        raise NotImplementedError

    def held(self) -> int:
        """About how many bytes the state holds, in addition to a flat amount. Raises 146 if they are too many."""
        return 0


class Growth:
    """The bytes that the states of all operations have taken since the start. They decide when states are measured
    again."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


GROWTH: Final = Growth()


class Growing(AccumulatorState):
    """A state that may hold many values, up to MongoDB's 100 MB. Small values are counted only when it is measured."""

    __slots__ = ("bytes",)
    name = ""
    """The name of the accumulator, for its error."""

    def __init__(self) -> None:
        self.bytes = 0
        """The bytes of all large values."""

    def take(self, value: Any) -> None:
        """Count a value to be stored. Raises 146."""
        if type(value) not in SMALL:
            size = size_of(value)
            self.bytes += size
            GROWTH.bytes += size
            self.check(self.bytes)

    def give_back(self, value: Any) -> None:
        """Subtract a value that is dropped."""
        if type(value) not in SMALL:
            self.bytes -= size_of(value)

    def check(self, size: int) -> int:
        """Return the size. Raises 146 if it is too large for one accumulator."""
        if size > limits.ACCUMULATOR_BYTES_MAX:
            raise CommandError(
                146,
                f"{self.name} used too much memory and cannot spill to disk. Used: {size} bytes. "
                f"Memory limit: {limits.ACCUMULATOR_BYTES_MAX} bytes",
            )
        return size

    def held(self) -> int:
        return self.check(self.bytes + ELEMENT_BYTES * self.count())

    def count(self) -> int:
        """The number of values that the state holds."""
        raise NotImplementedError


class Sum(AccumulatorState):
    """$sum: the sum of the numbers; other values are ignored."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = Total()

    def add(self, value: Any) -> None:
        if type(value) in NUMBERS:
            self.total.add(value)

    def add_all(self, values: list[Any]) -> None:
        kinds = set(map(type, values))
        if kinds == _INT32:
            self.total.add_integers(values)
        else:
            for value in values:
                self.add(value)

    def result(self) -> Any:
        return self.total.result()


class Avg(Sum):
    """$avg: the mean of the numbers; None if there are none."""

    __slots__ = ()

    def result(self) -> Any:
        return self.total.mean()


class MinMax(AccumulatorState):
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

    def held(self) -> int:
        return size_of(self.best)


class First(AccumulatorState):
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

    def held(self) -> int:
        return size_of(self.value)


class Last(AccumulatorState):
    """$last: the last value, which may be MISSING."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = MISSING

    def add(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        return self.value

    def held(self) -> int:
        return size_of(self.value)


class Push(Growing):
    """$push: all values in order, without missing ones."""

    __slots__ = ("values",)
    name = "$push"

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []

    def add(self, value: Any) -> None:
        if value is not MISSING:
            self.values.append(value)
            if type(value) not in SMALL:
                self.take(value)

    def result(self) -> list[Any]:
        return list(self.values)

    def count(self) -> int:
        return len(self.values)


class AddToSet(Growing):
    """$addToSet: the distinct values in order of first appearance, without missing ones."""

    __slots__ = ("collation", "values")
    name = "$addToSet"

    def __init__(self, collation: Any) -> None:
        super().__init__()
        self.collation = collation
        self.values: dict[Hashable, Any] = {}

    def add(self, value: Any) -> None:
        if value is MISSING:
            return
        hashed = hash_key(value, self.collation)
        if hashed not in self.values:
            self.take(value)
            self.values[hashed] = value

    def result(self) -> list[Any]:
        return list(self.values.values())

    def count(self) -> int:
        return len(self.values)


class SetUnion(AddToSet):
    """$setUnion: the distinct elements of all arrays. A missing value is ignored, null is refused."""

    __slots__ = ()
    name = "$setUnion"

    def add(self, value: Any) -> None:
        if value is MISSING:
            return
        if type(value) is not list:
            raise CommandError(14, f"$setUnion requires array inputs, but input is of type {type_name(value)}")
        for item in value:
            super().add(item)


class ConcatArrays(Push):
    """$concatArrays: the elements of all arrays, in order. A missing value is ignored, null is refused."""

    __slots__ = ()
    name = "$concatArrays"

    def add(self, value: Any) -> None:
        if value is MISSING:
            return
        if type(value) is not list:
            raise CommandError(14, f"$concatArrays requires array inputs, but input is of type {type_name(value)}")
        self.take(value)
        self.values += value


class MergeObjects(Growing):
    """$mergeObjects: all objects merged, later fields overriding earlier ones; nulls are ignored."""

    __slots__ = ("document",)
    name = "$mergeObjects"

    def __init__(self) -> None:
        super().__init__()
        self.document: dict[str, Any] = {}

    def add(self, value: Any) -> None:
        if is_nullish(value):
            return
        if type(value) is not dict:
            message = f"$mergeObjects requires object inputs, but input {as_text(value)} is of type {type_name(value)}"
            raise CommandError(40400, message)
        for field, item in value.items():
            self.give_back(self.document.get(field))
            self.take(item)
            self.document[field] = item

    def result(self) -> dict[str, Any]:
        return dict(self.document)

    def count(self) -> int:
        return 2 * len(self.document)


class StdDev(AccumulatorState):
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


class FirstN(Growing):
    """$firstN: the first `n` values, missing ones as null."""

    __slots__ = ("n", "values")
    name = "$firstN"

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n
        self.values: deque[Any] = deque()

    def add(self, value: Any) -> None:
        if len(self.values) < self.n:
            self.take(value)
            self.values.append(None if value is MISSING else value)

    def result(self) -> list[Any]:
        return list(self.values)

    def count(self) -> int:
        return len(self.values)


class LastN(FirstN):
    """$lastN: the last `n` values, missing ones as null."""

    __slots__ = ()
    name = "$lastN"

    def add(self, value: Any) -> None:
        if len(self.values) == self.n:
            self.give_back(self.values.popleft())
        self.take(value)
        self.values.append(None if value is MISSING else value)


class Ranked(Growing):
    """The values with the `n` least keys, or (`greatest`) greatest ones, in the order of the keys."""

    __slots__ = ("_greatest", "_ordered", "_serial", "n", "name")

    def __init__(self, name: str, n: int, *, greatest: bool) -> None:
        super().__init__()
        self.name = name
        self.n = n
        self._greatest = greatest
        self._serial = 0
        self._ordered: list[tuple[Any, int, Any]] = []

    def put(self, key: Any, value: Any, *, later: int = 1) -> None:
        """Add a value. Its key counts as greater than earlier equal ones, or with `later` -1 as less."""
        self._serial += 1
        self.take(value)
        insort(self._ordered, (key, self._serial * later, value), key=lambda item: item[:2])
        if len(self._ordered) > self.n:
            self.give_back(self._ordered.pop(0 if self._greatest else -1)[2])

    def values(self) -> list[Any]:
        """The values so far."""
        return [value for _, _, value in self._ordered]

    def count(self) -> int:
        return 6 * len(self._ordered)


class MinMaxN(Ranked):
    """$minN (`sign` 1) and $maxN (-1): the `n` most extreme values, most extreme first, without null and missing
    values."""

    __slots__ = ("collation", "sign")

    def __init__(self, n: int, sign: int, collation: Any) -> None:
        super().__init__("$minN" if sign > 0 else "$maxN", n, greatest=sign < 0)
        self.sign = sign
        self.collation = collation

    def add(self, value: Any) -> None:
        if not is_nullish(value):
            self.put(sort_key(value, self.collation), value, later=self.sign)

    def result(self) -> list[Any]:
        return self.values()[:: self.sign]


class TopBottom(Ranked):
    """$top, $topN and (`bottom`) $bottom, $bottomN: the outputs of the first or last `n` documents of a sort.

    `add` takes pairs (key, output). Documents with equal keys stay in the order in which they were added.
    """

    __slots__ = ("single",)

    def __init__(self, n: int, bottom: bool, single: bool) -> None:
        super().__init__(("$bottom" if bottom else "$top") + ("" if single else "N"), n, greatest=bottom)
        self.single = single

    def add(self, value: tuple[Any, Any]) -> None:
        key, output = value
        self.put(key, None if output is MISSING else output)

    def result(self) -> Any:
        outputs = self.values()
        return (outputs[0] if outputs else MISSING) if self.single else outputs


class Percentile(Growing):
    """$percentile and (`single`) $median: percentiles of the numbers as doubles; each is None if there are no
    numbers."""

    __slots__ = ("_added", "_numbers", "fractions", "name", "single")

    def __init__(self, fractions: tuple[float, ...], single: bool) -> None:
        super().__init__()
        self.name = "$median" if single else "$percentile"
        self.fractions = fractions
        self.single = single
        self._numbers: list[float] = []  # in order
        self._added: list[float] = []  # added since `_numbers` was sorted

    def add(self, value: Any) -> None:
        if type(value) in NUMBERS:
            number = double_of(value)
            if not math.isnan(number):
                self._added.append(number)

    def result(self) -> Any:
        added, self._added = self._added, []
        if len(added) <= _FEW_COUNT:
            for number in added:
                insort(self._numbers, number)
        else:
            self._numbers = sorted(self._numbers + added)
        percentiles = [self._at(fraction) for fraction in self.fractions]
        return percentiles[0] if self.single else percentiles

    def count(self) -> int:
        return len(self._numbers) + len(self._added)

    def _at(self, fraction: float) -> float | None:
        numbers = self._numbers
        count = len(numbers)
        if not count:
            return None
        return numbers[max(0, math.ceil(fraction * count) - 1)]


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
"""The state of each accumulator that is also an expression, made from the collation."""
FACTORIES_OF_N: Final[dict[str, Callable[[int, Any], AccumulatorState]]] = {
    "$firstN": lambda n, collation: FirstN(n),
    "$lastN": lambda n, collation: LastN(n),
    "$maxN": lambda n, collation: MinMaxN(n, -1, collation),
    "$minN": lambda n, collation: MinMaxN(n, 1, collation),
}
"""The states that hold `n` values, made from `n` and the collation."""
