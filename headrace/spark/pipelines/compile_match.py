"""A filter of events compiled to conditions on the typed columns of their rows, as far as the columns allow.

Rules:
- Soundness: for every row the evaluator agrees with the approximation; see `conditions.FilterApproximation`.
- Scalars with a column (operation, namespace, times, transaction number, token) are decided exactly. A test whose
  argument is of another type than the column gives one answer for all values of the column, so one sample is tested.
- That holds for rows whose scalars have an event's types; see `MatchCompiler.misplaced` for the others.
- A document key is compared as text, with every canonical text of the values that are equal to the argument.
- For any other path, if the test fails on a missing value, the field names of the path must occur in the text. That
  needs the text of `extjson.dumps`, which the source writes.
- An error that the evaluator would raise for a row is not raised when columns decide the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bson import Int64, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.query.match import Predicate
from headrace.query.match.match_expression import (
    AlwaysBoolean,
    And,
    ElemMatchExpression,
    LeafMatchExpression,
    MatchExpression,
    MatchType,
    Nor,
    Not,
    Or,
)
from headrace.spark.pipelines.canonical_text import canonical_texts
from headrace.spark.pipelines.conditions import (
    FALSE,
    TRUE,
    UNKNOWN,
    Comparison,
    Condition,
    ConstantCondition,
    Contains,
    FilterApproximation,
    HasField,
    IsNull,
    all_of,
    any_of,
    every,
    negated,
    some,
)
from headrace.spark.rows.extjson import dumps
from headrace.values.bson import MISSING
from headrace.values.paths import is_index, split_path

_ORDERS: Final = {MatchType.GT: ">", MatchType.GTE: ">=", MatchType.LT: "<", MatchType.LTE: "<="}
_BY_TYPE: Final = frozenset(
    {MatchType.BITS_ALL_CLEAR, MatchType.BITS_ALL_SET, MatchType.BITS_ANY_CLEAR, MatchType.BITS_ANY_SET,
     MatchType.EXISTS, MatchType.MOD, MatchType.SIZE, MatchType.TYPE}
)  # fmt: skip
_DOCUMENTS: Final = ("documentKey", "fullDocument", "fullDocumentBeforeChange", "lsid", "updateDescription")
_DATE_LIMIT: Final = 1 << 52


class MatchCompiler:
    """Compiles filters; `texts` says that documents are Extended JSON written by the source.

    The approximations hold for rows that are not `misplaced`.
    """

    def __init__(self, *, texts: bool = True, collated: bool = False) -> None:
        self._texts = texts
        self._collated = collated
        self.fields: set[str] = set()
        """The fields of events that were decided by their columns."""

    def misplaced(self) -> Condition:
        """Rows in which a decided field is in `other`: its type is not an event's, so a pipeline has put it there."""
        conditions = []
        for field in sorted(self.fields & _MISPLACEABLE.keys()):
            conditions.append(every([*map(IsNull, _MISPLACEABLE[field]), HasField("other", field)]))
        return some(conditions)

    def approximation(self, predicate: Predicate) -> FilterApproximation:
        """The predicate as conditions on columns."""
        return self._node(predicate.node)

    def _node(self, node: MatchExpression) -> FilterApproximation:
        if isinstance(node, AlwaysBoolean):
            return FilterApproximation.decided(ConstantCondition(node.value))
        if isinstance(node, And):
            return all_of(map(self._node, node.children))
        if isinstance(node, Or):
            return any_of(map(self._node, node.children))
        if isinstance(node, Nor):
            return any_of(map(self._node, node.children)).opposite()
        if isinstance(node, Not):
            return self._node(node.inner).opposite()
        if isinstance(node, LeafMatchExpression):
            return self._leaf(node)
        if isinstance(node, ElemMatchExpression):
            return self._by_text(node.path, absent=False)
        return UNKNOWN

    def _leaf(self, leaf: LeafMatchExpression) -> FilterApproximation:
        if leaf.path in _SCALARS:
            name, sample, compare = _SCALARS[leaf.path]
            decided = self._scalar(leaf, sample, compare)
            if decided is None:
                return UNKNOWN
            self.fields.add(split_path(leaf.path)[0])
            return _where_present(leaf, (name,), decided)
        absent = bool(leaf.test(MISSING))
        if self._texts and leaf.wanted is not MISSING and leaf.path in ("documentKey", "documentKey._id"):
            by_key = _key_equal(leaf.path, leaf.wanted)
            return _or_absent(by_key, absent) if by_key else self._by_text(leaf.path, absent=absent)
        return self._by_text(leaf.path, absent=absent)

    def _scalar(
        self, leaf: LeafMatchExpression, sample: Any, compare: Callable[[str, Any], Condition | None]
    ) -> Condition | None:
        """The condition where the column is not NULL; None if columns cannot decide it."""
        if leaf.kind is MatchType.EQ:
            return self._compared(leaf, "=", leaf.wanted, sample, compare)
        if leaf.kind in _ORDERS:
            return self._compared(leaf, _ORDERS[leaf.kind], leaf.argument, sample, compare)
        if leaf.kind is MatchType.IN and type(leaf.argument) is list:
            equal = [self._equal_to(item, sample, compare) for item in leaf.argument]
            return None if None in equal else some(each for each in equal if each is not None)
        if leaf.kind in _BY_TYPE and (
            type(sample) is not Int64 or leaf.kind in (MatchType.EXISTS, MatchType.SIZE, MatchType.TYPE)
        ):
            return ConstantCondition(bool(leaf.test(sample)))
        return None

    def _compared(
        self,
        leaf: LeafMatchExpression,
        order: str,
        argument: Any,
        sample: Any,
        compare: Callable[[str, Any], Condition | None],
    ) -> Condition | None:
        if not _comparable(argument, sample):
            return ConstantCondition(bool(leaf.test(sample)))
        return None if self._collated and type(argument) is str else compare(order, argument)

    def _equal_to(self, item: Any, sample: Any, compare: Callable[[str, Any], Condition | None]) -> Condition | None:
        if type(item) is Regex:
            return None
        if not _comparable(item, sample):
            return FALSE
        return None if self._collated and type(item) is str else compare("=", item)

    def _by_text(self, path: str, *, absent: bool) -> FilterApproximation:
        """A test that the text can only narrow down; `absent`: whether it holds for a missing value."""
        first, *rest = split_path(path)
        if first in _SCALAR_FIELDS:
            return UNKNOWN
        if first not in (*_DOCUMENTS, "rawUpdateDescription"):
            return self._elsewhere(first, absent)
        if absent or not self._texts:
            return UNKNOWN
        column = "updateDescription" if first == "rawUpdateDescription" else first
        named = [Contains(column, f"{dumps(name)}:") for name in rest if not is_index(name)]
        present = every([negated(IsNull(column)), *named])
        return FilterApproximation(FALSE, some([present, every([IsNull(column), self._in_other(first)])]))

    def _elsewhere(self, field: str, absent: bool) -> FilterApproximation:
        """A field without a column: it is in `other`, or nowhere."""
        if absent:
            return FilterApproximation(IsNull("other"), TRUE)
        return FilterApproximation(FALSE, self._in_other(field))

    def _in_other(self, field: str) -> Condition:
        return Contains("other", f"{dumps(field)}:") if self._texts else negated(IsNull("other"))


