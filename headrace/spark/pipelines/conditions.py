"""Two-valued conditions on the typed columns of an event's row, as trees: evaluated here, or made Spark columns.

Rule: no condition is ever NULL. A comparison with a column that is NULL is false, so that negation means what it
means in MongoDB. Times are microseconds since the epoch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.rows.extjson import loads

if TYPE_CHECKING:
    from pyspark.sql import Column

TIMES: Final = frozenset({"clusterTime", "wallTime"})
_ORDERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt, "<=": operator.le, "=": operator.eq, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

Cells = Mapping[str, Any]


class Condition:
    """A condition on one row; `str` of it is for people."""

    __slots__ = ()

    def holds(self, row: Cells) -> bool:
        """Whether the row, a mapping from column name to value, fulfils it."""
        raise NotImplementedError

    def column(self) -> Column:
        """The same as a Spark column of type BOOLEAN, never NULL."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ConstantCondition(Condition):
    """True for every row, or for none."""

    value: bool

    def holds(self, row: Cells) -> bool:
        return self.value

    def column(self) -> Column:
        from pyspark.sql import functions

        return functions.lit(self.value)

    def __str__(self) -> str:
        return str(self.value).lower()


@dataclass(frozen=True, slots=True)
class Comparison(Condition):
    """The column compared with a value by `order` (one of `_ORDERS`); false where the column is NULL."""

    name: str
    order: str
    value: str | int

    def holds(self, row: Cells) -> bool:
        cell = row[self.name]
        return cell is not None and bool(_ORDERS[self.order](cell, self.value))

    def column(self) -> Column:
        from pyspark.sql import functions

        literal = functions.lit(self.value)
        if self.name in TIMES:
            literal = functions.timestamp_micros(literal.cast("bigint"))
        return functions.coalesce(_ORDERS[self.order](functions.col(self.name), literal), functions.lit(False))

    def __str__(self) -> str:
        return f"{self.name} {self.order} {self.value!r}"


@dataclass(frozen=True, slots=True)
class Contains(Condition):
    """The column's text contains `text`; false where the column is NULL."""

    name: str
    text: str

    def holds(self, row: Cells) -> bool:
        cell = row[self.name]
        return cell is not None and self.text in cell

    def column(self) -> Column:
        from pyspark.sql import functions

        return functions.coalesce(functions.col(self.name).contains(self.text), functions.lit(False))

    def __str__(self) -> str:
        return f"{self.name} contains {self.text!r}"


@dataclass(frozen=True, slots=True)
class IsNull(Condition):
    """The column is NULL."""

    name: str

    def holds(self, row: Cells) -> bool:
        return row[self.name] is None

    def column(self) -> Column:
        from pyspark.sql import functions

        return functions.col(self.name).isNull()

    def __str__(self) -> str:
        return f"{self.name} is null"


@dataclass(frozen=True, slots=True)
class HasField(Condition):
    """The document in the column (Extended JSON) has a top-level field of that name; false where it is NULL."""

    name: str
    field: str

    def holds(self, row: Cells) -> bool:
        cell = row[self.name]
        return cell is not None and self.field in loads(cell)

    def column(self) -> Column:
        from pyspark.sql import functions

        names = functions.json_object_keys(functions.col(self.name))
        return functions.coalesce(functions.array_contains(names, self.field), functions.lit(False))

    def __str__(self) -> str:
        return f"{self.name} has {self.field!r}"


@dataclass(frozen=True, slots=True)
class Conjunction(Condition):
    """All of the operands hold; made by `every`."""

    operands: tuple[Condition, ...]

    def holds(self, row: Cells) -> bool:
        return all(operand.holds(row) for operand in self.operands)

    def column(self) -> Column:
        return _folded(operator.and_, self.operands)

    def __str__(self) -> str:
        return "(" + " and ".join(map(str, self.operands)) + ")"


@dataclass(frozen=True, slots=True)
class Disjunction(Condition):
    """At least one of the operands holds; made by `some`."""

    operands: tuple[Condition, ...]

    def holds(self, row: Cells) -> bool:
        return any(operand.holds(row) for operand in self.operands)

    def column(self) -> Column:
        return _folded(operator.or_, self.operands)

    def __str__(self) -> str:
        return "(" + " or ".join(map(str, self.operands)) + ")"


@dataclass(frozen=True, slots=True)
class NegatedCondition(Condition):
    """The operand does not hold; made by `negated`."""

    operand: Condition

    def holds(self, row: Cells) -> bool:
        return not self.operand.holds(row)

    def column(self) -> Column:
        return ~self.operand.column()

    def __str__(self) -> str:
        return f"not {self.operand}"


TRUE: Final = ConstantCondition(True)
FALSE: Final = ConstantCondition(False)


def every(operands: Iterable[Condition]) -> Condition:
    """All of the operands, simplified."""
    return _joined(operands, Conjunction, neutral=TRUE, decisive=FALSE)


def some(operands: Iterable[Condition]) -> Condition:
    """At least one of the operands, simplified."""
    return _joined(operands, Disjunction, neutral=FALSE, decisive=TRUE)


def negated(operand: Condition) -> Condition:
    """The negation, simplified."""
    if isinstance(operand, ConstantCondition):
        return ConstantCondition(not operand.value)
    return operand.operand if isinstance(operand, NegatedCondition) else NegatedCondition(operand)


def _joined(
    operands: Iterable[Condition],
    kind: type[Conjunction] | type[Disjunction],
    *,
    neutral: ConstantCondition,
    decisive: ConstantCondition,
) -> Condition:
    flattened: list[Condition] = []
    for operand in operands:
        if operand == decisive:
            return decisive
        flat = operand.operands if isinstance(operand, kind) else (operand,)
        flattened.extend(item for item in flat if item != neutral and item not in flattened)
    if len(flattened) < 2:
        return flattened[0] if flattened else neutral
    return kind(tuple(flattened))


def _folded(join: Callable[[Any, Any], Any], operands: tuple[Condition, ...]) -> Column:
    combined = operands[0].column()
    for operand in operands[1:]:
        combined = join(combined, operand.column())
    return combined


@dataclass(frozen=True, slots=True)
class FilterApproximation:
    """A filter bounded from below and above: `certain` rows match, rows that are not `possible` do not.

    The evaluator decides the rows between. Rule: `certain` implies `possible`.
    """

    certain: Condition
    possible: Condition

    @property
    def exact(self) -> bool:
        """Whether both bounds are the same, so that nothing is left to the evaluator."""
        return self.certain == self.possible

    @classmethod
    def decided(cls, condition: Condition) -> FilterApproximation:
        """The exact approximation by this condition."""
        return cls(condition, condition)

    def opposite(self) -> FilterApproximation:
        """The approximation of the filter's negation."""
        return FilterApproximation(negated(self.possible), negated(self.certain))


UNKNOWN: Final = FilterApproximation(FALSE, TRUE)


def all_of(approximations: Iterable[FilterApproximation]) -> FilterApproximation:
    """The approximation of the filters' conjunction."""
    given = list(approximations)
    return FilterApproximation(every(each.certain for each in given), every(each.possible for each in given))


def any_of(approximations: Iterable[FilterApproximation]) -> FilterApproximation:
    """The approximation of the filters' disjunction."""
    given = list(approximations)
    return FilterApproximation(some(each.certain for each in given), some(each.possible for each in given))
