"""The functions of `$setWindowFields`, over the documents of one partition, in order, and the window of each document.

    documents: ["unbounded", "current"]     by count: documents before (-) and after (+) the document
    range: [-10, 10]                        by value: of the one ascending sort field
    range: [-1, 0], unit: "day"             by time: as above, where the values are dates

A window is a half-open range of indexes (start, end). Each function computes a value for each document of a partition.
Accumulators accept any window. The other functions depend on the order of the partition and accept no window, except
`$derivative` and `$integral`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bson import Decimal128, Int64
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression
from headrace.query.expressions.arithmetic import divide, subtract, times
from headrace.query.expressions.dates import MILLISECONDS, UNITS, shifted
from headrace.query.expressions.numbers import (
    CONTEXT,
    NUMBERS,
    Total,
    decimal_of,
    double_of,
    int32_of,
    int64_of,
    truthy,
    wrap,
)
from headrace.query.expressions.operator_parser import read_named
from headrace.query.sort import SortKey
from headrace.query.stages.reshaping import nested
from headrace.query.stages.stage import Document, PipelineContext
from headrace.turns import paced
from headrace.values.bson import MISSING, to_string, type_name
from headrace.values.order import compare, sort_key

if TYPE_CHECKING:
    from headrace.query.accumulators import Accumulator

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


WindowFunction: TypeAlias = Callable[[Partition], list[Any]]
_ACCUMULATORS: Final = frozenset(
    "$addToSet $avg $bottom $bottomN $concatArrays $count $first $firstN $last $lastN $max $maxN $median $min $minN "
    "$percentile $push $setUnion $stdDevPop $stdDevSamp $sum $top $topN".split()
)
_DEVIATIONS: Final = frozenset(("$stdDevPop", "$stdDevSamp"))
_RANKS: Final = frozenset(("$denseRank", "$documentNumber", "$rank"))


def parse_window_function(spec: Any, order: SortKey | None, context: PipelineContext) -> WindowFunction:
    """Parse the function of `{name: argument, window: {...}}`."""
    if type(spec) is not dict:
        raise CommandError(9, f"the output of $setWindowFields must be an object, found {type_name(spec)}")
    name = next((field for field in spec if field.startswith("$")), "")
    if name in _RANKS:
        return _ranked(name, spec, order)
    if not name or spec.keys() - {name, "window"}:
        found = to_string(spec)
        raise CommandError(9, f"Expected one window function, a field that begins with '$', and 'window': {found}")
    argument, window = spec[name], spec.get("window", MISSING)
    if name in _ACCUMULATORS:
        return _accumulated(name, argument, parse_window_bounds(window, order, context), context)
    if name in _OVER_WINDOWS:
        return _OVER_WINDOWS[name](name, argument, window, order, context)
    if name not in _OVER_ORDER:
        raise CommandError(9, f"Unrecognized window function, {name}")
    if window is not MISSING:
        raise CommandError(9, f"{name} takes no 'window'")
    if name == "$linearFill" and sorted_by(order) is None:
        raise CommandError(605001, f"{name} must be specified with a top level sortBy expression of one element")
    if name != "$locf" and order is None:
        raise CommandError(9, f"{name} requires a top level sortBy expression")
    return _OVER_ORDER[name](name, argument, context)


def _accumulated(name: str, argument: Any, bounds: WindowBounds, context: PipelineContext) -> WindowFunction:
    from headrace.query.accumulators import check_n, parse_accumulator

    if name.endswith("N") and type(argument) is dict and "n" in argument:
        check_n(_constant(argument["n"], context))  # its errors differ from those of $group
    accumulator = parse_accumulator(name, argument, context.parse_context())

    def compute(partition: Partition) -> list[Any]:
        environments = [Env(document, context.bound) for document in paced(partition.documents)]
        if bounds.grows:
            return _carried(accumulator, environments, bounds.windows(partition))
        windows = paced(bounds.windows(partition))
        column = [_carried(accumulator, environments[start:end], [(0, end - start)])[0] for start, end in windows]
        return [_null_unless_finite(value) for value in column] if name in _DEVIATIONS else column

    return compute


def _null_unless_finite(value: Any) -> Any:
    """The deviation of a window that documents leave: null while it holds NaN or an infinity."""
    return None if value is None or not math.isfinite(value) else value


def _carried(accumulator: Accumulator, environments: list[Env], windows: list[tuple[int, int]]) -> list[Any]:
    """The values of windows that each contain the window before."""
    state, added, column = accumulator.new_state(), 0, []
    for _, end in paced(windows):
        for environment in paced(environments[added:end]):
            accumulator.add(state, environment)
        added = max(added, end)
        value = accumulator.result(state)
        column.append(list(value) if type(value) is list else None if value is MISSING else value)
    return column


# ------------------------------------------------------------------ by order


def _ranked(name: str, spec: Document, order: SortKey | None) -> WindowFunction:
    if len(spec) != 1:
        raise CommandError(5371601, f"{name} takes no other arguments, and no 'window'")
    if spec[name] != {}:
        raise CommandError(5371603, f"{name} must be specified with '{{}}' as the value")
    if sorted_by(order) is None:
        raise CommandError(5371602, f"{name} must be specified with a top level sortBy expression of one element")
    if name == "$documentNumber":
        return lambda partition: [Int64(index + 1) for index in range(len(partition.documents))]

    def compute(partition: Partition) -> list[Any]:
        column: list[Any] = []
        before: Any = None
        for position, key in enumerate(paced(partition.sort_keys()), 1):
            if column and key == before:
                column.append(column[-1])
            elif name == "$rank":
                column.append(Int64(position))
            else:
                column.append(Int64(column[-1] + 1 if column else 1))
            before = key
        return column

    return compute


def _shift(name: str, argument: Any, context: PipelineContext) -> WindowFunction:
    options = _options(name, argument, required=("output", "by"), optional=("default",))
    by, default = int32_of(options["by"]), parse_expression(options.get("default"), context.parse_context())
    if by is None:
        raise CommandError(9, f"'$shift:by' field must be an integer, but found {to_string(options['by'])}")
    if not default.is_constant:
        raise CommandError(9, "'$shift:default' expression must yield a constant value")
    output, otherwise = context.expression(options["output"]), _null(default(Env({})))

    def compute(partition: Partition) -> list[Any]:
        documents = partition.documents
        positions = range(by, len(documents) + by)
        return [_null(output(documents[p])) if 0 <= p < len(documents) else otherwise for p in paced(positions)]

    return compute


def _moving_average(name: str, argument: Any, context: PipelineContext) -> WindowFunction:
    options = _options(name, argument, required=("input",), optional=("N", "alpha"))
    if ("N" in options) == ("alpha" in options):
        raise CommandError(9, "$expMovingAvg must be called with exactly one of 'N' and 'alpha'")
    evaluate = context.expression(options["input"])
    alpha = _alpha(options)
    rest = CONTEXT.subtract(Decimal(1), alpha)

    def compute(partition: Partition) -> list[Any]:
        column: list[Any] = []
        average: Decimal | None = None
        for document in paced(partition.documents):
            value = evaluate(document)
            if type(value) in NUMBERS:
                number = decimal_of(value)
                weighted = CONTEXT.multiply(number, alpha)
                average = number if average is None else CONTEXT.fma(average, rest, weighted)
                column.append(wrap(average) if type(value) is Decimal128 else float(average))
            else:
                column.append(column[-1] if column else None)
        return column

    return compute


def _alpha(options: dict[str, Any]) -> Decimal:
    """The weight of a new value, from `alpha` or from the number `N`."""
    if "alpha" in options:
        alpha = options["alpha"]
        if type(alpha) not in NUMBERS or not 0 < double_of(alpha) < 1:
            raise CommandError(9, f"'alpha' must be between 0 and 1 (exclusive), found {to_string(alpha)}")
        return decimal_of(alpha)
    count = int64_of(options["N"])
    if count is None or count <= 0:
        raise CommandError(9, f"'N' must be a whole number greater than zero, found {to_string(options['N'])}")
    return CONTEXT.divide(Decimal(2), Decimal(count + 1))


def _last_seen(name: str, argument: Any, context: PipelineContext) -> WindowFunction:
    evaluate = context.expression(argument)

    def compute(partition: Partition) -> list[Any]:
        column: list[Any] = []
        for document in paced(partition.documents):
            value = _null(evaluate(document))
            column.append(column[-1] if value is None and column else value)
        return column

    return compute


def _linear_fill(name: str, argument: Any, context: PipelineContext) -> WindowFunction:
    evaluate = context.expression(argument)

    def compute(partition: Partition) -> list[Any]:
        column = [_null(evaluate(document)) for document in paced(partition.documents)]
        for value in paced(column):
            if value is not None and type(value) not in NUMBERS:
                raise CommandError(14, f"Value to be filled must be numeric or nullish, but found: {type_name(value)}")
        values = partition.sort_values()
        dates = type(values[0]) is DatetimeMS
        if any((type(value) is not DatetimeMS) if dates else type(value) not in NUMBERS for value in paced(values)):
            raise CommandError(14, "There must be only numbers or only dates in the sort field of $linearFill")
        coordinates = [float(int(value)) if dates else double_of(value) for value in paced(values)]
        known = [index for index, value in enumerate(column) if value is not None]
        for start, end in pairwise(paced(known)):
            _fill_between(column, coordinates, start, end)
        return column

    return compute


def _fill_between(column: list[Any], coordinates: list[float], start: int, end: int) -> None:
    slope_from, slope_to = double_of(column[start]), double_of(column[end])
    for index in paced(range(start + 1, end)):
        if coordinates[index] == coordinates[index - 1] or coordinates[end] == coordinates[start]:
            raise CommandError(6050106, "There can be no repeated values in the sort field of $linearFill")
        share = (coordinates[index] - coordinates[start]) / (coordinates[end] - coordinates[start])
        column[index] = slope_from + (slope_to - slope_from) * share


# ------------------------------------------------------------------ over windows


def _slope(points: list[tuple[Any, Any]]) -> Any:
    """The slope between the two ends of a window; None if a value is not a number."""
    if len(points) < 2:
        return None
    (from_place, from_value), (to_place, to_value) = points[0], points[-1]
    distance = subtract(to_place, from_place)
    if type(from_value) not in NUMBERS or type(to_value) not in NUMBERS or not truthy(distance):
        return None
    return divide(subtract(to_value, from_value), distance)


def _area(points: list[tuple[Any, Any]]) -> Any:
    """The area below the numbers of a window, by trapezoids; None if there are no numbers."""
    numbers = [point for point in paced(points) if type(point[1]) in NUMBERS]
    if not numbers:
        return None
    area: Any = 0
    for (from_place, from_value), (to_place, to_value) in pairwise(paced(numbers)):
        area = _plus(area, divide(times(subtract(to_place, from_place), _plus(from_value, to_value)), 2))
    return area


def _plus(left: Any, right: Any) -> Any:
    total = Total()
    total.add(left)
    total.add(right)
    return total.result()


def _over_axis(
    name: str, argument: Any, window: Any, order: SortKey | None, context: PipelineContext
) -> WindowFunction:
    slopes = name == "$derivative"
    options = _options(name, argument, required=("input",), optional=("unit",))
    if sorted_by(order) is None:
        raise CommandError(9, f"{name} requires a sortBy of a single field")
    if slopes and window is MISSING:
        raise CommandError(9, f"{name} requires explicit window bounds")
    bounds = parse_window_bounds(window, order, context)
    unit = options.get("unit")
    if unit is not None and (type(unit) is not str or unit not in MILLISECONDS):
        raise CommandError(5490710, f"unit must be 'week' or smaller: {to_string(unit)}")
    evaluate, scale = context.expression(options["input"]), MILLISECONDS.get(unit or "")

    def compute(partition: Partition) -> list[Any]:
        places = _places(name, partition.sort_values(), unit is not None)
        points = [(place, evaluate(document)) for place, document in zip(places, paced(partition.documents))]
        column = []
        for start, end in paced(bounds.windows(partition)):
            value = (_slope if slopes else _area)(points[start:end])
            if value is not None and scale is not None:
                value = times(value, scale) if slopes else divide(value, scale)
            column.append(value)
        return column

    return compute


def _places(name: str, values: list[Any], dates: bool) -> list[Any]:
    """The values of the sort field as numbers, dates in milliseconds."""
    no_date, no_unit = (5624900, 5624901) if name == "$derivative" else (5423901, 5423902)
    for value in paced(values):
        if dates and type(value) is not DatetimeMS:
            raise CommandError(no_date, f"{name} with unit expects the sortBy field to be a Date")
        if not dates and type(value) is DatetimeMS:
            raise CommandError(no_unit, f"{name} where the sortBy is a Date requires a 'unit'")
        if not dates and type(value) not in NUMBERS:
            raise CommandError(14, f"{name} expects the sortBy field to be a number, not {type_name(value)}")
    return [Int64(int(value)) for value in values] if dates else values


def _scaled(name: str, argument: Any, window: Any, order: SortKey | None, context: PipelineContext) -> WindowFunction:
    """`$minMaxScaler`: the position of a number between the least and the greatest number of its window."""
    is_object = type(argument) is dict and not next(iter(argument), "").startswith("$")
    options = {"input": argument}
    if is_object:
        options = _options(name, argument, required=("input",), optional=("max", "min"))
    ends = [_constant(options.get(end, default), context) for end, default in (("min", 0), ("max", 1))]
    if ("min" in options) != ("max" in options) or any(type(end) not in NUMBERS for end in ends):
        raise CommandError(9, f"{name} requires either both 'min' and 'max', as constant numbers, or none")
    if compare(*ends) >= 0:
        raise CommandError(9, f"'max' must be greater than 'min' in {name}")
    bounds = parse_window_bounds(window, order, context)
    if not bounds.holds_document:
        raise CommandError(9, f"{name} requires a window that contains the document itself")
    evaluate, extent = context.expression(options["input"]), subtract(ends[1], ends[0])

    def compute(partition: Partition) -> list[Any]:
        values = [evaluate(document) for document in paced(partition.documents)]
        for value in paced(values):
            if type(value) not in NUMBERS:
                raise CommandError(14, f"{name} expects its input to be a number, not {type_name(value)}")
        column = []
        for value, (start, end) in zip(values, paced(bounds.windows(partition))):
            least, greatest = (choose(values[start:end], key=sort_key) for choose in (min, max))
            if compare(least, greatest) == 0:
                column.append(ends[0])
                continue
            share = divide(subtract(value, least), subtract(greatest, least))
            column.append(_plus(times(share, extent), ends[0]))
        return column

    return compute


def _constant(value: Any, context: PipelineContext) -> Any:
    """The value of an expression that needs no document; None for any other expression."""
    expression = parse_expression(value, context.parse_context())
    return expression(Env({})) if expression.is_constant else None


def _covariance(
    name: str, argument: Any, window: Any, order: SortKey | None, context: PipelineContext
) -> WindowFunction:
    bounds = parse_window_bounds(window, order, context)
    if type(argument) is not list or len(argument) != 2:
        raise CommandError(9, f"{name} takes an array of two expressions")
    left, right = (context.expression(item) for item in argument)
    less = 1 if name == "$covarianceSamp" else 0

    def covariance(documents: list[Document]) -> float | None:
        pairs = [(left(document), right(document)) for document in paced(documents)]
        numbers = [(double_of(x), double_of(y)) for x, y in pairs if type(x) in NUMBERS and type(y) in NUMBERS]
        count = len(numbers)
        if count <= less:
            return None
        mean_x, mean_y = sum(x for x, _ in numbers) / count, sum(y for _, y in numbers) / count
        return sum((x - mean_x) * (y - mean_y) for x, y in numbers) / (count - less)

    return lambda partition: [covariance(partition.documents[start:end]) for start, end in bounds.windows(partition)]


def _options(name: str, argument: Any, *, required: tuple[str, ...], optional: tuple[str, ...]) -> Document:
    return read_named(name, argument, required + optional, dict.fromkeys(required, 9), 9, 9)


def _null(value: Any) -> Any:
    return None if value is MISSING else value


_OVER_ORDER: Final = {
    "$expMovingAvg": _moving_average,
    "$linearFill": _linear_fill,
    "$locf": _last_seen,
    "$shift": _shift,
}
_OVER_WINDOWS: Final = {
    "$covariancePop": _covariance,
    "$covarianceSamp": _covariance,
    "$derivative": _over_axis,
    "$integral": _over_axis,
    "$minMaxScaler": _scaled,
}
