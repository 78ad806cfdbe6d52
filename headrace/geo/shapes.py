"""Shapes on the sphere: the geometry of a document's value or of a query, and circles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import pi
from typing import Final

from headrace.geo.polygons import Edge, Polygon, edges_meet
from headrace.geo.sphere import TOUCH, Vector, angle, edge_distance, line_distance

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
            if any(_lines_meet(line, given) for given in other.lines):
                return True
            if any(polygon.meets_line(line) for polygon in other.polygons):
                return True
        return any(
            any(polygon.meets_line(line) for line in other.lines)
            or any(polygon.meets_polygon(given) for given in other.polygons)
            for polygon in self.polygons
        )


def _lines_meet(line: Sequence[Vector], other: Sequence[Vector]) -> bool:
    return edges_meet(list(pairwise(line)), list(pairwise(other)))


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
