"""Coverings of circles by rows: no point is missed, and cells inside are inside, at every size and place."""

from __future__ import annotations

from math import asin, cos, degrees, log10, pi, sin
from random import Random

import pytest

from headrace.geo.cells import LEAF_LEVEL, Cell, leaf, position
from headrace.geo.rows import RADIUS_MAX, RADIUS_MIN, circle_rows, numbers_of
from headrace.geo.shapes import Cap
from headrace.geo.sphere import Vector, cross, normalized, vector

SLACK = 2e-9
CORNERS = [0.0, 1e-9, 35.264389, 45.0, -45.0, 90.0, -90.0]
"""Longitudes and latitudes at edges and corners of the faces."""


def test_positions_are_those_of_cells() -> None:
    random = Random(1)
    for level in range(LEAF_LEVEL + 1):
        for face in range(6):
            i, j = random.randrange(1 << level), random.randrange(1 << level)
            shift = 2 * (LEAF_LEVEL - level)
            number = ((face << 2 * level | position(face, level, i, j)) << 1 | 1) << shift
            assert number == Cell(face, level, i, j).number


def away(centre: Vector, distance: float, direction: float) -> Vector:
    """Return the point at a distance in a direction."""
    one = normalized(cross(centre, (0.1, 0.2, 0.97) if abs(centre[2]) < 0.9 else (1.0, 0.0, 0.0)))
    other, ahead, aside = cross(centre, one), cos(direction) * sin(distance), sin(direction) * sin(distance)
    x, y, z = (cos(distance) * c + ahead * a + aside * b for c, a, b in zip(centre, one, other))
    return normalized((x, y, z))


@pytest.mark.parametrize("seed", range(4))
def test_no_point_is_missed_and_cells_inside_are_inside(seed: int) -> None:
    random = Random(seed)
    for number in range(150):
        radius = 10 ** random.uniform(log10(RADIUS_MIN), log10(RADIUS_MAX))
        if number % 3:
            centre = vector(random.uniform(-180, 180), degrees(asin(random.uniform(-1, 1))))
        else:
            centre = vector(random.choice([*CORNERS, 135.0, 180.0, -180.0]), random.choice(CORNERS))
        circle = Cap(centre, radius)
        level, rows = circle_rows(circle, SLACK)
        inside, crossing = map(set, numbers_of(level, rows))
        assert not inside & crossing and 8 < len(inside | crossing) < 250
        shift = 2 * (LEAF_LEVEL - level)
        for _ in range(40):
            part = random.choice([1, 1, 1 + 1e-12, 1 - 1e-12, 1 + 1e-9, random.random(), random.uniform(0, 1.5)])
            p = away(centre, part * radius, random.uniform(0, 2 * pi))
            cell = (leaf(p) >> shift + 1 << 1 | 1) << shift
            if circle.holds_point(p):
                assert cell in inside or cell in crossing, (centre, radius, p)
            else:
                assert cell not in inside, (centre, radius, p)
