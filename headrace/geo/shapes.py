"""Shapes on the sphere: polygons, the geometry of a document's value or of a query, circles.

The parity of crossings between a point and a fixed origin decides whether the point is inside a loop. The inside of a
loop is to the left of its edges. Where polygons share edges, each point on these edges is in exactly one polygon, as on
MongoDB. Containment of lines and polygons, and intersections, count the edges as part of the polygon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import cos, pi
from typing import Final

from headrace.geo.sphere import (
    SIGN_ERROR,
    TOUCH,
    Vector,
    angle,
    cross,
    crosses,
    crosses_at_vertex,
    dot,
    edge_distance,
    edge_normal,
    is_ordered,
    line_distance,
    normalized,
    orientation,
    reference_direction,
    turn,
)

Edge = tuple[Vector, Vector]

_ORIGIN: Final = normalized((-0.0099994664350250197, 0.0025924542609324121, 0.99994664350250195))
_LEFT: Final = 1e-14  # radians by which a loop's turns may miss a full hemisphere


class Loop:
    """A closed ring of at least three vertices, and everything to the left of it."""

    __slots__ = ("_edges", "_origin_inside", "cap", "vertices")

    def __init__(self, vertices: Sequence[Vector]) -> None:
        self.vertices = tuple(vertices)
        self._edges = [
            (a, b, edge_normal(a, b), orientation(a, b, _ORIGIN))
            for a, b in pairwise((*self.vertices, self.vertices[0]))
        ]
        self._origin_inside = False
        self.cap: tuple[Vector, float] | None = None
        """(centre, radius in radians) of a circle around the loop; None if no small circle contains the loop."""
        before, at, behind = self.vertices[:3]
        inside = is_ordered(reference_direction(at), before, behind, at)
        self._origin_inside = self.contains(at) != inside
        self.cap = self._bound()

    @property
    def edges(self) -> Iterator[Edge]:
        """The edges in order."""
        return ((a, b) for a, b, _, _ in self._edges)

    @property
    def is_small(self) -> bool:
        """Whether the loop covers at most half of the sphere."""
        ring = (*self.vertices, *self.vertices[:2])
        return sum(turn(a, b, c) for a, b, c in zip(ring, ring[1:], ring[2:])) >= -_LEFT

    def inverted(self) -> Loop:
        """Return the loop with the same edges and the other side of the sphere."""
        return Loop(self.vertices[::-1])

    def contains(self, p: Vector) -> bool:
        """Return whether a point is inside. A point on an edge is inside exactly one of the two neighbouring loops."""
        if self.cap is not None and dot(self.cap[0], p) < cos(self.cap[1]) - SIGN_ERROR:
            return False
        inside = self._origin_inside
        path = cross(_ORIGIN, p)
        for a, b, normal, side_of_origin in self._edges:
            value = normal[0] * p[0] + normal[1] * p[1] + normal[2] * p[2]
            if value > SIGN_ERROR:
                side = 1
            elif value < -SIGN_ERROR:
                side = -1
            elif p in (a, b):
                inside ^= crosses_at_vertex(_ORIGIN, p, a, b)
                continue
            else:
                side = orientation(a, b, p)
            if side == side_of_origin:
                continue
            if _side(path, p, a) == side and _side(path, p, b) == -side:
                inside = not inside
        return inside

    def _bound(self) -> tuple[Vector, float] | None:
        total = (sum(v[0] for v in self.vertices), sum(v[1] for v in self.vertices), sum(v[2] for v in self.vertices))
        centre = normalized(total)
        radius = max(angle(centre, vertex) for vertex in self.vertices) + TOUCH
        if radius >= pi / 2 - _LEFT or self.contains((-centre[0], -centre[1], -centre[2])):
            return None
        return centre, radius


def _side(path: Vector, p: Vector, vertex: Vector) -> int:
    """Return `orientation(_ORIGIN, p, vertex)`, given `path`, the cross product of the first two."""
    value = path[0] * vertex[0] + path[1] * vertex[1] + path[2] * vertex[2]
    if value > SIGN_ERROR:
        return 1
    return -1 if value < -SIGN_ERROR else orientation(_ORIGIN, p, vertex)


class Polygon:
    """An outer loop and its holes, each a small loop; or one loop of any size."""

    __slots__ = ("holes", "outer")

    def __init__(self, outer: Loop, holes: Sequence[Loop] = ()) -> None:
        self.outer = outer
        self.holes = tuple(holes)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The outer loop, then the holes."""
        return (self.outer, *self.holes)

    @property
    def edges(self) -> Iterator[Edge]:
        """The edges of all loops."""
        return (edge for loop in self.loops for edge in loop.edges)

    @property
    def vertices(self) -> Iterator[Vector]:
        """The vertices of all loops."""
        return (vertex for loop in self.loops for vertex in loop.vertices)

    def contains(self, p: Vector) -> bool:
        """Return whether a point is inside. Points on edges are treated as by `Loop.contains`."""
        return self.outer.contains(p) and not (self.holes and any(hole.contains(p) for hole in self.holes))

    def distance(self, p: Vector) -> float:
        """Return the angle from a point to the polygon in radians, 0 inside."""
        if self.contains(p):
            return 0.0
        return min(edge_distance(p, a, b) for a, b in self.edges)

    def holds(self, p: Vector) -> bool:
        """Return whether a point is inside or on an edge."""
        return self.distance(p) <= TOUCH

    def holds_line(self, line: Sequence[Vector]) -> bool:
        """Return whether every point of a line is inside or on an edge."""
        return self._holds_edges(list(pairwise(line)))

    def holds_polygon(self, other: Polygon) -> bool:
        """Return whether all of another polygon is inside."""
        if not self._holds_edges(list(other.edges)):
            return False
        # The interior of the other polygon is inside, too, unless an edge of this one is within the other.
        if any(other.contains(vertex) and not other.is_edge_point(vertex) for vertex in self.vertices):
            return False
        return not (_whole(other) and not _whole(self))

    def _holds_edges(self, edges: Sequence[Edge]) -> bool:
        if not all(self.holds(a) and self.holds(b) for a, b in edges):
            return False
        count = len(edges)
        for first, edge, second, other in _near_pairs([*edges, *self.edges]):
            if (first < count) != (second < count) and crosses(*edge, *other):
                return False
        return all(self.holds(normalized((a[0] + b[0], a[1] + b[1], a[2] + b[2]))) for a, b in edges)

    def is_edge_point(self, p: Vector) -> bool:
        """Return whether a point is on an edge."""
        return any(edge_distance(p, a, b) <= TOUCH for a, b in self.edges)

    def meets_line(self, line: Sequence[Vector]) -> bool:
        """Return whether a line has a point in common with the polygon."""
        if any(self.holds(vertex) for vertex in line):
            return True
        return edges_meet(list(pairwise(line)), list(self.edges))

    def meets_polygon(self, other: Polygon) -> bool:
        """Return whether another polygon has a point in common with this one."""
        if any(self.holds(loop.vertices[0]) for loop in other.loops):
            return True
        if any(other.holds(loop.vertices[0]) for loop in self.loops):
            return True
        return edges_meet(list(other.edges), list(self.edges))


