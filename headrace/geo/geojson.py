"""GeoJSON and legacy coordinate pairs as shapes, with MongoDB's checks and messages. The caller chooses the error code.

Source: MongoDB's documentation of GeoJSON objects, and the messages of its server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite
from struct import Struct
from typing import Any, Final

from bson import Decimal128, Int64

from headrace.geo.shapes import Geometry, Line, Loop, Polygon, crossing_edges, small
from headrace.geo.sphere import Vector, vector
from headrace.values.bson import to_string

Pair = tuple[float, float]
NUMBERS: Final = frozenset({Decimal128, Int64, float, int})
_CRS: Final = ("EPSG:4326", "urn:ogc:def:crs:OGC:1.3:CRS84")
_STRICT_CRS: Final = "urn:x-mongodb:crs:strictwinding:EPSG:4326"


class BadGeometry(Exception):
    """A value is not a geometry. The message says why."""


def number(value: Any) -> float:
    """Return a BSON number as a float."""
    return float(value.to_decimal()) if type(value) is Decimal128 else float(value)


def pair_of(value: Any, *, more: bool = False) -> Pair:
    """Return the legacy pair `[x, y]` or `{a: x, b: y}`; `more`: further elements are allowed. Raises `BadGeometry`."""
    if type(value) not in (dict, list):
        raise BadGeometry("Point must be an array or object")
    items = list(value.values()) if type(value) is dict else value
    if any(type(item) not in NUMBERS for item in items[:2]):
        raise BadGeometry(f"Point must only contain numeric elements, instead got {to_string(value)}")
    if len(items) < 2:
        raise BadGeometry(f"Point must contain two numeric elements: {to_string(value)}")
    if len(items) > 2 and not more:
        raise BadGeometry(f"Point must only contain two numeric elements: {to_string(value)}")
    x, y = number(items[0]), number(items[1])
    if not (isfinite(x) and isfinite(y)):
        raise BadGeometry(f"Point coordinates must be finite numbers: {to_string(value)}")
    return x, y


def is_on_earth(pair: Pair) -> bool:
    """Return whether a pair is a longitude and a latitude."""
    return -180 <= pair[0] <= 180 and -90 <= pair[1] <= 90


def plain_point(value: dict[str, Any]) -> Vector | None:
    """Return the vector of the usual GeoJSON point, two floats on the earth; None for any other value."""
    if len(value) != 2 or value.get("type") != "Point":
        return None
    coordinates = value.get("coordinates")
    if type(coordinates) is not list or len(coordinates) != 2:
        return None
    x, y = coordinates
    if type(x) is not float or type(y) is not float or not (-180 <= x <= 180 and -90 <= y <= 90):
        return None
    return vector(x, y)


_RAW_POINT: Final = b"=\0\0\0\x02type\0\x06\0\0\0Point\0\x04coordinates\0\x1b\0\0\0\x010\0"
"""The first BSON bytes of a GeoJSON point of two floats. The floats follow, with an element's head between them."""
_RAW_FLOATS: Final = Struct("<d3xd")


def raw_plain_points(name: str) -> Callable[[Sequence[bytes]], list[Pair | None]]:
    """Return a function that reads the coordinates of a `plain_point` from a field of raw documents. The field holds
    an object or an array. A pair is None, too, if the bytes do not show which element is the field."""
    field, array = b"\x03" + name.encode() + b"\0", b"\x04" + name.encode() + b"\0"
    head = field + _RAW_POINT
    size, unpack = len(head), _RAW_FLOATS.unpack_from

    def found(chunk: Sequence[bytes]) -> list[Pair | None]:
        made: list[Pair | None] = []
        for raw in chunk:
            at = raw.find(head)
            if at < 0 or raw.count(field) != 1 or array in raw:
                made.append(None)
                continue
            x, y = pair = unpack(raw, at + size)
            made.append(pair if -180 <= x <= 180 and -90 <= y <= 90 else None)
        return made

    return found


def point_shape(pair: Pair) -> Geometry:
    """Return the shape of the point at a longitude and a latitude."""
    return Geometry(points=(vector(*pair),), pair=pair)


def stored_shape(value: Any) -> Geometry:
    """Return the shape of a document's value: GeoJSON or a pair. A pair off the earth sets only `pair`, no points.

    Raises `BadGeometry`.
    """
    if type(value) is list or (type(value) is dict and value and type(next(iter(value.values()))) in NUMBERS):
        pair = pair_of(value, more=True)
        return point_shape(pair) if is_on_earth(pair) else Geometry(pair=pair)
    if type(value) is not dict:
        raise BadGeometry(f"geo element must be an array or object: {to_string(value)}")
    return geojson_shape(value)


def geojson_shape(value: dict[str, Any]) -> Geometry:
    """Return the shape of a GeoJSON object. Raises `BadGeometry`."""
    kind = value.get("type")
    if type(kind) is not str or kind not in _PARSERS:
        raise BadGeometry(f"unknown GeoJSON type: {to_string(value)}")
    is_strict = _is_strict(value)
    if is_strict and kind != "Polygon":
        if kind == "Point":
            raise BadGeometry("unsupported CRS for a point: strict winding order is for polygons")
        raise BadGeometry("Strict winding order CRS is only supported for polygon")
    if is_strict:
        return Geometry(polygons=(_big_polygon(value.get("coordinates")),), is_strict=True)
    return _PARSERS[kind](value.get("geometries" if kind == "GeometryCollection" else "coordinates"))


