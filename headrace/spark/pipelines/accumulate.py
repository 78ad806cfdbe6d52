"""Partial aggregation: workers accumulate a few documents, and Spark's aggregates combine the partial results.

    document --add--> cells of a few columns --Spark's aggregates--> cells of a group --result--> value

Rules:

- Partial results are combined without loss. Integers are summed as decimals. The terms of doubles and decimals are
  collected, and the evaluator adds them exactly at the end. Values are ordered by keystring. $first and $last use the
  order of rows (`at`), not the order in which Spark sees them.
- Of equal values $min and $max return the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from headrace.query.expressions.numbers import CONTEXT, NUMBERS, Total, int_or_long, is_nullish
from headrace.spark.rows.extjson import dumps, loads
from headrace.values.bson import MISSING
from headrace.values.keystring.encoding import END, encode_value

if TYPE_CHECKING:
    from pyspark.sql import Column

Cells = tuple[Any, ...]
_INT, _LONG, _DOUBLE, _DECIMAL = range(1, 5)
_INVERTED: Final = bytes(255 - byte for byte in range(256))


@dataclass(frozen=True, slots=True)
class PartialAccumulator:
    """How Spark computes an accumulator: the columns of partial results (suffix, type), and three steps.

    `partial` makes an empty partial result. `aggregates` returns the Spark columns that combine them (by the columns'
    prefix). `result` returns the value from the combined cells.
    """

    columns: tuple[tuple[str, str], ...]
    partial: Callable[[], Any]
    aggregates: Callable[[str], list[Column]]
    result: Callable[..., Any]


class PartialCount:
    """The partial result of $count."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self, value: Any, at: str) -> None:
        """Accumulate a document's value; `at` is its position in the order of rows, as text."""
        self.count += 1

    def cells(self) -> Cells:
        """Return the values of the accumulator's columns."""
        return (self.count,)


class PartialSum:
    """The partial result of $sum and $avg: count, total of the integers, widest type, and the other terms."""

    __slots__ = ("at", "total")

    def __init__(self) -> None:
        self.total = Total()
        self.at: str | None = None

    def add(self, value: Any, at: str) -> None:
        """Accumulate a value as `PartialCount.add` does; ignore values that are not numbers."""
        if type(value) in NUMBERS:
            self.total.add(value)
            self.at = at if self.at is None else min(self.at, at)

    def cells(self) -> Cells:
        """Return the values of the accumulator's columns."""
        total = self.total
        kind = _DECIMAL if total.has_decimal else _DOUBLE if total.has_double else _LONG if total.has_long else _INT
        terms = None
        if total.doubles or total.has_decimal:
            decimal = str(total.decimals) if total.has_decimal else None
            terms = json.dumps([[repr(term) for term in total.doubles], decimal])
        return total.count, Decimal(total.integers), kind if total.count else None, self.at if terms else None, terms


class PartialExtreme:
    """The partial result of $first, $max and $min: the value with the smallest (order, position)."""

    __slots__ = ("_order", "_skips", "best")

    def __init__(self, order: Callable[[Any, str], Any], *, skips: bool) -> None:
        self._order = order
        self._skips = skips
        self.best: tuple[Any, str, Any] | None = None

    def add(self, value: Any, at: str) -> None:
        """Accumulate a value as `PartialCount.add` does; with `skips`, ignore null and missing values."""
        if self._skips and is_nullish(value):
            return
        order = self._order(value, at)
        if self.best is None or (order, at) < self.best[:2]:
            self.best = (order, at, value)

    def cells(self) -> Cells:
        """Return the values of the accumulator's columns; NULL if there was no value."""
        if self.best is None:
            return None, None, None
        order, at, value = self.best
        return order, at, dumps(None if value is MISSING else value)


