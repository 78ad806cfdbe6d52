"""The functions of `$setWindowFields`: each computes a value for each document of a partition.

Accumulators accept any window; the other functions depend on the order of the partition and accept no window, except
`$derivative` and `$integral`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions import Env
from headrace.query.expressions.numbers import NUMBERS, int64_of
from headrace.query.sort import SortKey
from headrace.query.stages.stage import Document, DocumentFunction, PipelineContext
from headrace.query.stages.time_units import MILLISECONDS
from headrace.query.stages.window_partition import Partition, WindowBounds, parse_window_bounds, sorted_by
from headrace.turns import paced
from headrace.values.bson import MISSING, type_name

if TYPE_CHECKING:
    from headrace.query.accumulators import Accumulator

WindowFunction: TypeAlias = Callable[[Partition], list[Any]]
_ACCUMULATORS: Final = frozenset(
    "$addToSet $avg $bottom $bottomN $concatArrays $count $first $firstN $last $lastN $max $maxN $median $min $minN "
    "$percentile $push $setUnion $stdDevPop $stdDevSamp $sum $top $topN".split()
)


def parse_window_function(spec: Any, order: SortKey | None, context: PipelineContext) -> WindowFunction:
    """The function that `{name: argument, window: {...}}` spells."""
    if type(spec) is not dict:
        raise CommandError(9, f"the output of $setWindowFields must be an object, found {type_name(spec)}")
    names = [name for name in spec if name != "window"]
    if len(names) != 1 or not names[0].startswith("$"):
        raise CommandError(9, "Expected exactly one window function, a field that begins with '$'")
    (name,) = names
    argument, window = spec[name], spec.get("window", MISSING)
    if name in _ACCUMULATORS:
        return _accumulated(name, argument, parse_window_bounds(window, order), context)
    if name in _OVER_WINDOWS:
        return _OVER_WINDOWS[name](name, argument, parse_window_bounds(window, order), order, context)
    if name not in _OVER_ORDER:
        raise CommandError(9, f"Unrecognized window function, {name}")
    if window is not MISSING:
        raise CommandError(5371601, f"{name} takes no 'window'")
    if order is None:
        raise CommandError(5371602, f"{name} must be specified with a top level sortBy expression")
    return _OVER_ORDER[name](name, argument, order, context)


def _accumulated(name: str, argument: Any, bounds: WindowBounds, context: PipelineContext) -> WindowFunction:
    from headrace.query.accumulators import parse_accumulator

    accumulator = parse_accumulator(name, argument, context.parse_context())

    def compute(partition: Partition) -> list[Any]:
        environments = [Env(document, context.bound) for document in paced(partition.documents)]
        if bounds.grows:
            return _carried(accumulator, environments, bounds.windows(partition))
        return [_folded(accumulator, environments[start:end]) for start, end in paced(bounds.windows(partition))]

    return compute


def _folded(accumulator: Accumulator, environments: list[Env]) -> Any:
    state = accumulator.new_state()
    for environment in paced(environments):
        accumulator.add(state, environment)
    value = accumulator.result(state)
    return None if value is MISSING else value


def _carried(accumulator: Accumulator, environments: list[Env], windows: list[tuple[int, int]]) -> list[Any]:
    """As `_folded` for windows that each contain the one before."""
    state, added, column = accumulator.new_state(), 0, []
    for _, end in paced(windows):
        for environment in paced(environments[added:end]):
            accumulator.add(state, environment)
        added = max(added, end)
        value = accumulator.result(state)
        column.append(list(value) if type(value) is list else None if value is MISSING else value)
    return column


# ------------------------------------------------------------------ by order


def _no_argument(name: str, argument: Any) -> None:
    if argument != {}:
        raise CommandError(5371603, f"{name} must be specified with '{{}}' as the value")


def _rank(name: str, argument: Any, order: SortKey, context: PipelineContext) -> WindowFunction:
    _no_argument(name, argument)

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


def _document_number(name: str, argument: Any, order: SortKey, context: PipelineContext) -> WindowFunction:
    _no_argument(name, argument)
    return lambda partition: [Int64(index + 1) for index in range(len(partition.documents))]


def _shift(name: str, argument: Any, order: SortKey, context: PipelineContext) -> WindowFunction:
    options = _options(name, argument, required=("output", "by"), optional=("default",))
    if type(options["by"]) not in (int, Int64):
        raise CommandError(9, f"'$shift:by' field must be an integer, but found {options['by']!r}")
    by, output, default = int(options["by"]), context.expression(options["output"]), options.get("default")
    otherwise = context.expression(default)({})

    def compute(partition: Partition) -> list[Any]:
        documents = partition.documents
        positions = range(by, len(documents) + by)
        return [_null(output(documents[p])) if 0 <= p < len(documents) else otherwise for p in paced(positions)]

    return compute


def _moving_average(name: str, argument: Any, order: SortKey, context: PipelineContext) -> WindowFunction:
    options = _options(name, argument, required=("input",), optional=("N", "alpha"))
    if ("N" in options) == ("alpha" in options):
        raise CommandError(9, "$expMovingAvg must be called with exactly one of 'N' and 'alpha'")
    evaluate = context.expression(options["input"])
    alpha = _alpha(options)

    def compute(partition: Partition) -> list[Any]:
        column: list[Any] = []
        average: float | None = None
        for document in paced(partition.documents):
            value = evaluate(document)
            if type(value) in NUMBERS:
                number = _number(value)
                average = number if average is None else number * alpha + average * (1 - alpha)
            column.append(average)
        return column

    return compute


def _alpha(options: dict[str, Any]) -> float:
    """How much a new value weighs: as `alpha` says, or as `N` values do."""
    if "alpha" in options:
        alpha = options["alpha"]
        if type(alpha) not in NUMBERS or not 0 < _number(alpha) < 1:
            raise CommandError(9, f"'alpha' must be between 0 and 1 (exclusive), found {alpha!r}")
        return _number(alpha)
    count = int64_of(options["N"])
    if count is None or count <= 0:
        raise CommandError(9, f"'N' must be a whole number greater than zero, found {options['N']!r}")
    return 2.0 / (count + 1)


def _last_seen(name: str, argument: Any, order: SortKey, context: PipelineContext) -> WindowFunction:
    evaluate = context.expression(argument)

    def compute(partition: Partition) -> list[Any]:
        column: list[Any] = []
        for document in paced(partition.documents):
            value = _null(evaluate(document))
            column.append(column[-1] if value is None and column else value)
        return column

    return compute


def _linear_fill(name: str, argument: Any, order: SortKey, context: PipelineContext) -> WindowFunction:
    if sorted_by(order) is None:
        raise CommandError(
            605001, "$linearFill must be specified with a top level sortBy expression with exactly one element"
        )
    evaluate = context.expression(argument)

    def compute(partition: Partition) -> list[Any]:
        column = [_null(evaluate(document)) for document in paced(partition.documents)]
        for value in paced(column):
            if value is not None and type(value) not in NUMBERS:
                raise CommandError(
                    605000, f"Value to be filled must be numeric or nullish, but found: {type_name(value)}"
                )
        coordinates = [_coordinate(value) for value in paced(partition.sort_values())]
        known = [index for index, value in enumerate(column) if value is not None]
        for start, end in pairwise(paced(known)):
            _fill_between(column, coordinates, start, end)
        return column

    return compute


def _fill_between(column: list[Any], coordinates: list[float], start: int, end: int) -> None:
    slope_from, slope_to = _number(column[start]), _number(column[end])
    for index in paced(range(start + 1, end)):
        if coordinates[index] == coordinates[index - 1] or coordinates[end] == coordinates[start]:
            raise CommandError(6050106, "There can be no repeated values in the sort field of $linearFill")
        share = (coordinates[index] - coordinates[start]) / (coordinates[end] - coordinates[start])
        column[index] = slope_from + (slope_to - slope_from) * share


# ------------------------------------------------------------------ over windows


def _points(
    argument: DocumentFunction, partition: Partition, start: int, end: int, coordinates: list[float]
) -> list[tuple[float, float]]:
    """The numbers of a window with their places on the sort axis."""
    values = [(coordinates[i], argument(partition.documents[i])) for i in paced(range(start, end))]
    return [(coordinate, _number(value)) for coordinate, value in values if type(value) in NUMBERS]


def _slope(points: list[tuple[float, float]]) -> float | None:
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return None
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def _area(points: list[tuple[float, float]]) -> float | None:
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points))


def _over_axis(
    name: str, argument: Any, bounds: WindowBounds, order: SortKey | None, context: PipelineContext
) -> WindowFunction:
    options = _options(name, argument, required=("input",), optional=("unit",))
    if sorted_by(order) is None:
        raise CommandError(9, f"{name} requires a sortBy of a single field")
    unit = options.get("unit")
    if unit is not None and unit not in MILLISECONDS:
        raise CommandError(5490710, f"unit must be 'week' or smaller: {unit!r}")
    evaluate, scale = context.expression(options["input"]), MILLISECONDS.get(unit, 1) if unit else 1
    measure = _slope if name == "$derivative" else _area

    def compute(partition: Partition) -> list[Any]:
        coordinates = [_coordinate(value, unit) / scale for value in paced(partition.sort_values())]
        windows = paced(bounds.windows(partition))
        return [measure(_points(evaluate, partition, *window, coordinates)) for window in windows]

    return compute


def _covariance(
    name: str, argument: Any, bounds: WindowBounds, order: SortKey | None, context: PipelineContext
) -> WindowFunction:
    if type(argument) is not list or len(argument) != 2:
        raise CommandError(9, f"{name} takes an array of two expressions")
    left, right = (context.expression(item) for item in argument)
    less = 1 if name == "$covarianceSamp" else 0

    def covariance(documents: list[Document]) -> float | None:
        pairs = [(left(document), right(document)) for document in paced(documents)]
        numbers = [(_number(x), _number(y)) for x, y in pairs if type(x) in NUMBERS and type(y) in NUMBERS]
        count = len(numbers)
        if count <= less:
            return None
        mean_x, mean_y = sum(x for x, _ in numbers) / count, sum(y for _, y in numbers) / count
        return sum((x - mean_x) * (y - mean_y) for x, y in numbers) / (count - less)

    return lambda partition: [covariance(partition.documents[start:end]) for start, end in bounds.windows(partition)]


def _options(name: str, argument: Any, *, required: tuple[str, ...], optional: tuple[str, ...]) -> Document:
    if type(argument) is not dict:
        raise CommandError(9, f"Argument to {name} must be an object")
    for option in argument:
        if option not in required + optional:
            raise CommandError(9, f"{name} got unexpected argument: {option}")
    for option in required:
        if option not in argument:
            raise CommandError(9, f"{name} requires an '{option}' argument")
    return argument


def _null(value: Any) -> Any:
    return None if value is MISSING else value


def _number(value: Any) -> float:
    return float(str(value))


def _coordinate(value: Any, unit: str | None = None) -> float:
    """Where a sort value lies on its axis; dates in milliseconds."""
    if type(value) is DatetimeMS:
        return float(int(value))
    if unit is not None or type(value) not in NUMBERS:
        raise CommandError(5624900, f"the sort field must be a number, or a date with a 'unit', not {type_name(value)}")
    return _number(value)


_OVER_ORDER: Final = {
    "$denseRank": _rank,
    "$documentNumber": _document_number,
    "$expMovingAvg": _moving_average,
    "$linearFill": _linear_fill,
    "$locf": _last_seen,
    "$rank": _rank,
    "$shift": _shift,
}
_OVER_WINDOWS: Final = {
    "$covariancePop": _covariance,
    "$covarianceSamp": _covariance,
    "$derivative": _over_axis,
    "$integral": _over_axis,
}
