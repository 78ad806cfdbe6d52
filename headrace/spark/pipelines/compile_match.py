"""A filter of events compiled to conditions on the typed columns of their rows, as far as columns can tell.

Rules:
- Soundness: what a verdict is sure of, the evaluator would say of every row; see `conditions.Verdict`.
- Scalars that have a column of their own (operation, namespace, times, transaction number, token) are decided.
  A test whose argument is of another type than the column's answers alike for all its values, so one is tried.
- They are decided for rows in which they are what an event's are; see `Compiler.misplaced`.
- A document key is compared as text, in every way in which the wanted value can be written.
- Any other path is told by text only: where no value at all would fail the test, the names on the path must be
  in the text. That needs the text of `extjson.dumps`, which the source writes.
- An error that a condition would raise for a row may not be seen when columns decide the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bson import Int64, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.query.match import Predicate
from headrace.query.match.match_expression import (
    Always,
    Both,
    Either,
    ElementMatch,
    Kind,
    Leaf,
    Negation,
    Neither,
    Node,
)
from headrace.spark.pipelines.conditions import (
    FALSE,
    TRUE,
    UNKNOWN,
    Compare,
    Condition,
    Constant,
    Contains,
    HasField,
    IsNull,
    Verdict,
    all_of,
    any_of,
    every,
    negated,
    some,
)
from headrace.spark.pipelines.written import forms
from headrace.spark.rows.extjson import dumps
from headrace.values.bson import MISSING
from headrace.values.paths import is_index, split_path

_ORDERS: Final = {Kind.GREATER: ">", Kind.GREATER_OR_EQUAL: ">=", Kind.LESS: "<", Kind.LESS_OR_EQUAL: "<="}
_BY_TYPE: Final = frozenset(
    {Kind.BITS_ALL_CLEAR, Kind.BITS_ALL_SET, Kind.BITS_ANY_CLEAR, Kind.BITS_ANY_SET, Kind.EXISTS, Kind.MOD, Kind.SIZE,
     Kind.TYPE}
)  # fmt: skip
_DOCUMENTS: Final = ("documentKey", "fullDocument", "fullDocumentBeforeChange", "lsid", "updateDescription")
_DATE_LIMIT: Final = 1 << 52


class Compiler:
    """Filters to verdicts. `texts` says that documents are Extended JSON written by the source.

    The verdicts hold for rows of which none is `misplaced`.
    """

    def __init__(self, *, texts: bool = True, collated: bool = False) -> None:
        self._texts = texts
        self._collated = collated
        self.fields: set[str] = set()
        """The fields of events that were decided by their columns."""

    def misplaced(self) -> Condition:
        """Rows in which a decided field is in `other`: it is not what an event's is, so a pipeline put it there."""
        found = []
        for field in sorted(self.fields & _MISPLACEABLE.keys()):
            found.append(every([*map(IsNull, _MISPLACEABLE[field]), HasField("other", field)]))
        return some(found)

    def verdict(self, predicate: Predicate) -> Verdict:
        """What the columns tell of the predicate."""
        return self._node(predicate.node)

    def _node(self, node: Node) -> Verdict:
        if isinstance(node, Always):
            return Verdict.decided(Constant(node.value))
        if isinstance(node, Both):
            return all_of(map(self._node, node.parts))
        if isinstance(node, Either):
            return any_of(map(self._node, node.parts))
        if isinstance(node, Neither):
            return any_of(map(self._node, node.parts)).opposite()
        if isinstance(node, Negation):
            return self._node(node.inner).opposite()
        if isinstance(node, Leaf):
            return self._leaf(node)
        if isinstance(node, ElementMatch):
            return self._by_text(node.path, absent=False)
        return UNKNOWN

    def _leaf(self, leaf: Leaf) -> Verdict:
        if leaf.path in _SCALARS:
            name, sample, compare = _SCALARS[leaf.path]
            decided = self._scalar(leaf, sample, compare)
            if decided is None:
                return UNKNOWN
            self.fields.add(split_path(leaf.path)[0])
            return _where_present(leaf, (name,), decided)
        absent = bool(leaf.test(MISSING))
        if self._texts and leaf.wanted is not MISSING and leaf.path in ("documentKey", "documentKey._id"):
            verdict = _key_equal(leaf.path, leaf.wanted)
            return _or_absent(verdict, "documentKey", absent) if verdict else self._by_text(leaf.path, absent=absent)
        return self._by_text(leaf.path, absent=absent)

    def _scalar(self, leaf: Leaf, sample: Any, compare: Callable[[str, Any], Condition | None]) -> Condition | None:
        """The condition where the column is not NULL; None if columns cannot tell."""
        if leaf.kind is Kind.EQUAL:
            return self._compared(leaf, "=", leaf.wanted, sample, compare)
        if leaf.kind in _ORDERS:
            return self._compared(leaf, _ORDERS[leaf.kind], leaf.argument, sample, compare)
        if leaf.kind is Kind.IN and type(leaf.argument) is list:
            equal = [self._equal_to(item, sample, compare) for item in leaf.argument]
            return None if None in equal else some(part for part in equal if part is not None)
        if leaf.kind in _BY_TYPE and (type(sample) is not Int64 or leaf.kind in (Kind.EXISTS, Kind.SIZE, Kind.TYPE)):
            return Constant(bool(leaf.test(sample)))
        return None

    def _compared(
        self, leaf: Leaf, order: str, argument: Any, sample: Any, compare: Callable[[str, Any], Condition | None]
    ) -> Condition | None:
        if not _comparable(argument, sample):
            return Constant(bool(leaf.test(sample)))
        return None if self._collated and type(argument) is str else compare(order, argument)

    def _equal_to(self, item: Any, sample: Any, compare: Callable[[str, Any], Condition | None]) -> Condition | None:
        if type(item) is Regex:
            return None
        if not _comparable(item, sample):
            return FALSE
        return None if self._collated and type(item) is str else compare("=", item)

    def _by_text(self, path: str, *, absent: bool) -> Verdict:
        """The verdict of a test that the text alone cannot decide; `absent`: whether it holds for no value."""
        first, *rest = split_path(path)
        if first in _SCALAR_FIELDS:
            return UNKNOWN
        if first not in (*_DOCUMENTS, "rawUpdateDescription"):
            return self._elsewhere(first, absent)
        if absent or not self._texts:
            return UNKNOWN
        column = "updateDescription" if first == "rawUpdateDescription" else first
        named = [Contains(column, f"{dumps(part)}:") for part in rest if not is_index(part)]
        present = every([negated(IsNull(column)), *named])
        return Verdict(FALSE, some([present, every([IsNull(column), self._in_other(first)])]))

    def _elsewhere(self, field: str, absent: bool) -> Verdict:
        """A field without a column: it is in `other`, or nowhere."""
        if absent:
            return Verdict(IsNull("other"), TRUE)
        return Verdict(FALSE, self._in_other(field))

    def _in_other(self, field: str) -> Condition:
        return Contains("other", f"{dumps(field)}:") if self._texts else negated(IsNull("other"))


