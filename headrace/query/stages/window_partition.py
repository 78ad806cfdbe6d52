"""The documents of one partition, in order, and the window of each document.

    documents: ["unbounded", "current"]     by count: documents before (-) and after (+) the document
    range: [-10, 10]                        by value: of the one ascending sort field
    range: [-1, 0], unit: "day"             by time: as above, where the values are dates

A window is a half-open range of indexes (start, end).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from bson import Decimal128
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression
from headrace.query.expressions.date_arithmetic import UNITS, shifted
from headrace.query.expressions.numbers import NUMBERS, double_of, int32_of, int64_of
from headrace.query.sort import SortKey
from headrace.query.stages.stage import Document, PipelineContext
from headrace.query.stages.unwind import nested
from headrace.values.bson import MISSING, type_name
from headrace.values.bson.to_string import to_string
from headrace.values.order import sort_key

CURRENT: Final = "current"


class Partition:
    """Documents in order. `sort_values` are the values of the only sort field."""

    __slots__ = ("context", "documents", "order", "sort_path")

    def __init__(
        self,
        documents: list[Document],
        sort_path: tuple[str, ...] | None,
        order: SortKey | None,
        context: PipelineContext,
    ) -> None:
        self.documents = documents
        self.sort_path = sort_path
        self.order = order
        self.context = context

    def sort_values(self) -> list[Any]:
        """The value of the only sort field in each document, or MISSING."""
        path = self.sort_path or ()
        return [nested(document, path) for document in self.context.paced(self.documents)]

    def sort_keys(self) -> list[Any]:
        """The sort key of each document: equal for documents of equal rank."""
        order = self.order
        return [] if order is None else [order.key(document) for document in self.context.paced(self.documents)]


def sorted_by(order: SortKey | None) -> tuple[str, ...] | None:
    """The path of the only sort field; None if there are none or several."""
    return tuple(order.paths[0][0].split(".")) if order is not None and len(order.paths) == 1 else None


@dataclass(frozen=True, slots=True)
class WindowBounds:
    """A parsed window. `lower` and `upper` are distances from the document; None for unbounded.

    In a window by value they may be CURRENT, the document itself, whereas 0 means all documents with its value.
    """

    lower: Any = None
    upper: Any = None
    by_value: bool = False
    unit: str | None = None

    @property
    def grows(self) -> bool:
        """Whether each window contains the window before, so that a state can be continued."""
        return self.lower is None

    @property
    def holds_document(self) -> bool:
        """Whether each document is in its own window."""
        lower, upper = (0 if bound in (None, CURRENT) else double_of(bound) for bound in (self.lower, self.upper))
        return lower <= 0 <= upper

    def windows(self, partition: Partition) -> list[tuple[int, int]]:
        """The window of each document."""
        count, paced = len(partition.documents), partition.context.paced
        if not self.by_value:
            return list(map(self._by_count, paced(range(count)), repeat(count)))
        values = partition.sort_values()
        for value in paced(values):
            self._check(value)
        keys = [sort_key(value) for value in paced(values)]
        return [self._by_value(index, value, keys) for index, value in enumerate(paced(values))]

    def _by_count(self, index: int, count: int) -> tuple[int, int]:
        start = 0 if self.lower is None else _clamped(index + self.lower, count)
        end = count if self.upper is None else _clamped(index + self.upper + 1, count)
        return start, max(start, end)

    def _by_value(self, index: int, value: Any, keys: list[Any]) -> tuple[int, int]:
        start, end = 0, len(keys)
        if self.lower is not None:
            start = index if self.lower == CURRENT else bisect_left(keys, sort_key(self._shifted(value, self.lower)))
        if self.upper is not None:
            end = index + 1 if self.upper == CURRENT else bisect_right(keys, sort_key(self._shifted(value, self.upper)))
        return start, max(start, end)

    def _shifted(self, value: Any, distance: Any) -> Any:
        if self.unit is not None:
            return shifted(value, self.unit, distance)
        if type(value) is Decimal128 or type(distance) is Decimal128:
            return double_of(value) + double_of(distance)
        return value + distance

    def _check(self, value: Any) -> None:
        if self.unit is not None and type(value) is not DatetimeMS:
            raise CommandError(
                5429513, f"Invalid range: Expected the sortBy field to be a Date, but it was {type_name(value)}"
            )
        if self.unit is None and type(value) not in NUMBERS:
            raise CommandError(
                5429414, f"Invalid range: Expected the sortBy field to be a number, but it was {type_name(value)}"
            )


def _clamped(index: int, count: int) -> int:
    return min(max(index, 0), count)


def parse_window_bounds(spec: Any, order: SortKey | None, context: PipelineContext) -> WindowBounds:
    """Parse a window. The default is the complete partition."""
    if spec is MISSING:
        return WindowBounds()
    if type(spec) is not dict:
        raise CommandError(9, "'window' field must be an object")
    for option in spec:
        if option not in ("documents", "range", "unit"):
            raise CommandError(9, f"'window' field can only contain 'documents', 'range' and 'unit', not '{option}'")
    if "documents" in spec and "range" in spec:
        raise CommandError(9, "Window bounds can specify either 'documents' or 'range', not both.")
    if "unit" in spec and "range" not in spec:
        raise CommandError(9, "Window bounds can only specify 'unit' with range-based bounds.")
    if "documents" in spec:
        return _document_bounds(_pair(spec["documents"], "documents", context), order)
    if "range" not in spec:
        return WindowBounds()
    if "unit" in spec and (type(spec["unit"]) is not str or spec["unit"] not in UNITS):
        raise CommandError(9, f"unknown time unit value: {to_string(spec['unit'])}")
    return _range_bounds(_pair(spec["range"], "range", context), spec.get("unit"), order)


def _document_bounds(pair: tuple[Any, Any], order: SortKey | None) -> WindowBounds:
    bounds = []
    for bound in pair:
        distance = 0 if bound == CURRENT else int32_of(bound)
        if distance is None and bound is not None:
            raise CommandError(9, f"Numeric document-based bounds must be an integer, not {to_string(bound)}")
        bounds.append(distance)
    if bounds != [None, None] and order is None:
        raise CommandError(5339901, "Document-based bounds require a sortBy")
    lower, upper = bounds
    _check_order(lower, upper)
    return WindowBounds(lower, upper)


def _range_bounds(pair: tuple[Any, Any], unit: str | None, order: SortKey | None) -> WindowBounds:
    for bound in pair:
        if bound is None or bound == CURRENT:
            continue
        if unit is not None and int64_of(bound) is None:
            raise CommandError(9, "With 'unit', range-based bounds must be an integer")
    if order is None or len(order.paths) != 1:
        raise CommandError(5339902, "Range-based bounds require sortBy a single field")
    if order.paths[0][1]:
        raise CommandError(8947401, "Range-based bounds require an ascending sortBy")
    _check_order(*pair)
    return WindowBounds(*pair, by_value=True, unit=unit)


def _pair(value: Any, option: str, context: PipelineContext) -> tuple[Any, Any]:
    """The two bounds: None for unbounded, CURRENT, or the value of a constant expression other than null."""
    if type(value) is not list or len(value) != 2:
        raise CommandError(9, f"Window bounds must be a 2-element array: {option}")
    lower, upper = (_bound(bound, context) for bound in value)
    return lower, upper


def _bound(bound: Any, context: PipelineContext) -> Any:
    if bound == "unbounded":
        return None
    if bound == CURRENT:
        return CURRENT
    expression = parse_expression(bound, context.parse_context())
    value = expression(Env({})) if expression.is_constant else None
    if type(value) not in NUMBERS:
        raise CommandError(9, "Window bounds must be 'unbounded', 'current', or a constant number")
    return value


def _check_order(lower: Any, upper: Any) -> None:
    ends = [float(str(0 if bound == CURRENT else bound)) for bound in (lower, upper) if bound is not None]
    if len(ends) == 2 and ends[0] > ends[1]:
        raise CommandError(5339900, "Lower bound must not exceed upper bound")
