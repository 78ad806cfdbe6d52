"""A filter over the columns of many raw documents: the same tests, without decoding the rest of the documents.

    keep = columns_test(predicate.node)
    keep(documents)     → the documents that match, in order

Rule: conditions are tested on many values at once only if their cost is bounded by the size of the values and they
raise nothing. So a command can pause between batches, and no error comes before the earlier documents. A regular
expression may take long: it has a time limit, and the command may pause at each value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any, Final, TypeAlias

from bson import Regex
from bson.datetime_ms import DatetimeMS

from headrace.clock import monotonic
from headrace.query.match.match_expression import (
    AlwaysBoolean,
    And,
    DocumentTest,
    ElemMatchExpression,
    LeafMatchExpression,
    MatchExpression,
    MatchType,
    Nor,
    Not,
    Or,
)
from headrace.query.patterns import compile_pattern
from headrace.time_limit import TookTooLong, limited
from headrace.turns import tick
from headrace.values.bson import MISSING
from headrace.values.bson.columns import Columns, small_batches, values_below
from headrace.values.paths import ValueTest, split_path

Keep: TypeAlias = Callable[[list[bytes]], list[bytes]]

_QUICK_COUNT: Final = 16
_QUICK_SECONDS: Final = 0.0001
"""A group of values is tested at once if the group before it took no longer than this."""
_FLIPPED: Final[dict[MatchType, Callable[[int, int], bool]]] = {
    MatchType.GT: operator.lt, MatchType.GTE: operator.le, MatchType.LT: operator.gt, MatchType.LTE: operator.ge,
}  # fmt: skip
"""Compares the argument with a value, instead of a value with the argument."""
_BOUNDED: Final = frozenset({
    MatchType.BITS_ALL_CLEAR, MatchType.BITS_ALL_SET, MatchType.BITS_ANY_CLEAR, MatchType.BITS_ANY_SET, MatchType.EQ,
    MatchType.EXISTS, MatchType.GT, MatchType.GTE, MatchType.IN, MatchType.LT, MatchType.LTE, MatchType.MOD,
    MatchType.SIZE, MatchType.TYPE,
})  # fmt: skip


def columns_test(node: MatchExpression) -> Keep | None:
    """The filter of an optimized expression over raw documents; None if a condition cannot be tested by columns."""
    conditions = [_condition(child) for child in (node.children if isinstance(node, And) else (node,))]
    known = [condition for condition in conditions if condition is not None]
    if len(known) < len(conditions):
        return None

    def keep(documents: list[bytes]) -> list[bytes]:
        kept: list[bytes] = []
        for some in small_batches(documents):
            tick()
            left = some
            for condition in known:
                left = condition(left) if left else left
            kept += left
        return kept

    return keep


Condition: TypeAlias = Callable[[Sequence[bytes]], Sequence[bytes]]


def _condition(node: MatchExpression) -> Condition | None:
    names, is_bounded = node.fields(), _is_bounded(node)
    if is_bounded is None or not names:
        return None
    if len(names) > 1:
        return _of_several(tuple(names), node.compiled(), is_bounded=is_bounded)
    (name,) = names
    columns, test, of_date = Columns((name,)), _of_field(name, node.compiled()), _date_test(node)
    leaf = node if isinstance(node, LeafMatchExpression) else None
    path = () if leaf is None else split_path(leaf.path)[1:]

    def chosen(documents: Sequence[bytes]) -> Sequence[bytes]:
        if of_date is not None and (dates := columns.dates(documents)) is not None:
            return list(compress(documents, map(of_date, dates)))
        values: Sequence[Any] = columns.values(documents)[name]
        of_value = test
        if leaf is not None:
            below = values_below(values, path)
            if below is not None and list not in map(type, below):
                of_value, values = leaf.test, below
        return list(compress(documents, map(of_value, values) if is_bounded else _slowly(of_value, values)))

    return chosen


def _of_field(name: str, test: DocumentTest) -> ValueTest:
    """The test of a document with one field, as a test of the field's value."""
    return lambda value: test({} if value is MISSING else {name: value})


def _date_test(node: MatchExpression) -> Callable[[int], bool] | None:
    """The test of a comparison of a top-level field with a date, for dates in ms since the Unix epoch."""
    if not isinstance(node, LeafMatchExpression) or type(node.argument) is not DatetimeMS:
        return None
    if node.kind not in _FLIPPED or "." in node.path:
        return None
    return partial(_FLIPPED[node.kind], int(node.argument))


def _of_several(names: tuple[str, ...], test: DocumentTest, *, is_bounded: bool) -> Condition:
    columns = Columns(names)

    def of_row(row: tuple[Any, ...]) -> bool:
        return test({name: value for name, value in zip(names, row) if value is not MISSING})

    def chosen(documents: Sequence[bytes]) -> Sequence[bytes]:
        found = columns.values(documents)
        rows = list(zip(*map(found.__getitem__, names)))
        return list(compress(documents, map(of_row, rows) if is_bounded else _slowly(of_row, rows)))

    return chosen


def _slowly(test: ValueTest, values: Sequence[Any]) -> list[bool]:
    """The results of a test that may take long. Values are tested in groups as long as the groups are quick."""

    def test_all(some: Sequence[Any]) -> list[bool]:
        return list(map(test, some))

    each, several = limited(test), limited(test_all)
    results: list[bool] = []
    count = 1
    while len(results) < len(values):
        tick()
        some, began = values[len(results) : len(results) + count], monotonic()
        try:
            results += [each(some[0])] if count == 1 else several(some)
        except TookTooLong:
            if count == 1:
                raise
            count = 1
        else:
            count = min(2 * count, _QUICK_COUNT) if monotonic() - began < _QUICK_SECONDS else 1
    return results


def _is_bounded(node: MatchExpression) -> bool | None:
    """Whether the time of a condition is bounded; None if it cannot be tested by columns."""
    if isinstance(node, (And, Or, Nor)):
        found = [_is_bounded(child) for child in node.children]
        return None if None in found else all(found)
    if isinstance(node, (Not, ElemMatchExpression)):
        return _is_bounded(node.inner)
    if isinstance(node, AlwaysBoolean):
        return True
    if not isinstance(node, LeafMatchExpression):
        return None
    if node.kind is MatchType.REGEX:
        return compile_pattern(*node.argument).is_linear
    if node.kind not in _BOUNDED:
        return None
    return node.kind is not MatchType.IN or Regex not in map(type, node.argument)
