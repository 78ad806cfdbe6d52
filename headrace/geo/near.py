"""The argument of `$near` and `$nearSphere`: a point, and the distance of a document's value from it.

    {$near: {$geometry: point, $maxDistance: 5}}      on the sphere, in metres
    {$nearSphere: [x, y], $maxDistance: 0.1}          on the sphere, in radians
    {$near: [x, y], $maxDistance: 5}                  on the plane, in units of the coordinates

The distance of a document is the distance of its nearest geometry.
Source: MongoDB's documentation, and the messages of its server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import atan2, cos, hypot, inf, isfinite, radians, sin, sqrt
from typing import Any, Final, NamedTuple

from headrace.errors import CommandError
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
from headrace.geo.shapes import Geometry
from headrace.geo.sphere import EARTH_RADIUS, Vector, angle, vector
from headrace.values.bson import to_string
from headrace.values.paths import located_values, split_path

_BAD_VALUE: Final = 2
_NAMES: Final = ("$geoNear", "$near", "$nearSphere")


class Nearest(NamedTuple):
    """The nearest geometry of a document: its distance in the unit of the query, and its value."""

    distance: float
    value: Any


@dataclass(frozen=True, slots=True)
class Near:
    """A place and the range of distances in which documents match, in the unit of the query."""

    path: str
    pair: Pair
    is_sphere: bool
    """Whether distances are measured on the sphere."""
    is_geojson: bool
    """Whether the place is a GeoJSON point, for which only a 2dsphere index can be used."""
    least: float = 0.0
    most: float = inf

    @property
    def unit(self) -> float:
        """The query's unit: metres in a radian for a GeoJSON point, otherwise 1."""
        return EARTH_RADIUS if self.is_geojson else 1.0

    @property
    def centre(self) -> Vector:
        """The place as a vector on the sphere."""
        return vector(*self.pair)

    def finder(self) -> NearestFinder:
        """Return the finder that measures the distances of documents."""
        return NearestFinder(self)


class NearestFinder:
    """Finds the nearest geometry of a document. Returns None for a document without a geometry or out of range."""

    __slots__ = ("_centre", "_names", "_near", "_pair", "_points_of", "_unit")

    def __init__(self, near: Near) -> None:
        self._near = near
        self._names = split_path(near.path)
        self._pair = near.pair
        self._centre = near.centre
        self._unit = near.unit
        self._points_of = raw_plain_points(near.path) if near.is_sphere and len(self._names) == 1 else None

    def distances(self, chunk: Sequence[bytes]) -> list[float | None]:
        """Return the distances of raw documents with a geometry in the field, also those out of range. None: the
        geometry is not a plain point."""
        if self._points_of is None:
            return [None] * len(chunk)
        (x, y, z), unit = self._centre, self._unit
        made: list[float | None] = []
        for pair in self._points_of(chunk):
            if pair is None:
                made.append(None)
                continue
            lng, lat = radians(pair[0]), radians(pair[1])  # as in `vector` and `angle`, without calls
            wide = cos(lat)
            a, b, c = cos(lng) * wide, sin(lng) * wide, sin(lat)
            i, j, k = y * c - z * b, z * a - x * c, x * b - y * a
            made.append(atan2(sqrt(i * i + j * j + k * k), x * a + y * b + z * c) * unit)
        return made

    def __call__(self, document: dict[str, Any]) -> Nearest | None:
        """Return the nearest geometry."""
        if len(self._names) == 1 and self._near.is_sphere:
            value = document.get(self._names[0])
            point = plain_point(value) if type(value) is dict else None
            if point is not None:
                return self._in_range(Nearest(angle(self._centre, point) * self._unit, value))
        best: Nearest | None = None
        for value, _ in located_values(document, self._names, enter_last=False):
            for distance, geometry in self._distances(value):
                if best is None or distance < best.distance:
                    best = Nearest(distance, geometry)
        return None if best is None else self._in_range(best)

    def _in_range(self, found: Nearest) -> Nearest | None:
        return found if self._near.least <= found.distance <= self._near.most else None

    def _distances(self, value: Any) -> Iterator[tuple[float, Any]]:
        """The distance of a value that is a geometry, or of each geometry in an array."""
        distance = self._distance(value)
        if distance is not None:
            yield distance, value
        elif type(value) is list:
            for item in value:
                distance = self._distance(item)
                if distance is not None:
                    yield distance, item

    def _distance(self, value: Any) -> float | None:
        if type(value) not in (dict, list):
            return None
        try:
            shape = stored_shape(value)
        except BadGeometry:
            return None
        if not self._near.is_sphere:
            return None if shape.pair is None else hypot(shape.pair[0] - self._pair[0], shape.pair[1] - self._pair[1])
        if shape.is_strict or not (shape.points or shape.lines or shape.polygons):
            return None
        return shape.distance(self._centre) * self._unit


