"""The arguments of `$geoWithin` and `$geoIntersects`: regions, and whether a stored value is inside or meets one.

Many raw documents with plain points are tested by their bytes. A circle compares cosines. Polygons are projected from
the centre of the earth onto a plane, where their edges are straight lines; a point is inside if a line from it crosses
the edges of a loop an odd number of times. Only edges at the point's height are looked at:

    heights of vertices   →   slabs between two of them   →   the edges that cross a slab

A verdict that rounding could change is None, and left to the exact test.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import asin, atan2, cos, degrees, hypot, isnan, pi, radians, sin
from typing import Any, Final

from headrace.errors import CommandError
from headrace.geo.cells import in_face
from headrace.geo.covering import Cover, query_cells
from headrace.geo.geojson import (
    NUMBERS,
    BadGeometry,
    Pair,
    geojson_shape,
    is_on_earth,
    number,
    pair_of,
    plain_point,
    raw_plain_points,
    stored_shape,
)
from headrace.geo.plane import Box, Circle, FlatPolygon, FlatShape
from headrace.geo.shapes import Cap, Geometry
from headrace.geo.sphere import Vector, dot, normalized, vector
from headrace.values.bson import to_string

_BAD_VALUE: Final = 2


@dataclass(frozen=True, slots=True)
class Region:
    """The region that a geospatial condition names: a shape or a circle on the sphere, or a shape on the plane."""

    area: Geometry | Cap | FlatShape
    intersects: bool
    """Whether a shape matches if it meets the area, rather than only if it is inside."""
    _cover: Cover | None = field(default=None, compare=False, repr=False)

    @property
    def is_flat(self) -> bool:
        """Whether the area is on the plane."""
        return not isinstance(self.area, Geometry | Cap)

    def cover(self) -> Cover:
        """Return the index cells that cover an area on the sphere. Computed once."""
        if self._cover is None:
            assert isinstance(self.area, Geometry | Cap)
            object.__setattr__(self, "_cover", query_cells(self.area))
            assert self._cover is not None
        return self._cover

    def box(self) -> Box | None:
        """Return a box of the plane that contains all matching pairs; None if no small box does."""
        if not isinstance(self.area, Geometry | Cap):
            return self.area.bounds
        return box_about(self.area) if isinstance(self.area, Cap) else None

    def __call__(self, value: Any) -> bool:
        """Return whether a value of a document matches. A value that is not a geometry does not match."""
        if type(value) is dict:
            area = self.area
            if not self.intersects and isinstance(area, Geometry | Cap):
                point = plain_point(value)
                if point is not None:
                    return area.holds_point(point)
        elif type(value) is not list:
            return False
        try:
            shape = stored_shape(value)
        except BadGeometry:
            return False
        return self.matches(shape)

    def raw_tests(self, path: str) -> RawTests | None:
        """Return a test of raw documents with a geometry in a field; None if the test would take long. A verdict is
        None if the field is not a plain point."""
        area = self.area
        if "." in path or not isinstance(area, Geometry | Cap):
            return None
        if isinstance(area, Cap):
            return raw_circle_tests(path, area)
        return raw_shape_tests(path, area, intersects=self.intersects)

    def matches(self, shape: Geometry) -> bool:
        """Return whether a stored shape matches."""
        area = self.area
        if shape.is_strict:
            return False
        if isinstance(area, Geometry | Cap):
            if not (shape.points or shape.lines or shape.polygons):
                return False
            if self.intersects:
                return isinstance(area, Geometry) and area.meets(shape)
            return area.holds(shape)
        return shape.pair is not None and area.holds_pair(shape.pair)


def parse_region(name: str, argument: Any) -> Region:
    """Return the region of `{$geoWithin: argument}` or `{$geoIntersects: argument}`. Raises 2."""
    if type(argument) is not dict:
        raise CommandError(_BAD_VALUE, f"{name} must be an object, but found: {to_string(argument)}")
    fields = {key: value for key, value in argument.items() if key != "$uniqueDocs"}
    if len(fields) != 1:
        raise CommandError(_BAD_VALUE, f"{name} takes one geometry, not {len(fields)}: {to_string(argument)}")
    specifier, value = next(iter(fields.items()))
    intersects = name == "$geoIntersects"
    try:
        if specifier == "$geometry":
            return Region(_geometry(name, value, intersects), intersects)
        if specifier in _FLAT and not intersects:
            return Region(_FLAT[specifier](value), False)
    except BadGeometry as error:
        raise CommandError(_BAD_VALUE, str(error)) from error
    if specifier in _FLAT:
        raise CommandError(_BAD_VALUE, f"$geoIntersects not supported with provided geometry: {to_string(argument)}")
    raise CommandError(_BAD_VALUE, f"unknown geo specifier: {specifier}: {to_string(value)}")


def _geometry(name: str, value: Any, intersects: bool) -> Geometry:
    if type(value) is list:
        shape = stored_shape(value)
    elif type(value) is dict:
        shape = geojson_shape(value)
    else:
        raise BadGeometry(f"$geometry must be an object, but found: {to_string(value)}")
    if not intersects and (not shape.polygons or shape.points or shape.lines):
        raise BadGeometry(f"{name} not supported with provided geometry: {to_string(value)}")
    return shape


def _two(name: str, value: Any) -> list[Any]:
    if type(value) not in (dict, list):
        raise BadGeometry(f"{name} must be an array or object")
    items = list(value.values()) if type(value) is dict else value
    if len(items) != 2:
        raise BadGeometry(f"{name} must have two elements: {to_string(value)}")
    return items


def _box(value: Any) -> Box:
    first, second = [pair_of(item) for item in _two("$box", value)]
    (ax, ay), (bx, by) = first, second
    return Box((min(ax, bx), min(ay, by)), (max(ax, bx), max(ay, by)))


def _round(name: str, value: Any) -> tuple[Pair, float]:
    centre, radius = _two(name, value)
    pair = pair_of(centre)
    if type(radius) not in NUMBERS or isnan(number(radius)) or number(radius) < 0:
        raise BadGeometry(f"radius must be a non-negative number: {to_string(value)}")
    return pair, number(radius)


def _centre(value: Any) -> Circle:
    return Circle(*_round("$center", value))


def _centre_sphere(value: Any) -> Cap:
    pair, radius = _round("$centerSphere", value)
    if not is_on_earth(pair):
        raise BadGeometry(f"Spherical distance would require (unimplemented) wrapping: {to_string(value)}")
    return Cap(vector(*pair), radius)


def _polygon(value: Any) -> FlatPolygon:
    if type(value) not in (dict, list):
        raise BadGeometry("$polygon must be an array or object")
    items = list(value.values()) if type(value) is dict else value
    vertices = [pair_of(item) for item in items]
    if len(vertices) < 3:
        raise BadGeometry(f"Polygon must have at least 3 points: {to_string(value)}")
    return FlatPolygon(vertices)


def box_about(circle: Cap) -> Box | None:
    """Return the range of longitudes and latitudes of a circle on the sphere; None if it reaches 180 degrees or a
    pole."""
    (x, y, z), radius = circle.centre, circle.radius
    lng, lat, high = degrees(atan2(y, x)), degrees(atan2(z, hypot(x, y))), degrees(radius) + _BOX_SLACK
    if radius >= pi / 2 or abs(lat) + high >= 90:
        return None
    wide = degrees(asin(min(1.0, sin(radius) / hypot(x, y)))) + _BOX_SLACK
    return None if abs(lng) + wide >= 180 else Box((lng - wide, lat - high), (lng + wide, lat + high))


_BOX_SLACK: Final = 1e-9
"""Degrees by which a box is widened beyond its circle."""
_FLAT: Final[dict[str, Callable[[Any], Cap | FlatShape]]] = {
    "$box": _box,
    "$center": _centre,
    "$centerSphere": _centre_sphere,
    "$polygon": _polygon,
}


# Raw documents.


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
