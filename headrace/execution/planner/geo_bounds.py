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
from headrace.execution.planner.intervals import End, Interval, Intervals, point, union
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
        intervals = cell_intervals([*cover.inside, *cover.crossing], with_shapes=bool(index.traits))
        if cover.inside and not index.traits and condition.element is None:
            sure = cell_intervals(cover.inside, with_shapes=False)
    return condition._replace(intervals=intervals, is_exact=False, sure=sure)


def _square_intervals(index: Index, box: Box) -> Intervals:
    """Return the ranges of the squares that cover a box."""
    from headrace.geo.grid import Grid

    grid = Grid.of(index.spec)
    made = []
    for square in grid.covering(box):
        first, last = grid.numbers(square)
        made.append(_between(Int64(first), Int64(last)))
    return union(made)


def cell_intervals(numbers: Sequence[int], *, with_shapes: bool) -> Intervals:
    """Return the ranges of all cells inside the given ones. `with_shapes`: also the cells that contain these."""
    from headrace.geo.cells import ancestors, signed, spans

    made = [_between(Int64(first), Int64(last)) for first, last in spans(numbers)]
    if not with_shapes:
        return made
    around = {around for number in numbers for around in ancestors(number)}
    return union([*made, *(point(Int64(signed(number))) for number in around)])


def _between(first: Int64, last: Int64) -> Interval:
    return Interval(End(encode_value(first), first), End(encode_value(last), last))
