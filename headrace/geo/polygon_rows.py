"""Covers of lines and polygons by rows: the cells of one level on the faces of the cube, found edge by edge.

Edges are straight lines on a face. So in each row of cells an edge meets the columns between the places where it meets
the row's two borders:

    columns that edges meet              →  crossing cells
    columns between two such             →  all inside or all outside: a line from the left crosses the edges of the
                                            loop an odd or an even number of times

Edges are widened by `slack`, and a cell that rounding could make a crossing cell is one. Source: the scheme of
`cells.py`, and the even-odd rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import floor, log2, pi, sin, sqrt
from typing import Final

from headrace.geo.cells import BLOCK_LEVELS, LEAF_LEVEL, flat, step
from headrace.geo.covers import Blocks, Cover, joined, level_cover
from headrace.geo.near_cells import in_face
from headrace.geo.shapes import Geometry
from headrace.geo.sphere import Vector

_CELL_COUNT: Final = 80
"""The number of cells of a cover, about."""
_EDGE: Final = 1e-6
"""The part of a cell by which rounding may move a point into the next cell."""
_STRETCH: Final = 3.0
"""The most that a small distance on the sphere grows on a face."""
_WIDTH: Final = 1.45
"""The average width of a cell, in radians, is this divided by two to the power of its level."""
_FLAT: Final = 1e-9
"""An edge that rises less on a face is treated as level."""
_ERROR: Final = 1e-15

_Place = tuple[float, float, float, float]
"""A vertex on a face, and its place in columns and rows."""
_Span = tuple[int, int]


def shape_cover(area: Geometry, circle: tuple[Vector, float], slack: float) -> Cover:
    """Return a cover of the lines and polygons in a circle around them, which has a radius of at most `RADIUS_MAX`."""
    level = _level(area, circle[0])
    inside, crossing = list[int](), list[int]()
    for face in range(6):
        if not _meets(face, circle, slack):
            continue
        blocks = Blocks(face, level)
        if area.lines:
            rows = _Rows(face, level, slack)
            for line in area.lines:
                rows.add(line)
            rows.put_cells(blocks, [], crossing)
        for polygon in area.polygons:
            rows = _Rows(face, level, slack)
            for loop in polygon.loops:
                rows.add((*loop.vertices, loop.vertices[0]))
            rows.put_cells(blocks, inside, crossing)
    if len(area.polygons) + len(area.lines) > 1:
        within = set(inside)
        return level_cover(level, within, set(crossing) - within)
    return level_cover(level, inside, crossing)


def _level(area: Geometry, centre: Vector) -> int:
    """Return the level at which about `_CELL_COUNT` cells cover an area. By the mean over all places, a convex area
    meets (area + 2 / pi * perimeter * width) / width² squares."""
    size = around = 0.0
    for polygon in area.polygons:
        for loop in polygon.loops:
            length, part = _measured((*loop.vertices, loop.vertices[0]), centre)
            around += length
            if loop is polygon.outer:
                size += part
    around += 2 * sum(_measured(line, centre)[0] for line in area.lines)
    half = around / pi
    width = (half + sqrt(half * half + _CELL_COUNT * size)) / _CELL_COUNT
    return max(BLOCK_LEVELS, min(LEAF_LEVEL, round(log2(_WIDTH / width)))) if width else LEAF_LEVEL


def _measured(vertices: Sequence[Vector], centre: Vector) -> tuple[float, float]:
    """Return the length of a line, and the area within, if it is a ring; both about."""
    length = i = j = k = 0.0
    a, b, c = vertices[0]
    for x, y, z in vertices:
        length += sqrt((x - a) * (x - a) + (y - b) * (y - b) + (z - c) * (z - c))
        i, j, k = i + b * z - c * y, j + c * x - a * z, k + a * y - b * x
        a, b, c = x, y, z
    return length, abs(i * centre[0] + j * centre[1] + k * centre[2]) / 2


def _meets(face: int, circle: tuple[Vector, float], slack: float) -> bool:
    """Whether a circle may meet a face of the cube. If so, all of the circle is in front of the face's plane."""
    f, u, v = in_face(face, circle[0])
    wide = sin(circle[1] + slack) + _ERROR
    return f > wide and max(abs(u), abs(v)) - f <= wide * sqrt(2)