def _is_strict(value: dict[str, Any]) -> bool:
    """Whether the CRS is the strict one. Raises `BadGeometry` for an unknown CRS."""
    if "crs" not in value:
        return False
    crs = value["crs"]
    if type(crs) is not dict:
        raise BadGeometry("GeoJSON CRS must be an object")
    if crs.get("type") != "name":
        raise BadGeometry(f'GeoJSON CRS must have field "type": "name": {to_string(crs)}')
    properties = crs.get("properties")
    if type(properties) is not dict:
        raise BadGeometry('CRS must have field "properties" which is an object')
    name = properties.get("name")
    if type(name) is not str:
        raise BadGeometry('In CRS, "properties.name" must be a string')
    if name != _STRICT_CRS and name not in _CRS:
        raise BadGeometry(f"Unknown CRS name: {name}")
    return name == _STRICT_CRS


def _vertex(value: Any) -> tuple[Vector, Pair]:
    pair = pair_of(value, more=True)
    if not is_on_earth(pair):
        raise BadGeometry(f"longitude/latitude is out of bounds, lng: {pair[0]:g} lat: {pair[1]:g}")
    return vector(*pair), pair


def _array(value: Any, what: str) -> list[Any]:
    if type(value) is not list:
        raise BadGeometry(f"{what} coordinates must be an array")
    if not value:
        raise BadGeometry(f"{what} coordinates must have at least 1 element")
    return value


def _point(value: Any) -> Geometry:
    return point_shape(_vertex(value)[1])


def _line(value: Any) -> Line:
    if type(value) is not list:
        raise BadGeometry("GeoJSON coordinates must be an array of coordinates")
    made = _distinct([_vertex(item)[0] for item in value])
    if len(value) < 2 or len(made) < 2:
        raise BadGeometry(f"GeoJSON LineString must have at least 2 vertices: {to_string(value)}")
    for a, b in pairwise(made):
        if (a[0], a[1], a[2]) == (-b[0], -b[1], -b[2]):
            raise BadGeometry(f"Invalid LineString, adjacent vertices are antipodal: {to_string(value)}")
    return tuple(made)


def _distinct(vertices: Sequence[Vector]) -> list[Vector]:
    """The vertices without consecutive duplicates."""
    return [vertex for at, vertex in enumerate(vertices) if not at or vertex != vertices[at - 1]]


def _loop(value: Any) -> Loop:
    if type(value) is not list:
        raise BadGeometry("Polygon coordinates must be an array of coordinates")
    if not value:
        raise BadGeometry("Loop has no vertices: []")
    vertices = [_vertex(item)[0] for item in value]
    if vertices[0] != vertices[-1]:
        raise BadGeometry(f"Loop is not closed: {to_string(value)}")
    made = _distinct(vertices)[:-1]
    if len(made) < 3:
        raise BadGeometry(f"Loop must have at least 3 different vertices: {to_string(value)}")
    seen: dict[Vector, int] = {}
    for at, vertex in enumerate(made):
        if vertex in seen:
            raise BadGeometry(f"Loop is not valid: {to_string(value)} Duplicate vertices: {seen[vertex]} and {at}")
        seen[vertex] = at
    crossing = crossing_edges(made)
    if crossing is not None:
        raise BadGeometry(f"Loop is not valid: {to_string(value)} Edges {crossing[0]} and {crossing[1]} cross.")
    return Loop(made)


def _polygon(value: Any) -> Polygon:
    if type(value) is not list:
        raise BadGeometry("Polygon coordinates must be an array")
    if not value:
        raise BadGeometry("Polygon has no loops.")
    loops = [small(_loop(item)) for item in value]
    outer = Polygon(loops[0])
    for item, hole in zip(value[1:], loops[1:]):
        if not outer.holds_polygon(Polygon(hole)):
            raise BadGeometry(
                "Secondary loops not contained by first exterior loop - secondary loops must be holes: "
                f"{to_string(item)} first loop: {to_string(value[0])}"
            )
    return Polygon(loops[0], loops[1:])


def _big_polygon(value: Any) -> Polygon:
    if type(value) is not list or not value:
        raise BadGeometry("Polygon coordinates must be an array")
    if len(value) != 1:
        raise BadGeometry(f"Only one simple loop is allowed in a big polygon: {to_string(value)}")
    return Polygon(_loop(value[0]))


def _collection(value: Any) -> Geometry:
    if type(value) is not list:
        raise BadGeometry("GeometryCollection geometries must be an array")
    if not value:
        raise BadGeometry("GeometryCollection geometries must have at least 1 element")
    parts = []
    for at, item in enumerate(value):
        if type(item) is not dict:
            raise BadGeometry(f'Element {at} of "geometries" is not an object')
        if item.get("type") == "GeometryCollection":
            raise BadGeometry(f"GeometryCollections cannot be nested: {to_string(item)}")
        parts.append(geojson_shape(item))
    return Geometry(
        tuple(point for part in parts for point in part.points), tuple(line for part in parts for line in part.lines),
        tuple(polygon for part in parts for polygon in part.polygons),
    )  # fmt: skip


_PARSERS: Final[dict[str, Callable[[Any], Geometry]]] = {
    "GeometryCollection": _collection,
    "LineString": lambda value: Geometry(lines=(_line(value),)),
    "MultiLineString": lambda value: Geometry(lines=tuple(_line(item) for item in _array(value, "MultiLineString"))),
    "MultiPoint": lambda value: Geometry(points=tuple(_vertex(item)[0] for item in _array(value, "MultiPoint"))),
    "MultiPolygon": lambda value: Geometry(polygons=tuple(_polygon(item) for item in _array(value, "MultiPolygon"))),
    "Point": _point,
    "Polygon": lambda value: Geometry(polygons=(_polygon(value),)),
}
