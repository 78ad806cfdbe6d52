"""`$geoWithin` and `$geoIntersects`: each shape, each type of GeoJSON, poles, the antimeridian, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.query.match import parse_filter

Json = dict[str, Any]


def ring(*vertices: tuple[float, float]) -> list[list[float]]:
    return [list(vertex) for vertex in (*vertices, vertices[0])]


def polygon(*rings: list[list[float]]) -> Json:
    return {"type": "Polygon", "coordinates": list(rings)}


def point(lng: float, lat: float) -> Json:
    return {"type": "Point", "coordinates": [lng, lat]}


def line(*vertices: tuple[float, float]) -> Json:
    return {"type": "LineString", "coordinates": [list(vertex) for vertex in vertices]}


def many(kind: str, *parts: Json) -> Json:
    return {"type": kind, "coordinates": [part["coordinates"] for part in parts]}


def collection(*parts: Json) -> Json:
    return {"type": "GeometryCollection", "geometries": list(parts)}


def strict(shape: Json) -> Json:
    name = "urn:x-mongodb:crs:strictwinding:EPSG:4326"
    return {**shape, "crs": {"type": "name", "properties": {"name": name}}}


def within(value: Any, **region: Any) -> bool:
    return parse_filter({"at": {"$geoWithin": {f"${name}": argument for name, argument in region.items()}}})(
        {"at": value}
    )


def meets(value: Any, geometry: Any) -> bool:
    return parse_filter({"at": {"$geoIntersects": {"$geometry": geometry}}})({"at": value})


OUTER = ring((-10, -10), (10, -10), (10, 10), (-10, 10))
SQUARE = polygon(OUTER)
HOLED = polygon(OUTER, ring((-1, -1), (1, -1), (1, 1), (-1, 1)))
AT_POLE = polygon(ring((-180, 80), (-90, 80), (0, 80), (90, 80)))
AT_180 = polygon(ring((179, -1), (-179, -1), (-179, 1), (179, 1)))
BOX_OF_TWO = polygon(ring((-2, -2), (2, -2), (2, 2), (-2, 2)))
FAR = polygon(ring((50, 50), (60, 50), (60, 60), (50, 60)))


@pytest.mark.parametrize(
    ("value", "area", "inside"),
    [
        (point(0, 0), SQUARE, True),
        (point(50, 50), SQUARE, False),
        ([1, 1], SQUARE, True),
        ({"lng": 1, "lat": 1}, SQUARE, True),
        ([[50, 50], [1, 2]], SQUARE, True),
        ([point(50, 50), point(60, 60)], SQUARE, False),
        ([200, 0], SQUARE, False),
        (None, SQUARE, False),
        ("0,0", SQUARE, False),
        ({"type": "Point"}, SQUARE, False),
        (point(0, 89), AT_POLE, True),
        (point(0, 0), AT_POLE, False),
        (point(179.5, 0), AT_180, True),
        (point(-179.5, 0), AT_180, True),
        (point(0, 0), AT_180, False),
        (point(5, 5), HOLED, True),
        (point(0, 0), HOLED, False),
        (line((0, 0), (5, 5)), SQUARE, True),
        (line((0, 0), (50, 5)), SQUARE, False),
        (line((-5, 0.5), (5, 0.5)), HOLED, False),
        (SQUARE, SQUARE, True),
        (HOLED, SQUARE, True),
        (SQUARE, HOLED, False),
        (BOX_OF_TWO, HOLED, False),
        (many("MultiPoint", point(0, 0), point(5, 5)), SQUARE, True),
        (many("MultiPoint", point(0, 0), point(50, 50)), SQUARE, False),
        (many("MultiLineString", line((0, 0), (5, 5)), line((0, 0), (50, 50))), SQUARE, False),
        (many("MultiPolygon", BOX_OF_TWO, FAR), SQUARE, False),
        (many("MultiPolygon", BOX_OF_TWO, FAR), many("MultiPolygon", FAR, SQUARE), True),
        (collection(point(1, 1), BOX_OF_TWO), SQUARE, True),
        (collection(point(1, 1), FAR), SQUARE, False),
        (point(0, 0), polygon(OUTER[::-1]), True),
        (point(0, 0), strict(SQUARE), True),
        (point(0, 0), strict(polygon(OUTER[::-1])), False),
        (point(50, 50), strict(polygon(OUTER[::-1])), True),
        (FAR, strict(polygon(OUTER[::-1])), True),
        (strict(BOX_OF_TWO), SQUARE, False),
    ],
)
def test_a_value_is_within_an_area(value: Any, area: Json, inside: bool) -> None:
    assert within(value, geometry=area) is inside


@pytest.mark.parametrize(
    ("value", "geometry", "expected"),
    [
        (point(0, 0), point(0, 0), True),
        (point(0, 0), point(0, 1e-5), False),
        (point(-180, 5), point(180, 5), True),
        (point(3, 90), point(77, 90), True),
        (point(0, 0), line((-1, 0), (1, 0)), True),
        (line((-1, 0), (1, 0)), line((0, -1), (0, 1)), True),
        (line((-1, 0), (1, 0)), line((2, -1), (2, 1)), False),
        (line((-50, 1), (50, 5)), SQUARE, True),
        (line((-50, 30), (50, 30)), SQUARE, False),
        (line((-0.5, 0), (0.5, 0)), HOLED, False),
        (FAR, SQUARE, False),
        (polygon(ring((10, -10), (20, -10), (20, 10), (10, 10))), SQUARE, True),
        (BOX_OF_TWO, SQUARE, True),
        (SQUARE, BOX_OF_TWO, True),
        (collection(point(50, 55), BOX_OF_TWO), SQUARE, True),
        (many("MultiPoint", point(50, 55), point(0, 0)), BOX_OF_TWO, True),
        (BOX_OF_TWO, strict(polygon(OUTER[::-1])), False),
        (FAR, strict(polygon(OUTER[::-1])), True),
    ],
)
def test_a_value_meets_a_geometry(value: Any, geometry: Json, expected: bool) -> None:
    assert meets(value, geometry) is expected


@pytest.mark.parametrize(
    ("vertices", "inside", "outside"),
    [
        ([[1, 1], [1, 1], [1, 1]], [[1, 1]], [[2, 2]]),
        ([[0, 0], [5, 0], [10, 0]], [[3, 0]], [[3, 5]]),
        ([[0, 0], [0, 5], [0, 10]], [[0, 3]], [[5, 3]]),
        ([[0, 0], [10, 10], [10, 0], [0, 10]], [[2, 2], [5, 5]], [[8, 8]]),
        ([[0, 0], [0, 10], [10, 10], [10, 0]], [[5, 0], [0, 0], [5, 5], point(5, 5)], [[15, 15], line((1, 1), (2, 2))]),
        ([[0, 0], [10, 10], [10, 0]], [[5, 1]], [[5, 5], [3, 3], [0, 10], [15, 15], [-5, -5]]),
    ],
)
def test_a_polygon_on_the_plane(vertices: Any, inside: list[Any], outside: list[Any]) -> None:
    assert all(within(value, polygon=vertices) for value in inside)
    assert not any(within(value, polygon=vertices) for value in outside)


def test_boxes_and_circles_have_their_edges() -> None:
    assert within([10, 0], box=[[0, 0], [10, 10]]) and within([10, 0], box=[[10, 10], [0, 0]])
    assert within([3, 4], center=[[0, 0], 5]) and not within([3, 4.01], center=[[0, 0], 5])
    assert within([500, 4], center=[[500, 0], 5]) and within([0, 0], center=[[0, 0], 0])
    assert within([5, 0], centerSphere=[[0, 0], 0.1]) and not within([5, 5], centerSphere=[[0, 0], 0.1])
    assert within([0, 89], centerSphere=[[180, 89], 0.1]) and within([0, 0], centerSphere=[[0, 0], float("inf")])
    assert within(SQUARE, centerSphere=[[0, 0], 0.3]) and not within(SQUARE, centerSphere=[[0, 0], 0.2])
    assert not within([500, 0], centerSphere=[[0, 0], 10])


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        ({"type": "blah", "coordinates": [0, 0]}, "unknown GeoJSON type"),
        ({"type": 1, "coordinates": [0, 0]}, "unknown GeoJSON type"),
        ({"coordinates": [0, 0]}, "unknown GeoJSON type"),
        (point(180.1, 0), "longitude/latitude is out of bounds, lng: 180.1 lat: 0"),
        (point(0, -90.1), "out of bounds"),
        (point(float("nan"), 0), "finite"),
        ({"type": "Point"}, "Point must be an array or object"),
        ({"type": "Point", "coordinates": []}, "two numeric elements"),
        ({"type": "Point", "coordinates": [1]}, "two numeric elements"),
        ({"type": "Point", "coordinates": ["1", 2]}, "numeric elements"),
        ({"type": "Point", "coordinates": [True, 2]}, "numeric elements"),
        ({"type": "LineString", "coordinates": [[0, 0]]}, "at least 2 vertices"),
        ({"type": "LineString", "coordinates": [[0, 0], [0, 0]]}, "at least 2 vertices"),
        ({"type": "Polygon", "coordinates": []}, "has no loops"),
        ({"type": "Polygon", "coordinates": [[]]}, "no vertices"),
        ({"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1]]]}, "Loop is not closed"),
        (polygon(ring((0, 0), (1, 0))), "at least 3 different vertices"),
        (polygon(ring((0, 0), (10, 10), (10, 0), (0, 10))), "Edges 0 and 2 cross"),
        (polygon(ring((0, 0), (5, 5), (10, 0), (5, 5), (5, 9))), "Duplicate vertices: 1 and 3"),
        (polygon(OUTER, FAR["coordinates"][0]), "Secondary loops not contained"),
        ({"type": "MultiPoint", "coordinates": []}, "at least 1 element"),
        (collection(), "at least 1 element"),
        ({"type": "GeometryCollection", "geometries": [1]}, "is not an object"),
        (collection(collection(point(0, 0))), "nested"),
        ({**SQUARE, "crs": {"type": "name", "properties": {"name": "EPSG:1"}}}, "Unknown CRS name: EPSG:1"),
        ({**SQUARE, "crs": {"type": "x"}}, "CRS"),
        ({**SQUARE, "crs": 5}, "CRS"),
        (strict(point(0, 0)), "CRS"),
        (strict(HOLED), "Only one simple loop"),
        (5, "must be an object"),
    ],
)
def test_an_invalid_geometry_is_refused(geometry: Any, message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        meets(point(0, 0), geometry)
    assert refused.value.code == 2


BAD_ROUND: list[Any] = [
    [], [[1, 2]], [[1, 2], 1, 2], "x", 5, {}, None, [[], 1], [[1], 1], [[1, 2, 3], 1], [None, 1], [[0, 0], None],
    [[0, 0], -1], [[0, 0], float("nan")], [[0, 0], "1"], [[0, 0], True], [["1", "2"], 1], [[float("inf"), 0], 1],
]  # fmt: skip


@pytest.mark.parametrize("argument", BAD_ROUND)
@pytest.mark.parametrize("name", ["center", "centerSphere"])
def test_an_invalid_circle_is_refused(name: str, argument: Any) -> None:
    with pytest.raises(CommandError) as refused:
        within([0, 0], **{name: argument})
    assert refused.value.code == 2


@pytest.mark.parametrize(
    "region",
    [
        {"$geoWithin": 5},
        {"$geoWithin": {}},
        {"$geoWithin": {"$box": [[0, 0], [1, 1]], "$center": [[0, 0], 1]}},
        {"$geoWithin": {"$blob": 1}},
        {"$geoWithin": {"$geometry": point(0, 0)}},
        {"$geoWithin": {"$geometry": line((0, 0), (1, 1))}},
        {"$geoWithin": {"$geometry": collection(SQUARE, point(0, 0))}},
        {"$geoWithin": {"$box": [[0, 0]]}},
        {"$geoWithin": {"$box": 1}},
        {"$geoWithin": {"$polygon": []}},
        {"$geoWithin": {"$polygon": [[0, 0], [1, 1]]}},
        {"$geoWithin": {"$polygon": [1, 2, 3]}},
        {"$geoWithin": {"$polygon": [["x", "y"], ["a", "b"], ["c", "d"]]}},
        {"$geoWithin": {"$polygon": [[float("nan"), 0], [1, 1], [2, 0]]}},
        {"$geoWithin": {"$centerSphere": [[181, 0], 0.1]}},
        {"$geoWithin": {"$centerSphere": [[0, 91], 0.1]}},
        {"$geoIntersects": {"$box": [[0, 0], [1, 1]]}},
        {"$geoIntersects": {"$centerSphere": [[0, 0], 1]}},
        {"$box": [[0, 0], [1, 1]]},
    ],
)
def test_an_invalid_condition_is_refused(region: Any) -> None:
    with pytest.raises(CommandError) as refused:
        parse_filter({"at": region})
    assert refused.value.code == 2


def test_within_is_the_old_name() -> None:
    assert parse_filter({"at": {"$within": {"$box": [[0, 0], [1, 1]]}}})({"at": [0, 1]})
