"""2dsphere and 2d indexes, seen by the planner as ordered indexes on cell numbers, and the conditions on these.

    {at: {$geoWithin: ...}}   →   at is in the cells of a covering or, if lines and polygons are stored, around them

If all documents have points, those in a cell wholly inside the region match without a test.

A condition on the sphere bounds the cells of a 2dsphere index. A condition on the plane bounds the squares of a 2d
index, and so does a circle on the sphere that does not reach 180 degrees or a pole. Without such a condition the index
is not used, because it lacks documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bson import Int64

from headrace.execution.planner.bounds import PathCondition
from headrace.execution.planner.intervals import BEFORE, BEHIND, End, Interval, Intervals, point, union
from headrace.query.match.match_expression import LeafMatchExpression, MatchType
from headrace.store.catalog import Index
from headrace.store.indexes.geo_keys import flat_path, geo_paths
from headrace.values.keystring import encode_value

if TYPE_CHECKING:
    from headrace.geo.flat import Box


def cell_conditions(index: Index, conditions: Sequence[PathCondition]) -> list[PathCondition] | None:
    """Return the conditions, with conditions on geometries as ranges of cells; None if no geometry is bounded."""
    flat = flat_path(index.spec["key"])
    paths = geo_paths(index.spec["key"]) if flat is None else [flat]
    made = [_on_cells(index, condition) if condition.path in paths else condition for condition in conditions]
    if not any(condition.path in paths and condition.intervals is not None for condition in made):
        return None
    return made


def _on_cells(index: Index, condition: PathCondition) -> PathCondition:
    node = condition.node
    intervals = sure = None
    is_flat = flat_path(index.spec["key"]) is not None
    if not isinstance(node, LeafMatchExpression) or node.kind is not MatchType.GEO:
        pass
    elif is_flat:
        box = node.argument.box()
        intervals = None if box is None else _square_intervals(index, box)
    elif not node.argument.is_flat:
        cover = node.argument.cover()
        intervals = _intervals(cover.spans())
        if index.traits:
            intervals = _with_cells_around(intervals, cover.numbers)
        elif condition.element is None:
            sure = _intervals(cover.sure_spans()) or None
    return condition._replace(intervals=intervals, is_exact=False, sure=sure)


def _square_intervals(index: Index, box: Box) -> Intervals:
    """Return the ranges of the squares that cover a box."""
    from headrace.geo.grid import Grid

    grid = Grid.of(index.spec)
    made = []
    for square in grid.covering(box):
        first, last = grid.numbers(square)
        made.append(CellInterval(first, last))
    return union(made)


def _intervals(spans: Sequence[tuple[int, int]]) -> Intervals:
    return [CellInterval(first, last) for first, last in spans]


def _with_cells_around(intervals: Intervals, numbers: Sequence[int]) -> Intervals:
    """Return the intervals of cells, and of all larger cells that contain these."""
    from headrace.geo.cells import cells_around, signed

    return union([*intervals, *(point(Int64(signed(number))) for number in cells_around(numbers))])


class CellInterval(Interval):
    """The numbers of leaves from `first` to `last`. A query has many intervals, so their ends are made when needed."""

    __slots__ = ("_numbers",)
    _numbers: tuple[int, int]

    def __init__(self, first: int, last: int) -> None:
        object.__setattr__(self, "_numbers", (first, last))

    @property
    def low(self) -> End:  # type: ignore[override]
        """The first number."""
        return _end(self._numbers[0])

    @property
    def high(self) -> End:  # type: ignore[override]
        """The last number."""
        return _end(self._numbers[1])

    @property
    def is_point(self) -> bool:
        """Whether the interval is a single number."""
        return self._numbers[0] == self._numbers[1]

    def positions(self, descending: bool = False) -> tuple[bytes, bytes]:
        """Return [low, high) in bytes of the field's key."""
        if descending:
            return Interval.positions(self, descending)
        first, last = self._numbers
        return encode_value(first) + BEFORE, encode_value(last) + BEHIND


def _end(number: int) -> End:
    return End(encode_value(number), Int64(number))
