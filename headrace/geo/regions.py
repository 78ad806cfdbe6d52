"""The arguments of `$geoWithin` and `$geoIntersects`: regions, and whether a stored value is inside or meets one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import asin, atan2, degrees, hypot, isnan, pi, sin
from typing import Any, Final

from headrace.errors import CommandError
from headrace.geo.covering import query_cells
from headrace.geo.covers import Cover
from headrace.geo.flat import Box, Circle, FlatPolygon, FlatShape
from headrace.geo.geojson import (
    NUMBERS,
    BadGeometry,
    Pair,
    geojson_shape,
    is_on_earth,
    number,
    pair_of,
    plain_point,
    stored_shape,
)
from headrace.geo.raw_tests import RawTests, raw_circle_tests, raw_shape_tests
from headrace.geo.shapes import Cap, Geometry
from headrace.geo.sphere import vector
from headrace.values.bson.to_string import to_string

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
