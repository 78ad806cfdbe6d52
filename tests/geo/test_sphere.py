"""Random points and polygons against independent computations: haversines, and the plane of the gnomonic projection."""

from __future__ import annotations

from math import asin, atan2, cos, degrees, hypot, pi, radians, sin, sqrt

from hypothesis import given
from hypothesis import strategies as st

from headrace.geo.geojson import geojson_shape, point_shape
from headrace.geo.shapes import Loop
from headrace.geo.sphere import Vector, angle, cross, dot, edge_distance, normalized, orientation, vector

LNGS = st.floats(-180, 180)
LATS = st.floats(-90, 90)
PLACES = st.tuples(LNGS, LATS)


@given(PLACES, PLACES)
def test_an_angle_is_that_of_the_haversine_formula(a: tuple[float, float], b: tuple[float, float]) -> None:
    up, aside = radians(b[1] - a[1]) / 2, radians(b[0] - a[0]) / 2
    square = sin(up) ** 2 + cos(radians(a[1])) * cos(radians(b[1])) * sin(aside) ** 2
    expected = 2 * asin(min(1, sqrt(square)))
    found = angle(vector(*a), vector(*b))
    assert abs(found - expected) < (1e-9 if expected < 3.1 else 1e-7)


@given(PLACES, PLACES, PLACES)
def test_orientation_agrees_with_itself(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> None:
    x, y, z = vector(*a), vector(*b), vector(*c)
    sign = orientation(x, y, z)
    assert orientation(y, z, x) == orientation(z, x, y) == sign
    assert orientation(y, x, z) == orientation(z, y, x) == -sign
    assert (sign == 0) == (x in (y, z) or y == z)


@given(st.lists(st.sampled_from([0.0, 45.0, 90.0, -180.0]), min_size=3, max_size=3, unique=True))
def test_points_of_one_meridian_or_the_equator_are_told_apart(lngs: list[float]) -> None:
    a, b, c = [vector(lng, 0.0) for lng in lngs]
    assert orientation(a, b, c) == -orientation(b, a, c) != 0


def _axes(centre: Vector) -> tuple[Vector, Vector]:
    other: Vector = (0.0, 0.0, 1.0) if abs(centre[2]) < 0.9 else (1.0, 0.0, 0.0)
    east = normalized(cross(other, centre))
    return east, cross(centre, east)


def _unprojected(centre: Vector, at: tuple[float, float]) -> Vector:
    """The vector of a point on the plane that touches the sphere at `centre`, where great circles are straight."""
    east, north = _axes(centre)
    x, y = at
    made = [centre[i] + x * east[i] + y * north[i] for i in range(3)]
    return normalized((made[0], made[1], made[2]))


def _is_inside(ring: list[tuple[float, float]], at: tuple[float, float]) -> bool:
    inside = False
    for (ax, ay), (bx, by) in zip(ring, [*ring[1:], ring[0]]):
        if (ay > at[1]) != (by > at[1]) and at[0] < (bx - ax) * (at[1] - ay) / (by - ay) + ax:
            inside = not inside
    return inside


def _edge_gap(ring: list[tuple[float, float]], at: tuple[float, float]) -> float:
    gaps = []
    for (ax, ay), (bx, by) in zip(ring, [*ring[1:], ring[0]]):
        length = hypot(bx - ax, by - ay)
        share = max(0.0, min(1.0, ((at[0] - ax) * (bx - ax) + (at[1] - ay) * (by - ay)) / length**2))
        gaps.append(hypot(at[0] - ax - share * (bx - ax), at[1] - ay - share * (by - ay)))
    return min(gaps)


STARS = st.lists(st.floats(0.05, 0.9), min_size=3, max_size=12)
SPOTS = st.tuples(st.floats(-1, 1), st.floats(-1, 1))


@given(PLACES, STARS, st.lists(SPOTS, min_size=1, max_size=10))
def test_a_loop_holds_what_its_gnomonic_projection_holds(
    place: tuple[float, float], radii: list[float], spots: list[tuple[float, float]]
) -> None:
    centre = vector(*place)
    ring = [
        (radius * cos(2 * pi * n / len(radii)), radius * sin(2 * pi * n / len(radii))) for n, radius in enumerate(radii)
    ]
    loop = Loop([_unprojected(centre, at) for at in ring])
    assert loop.is_small and not loop.inverted().is_small
    for at in spots:
        if _edge_gap(ring, at) > 1e-9:
            p = _unprojected(centre, at)
            assert loop.contains(p) is _is_inside(ring, at)
            assert loop.inverted().contains(p) is not loop.contains(p)


@given(PLACES, SPOTS, SPOTS, SPOTS)
def test_the_distance_to_an_edge_is_the_least_of_its_points(
    place: tuple[float, float], a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]
) -> None:
    centre = vector(*place)
    p, start, end = [_unprojected(centre, at) for at in (a, b, c)]
    found = edge_distance(p, start, end)
    steps = [tuple((1 - n / 64) * start[i] + n / 64 * end[i] for i in range(3)) for n in range(65)]
    least = min(angle(p, (x, y, z)) for x, y, z in steps)
    assert found <= least + 1e-12 and least - found <= angle(start, end)


@given(PLACES, st.floats(0.001, 60), st.integers(3, 20))
def test_a_geojson_circle_holds_its_centre_and_has_its_distance(
    place: tuple[float, float], radius: float, count: int
) -> None:
    """A ring about any place, also about a pole or over the antimeridian, as longitudes and latitudes."""
    centre = vector(*place)
    east, north = _axes(centre)
    ring = []
    for n in range(count):
        turned, far = 2 * pi * n / count, radians(radius)
        aside = [cos(turned) * east[i] + sin(turned) * north[i] for i in range(3)]
        x, y, z = [cos(far) * centre[i] + sin(far) * aside[i] for i in range(3)]
        ring.append([degrees(atan2(y, x)), degrees(asin(max(-1.0, min(1.0, z))))])
    shape = geojson_shape({"type": "Polygon", "coordinates": [[*ring, ring[0]]]})
    assert shape.holds(point_shape(place))
    opposite = (-centre[0], -centre[1], -centre[2])
    assert not shape.polygons[0].contains(opposite)
    assert shape.distance(centre) == 0
    away = shape.distance(opposite)
    assert pi - radians(radius) - 1e-9 <= away <= pi and abs(dot(centre, centre) - 1) < 1e-12
