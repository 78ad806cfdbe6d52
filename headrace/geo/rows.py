"""Coverings by rows: the cells of one level that meet a small circle, found row by row on the faces of the cube.

A small circle is an ellipse on a face. So in each row of cells, where the circle meets the row's two edges tells which
cells it meets and which are wholly inside. That takes a few square roots for a row, where the four corners of each cell
would take many.

A point is in the cell that its rounded coordinates name, so circles are widened by `slack`, and a cell that may not be
wholly inside is not counted as inside. Source: the scheme of `cells.py`, and the equations of a cone cut by a plane.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, cos, floor, log2, sin, sqrt
from typing import Final, NamedTuple

from headrace.geo.cells import BLOCK_LEVELS, LEAF_LEVEL
from headrace.geo.covers import Blocks, LevelCover
from headrace.geo.near_cells import flat, in_face
from headrace.geo.shapes import Cap

RADIUS_MIN: Final = 1e-5
RADIUS_MAX: Final = 0.3
"""Circles of other sizes, in radians, are covered by `covering.py`."""
_FINENESS: Final = 5.5
_ERROR: Final = 1e-15
_EDGE: Final = 1e-6
"""The part of a cell by which rounding may move a point into the next cell."""

Span = tuple[float, float]


class RowCells(NamedTuple):
    """Cells of a row that meet a circle: from `first` to `last`, of which `inside_first` to `inside_last` are wholly
    in it (none if `inside_last` is less)."""

    face: int
    number: int
    first: int
    last: int
    inside_first: int
    inside_last: int


def circle_cover(circle: Cap, slack: float, fineness: float = _FINENESS) -> LevelCover:
    """Return a cover of a circle with a radius from `RADIUS_MIN` to `RADIUS_MAX`. `fineness`: the most cells along the
    radius, about; on average there are three quarters of that."""
    level, rows = circle_rows(circle, slack, fineness)
    inside, crossing = list[int](), list[int]()
    blocks: dict[int, Blocks] = {}
    for face, j, first, last, inside_first, inside_last in rows:
        if face not in blocks:
            blocks[face] = Blocks(face, level)
        positions = blocks[face].positions
        if inside_first > inside_last:
            crossing += positions(j, first, last)
            continue
        inside += positions(j, inside_first, inside_last)
        crossing += positions(j, first, inside_first - 1)
        crossing += positions(j, inside_last + 1, last)
    return LevelCover(level, inside, crossing)


def circle_rows(circle: Cap, slack: float, fineness: float) -> tuple[int, list[RowCells]]:
    """Return a level and the rows of its cells that meet a circle with a radius from `RADIUS_MIN` to `RADIUS_MAX`."""
    level = min(LEAF_LEVEL, max(BLOCK_LEVELS, round(log2(fineness / circle.radius))))
    rows: list[RowCells] = []
    for face in range(6):
        f, u, v = in_face(face, circle.centre)
        if f > sin(circle.radius + slack) + _ERROR:  # all of the circle is in front of the face's plane
            rows += _circle_rows(face, level, (f, u, v), circle.radius, slack)
    return level, rows


def _circle_rows(
    face: int, level: int, centre: tuple[float, float, float], radius: float, slack: float
) -> Iterator[RowCells]:  # fmt: skip
    """Yield the rows of one face that meet a circle, whose centre has these coordinates on the face's axes."""
    f, u, v = centre
    count = 1 << level
    wide = sin(radius + slack)
    far, near = 1 - wide * wide, cos(radius) ** 2
    below = f * f - wide * wide
    a, across = far - u * u, far - v * v
    reach = wide * sqrt(max(0.0, a))
    low, high = (f * v - reach) / below, (f * v + reach) / below
    reach = wide * sqrt(max(0.0, across))
    left, right = (f * u - reach) / below, (f * u + reach) / below
    if low > 1 or high < -1 or left > 1 or right < -1:
        return
    left_at, right_at = v * (f + left * u) / across, v * (f + right * u) / across
    first, last = max(0, floor(step(low) * count - _EDGE)), min(count - 1, floor(step(high) * count + _EDGE))
    inner = near - u * u
    edge, before, before_inside = 0.0, None, None
    for number in range(first, last + 2):
        line = flat(number / count)
        on_line, inside = (
            _chord(f + line * v, u, line, far, a, _ERROR),
            _chord(f + line * v, u, line, near, inner, -_ERROR),
        )
        if number > first:
            ends = [span for span in (before, on_line) if span is not None]
            least, most = min([span[0] for span in ends], default=2.0), max([span[1] for span in ends], default=-2.0)
            if edge - _EDGE / count <= left_at <= line + _EDGE / count:
                least = left
            if edge - _EDGE / count <= right_at <= line + _EDGE / count:
                most = right
            row = _row(face, number - 1, count, (least, most), _both(before_inside, inside))
            if row is not None:
                yield row
        edge, before, before_inside = line, on_line, inside


def _chord(g: float, u: float, line: float, square: float, a: float, error: float) -> Span | None:
    """The part of a line that is in a circle, or None: the roots of a x² - 2 u g x - (g² - square (1 + line²))."""
    root = u * u * g * g + a * (g * g - square * (1 + line * line)) + error
    if root <= 0:
        return None
    root = sqrt(root)
    return (u * g - root) / a, (u * g + root) / a


def _both(some: Span | None, other: Span | None) -> Span | None:
    return None if some is None or other is None else (max(some[0], other[0]), min(some[1], other[1]))


def _row(face: int, number: int, count: int, outer: Span, inner: Span | None) -> RowCells | None:
    first, last = max(0, floor(step(outer[0]) * count - _EDGE)), min(count - 1, floor(step(outer[1]) * count + _EDGE))
    if first > last:
        return None
    inside_first, inside_last = 0, -1
    if inner is not None and inner[0] < inner[1]:
        inside_first = max(0, ceil(step(inner[0]) * count + _EDGE))
        inside_last = min(count, floor(step(inner[1]) * count - _EDGE)) - 1
    return RowCells(face, number, first, last, inside_first, inside_last)


def step(x: float) -> float:
    """Return the fraction of the width of a face's grid at a coordinate on the face; the inverse of `flat`."""
    if x >= 1 or x <= -1:
        return float(x > 0)
    return 0.5 * sqrt(1 + 3 * x) if x >= 0 else 1 - 0.5 * sqrt(1 - 3 * x)
