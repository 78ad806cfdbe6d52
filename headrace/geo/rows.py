"""Coverings by rows: the cells of one level that meet a small circle, found row by row on the faces of the cube.

A small circle is an ellipse on a face. So in each row of cells, where the circle meets the row's two edges tells which
cells it meets and which are wholly inside. That takes a few square roots for a row, where the four corners of each cell
would take many.

A point is in the cell that its rounded coordinates name, so circles are widened by `slack`, and a cell that may not be
wholly inside is not counted as inside. Source: the scheme of `cells.py`, and the equations of a cone cut by a plane.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, cos, floor, inf, log2, sin, sqrt
from typing import Final

from headrace.geo.cells import BLOCK_LEVELS, LEAF_LEVEL, flat, step
from headrace.geo.covers import Blocks, Cover, level_cover
from headrace.geo.near_cells import in_face
from headrace.geo.shapes import Cap

RADIUS_MIN: Final = 1e-5
RADIUS_MAX: Final = 0.3
"""Circles of other sizes, in radians, are covered by `covering.py`."""
_FINENESS: Final = 5.5
_ERROR: Final = 1e-15
_EDGE: Final = 1e-6
"""The part of a cell by which rounding may move a point into the next cell."""

Span = tuple[float, float]


_RowCells = tuple[int, int, int, int, int]
"""Cells of a row that meet a circle: the row, the first and the last column, and the first and the last column of the
cells that are wholly in it (none if the last one is less)."""
_OUTSIDE: Final = inf, -inf


def circle_cover(circle: Cap, slack: float, fineness: float = _FINENESS) -> Cover:
    """Return a cover of a circle with a radius from `RADIUS_MIN` to `RADIUS_MAX`. `fineness`: the most cells along the
    radius, about; on average there are three quarters of that."""
    level = min(LEAF_LEVEL, max(BLOCK_LEVELS, round(log2(fineness / circle.radius))))
    inside, crossing = list[int](), list[int]()
    for face in range(6):
        place = in_face(face, circle.centre)
        if place[0] <= sin(circle.radius + slack) + _ERROR:
            continue
        positions = Blocks(face, level).positions  # all of the circle is in front of the face's plane
        for row, first, last, inside_first, inside_last in _circle_rows(1 << level, place, circle.radius, slack):
            cells = positions(row, first, last)
            if inside_first > inside_last:
                crossing += cells
            else:
                inside += cells[inside_first - first : inside_last + 1 - first]
                crossing += cells[: inside_first - first]
                crossing += cells[inside_last + 1 - first :]
    return level_cover(level, inside, crossing)


def _circle_rows(
    count: int, centre: tuple[float, float, float], radius: float, slack: float
) -> Iterator[_RowCells]:  # fmt: skip
    """Yield the rows of a face, of `count` rows, that meet a circle. `centre`: on the face's axes."""
    f, u, v = centre
    wide = sin(radius + slack)
    far, near = 1 - wide * wide, cos(radius) ** 2
    below = f * f - wide * wide
    a, across, inner = far - u * u, far - v * v, near - u * u
    reach = wide * sqrt(max(0.0, a))
    low, high = (f * v - reach) / below, (f * v + reach) / below
    reach = wide * sqrt(max(0.0, across))
    left, right = (f * u - reach) / below, (f * u + reach) / below
    if low > 1 or high < -1 or left > 1 or right < -1:
        return
    left_at, right_at = v * (f + left * u) / across, v * (f + right * u) / across
    left, right, pad = step(left) * count, step(right) * count, _EDGE / count
    first, last = max(0, floor(step(low) * count - _EDGE)), min(count - 1, floor(step(high) * count + _EDGE))
    edge, before, before_inside = 0.0, _OUTSIDE, _OUTSIDE
    for number in range(first, last + 2):
        line = flat(number / count)
        g, size = f + line * v, 1 + line * line
        on_line = _chord(g, u, far * size, a, _ERROR, count)
        inside = _chord(g, u, near * size, inner, -_ERROR, count)
        if number > first:
            least, most = min(before[0], on_line[0]), max(before[1], on_line[1])
            if edge - pad <= left_at <= line + pad:
                least = left
            if edge - pad <= right_at <= line + pad:
                most = right
            if least <= most:
                first_in, last_in = max(before_inside[0], inside[0]), min(before_inside[1], inside[1])
                is_in = first_in < last_in
                yield (
                    number - 1, max(0, floor(least - _EDGE)), min(count - 1, floor(most + _EDGE)),
                    ceil(first_in + _EDGE) if is_in else 0, floor(last_in - _EDGE) - 1 if is_in else -1,
                )  # fmt: skip
        edge, before, before_inside = line, on_line, inside


def _chord(g: float, u: float, square: float, a: float, error: float, count: int) -> Span:
    """The part of a line that is in a circle, in columns: the roots of a x² - 2 u g x - (g² - square)."""
    along = u * g
    root = along * along + a * (g * g - square) + error
    if root <= 0:
        return _OUTSIDE
    root = sqrt(root)
    return step((along - root) / a) * count, step((along + root) / a) * count
