"""A 2dsphere or a 2d index to the planner: an ordered index on the numbers of cells, and conditions on these.

    {at: {$geoWithin: ...}}   →   at is in the cells of a covering, or, where lines and polygons are stored, around them

Only a condition on the sphere bounds the cells, and one on the plane the squares of a 2d index. Without one the index
is of no use: it lacks documents.
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
    """Return the conditions with those on geometries as ranges of cells; None where there is none."""
    flat = flat_path(index.spec["key"])
    paths = geo_paths(index.spec["key"]) if flat is None else [flat]
    made = [_on_cells(index, condition) if condition.path in paths else condition for condition in conditions]
    if not any(condition.path in paths and condition.intervals is not None for condition in made):
        return None
    return made


def _on_cells(index: Index, condition: PathCondition) -> PathCondition:
    node = condition.node
    intervals = None
    is_flat = flat_path(index.spec["key"]) is not None
    if not isinstance(node, LeafMatchExpression) or node.kind is not MatchType.GEO or node.argument.is_flat != is_flat:
        pass
    elif is_flat:
        intervals = _square_intervals(index, node.argument.area.bounds)
    else:
        intervals = cell_intervals(node.argument.cells(), with_shapes=bool(index.traits))
    return condition._replace(intervals=intervals, is_exact=False)


def _square_intervals(index: Index, box: Box) -> Intervals:
    """The ranges of the squares in which pairs in a box are."""
    from headrace.geo.grid import Grid

    grid = Grid.of(index.spec)
    made = []
    for square in grid.covering(box):
        first, last = [Int64(number) for number in grid.numbers(square)]
        made.append(Interval(End(encode_value(first), first), End(encode_value(last), last)))
    return union(made)


def cell_intervals(numbers: Sequence[int], *, with_shapes: bool) -> Intervals:
    """Return the ranges of all cells within some, and with `with_shapes` of those that they are in."""
    from headrace.geo.cells import ancestors, ends, signed

    made = []
    around: set[int] = set()
    for number in numbers:
        first, last = [Int64(signed(end)) for end in ends(number)]
        made.append(Interval(End(encode_value(first), first), End(encode_value(last), last)))
        if with_shapes:
            around.update(ancestors(number))
    made += [point(Int64(signed(number))) for number in around]
    return union(made)
