"""Cells are numbered as S2 numbers them, and coverings hold their regions, also at poles and the antimeridian."""

from __future__ import annotations

from math import cos, pi, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.geo.cells import FACES, _raised, cell_at, cells_around, ends, flat, leaf, leaf_area, signed
from headrace.geo.covering import RADIUS_MAX, RADIUS_MIN, Cover, query_cells, stored_cells
from headrace.geo.geojson import geojson_shape
from headrace.geo.shapes import Cap
from headrace.geo.sphere import Vector, cross, normalized, vector

PLACES = st.tuples(st.floats(-180, 180), st.floats(-90, 90))

LEAVES = [
    (0, 0, 0x1000000000000001),
    (180, 0, 0x6FFFFFFFFFFFFFFF),
    (-180, 10, 0x7AD52CAD2CAD354D),
    (0, 90, 0x5000000000000001),
    (0, -90, 0xB000000000000001),
    (45, 35.264389, 0x3FFFFFFFFFFFFE27),
    (-135, -35, 0x9FFFE01FFE027807),
    (90, 0, 0x3000000000000001),
    (-63.420205, -62.847149, 0xBC7A4EC19FB7E7DD),
    (54.33641, -76.961468, 0xB1B2AC8510F6363D),
    (12.917522, -24.175995, 0x1C7A51E900EF6D03),
    (-159.120387, 1.338432, 0x7A0411ED365E81F9),
    (-166.501563, -11.943777, 0x7104B28A113EDF93),
    (-154.852048, -73.671658, 0xA5BA2D539137F8D9),
    (-27.173092, 58.833382, 0x493E406F6A14756D),
    (-135.431294, -49.816986, 0xA110E5B2A84F83F1),
    (45.87596, 80.58761, 0x451138294DA997F3),
    (27.757062, -18.597515, 0x194971F270898DA7),
    (171.451838, -81.615117, 0xAF85D9CC04A0ADE9),
    (129.048645, -37.870328, 0xAACB35A089875B8D),
]
"""(longitude, latitude, the number of the leaf), as the S2 library computes them."""


@pytest.mark.parametrize(("lng", "lat", "number"), LEAVES)
def test_leaves_have_the_numbers_of_s2(lng: float, lat: float, number: int) -> None:
    assert leaf(vector(lng, lat)) == number


@given(PLACES, st.integers(0, 29))
def test_a_cell_has_its_leaves_and_is_in_its_ancestors(place: tuple[float, float], level: int) -> None:
    p = vector(*place)
    cell = cell_at(p, level)
    first, last = ends(cell.number)
    assert first <= leaf(p) <= last and signed(first) <= signed(leaf(p)) <= signed(last)
    assert cell.number in cells_around([leaf(p)]) and len(cells_around([cell.number])) == level
    assert sorted(number for child in cell.children for number in ends(child.number))[0] == first
    assert cell in cell.around and len(cell.around) >= 5


def all_of(cover: Cover) -> list[int]:
    """The numbers of all cells of a covering."""
    return [*cover.inside, *cover.crossing]


def spread(number: int) -> list[Vector]:
    """Points of a cell: its corners and its middle."""
    cells = FACES
    while (cell := next(item for item in cells if _holds([item.number], number))).number != number:
        cells = tuple(cell.children)
    count = 1 << cell.level
    sides = [(cell.i, cell.j), (cell.i + 1, cell.j), (cell.i, cell.j + 1), (cell.i + 1, cell.j + 1)]
    return [_raised(cell.face, flat(i / count), flat(j / count)) for i, j in sides] + [cell.circle[0]]


def _holds(numbers: list[int], number: int) -> bool:
    return any(first <= number <= last for first, last in map(ends, numbers))


@given(PLACES)
def test_the_area_of_a_leaf_is_that_of_its_neighbourhood(place: tuple[float, float]) -> None:
    p = vector(*place)
    middle = cell_at(p, 14)
    corners = [
        _raised(middle.face, flat((middle.i + i) / (1 << 14)), flat((middle.j + j) / (1 << 14)))
        for i, j in ((0, 0), (1, 0), (0, 1))
    ]  # fmt: skip
    one, other = ([b - a for a, b in zip(corners[0], corner)] for corner in corners[1:])
    normal = cross((one[0], one[1], one[2]), (other[0], other[1], other[2]))
    assert leaf_area(p) * (1 << 2 * 16 + 1) == pytest.approx(sum(item * item for item in normal) ** 0.5, rel=0.01)


@given(
    PLACES, st.floats(1e-9, 3.2), st.lists(st.tuples(st.floats(0, 2 * pi), st.floats(0, 1)), min_size=1, max_size=20)
)
def test_the_cells_of_a_circle_hold_all_of_it(
    place: tuple[float, float], radius: float, spots: list[tuple[float, float]]
) -> None:
    centre = vector(*place)
    area = Cap(centre, radius)
    cover = query_cells(area)
    numbers = all_of(cover)
    assert len(numbers) <= (200 if RADIUS_MIN <= radius <= RADIUS_MAX else 48)
    assert all(area.holds_point(p) for number in cover.inside for p in spread(number))
    east = normalized(cross((0.0, 0.0, 1.0) if abs(centre[2]) < 0.9 else (1.0, 0.0, 0.0), centre))
    north = cross(centre, east)
    for turned, share in spots:
        far = min(pi, radius) * share
        x, y, z = [cos(far) * centre[i] + sin(far) * (cos(turned) * east[i] + sin(turned) * north[i]) for i in range(3)]
        assert _holds(numbers, leaf((x, y, z)))


@given(PLACES, st.floats(0.0001, 20), st.floats(0, 1), st.floats(0, 1))
def test_the_cells_of_a_polygon_hold_its_inside_and_its_edges(
    place: tuple[float, float], size: float, along: float, across: float
) -> None:
    lng, lat = min(place[0], 159), min(place[1], 69)
    ring = [[lng, lat], [lng + size, lat], [lng + size, lat + size], [lng, lat + size], [lng, lat]]
    shape = geojson_shape({"type": "Polygon", "coordinates": [ring]})
    p = vector(lng + along * size, lat + across * size)
    if shape.polygons[0].contains(p):
        for numbers in (all_of(query_cells(shape)), stored_cells(shape)):
            assert _holds(numbers, leaf(p))
        assert len(stored_cells(shape)) <= 24 and len(query_cells(shape).numbers) <= 250
    edges = geojson_shape({"type": "LineString", "coordinates": ring})
    corner = vector(lng + size, lat)
    assert all(shape.holds_point(p) for number in query_cells(shape).inside for p in spread(number))
    assert not query_cells(edges).inside
    assert _holds(all_of(query_cells(edges)), leaf(corner)) and _holds(stored_cells(edges), leaf(corner))


def test_a_few_cells_cover_a_small_region_tightly() -> None:
    radius = 1000 / 6_378_100
    numbers = all_of(query_cells(Cap(vector(13.4, 52.5), radius)))
    area = sum(number & -number for number in numbers) / 2**60 / 6 * 4 * pi
    assert area < 4 * pi * radius**2
