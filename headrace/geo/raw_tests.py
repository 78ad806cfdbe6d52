"""Tests of many raw documents with plain points, read from their bytes: whether the points match a region.

A circle compares cosines. Polygons are projected from the centre of the earth onto a plane, where their edges are
straight lines; a point is inside if a line from it crosses the edges of a loop an odd number of times. Only edges at
the point's height are looked at:

    heights of vertices   →   slabs between two of them   →   the edges that cross a slab

A verdict that rounding could change is None, and left to the exact test.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import cos, pi, radians, sin
from typing import Final

from headrace.geo.geojson import raw_plain_points
from headrace.geo.near_cells import in_face
from headrace.geo.shapes import Cap, Geometry
from headrace.geo.sphere import Vector, dot, normalized, vector

RawTests = Callable[[Sequence[bytes]], list[bool | None]]

_COSINE_ERROR: Final = 1e-14
_EDGE_COUNT: Final = 256
"""The maximum of edges of a shape whose points are tested without a pause."""
_NEAR: Final = 0.3
"""The least cosine of the angle between a vertex and the middle of the plane."""
_ERROR: Final = 1e-12
"""The distance on the plane from an edge within which rounding could change a verdict."""
_TOUCH: Final = 3e-8
"""The distance on the plane from an edge within which a point may touch the edge, as `$geoIntersects` counts it."""

_Line = tuple[float, float, float, float, int]
"""An edge on the plane: a point of it, its slope, the error of a crossing, and the bit of its loop."""


def raw_circle_tests(path: str, area: Cap) -> RawTests:
    """Return the tests for a circle."""
    points_of, (x, y, z) = raw_plain_points(path), area.centre
    least = cos(min(area.radius, pi))
    inside, outside = least + _COSINE_ERROR, least - _COSINE_ERROR

    def tests(chunk: Sequence[bytes]) -> list[bool | None]:
        made: list[bool | None] = []
        for pair in points_of(chunk):
            if pair is None:
                made.append(None)
                continue
            lng, lat = radians(pair[0]), radians(pair[1])
            cosine = (x * cos(lng) + y * sin(lng)) * cos(lat) + z * sin(lat)
            made.append(True if cosine > inside else False if cosine < outside else area.holds_point(vector(*pair)))
        return made

    return tests


def raw_shape_tests(path: str, area: Geometry, *, intersects: bool) -> RawTests | None:
    """Return the tests for polygons; None if they are large or have many edges. `intersects`: a point that touches an
    edge matches."""
    slabs = _Slabs.of(area, _TOUCH if intersects else _ERROR)
    if slabs is None:
        return None
    points_of, holds = raw_plain_points(path), slabs.holds

    def tests(chunk: Sequence[bytes]) -> list[bool | None]:
        return [None if pair is None else holds(vector(*pair)) for pair in points_of(chunk)]

    return tests


class _Slabs:
    """Polygons on the plane of a face of the cube."""

    __slots__ = ("_face", "_heights", "_known", "_lines", "_margin", "_masks")

    def __init__(self, face: int, area: Geometry, margin: float) -> None:
        self._face = face
        self._margin = margin
        self._lines: list[tuple[float, float, _Line]] = []
        """(low, high, line) of each edge."""
        self._masks: list[tuple[int, int]] = []
        """For each polygon the bits of its loops, and that of its outer loop."""
        self._known: dict[int, list[_Line]] = {}
        heights: set[float] = set()
        bit = 1
        for polygon in area.polygons:
            outer, mask = bit, 0
            for loop in polygon.loops:
                places = [(u / f, v / f) for f, u, v in (in_face(face, vertex) for vertex in loop.vertices)]
                heights.update(v for _, v in places)
                for (au, av), (bu, bv) in pairwise((*places, places[0])):
                    if av != bv:
                        slope = (bu - au) / (bv - av)
                        line = au, av, slope, margin * (1 + abs(slope)), bit
                        self._lines.append((min(av, bv), max(av, bv), line))
                mask |= bit
                bit <<= 1
            self._masks.append((mask, outer))
        self._heights = sorted(heights)

    @classmethod
    def of(cls, area: Geometry, margin: float) -> _Slabs | None:
        """Return the polygons on a plane; None for other shapes, and for polygons that do not fit on a plane."""
        loops = [loop for polygon in area.polygons for loop in polygon.loops]
        vertices = [vertex for loop in loops for vertex in loop.vertices]
        if area.points or area.lines or not 0 < len(vertices) <= _EDGE_COUNT:
            return None
        total = (sum(p[0] for p in vertices), sum(p[1] for p in vertices), sum(p[2] for p in vertices))
        face = max(range(6), key=lambda number: in_face(number, total)[0])
        axis: Vector = normalized((float(face % 3 == 0), float(face % 3 == 1), float(face % 3 == 2)))
        behind = axis if face > 2 else (-axis[0], -axis[1], -axis[2])
        if any(in_face(face, vertex)[0] < _NEAR for vertex in vertices):
            return None
        for loop in loops:  # the other side of the earth must be outside of each
            if loop.cap is None or dot(loop.cap[0], behind) >= cos(loop.cap[1]):
                return None
        return cls(face, area, margin)

    def holds(self, p: Vector) -> bool | None:
        """Return whether a point is inside; None if it is near an edge, or at the height of a vertex."""
        f, u, v = in_face(self._face, p)
        if f < _NEAR / 2:
            return False
        u, v = u / f, v / f
        heights, margin = self._heights, self._margin
        at = bisect_right(heights, v)
        if (at and v - heights[at - 1] <= margin) or (at < len(heights) and heights[at] - v <= margin):
            return None
        if not 0 < at < len(heights):
            return False
        inside = 0
        for au, av, slope, error, bit in self._known.get(at) or self._slab(at):
            distance = au + (v - av) * slope - u
            if distance > error:
                inside ^= bit
            elif distance >= -error:
                return None
        if not inside:
            return False
        return any(inside & mask == outer for mask, outer in self._masks)

    def _slab(self, at: int) -> list[_Line]:
        """Return the edges that cross the slab below a height."""
        low, high = self._heights[at - 1], self._heights[at]
        made = self._known[at] = [line for least, most, line in self._lines if least <= low and most >= high]
        return made