def _whole(polygon: Polygon) -> bool:
    """Whether a polygon covers more than half of the sphere."""
    return not polygon.outer.is_small


def edges_meet(some: Sequence[Edge], others: Sequence[Edge]) -> bool:
    """Return whether any edge of `some` crosses or touches an edge of `others`."""
    count = len(some)
    return any(
        (first < count) != (second < count) and (crosses(*edge, *other) or _touch(*edge, *other))
        for first, edge, second, other in _near_pairs([*some, *others])
    )


def _touch(a: Vector, b: Vector, c: Vector, d: Vector) -> bool:
    return (
        edge_distance(a, c, d) <= TOUCH or edge_distance(b, c, d) <= TOUCH or edge_distance(c, a, b) <= TOUCH
        or edge_distance(d, a, b) <= TOUCH
    )  # fmt: skip


def crossing_edges(vertices: Sequence[Vector]) -> tuple[int, int] | None:
    """Return the numbers of two edges of a ring that cross; None if no edges cross."""
    edges = list(pairwise((*vertices, vertices[0])))
    for first, edge, second, other in _near_pairs(edges):
        if crosses(*edge, *other):
            return min(first, second), max(first, second)
    return None


def _near_pairs(edges: Sequence[Edge]) -> Iterator[tuple[int, Edge, int, Edge]]:
    """Pairs of edges whose boxes overlap, each edge with its number, found by a sweep along the first axis."""
    boxes = []
    for number, (a, b) in enumerate(edges):
        chord = (b[0] - a[0], b[1] - a[1], b[2] - a[2])
        pad = dot(chord, chord) / 4 + 4 * TOUCH  # an arc bulges over its chord
        low = [min(x, y) - pad for x, y in zip(a, b)]
        high = [max(x, y) + pad for x, y in zip(a, b)]
        boxes.append((low, high, number))
    boxes.sort()
    active: list[tuple[list[float], list[float], int]] = []
    for low, high, number in boxes:
        active = [item for item in active if item[1][0] >= low[0]]
        for other_low, other_high, other in active:
            if all(other_high[axis] >= low[axis] and other_low[axis] <= high[axis] for axis in (1, 2)):
                yield other, edges[other], number, edges[number]
        active.append((low, high, number))


