"""Conditions on the typed columns of an event's row, two-valued, as trees: to be tested, told, and made Spark columns.

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
    """One condition. `holds` tests a row given as a mapping, `column` is the same for Spark, `str` for people."""

    __slots__ = ()

    def holds(self, row: Cells) -> bool:
        raise NotImplementedError

    def column(self) -> Column:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Constant(Condition):
    """Always so, or never."""

    value: bool

    def holds(self, row: Cells) -> bool:
        return self.value

    def column(self) -> Column:
        from pyspark.sql import functions

        return functions.lit(self.value)

    def __str__(self) -> str:
        return str(self.value).lower()


@dataclass(frozen=True, slots=True)
class Compare(Condition):
    """The column and the value are so ordered; false where the column is NULL."""

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
    """The column's text has `text` in it; false where the column is NULL."""

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
    """The document whose Extended JSON the column holds has the field at its top; false where it is NULL."""

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
class All(Condition):
    """Every part; made by `every`."""

    parts: tuple[Condition, ...]

    def holds(self, row: Cells) -> bool:
        return all(part.holds(row) for part in self.parts)

    def column(self) -> Column:
        return _folded(operator.and_, self.parts)

    def __str__(self) -> str:
        return "(" + " and ".join(map(str, self.parts)) + ")"


@dataclass(frozen=True, slots=True)
class Some(Condition):
    """One part or more; made by `some`."""

    parts: tuple[Condition, ...]

    def holds(self, row: Cells) -> bool:
        return any(part.holds(row) for part in self.parts)

    def column(self) -> Column:
        return _folded(operator.or_, self.parts)

    def __str__(self) -> str:
        return "(" + " or ".join(map(str, self.parts)) + ")"


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """The part does not hold; made by `negated`."""

    part: Condition

    def holds(self, row: Cells) -> bool:
        return not self.part.holds(row)

    def column(self) -> Column:
        return ~self.part.column()

    def __str__(self) -> str:
        return f"not {self.part}"


TRUE: Final = Constant(True)
FALSE: Final = Constant(False)


def every(parts: Iterable[Condition]) -> Condition:
    """All the parts, simplified."""
    return _joined(parts, All, neutral=TRUE, decisive=FALSE)


def some(parts: Iterable[Condition]) -> Condition:
    """At least one of the parts, simplified."""
    return _joined(parts, Some, neutral=FALSE, decisive=TRUE)


def negated(part: Condition) -> Condition:
    """The opposite, simplified."""
    if isinstance(part, Constant):
        return Constant(not part.value)
    return part.part if isinstance(part, Not) else Not(part)


def _joined(
    parts: Iterable[Condition], kind: type[All] | type[Some], *, neutral: Constant, decisive: Constant
) -> Condition:
    kept: list[Condition] = []
    for part in parts:
        if part == decisive:
            return decisive
        flat = part.parts if isinstance(part, kind) else (part,)
        kept.extend(item for item in flat if item != neutral and item not in kept)
    if len(kept) < 2:
        return kept[0] if kept else neutral
    return kind(tuple(kept))


def _folded(join: Callable[[Any, Any], Any], parts: tuple[Condition, ...]) -> Column:
    whole = parts[0].column()
    for part in parts[1:]:
        whole = join(whole, part.column())
    return whole


@dataclass(frozen=True, slots=True)
class Verdict:
    """What columns tell of a filter: `sure` rows match, rows that are not `maybe` do not; the rest must be looked at.

    Rule: `sure` implies `maybe`. The verdict is exact when they are the same.
    """

    sure: Condition
    maybe: Condition

    @property
    def exact(self) -> bool:
        return self.sure == self.maybe

    @classmethod
    def decided(cls, condition: Condition) -> Verdict:
        """The verdict of a condition that says it all."""
        return cls(condition, condition)

    def opposite(self) -> Verdict:
        """That of the filter's negation."""
        return Verdict(negated(self.maybe), negated(self.sure))


UNKNOWN: Final = Verdict(FALSE, TRUE)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of filters that must all match."""
    given = list(verdicts)
    return Verdict(every(each.sure for each in given), every(each.maybe for each in given))


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of filters of which one must match."""
    given = list(verdicts)
    return Verdict(some(each.sure for each in given), some(each.maybe for each in given))