def parse_near(path: str, argument: dict[str, Any]) -> Near:
    """Return the parsed near of `{path: argument}`, which has `$near` or `$nearSphere`, optionally with distances
    beside it.

    Raises 2, 16893 to 16896 and 18522 for a distance, 34413 for another operator beside it.
    """
    return _legacy(path, argument) or _with_geometry(path, argument)


def _legacy(path: str, argument: dict[str, Any]) -> Near | None:
    """The near whose point is the argument itself; None if the point is in `$geometry`."""
    found: tuple[str, Pair, bool] | None = None
    least, most = 0.0, inf
    for name, value in argument.items():
        if name in _NAMES:
            if type(value) not in (dict, list):
                return None
            point = _query_point(value)
            if point is None:
                if "$geometry" in value and type(value) is dict:
                    continue
                raise CommandError(_BAD_VALUE, f"invalid point provided to geo near query: {to_string(value)}")
            pair, is_geojson, limit = point
            if limit is not None:
                if limit < 0:
                    raise CommandError(18522, "max distance must be non-negative")
                most = limit
            found = name, pair, is_geojson
        elif name == "$minDistance":
            least = _legacy_distance(name, value, 16893)
        elif name == "$maxDistance":
            most = _legacy_distance(name, value, 16895)
        elif name != "$uniqueDocs":
            raise CommandError(34413, f"invalid argument in geo near query: {name}")
    if found is None:
        return None
    name, pair, is_geojson = found
    if name == "$nearSphere" and not is_on_earth(pair):
        raise CommandError(_BAD_VALUE, "Legacy point is out of bounds for spherical query")
    return Near(path, pair, is_geojson or name == "$nearSphere", is_geojson, least, most)


def _query_point(value: Any) -> tuple[Pair, bool, float | None] | None:
    """(pair, whether it is GeoJSON, the maximum distance if the point has it as third element); None if not a point."""
    items = list(value.values()) if type(value) is dict else value
    if type(value) is dict and items and type(items[0]) not in NUMBERS:
        try:
            shape = geojson_shape(value)
        except BadGeometry:
            return None
        return None if shape.pair is None else (shape.pair, True, None)
    try:
        if len(items) == 3 and type(items[2]) in NUMBERS:
            return pair_of(items[:2]), False, number(items[2])
        return pair_of(value), False, None
    except BadGeometry:
        return None


def _legacy_distance(name: str, value: Any, code: int) -> float:
    if type(value) not in NUMBERS:
        raise CommandError(code, f"{name} must be a number")
    distance = number(value)
    if not distance >= 0:
        raise CommandError(code + 1, f"{name} must be non-negative")
    return distance


def _with_geometry(path: str, argument: dict[str, Any]) -> Near:
    names = iter(argument)
    operator = next(names)
    extra = next(names, None)
    if extra is not None:
        raise CommandError(
            _BAD_VALUE,
            "geo near accepts just one argument when querying for a GeoJSON point. Extra field found: "
            f"{to_string({extra: argument[extra]})[2:-2]}",
        )
    given = argument[operator]
    if type(given) not in (dict, list):
        raise CommandError(_BAD_VALUE, "geo near query argument is not an object")
    found: Geometry | None = None
    least, most = 0.0, inf
    for name, value in given.items():
        if name == "$geometry":
            if type(value) in (dict, list):
                found = _geometry(value)
        elif name == "$minDistance":
            least = _distance(name, value)
        elif name == "$maxDistance":
            most = _distance(name, value)
        else:
            raise CommandError(_BAD_VALUE, f"invalid argument in geo near query: {name}")
    if found is None or found.pair is None:
        raise CommandError(_BAD_VALUE, "$geometry is required for geo near query")
    return Near(path, found.pair, True, True, least, most)


def _geometry(value: Any) -> Geometry:
    """The point in `$geometry`."""
    wrong = f"invalid point in geo near query $geometry argument: {to_string(value)}  "
    items = list(value.values()) if type(value) is dict else value
    if type(value) is list or (items and type(items[0]) in NUMBERS):
        try:
            pair_of(value)
        except BadGeometry as error:
            raise CommandError(_BAD_VALUE, f"{wrong}{error}") from error
        raise CommandError(_BAD_VALUE, f"$near requires geojson point, given {to_string(value)}")
    try:
        if value.get("type") in ("LineString", "Polygon") or str(value.get("type")).startswith(("Multi", "Geometry")):
            raise BadGeometry(f"GeoJSON type must be Point: {to_string(value)}")
        return geojson_shape(value)
    except BadGeometry as error:
        raise CommandError(_BAD_VALUE, f"{wrong}{error}") from error


def _distance(name: str, value: Any) -> float:
    if type(value) not in NUMBERS:
        raise CommandError(_BAD_VALUE, f"{name} must be a number")
    distance = number(value)
    if not (distance >= 0 and isfinite(distance)):
        raise CommandError(_BAD_VALUE, f"{name} must be non-negative")
    return distance