def _comparable(argument: Any, sample: Any) -> bool:
    """Whether a column of the sample's type has values that compare differently with the argument."""
    if type(sample) is Int64:
        return type(argument).__name__ in ("int", "Int64", "float", "Decimal128")
    return type(argument) is type(sample)


def _where_present(leaf: LeafMatchExpression, names: tuple[str, ...], decided: Condition) -> FilterApproximation:
    """The condition where a column is not NULL, otherwise the test's answer for a missing value."""
    nowhere = every(map(IsNull, names))
    here = negated(nowhere) if decided == TRUE else decided  # a comparison with NULL is false by itself
    return FilterApproximation.decided(some([here, nowhere]) if leaf.test(MISSING) else here)


def _or_absent(by_key: FilterApproximation, absent: bool) -> FilterApproximation:
    """`by_key` for rows with a document key; the other rows may have it in another form, in `other`."""
    column = "documentKey"
    nowhere = every([IsNull(column), IsNull("other"), ConstantCondition(absent)])
    possibly = every([IsNull(column), some([negated(IsNull("other")), ConstantCondition(absent)])])
    return FilterApproximation(some([by_key.certain, nowhere]), some([by_key.possible, possibly]))


def _key_equal(path: str, wanted: Any) -> FilterApproximation | None:
    """Equality of a document key, or of its `_id`, by text; None if the value has no list of canonical texts."""
    is_document = path == "documentKey"
    if is_document != (type(wanted) is dict) or (not is_document and type(wanted) in (list, Regex, type(None))):
        return None
    canonical = canonical_texts(wanted)
    if canonical is None:
        return None
    column = "documentKey"
    if is_document:
        certain = some(Comparison(column, "=", text) for text in canonical.texts)
        # A decimal may equal a number, and has too many texts to list.
        return FilterApproximation(
            certain, some([certain, Contains(column, "$numberDecimal")]) if canonical.numeric else certain
        )
    certain = some(Comparison(column, "=", f'{{"_id":{text}}}') for text in canonical.texts)
    inside = [Contains(column, text) for text in canonical.texts]
    return FilterApproximation(
        certain, some([*inside, Contains(column, "$numberDecimal")] if canonical.numeric else inside)
    )


def _text(name: str) -> Callable[[str, Any], Condition | None]:
    return lambda order, argument: Comparison(name, order, argument)


def _cluster_time(order: str, argument: Timestamp) -> Condition:
    seconds, increment = argument.time * 1_000_000, argument.inc
    same = every([Comparison("clusterTime", "=", seconds), Comparison("clusterTimeIncrement", order, increment)])
    return same if order == "=" else some([Comparison("clusterTime", order[0], seconds), same])


def _wall_time(order: str, argument: DatetimeMS) -> Condition | None:
    return Comparison("wallTime", order, int(argument) * 1000) if abs(int(argument)) < _DATE_LIMIT else None


def _transaction_number(order: str, argument: Any) -> Condition | None:
    exact = type(argument) in (int, Int64) or (type(argument) is float and abs(argument) < 1 << 53)
    return Comparison("txnNumber", order, int(argument)) if exact and int(argument) == argument else None


# By path: its column, a sample value, and the comparison of the column with an argument.
_SCALARS: Final[dict[str, tuple[str, Any, Callable[[str, Any], Condition | None]]]] = {
    "_id._data": ("token", "", _text("token")),
    "clusterTime": ("clusterTime", Timestamp(1, 1), _cluster_time),
    "ns.coll": ("collection", "", _text("collection")),
    "ns.db": ("database", "", _text("database")),
    "operationType": ("operationType", "", _text("operationType")),
    "txnNumber": ("txnNumber", Int64(1), _transaction_number),
    "wallTime": ("wallTime", DatetimeMS(0), _wall_time),
}
_SCALAR_FIELDS: Final = frozenset(split_path(path)[0] for path in _SCALARS)
# By field that columns decide: the columns that are NULL when it may be in `other`.
_MISPLACEABLE: Final = {
    "clusterTime": ("clusterTime",),
    "ns": ("database", "collection"),
    "operationType": ("operationType",),
    "txnNumber": ("txnNumber",),
    "wallTime": ("wallTime",),
}
