"""Coverings: a few cells that together contain a whole region. They may contain more; the filter decides.

Each cell is treated as the circle around it. Each of its four children is compared only with the edges near the cell,
so that a covering costs little more than one look at each edge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import cos, floor, log2, pi, sin
from typing import Final

from headrace.geo.cells import FACES, LEAF_LEVEL, Cell, cell_at, leaf
from headrace.geo.covers import Cover
from headrace.geo.near_cells import SphereCells
from headrace.geo.polygon_rows import shape_cover
from headrace.geo.polygons import Edge
from headrace.geo.rows import RADIUS_MAX, RADIUS_MIN, circle_cover
from headrace.geo.shapes import Cap, Geometry
from headrace.geo.sphere import SIGN_ERROR, Vector, angle, edge_normal, normalized

_SLACK: Final = 2e-9
"""Radians by which a region is widened, because `$geoIntersects` counts near misses as touching."""
_WIDTH: Final = 0.94
"""The least width of a cell, in radians, is this divided by two to the power of its level."""
_STORED_COUNT: Final = 20
_STORED_LEVEL: Final = 23
_QUERY_COUNT: Final = 16
_CIRCLE_COUNT: Final = 48


_Arc = tuple[Vector, Vector, float, float]
"""An edge as its normal, its middle, and the cosine and the sine of half its length."""


def stored_cells(shape: Geometry) -> list[int]:
    """Return the numbers of the cells under which an index holds a shape: a leaf for each point, a covering for the
    rest."""
    made = {leaf(p): None for p in shape.points}
    if shape.lines or shape.polygons:
        rest = Geometry(lines=shape.lines, polygons=shape.polygons)
        inside, crossing = covering(rest, _STORED_COUNT, _STORED_LEVEL)
        made |= dict.fromkeys([*inside, *crossing])
    return list(made)


def query_cells(area: Geometry | Cap) -> Cover:
    """Return the cells that a query for an area searches."""
    if isinstance(area, Cap):
        if RADIUS_MIN <= area.radius <= RADIUS_MAX:
            return circle_cover(area, _SLACK)
        return _cover_circle(area, _CIRCLE_COUNT)
    rest = Geometry(lines=area.lines, polygons=area.polygons) if area.points else area
    bound = _bound(rest) if area.lines or area.polygons else None
    cover = Cover([], [])
    if bound is not None and RADIUS_MIN <= bound[1] <= RADIUS_MAX:
        cover = shape_cover(rest, bound, _SLACK)
    elif area.lines or area.polygons:
        cover = covering(rest, _QUERY_COUNT, LEAF_LEVEL)
    if not area.points:
        return cover
    made = dict.fromkeys(cover.crossing)
    for p in area.points:
        made |= dict.fromkeys(_cover_circle(Cap(p, _SLACK), 4).crossing)
    return Cover(cover.inside, list(made))


def _cover_circle(circle: Cap, count_max: int) -> Cover:
    """Return at most about `count_max` cells that together contain a circle. The largest cells are divided first."""
    relation = SphereCells(circle.centre, 1.0).relation(circle.radius, _SLACK)
    done: list[Cell] = []
    crossing = deque[Cell]()

    def sort_out(cells: Sequence[Cell]) -> None:
        for cell in cells:
            is_inside = relation(cell)
            if is_inside is not None:
                (done if is_inside else crossing).append(cell)

    sort_out(_start((circle.centre, circle.radius), LEAF_LEVEL))
    while crossing and len(done) + len(crossing) + 3 <= count_max and crossing[0].level < LEAF_LEVEL:
        sort_out(crossing.popleft().children)
    return Cover([cell.number for cell in done], [cell.number for cell in crossing])


def covering(area: Geometry, count_max: int, level_max: int) -> Cover:
    """Return at most about `count_max` cells, of at most `level_max`, that together contain a region."""
    done: list[Cell] = []
    wave: list[tuple[Cell, Sequence[_Arc]]] = []
    edges = tuple(map(_arc, area.edges))
    _sort_out(area, [(cell, edges) for cell in _start(_bound(area), level_max)], done, wave)
    while wave and len(done) + len(wave) < count_max:
        if wave[0][0].level == level_max:
            break
        held, following = list(done), list[tuple[Cell, Sequence[_Arc]]]()
        _sort_out(area, [(child, near) for cell, near in wave for child in cell.children], held, following)
        if len(held) + len(following) > count_max:
            break
        done, wave = held, following
    return Cover([cell.number for cell in done], [cell.number for cell, _ in wave])


def _sort_out(
    area: Geometry, cells: list[tuple[Cell, Sequence[_Arc]]], inside: list[Cell],
    crossing: list[tuple[Cell, Sequence[_Arc]]],
) -> None:  # fmt: skip
    """Append cells inside the region to `inside` and cells that meet its edge to `crossing`. Leave out all others."""
    for cell, edges in cells:
        centre, radius = cell.circle
        radius += _SLACK
        near = _near(edges, centre, radius)
        if near:
            crossing.append((cell, near))
        elif any(polygon.contains(centre) for polygon in area.polygons):
            inside.append(cell)


def _arc(edge: Edge) -> _Arc:
    a, b = edge
    half = angle(a, b) / 2
    middle = normalized((a[0] + b[0], a[1] + b[1], a[2] + b[2]))
    return normalized(edge_normal(a, b)), middle, cos(half), sin(half)


def _near(arcs: Sequence[_Arc], centre: Vector, radius: float) -> list[_Arc]:
    """The edges that may come within a radius of a centre."""
    x, y, z = centre
    reach, rest = sin(radius), cos(radius)
    return [
        arc for arc in arcs
        if abs(arc[0][0] * x + arc[0][1] * y + arc[0][2] * z) <= reach
        and arc[1][0] * x + arc[1][1] * y + arc[1][2] * z >= arc[2] * rest - arc[3] * reach - SIGN_ERROR
    ]  # fmt: skip


def _start(bound: tuple[Vector, float] | None, level_max: int) -> Sequence[Cell]:
    """A few cells of one level that together contain the circle around a region and are not much larger."""
    if bound is None or bound[1] > _WIDTH / 4:
        return FACES
    level = floor(log2(_WIDTH / (1.5 * bound[1] + 2 * _SLACK)))
    return sorted(cell_at(bound[0], max(0, min(level, level_max))).around)


def _bound(area: Geometry) -> tuple[Vector, float] | None:
    """A circle around the lines and polygons; None if no small circle contains them."""
    caps = [polygon.outer.cap for polygon in area.polygons]
    if None in caps:
        return None
    vertices = [p for line in area.lines for p in line] + [
        p for polygon in area.polygons for p in polygon.outer.vertices
    ]
    centre = normalized((sum(p[0] for p in vertices), sum(p[1] for p in vertices), sum(p[2] for p in vertices)))
    radius = max(angle(centre, p) for p in vertices)
    return (centre, radius) if radius < pi / 4 else None
