"""Coverings of circles by rows: no point is missed, and cells inside are inside, at every size and place."""

from __future__ import annotations

from math import asin, cos, degrees, log10, pi, sin
from random import Random

import pytest

from headrace.geo.cells import BLOCK_LEVELS, LEAF_LEVEL, Cell, ends, leaf, signed
from headrace.geo.covering import RADIUS_MAX, RADIUS_MIN, Blocks, circle_cover
from headrace.geo.shapes import Cap
from headrace.geo.sphere import Vector, cross, normalized, vector

SLACK = 2e-9
CORNERS = [0.0, 1e-9, 35.264389, 45.0, -45.0, 90.0, -90.0]
"""Longitudes and latitudes at edges and corners of the faces."""


def test_positions_are_those_of_cells() -> None:
    random = Random(1)
    for level in range(BLOCK_LEVELS, LEAF_LEVEL + 1):
        for face in range(6):
            row, column = random.randrange(1 << level), random.randrange(1 << level)
            columns = range(column, min(column + 40, 1 << level))
            shift = 2 * (LEAF_LEVEL - level) + 1
            found = Blocks(face, level).positions(row, columns[0], columns[-1])
            assert [at << shift | 1 << shift - 1 for at in found] == [
                signed(Cell(face, level, i, row).number) for i in columns
            ]
            assert Blocks(face, level).positions(row, column, column - 1) == []


def spans_hold(spans: list[tuple[int, int]], numbers: list[int]) -> bool:
    """Return whether ranges of leaves are ascending, apart, and hold the leaves of these cells and no others."""
    leaves = [tuple(map(signed, ends(number))) for number in numbers]
    joined = [leaves[at] for at in range(len(leaves)) if not at or leaves[at - 1][1] + 2 != leaves[at][0]]
    return [first for first, _ in spans] == [first for first, _ in joined] and sum(
        last - first + 2 for first, last in spans
    ) == sum(last - first + 2 for first, last in leaves)


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
        cover = circle_cover(circle, SLACK)
        inside, crossing = set(cover.inside), set(cover.crossing)
        assert not inside & crossing and 8 < len(inside | crossing) < 250
        numbers = sorted(cover.numbers, key=signed)
        assert spans_hold(cover.spans(), numbers) and spans_hold(cover.sure_spans(), sorted(inside, key=signed))
        low = numbers[0] & -numbers[0]
        for _ in range(40):
            part = random.choice([1, 1, 1 + 1e-12, 1 - 1e-12, 1 + 1e-9, random.random(), random.uniform(0, 1.5)])
            p = away(centre, part * radius, random.uniform(0, 2 * pi))
            cell = leaf(p) & -low | low
            if circle.holds_point(p):
                assert cell in inside or cell in crossing, (centre, radius, p)
            else:
                assert cell not in inside, (centre, radius, p)