def small(loop: Loop) -> Loop:
    """Return the loop, or its other side if that is smaller."""
    return loop if loop.is_small else loop.inverted()


Line = tuple[Vector, ...]

_SAME: Final = 1e-9
"""Radians (6 mm) within which `$geoIntersects` treats a point as part of a shape: MongoDB compares cells."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Points, lines and polygons that form one geometry. `pair`: (x, y) as stored, if the geometry is a single
    point."""

    points: tuple[Vector, ...] = ()
    lines: tuple[Line, ...] = ()
    polygons: tuple[Polygon, ...] = ()
    pair: tuple[float, float] | None = None
    is_strict: bool = False
    """Whether this is a polygon of the strict CRS: its inside is to the left of its edges, however large."""

    @property
    def edges(self) -> Iterator[Edge]:
        """The edges of lines and polygons."""
        for line in self.lines:
            yield from pairwise(line)
        for polygon in self.polygons:
            yield from polygon.edges

    def distance(self, p: Vector) -> float:
        """Return the angle from a point to the nearest point of the shape, in radians."""
        found = [angle(p, point) for point in self.points]
        found += [line_distance(p, line) for line in self.lines]
        found += [polygon.distance(p) for polygon in self.polygons]
        return min(found)

    def holds_point(self, p: Vector) -> bool:
        """Return whether a point is within a polygon of the shape."""
        return any(polygon.contains(p) for polygon in self.polygons)

    def holds(self, other: Geometry) -> bool:
        """Return whether each part of another shape is within one polygon of this one."""
        return (
            all(map(self.holds_point, other.points))
            and all(any(polygon.holds_line(line) for polygon in self.polygons) for line in other.lines)
            and all(any(polygon.holds_polygon(inner) for polygon in self.polygons) for inner in other.polygons)
        )

    def meets(self, other: Geometry) -> bool:
        """Return whether another shape has a point in common."""
        if any(self.distance(p) <= _SAME for p in other.points) or any(other.distance(p) <= _SAME for p in self.points):
            return True
        for line in self.lines:
            if any(edges_meet(list(pairwise(line)), list(pairwise(given))) for given in other.lines):
                return True
            if any(polygon.meets_line(line) for polygon in other.polygons):
                return True
        return any(
            any(polygon.meets_line(line) for line in other.lines)
            or any(polygon.meets_polygon(given) for given in other.polygons)
            for polygon in self.polygons
        )


@dataclass(frozen=True, slots=True)
class Cap:
    """All points within `radius` radians of a centre."""

    centre: Vector
    radius: float

    def holds_point(self, p: Vector) -> bool:
        """Return whether a point is in the circle."""
        return self.radius >= pi or angle(self.centre, p) <= self.radius + TOUCH

    def holds(self, other: Geometry) -> bool:
        """Return whether all of a shape is in the circle."""
        if self.radius >= pi:
            return True
        if not all(map(self.holds_point, other.points)):
            return False
        limit = self.radius + TOUCH
        # The farthest point is a vertex, or the point of an edge that is nearest to the antipode of the centre.
        opposite = (-self.centre[0], -self.centre[1], -self.centre[2])
        if any(pi - edge_distance(opposite, a, b) > limit for a, b in other.edges):
            return False
        return not any(polygon.contains(opposite) for polygon in other.polygons)
