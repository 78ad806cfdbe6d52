"""Coverings of polygons and lines by rows: no point is missed, and cells inside are inside, at every size and place."""

from __future__ import annotations

from math import asin, atan2, degrees, hypot, log10, pi
from random import Random
from typing import Any

import pytest

from headrace.geo.cells import leaf, signed
from headrace.geo.covering import RADIUS_MAX, RADIUS_MIN, query_cells
from headrace.geo.geojson import BadGeometry, geojson_shape
from headrace.geo.shapes import Geometry
from headrace.geo.sphere import Vector, normalized, vector
from tests.geo.test_rows import CORNERS, away, spans_hold

Pair = list[float]


def pair(p: Vector) -> Pair:
    return [degrees(atan2(p[1], p[0])), degrees(atan2(p[2], hypot(p[0], p[1])))]


def ring(random: Random, centre: Vector, radius: float, count: int, least: float) -> list[Pair]:
    """Return a closed ring around a centre, as a star if `least` is small."""
    start = random.uniform(0, 2 * pi)
    angles = [start + 2 * pi * (at + random.uniform(0, 0.8)) / count for at in range(count)]
    made = [pair(away(centre, radius * random.uniform(least, 1), angle)) for angle in angles]
    return [*made, made[0]]


def drawn(random: Random, centre: Vector, radius: float) -> dict[str, Any]:
    """Return a polygon, some with holes, several polygons, a line, or all of them."""
    kind = random.choice(["Polygon", "Polygon", "holes", "MultiPolygon", "LineString", "thin", "GeometryCollection"])
    if kind == "LineString":
        return {"type": kind, "coordinates": ring(random, centre, radius, random.randrange(3, 9), 0.1)[:-1]}
    if kind == "thin":
        one, other = away(centre, radius, 1.0), away(centre, radius, 1.0 + pi)
        aside = away(other, radius * 10.0 ** -random.randrange(1, 9), 2.5)
        return {"type": "Polygon", "coordinates": [[pair(one), pair(other), pair(aside), pair(one)]]}
    if kind == "holes":
        holes = [ring(random, away(centre, radius * 0.2, turn), radius * 0.15, 4, 0.3) for turn in (0.0, 2.0, 2.3)]
        return {"type": "Polygon", "coordinates": [ring(random, centre, radius, 9, 0.8), *holes]}
    if kind == "MultiPolygon":
        centres = [away(centre, radius * random.uniform(0, 0.5), random.uniform(0, 6)) for _ in range(3)]
        return {"type": kind, "coordinates": [[ring(random, at, radius / 2, 5, 0.4)] for at in centres]}
    if kind == "GeometryCollection":
        return {"type": kind, "geometries": [drawn(random, centre, radius) for _ in range(2)]}
    return {"type": kind, "coordinates": [ring(random, centre, radius, random.choice([3, 4, 6, 30]), 0.2)]}


def shape(random: Random, centre: Vector, radius: float) -> Geometry:
    while True:
        try:
            return geojson_shape(drawn(random, centre, radius))
        except BadGeometry:  # edges cross, a hole is outside, or a collection is in a collection
            continue


def spots(random: Random, area: Geometry, centre: Vector, radius: float) -> list[Vector]:
    """Return points in and around an area, and points on its edges and vertices or hardly beside them."""
    made = [away(centre, radius * random.uniform(0, 1.2), random.uniform(0, 2 * pi)) for _ in range(60)]
    for a, b in area.edges:
        part = random.choice([0.0, 1.0, random.random(), random.random()])
        x, y, z = (p + part * (q - p) for p, q in zip(a, b))
        made.append(normalized((x, y, z)))
        made.append(away(made[-1], 10.0 ** random.uniform(-16, -9), random.uniform(0, 2 * pi)))
    return made


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_no_point_is_missed_and_cells_inside_are_inside(seed: int) -> None:
    random = Random(seed)
    by_rows = 0
    for number in range(50):
        radius = 10 ** random.uniform(log10(RADIUS_MIN) + 0.4, log10(RADIUS_MAX) - 0.1)
        if number % 3:
            centre = vector(random.uniform(-180, 180), degrees(asin(random.uniform(-1, 1))))
        else:
            centre = vector(random.choice([*CORNERS, 135.0, 180.0, -180.0]), random.choice(CORNERS))
        area = shape(random, centre, radius)
        cover = query_cells(area)
        inside, crossing = set(cover.inside), set(cover.crossing)
        numbers = sorted(cover.numbers, key=signed)
        by_rows += len({number & -number for number in numbers}) == 1
        assert not inside & crossing and 0 < len(numbers) < 500 and len(set(numbers)) == len(numbers)
        assert spans_hold(cover.spans(), numbers) and spans_hold(cover.sure_spans(), sorted(inside, key=signed))
        for p in spots(random, area, centre, radius):
            own = {leaf(p) & -(1 << shift) | 1 << shift for shift in range(0, 60, 2)}
            if area.holds_point(p) or area.meets(Geometry(points=(p,))):
                assert own & (inside | crossing), (seed, number, p)
            if not area.holds_point(p):
                assert not own & inside, (seed, number, p)
    assert by_rows > 40


def test_a_cover_has_few_cells_outside() -> None:
    random = Random(7)
    wasted = []
    for _ in range(100):
        centre = vector(random.uniform(-180, 180), degrees(asin(random.uniform(-1, 1))))
        x, y = pair(centre)
        size = 10 ** random.uniform(-3, 0.5)
        if abs(y) > 60 or abs(x) > 170:
            continue
        corners = [[x, y], [x + size, y], [x + size, y + size], [x, y + size], [x, y]]
        cover = query_cells(geojson_shape({"type": "Polygon", "coordinates": [corners]}))
        assert len(cover.spans()) < 40 and len(cover.inside) >= 8
        wasted.append(len(cover.crossing) / len(cover.inside))
    assert sum(wasted) / len(wasted) < 1.5