def _comparable(argument: Any, sample: Any) -> bool:
    """Whether a column of the sample's type has values that compare differently with the argument."""
    if type(sample) is Int64:
        return type(argument).__name__ in ("int", "Int64", "float", "Decimal128")
    return type(argument) is type(sample)


def _where_present(leaf: Leaf, names: tuple[str, ...], decided: Condition) -> Verdict:
    """The condition where the column is there, else what the test says of no value."""
    nowhere = every(map(IsNull, names))
    here = negated(nowhere) if decided == TRUE else decided  # a comparison with NULL is false by itself
    return Verdict.decided(some([here, nowhere]) if leaf.test(MISSING) else here)


def _or_absent(verdict: Verdict, column: str, absent: bool) -> Verdict:
    """The verdict for rows that have the document; those that have not may have it in `other` as something else."""
    nowhere = every([IsNull(column), IsNull("other"), Constant(absent)])
    perhaps = every([IsNull(column), some([negated(IsNull("other")), Constant(absent)])])
    return Verdict(some([verdict.sure, nowhere]), some([verdict.maybe, perhaps]))


def _key_equal(path: str, wanted: Any) -> Verdict | None:
    """The verdict of an equality of a document key, or of its `_id`, by its text; None if it has too many forms."""
    whole = path == "documentKey"
    if whole != (type(wanted) is dict) or (not whole and type(wanted) in (list, Regex, type(None))):
        return None
    written = forms(wanted)
    if written is None:
        return None
    column = "documentKey"
    if whole:
        sure = some(Compare(column, "=", text) for text in written.texts)
        # A decimal may equal a number, and has more forms than can be told.
        return Verdict(sure, some([sure, Contains(column, "$numberDecimal")]) if written.numeric else sure)
    sure = some(Compare(column, "=", f'{{"_id":{text}}}') for text in written.texts)
    inside = [Contains(column, text) for text in written.texts]
    return Verdict(sure, some([*inside, Contains(column, "$numberDecimal")] if written.numeric else inside))


def _text(name: str) -> Callable[[str, Any], Condition | None]:
    return lambda order, argument: Compare(name, order, argument)


def _cluster_time(order: str, argument: Timestamp) -> Condition:
    seconds, increment = argument.time * 1_000_000, argument.inc
    same = every([Compare("clusterTime", "=", seconds), Compare("clusterTimeIncrement", order, increment)])
    return same if order == "=" else some([Compare("clusterTime", order[0], seconds), same])


def _wall_time(order: str, argument: DatetimeMS) -> Condition | None:
    return Compare("wallTime", order, int(argument) * 1000) if abs(int(argument)) < _DATE_LIMIT else None


def _transaction_number(order: str, argument: Any) -> Condition | None:
    whole = type(argument) in (int, Int64) or (type(argument) is float and abs(argument) < 1 << 53)
    return Compare("txnNumber", order, int(argument)) if whole and int(argument) == argument else None


# A path: the column that holds it, a value it may have, and how to compare.
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
# A field that columns decide: the columns that are NULL when it may be in `other`.
_MISPLACEABLE: Final = {
    "clusterTime": ("clusterTime",),
    "ns": ("database", "collection"),
    "operationType": ("operationType",),
    "txnNumber": ("txnNumber",),
    "wallTime": ("wallTime",),
}