class PartialLast(PartialExtreme):
    """The partial result of $last: the value with the greatest position."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda value, at: b"", skips=False)

    def add(self, value: Any, at: str) -> None:
        """Accumulate a value as `PartialCount.add` does."""
        if self.best is None or at >= self.best[1]:
            self.best = (b"", at, value)


def _ascending(value: Any, at: str) -> bytes:
    return encode_value(value) + END


def _descending(value: Any, at: str) -> bytes:
    # A terminated keystring is no prefix of another one, so inverting the bytes inverts the order.
    return _ascending(value, at).translate(_INVERTED)


def _count_aggregates(prefix: str) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.sum(f"{prefix}_n").alias(f"{prefix}_n")]


def _sum_aggregates(prefix: str) -> list[Column]:
    from pyspark.sql import functions as f

    term = f.when(f.col(f"{prefix}_t").isNotNull(), f.struct(f"{prefix}_a", f"{prefix}_t"))
    return [
        f.sum(f"{prefix}_n").alias(f"{prefix}_n"),
        f.sum(f"{prefix}_w").cast("decimal(38,0)").alias(f"{prefix}_w"),
        f.max(f"{prefix}_k").alias(f"{prefix}_k"),
        f.transform(f.sort_array(f.collect_list(term)), lambda item: item[f"{prefix}_t"]).alias(f"{prefix}_t"),
    ]


def _chosen_aggregates(prefix: str) -> list[Column]:
    from pyspark.sql import functions as f

    order, at, value = (f.col(f"{prefix}_{name}") for name in "oav")
    ordering = f.when(order.isNotNull(), f.struct(order, at, value))
    return [f.min_by(value, ordering).alias(f"{prefix}_v")]


def _last_aggregates(prefix: str) -> list[Column]:
    from pyspark.sql import functions as f

    at, value = f.col(f"{prefix}_a"), f.col(f"{prefix}_v")
    return [f.max_by(value, f.struct(at, value)).alias(f"{prefix}_v")]


def _total(count: int, integral: Decimal | None, kind: int | None, terms: list[str]) -> Total:
    total = Total()
    total.count, total.integers = count, int(integral or 0)
    total.has_long, total.has_double, total.has_decimal = kind == _LONG, kind == _DOUBLE, kind == _DECIMAL
    for doubles, decimal in map(json.loads, terms or []):
        total.doubles.extend(map(float, doubles))
        if decimal is not None:
            total.decimals = CONTEXT.add(total.decimals, Decimal(decimal))
    return total


def _value(text: str | None) -> Any:
    return None if text is None else loads(text)


_SUM_COLUMNS: Final = (("n", "bigint"), ("w", "decimal(38,0)"), ("k", "int"), ("a", "string"), ("t", "string"))
_CHOSEN_COLUMNS: Final = (("o", "binary"), ("a", "string"), ("v", "string"))

PARTIAL_ACCUMULATORS: Final[dict[str, PartialAccumulator]] = {
    "$avg": PartialAccumulator(_SUM_COLUMNS, PartialSum, _sum_aggregates, lambda *cells: _total(*cells).mean()),
    "$count": PartialAccumulator((("n", "bigint"),), PartialCount, _count_aggregates, int_or_long),
    "$first": PartialAccumulator(
        _CHOSEN_COLUMNS, lambda: PartialExtreme(lambda value, at: b"", skips=False), _chosen_aggregates, _value
    ),
    "$last": PartialAccumulator(_CHOSEN_COLUMNS, PartialLast, _last_aggregates, _value),
    "$max": PartialAccumulator(
        _CHOSEN_COLUMNS, lambda: PartialExtreme(_descending, skips=True), _chosen_aggregates, _value
    ),
    "$min": PartialAccumulator(
        _CHOSEN_COLUMNS, lambda: PartialExtreme(_ascending, skips=True), _chosen_aggregates, _value
    ),
    "$sum": PartialAccumulator(_SUM_COLUMNS, PartialSum, _sum_aggregates, lambda *cells: _total(*cells).result()),
}
"""The accumulators that a $group on Spark supports."""

ORDERED: Final = frozenset({"$first", "$last"})
"""Accumulators that depend on the order of rows."""