class _Rows:
    """The rows of a face in which the edges of one polygon, or of lines, are."""

    __slots__ = ("_columns", "_count", "_crossings", "_face", "_lines", "_pad")

    def __init__(self, face: int, level: int, slack: float) -> None:
        self._face = face
        self._count = 1 << level
        self._pad = _STRETCH * slack + _ERROR
        self._lines: dict[int, float] = {}
        self._columns: dict[int, list[_Span]] = {}
        """The columns that each edge meets in a row."""
        self._crossings: list[dict[int, list[float]]] = []
        """For each loop the places, in columns, where its edges cross the lower border of a row."""

    def add(self, vertices: Sequence[Vector]) -> None:
        """Add the edges of a loop or a line."""
        self._crossings.append({})
        places, count = list[_Place](), self._count
        for f, u, v in (in_face(self._face, vertex) for vertex in vertices):
            u, v = u / f, v / f
            places.append((u, v, step(u) * count, step(v) * count))
        for a, b in pairwise(places):
            if a[1] <= b[1]:
                self._add(a, b)
            else:
                self._add(b, a)

    def _add(self, lower: _Place, upper: _Place) -> None:
        """Add an edge, the lower end first."""
        (au, av, ax, ay), (bu, bv, bx, by), pad, count = lower, upper, self._pad, self._count
        if bv + pad < -1 or av - pad > 1:
            return
        edge = _EDGE + pad * count
        first, last = max(0, floor(ay - edge)), min(count - 1, floor(by + edge))
        left, right = max(0.0, min(ax, bx) - edge), min(count - 1.0, max(ax, bx) + edge)
        is_beside = max(au, bu) + pad < -1 or min(au, bu) - pad > 1
        is_level = bv - av < _FLAT
        slope = 0.0 if bv == av else (bu - au) / (bv - av)
        width = _EDGE + pad * (1 + abs(slope)) * count
        columns, crossings = self._columns, self._crossings[-1]
        line, x = self._lines.get(first) or self._line(first), 0.0
        for number in range(first - 1, last + 1):
            before = x
            if line < av:
                x = ax
            elif line >= bv:
                x = bx
            else:
                x = step(au + (line - av) * slope) * count
                crossings.setdefault(number + 1, []).append(x)
            if number >= first:
                in_row = columns.setdefault(number, [])
                if is_level and not is_beside:
                    in_row.append((int(left), int(right)))
                elif not is_beside:
                    least, most = (x, before) if x < before else (before, x)
                    in_row.append((int(max(left, least - width)), int(min(right, most + width))))
            line = self._lines.get(number + 2) or self._line(number + 2)

    def _line(self, number: int) -> float:
        made = self._lines[number] = flat(number / self._count)
        return made

    def put_cells(self, blocks: Blocks, inside: list[int], crossing: list[int]) -> None:
        """Append the positions of cells inside the first loop and outside of all others, and of cells that edges
        meet."""
        for row, columns in self._columns.items():
            met = joined([span for span in columns if span[0] <= span[1]], 1)
            between = self._between(row, met)
            if not met and not between:
                continue
            first, last = (met or between)[0][0], (met or between)[-1][1]
            if between:
                first, last = min(first, between[0][0]), max(last, between[-1][1])
            cells = blocks.positions(row, first, last)
            for start, end in met:
                crossing += cells[start - first : end + 1 - first]
            for start, end in between:
                inside += cells[start - first : end + 1 - first]

    def _between(self, row: int, met: list[_Span]) -> list[_Span]:
        """Return the columns of a row, between those that edges meet, that are inside the first loop and outside of all
        others."""
        outer, *holes = self._crossings
        places, made, after = outer.get(row), list[_Span](), 0
        if not places:
            return made
        for first, last in (*met, (self._count, self._count)):
            if after < first and _is_odd(places, after) and not (
                holes and any(_is_odd(hole.get(row, ()), after) for hole in holes)
            ):  # fmt: skip
                made.append((after, first - 1))
            after = last + 1
        return made


def _is_odd(places: Sequence[float], column: int) -> bool:
    """Whether an odd number of places is to the left of a column's middle."""
    count, middle = 0, column + 0.5
    for place in places:
        count += place < middle
    return count % 2 == 1
