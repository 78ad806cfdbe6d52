"""Covers: a few cells that together contain a whole region, and the ranges of their leaves, for an index to search.

They may contain more; the filter decides. A cover of small circles, lines and polygons has cells of one level, found
row by row on the faces of the cube. Each row is a list of columns, so the positions of its cells on the curve come
from a table of 16 by 16 cells.

A small circle is an ellipse on a face. So in each row of cells, where the circle meets the row's two edges tells which
cells it meets and which are wholly inside. That takes a few square roots for a row, where the four corners of each cell
would take many.

Edges of lines and polygons are straight lines on a face. So in each row of cells an edge meets the columns between the
places where it meets the row's two borders:

    columns that edges meet              →  crossing cells
    columns between two such             →  all inside or all outside: a line from the left crosses the edges of the
                                            loop an odd or an even number of times

A point is in the cell that its rounded coordinates name, so circles and edges are widened by `slack`, and a cell that
rounding could make a crossing cell is one.

For large regions, and for the shapes that an index stores, cells of any levels are divided. Each is treated as the
circle around it. Each of its four children is compared only with the edges near the cell, so that a covering costs
little more than one look at each edge. Source: the scheme of `cells.py`, the equations of a cone cut by a plane, and
the even-odd rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil, cos, floor, inf, log2, pi, sin, sqrt
from typing import Final, NamedTuple

from headrace.geo.cells import (
    BLOCK_LEVELS,
    FACES,
    LEAF_LEVEL,
    Cell,
    SphereCells,
    block,
    cell_at,
    flat,
    in_face,
    leaf,
    spans,
    step,
)
from headrace.geo.shapes import Cap, Edge, Geometry
from headrace.geo.sphere import SIGN_ERROR, Vector, angle, edge_normal, normalized

Span = tuple[int, int]
"""The first and the last number of leaves, signed."""
_SIGN: Final = 1 << 64
_NEXT: Final = 2
"""The difference between the numbers of neighbouring leaves."""
_LAST: Final = (1 << BLOCK_LEVELS) - 1


class Cover(NamedTuple):
    """The numbers of cells of any levels that together contain a whole region."""

    inside: list[int]
    """Cells that are wholly in the region."""
    crossing: list[int]
    """The remaining cells: a point in one of these may be outside of the region."""

    @property
    def numbers(self) -> list[int]:
        """The numbers of all cells."""
        return [*self.inside, *self.crossing]

    def spans(self) -> list[Span]:
        """Return the ranges of leaves in all cells."""
        return spans(self.numbers)

    def sure_spans(self) -> list[Span]:
        """Return the ranges of leaves in cells that are wholly in the region."""
        return spans(self.inside)


def level_cover(level: int, inside: Iterable[int], crossing: Iterable[int]) -> Cover:
    """Return the cells of one level at some positions, as `positions` of `Blocks` returns them, as a cover."""
    shift = 2 * (LEAF_LEVEL - level) + 1
    half = 1 << shift - 1
    return Cover([(at << shift | half) % _SIGN for at in inside], [(at << shift | half) % _SIGN for at in crossing])


class Blocks:
    """The positions of the cells of one level on one face. A position orders as the numbers of leaves do, signed: those
    of the faces 4 and 5 are negative."""

    __slots__ = ("_face", "_known", "_level", "_start")

    def __init__(self, face: int, level: int) -> None:
        self._face = face
        self._level = level - BLOCK_LEVELS
        self._start = (face if face < 4 else face - 8) << 2 * level
        self._known: dict[tuple[int, int], tuple[int, tuple[tuple[int, ...], ...]]] = {}

    def positions(self, row: int, first: int, last: int) -> list[int]:
        """Return the positions of the cells of a row from column `first` to `last`."""
        if first > last:
            return []
        made: list[int] = []
        for column in range(first >> BLOCK_LEVELS, (last >> BLOCK_LEVELS) + 1):
            start, table = self._known.get((column, row >> BLOCK_LEVELS)) or self._block(column, row >> BLOCK_LEVELS)
            left = column << BLOCK_LEVELS
            made += [start | step for step in table[row & _LAST][max(0, first - left) : last + 1 - left]]
        return made

    def _block(self, column: int, row: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        at, table = block(self._face, self._level, column, row)
        made = self._known[column, row] = self._start | at << 2 * BLOCK_LEVELS, table
        return made


def joined(given: Iterable[Span], step: int = _NEXT) -> list[Span]:
    """Return some ranges as ascending ranges that are apart. `step`: the difference between neighbouring numbers."""
    made: list[Span] = []
    for first, last in sorted(given):
        if made and first <= made[-1][1] + step:
            made[-1] = made[-1][0], max(made[-1][1], last)
        else:
            made.append((first, last))
    return made


def without(given: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the leaves of ascending ranges that are in none of the others, which are ascending and apart."""
    made: list[Span] = []
    at = 0
    for first, last in given:
        while at < len(others) and others[at][1] < first:
            at += 1
        number = at
        while number < len(others) and others[number][0] <= last:
            if first < others[number][0]:
                made.append((first, others[number][0] - 1))
            first = others[number][1] + 1
            number += 1
        if first <= last:
            made.append((first, last))
    return made


RADIUS_MIN: Final = 1e-5
RADIUS_MAX: Final = 0.3
"""Circles of other sizes, in radians, are covered by `covering.py`."""
_FINENESS: Final = 5.5

_Chord = tuple[float, float]


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


def _chord(g: float, u: float, square: float, a: float, error: float, count: int) -> _Chord:
    """The part of a line that is in a circle, in columns: the roots of a x² - 2 u g x - (g² - square)."""
    along = u * g
    root = along * along + a * (g * g - square) + error
    if root <= 0:
        return _OUTSIDE
    root = sqrt(root)
    return step((along - root) / a) * count, step((along + root) / a) * count


_CELL_COUNT: Final = 80
"""The number of cells of a cover, about."""
_EDGE: Final = 1e-6
"""The part of a cell by which rounding may move a point into the next cell."""
_STRETCH: Final = 3.0
"""The most that a small distance on the sphere grows on a face."""
_AVERAGE_WIDTH: Final = 1.45
"""The average width of a cell, in radians, is this divided by two to the power of its level."""
_FLAT: Final = 1e-9
"""An edge that rises less on a face is treated as level."""
_ERROR: Final = 1e-15

_Place = tuple[float, float, float, float]
"""A vertex on a face, and its place in columns and rows."""


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
    return max(BLOCK_LEVELS, min(LEAF_LEVEL, round(log2(_AVERAGE_WIDTH / width)))) if width else LEAF_LEVEL


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
        self._columns: dict[int, list[Span]] = {}
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

    def _between(self, row: int, met: list[Span]) -> list[Span]:
        """Return the columns of a row, between those that edges meet, that are inside the first loop and outside of all
        others."""
        outer, *holes = self._crossings
        places, made, after = outer.get(row), list[Span](), 0
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


_SLACK: Final = 2e-9
"""Radians by which a region is widened, because `$geoIntersects` counts near misses as touching."""
_WIDTH: Final = 0.94
"""The least width of a cell, in radians, is this divided by two to the power of its level."""
_STORED_COUNT: Final = 20
_STORED_LEVEL: Final = 23
_QUERY_COUNT: Final = 16
_CIRCLE_COUNT: Final = 48


_Arc = tuple[Vector, Vector, float, float]
"""An edge as its normal, its middle, and the cosine and the sine of half its length."""


def stored_cells(shape: Geometry) -> list[int]:
    """Return the numbers of the cells under which an index holds a shape: a leaf for each point, a covering for the
    rest."""
    made = {leaf(p): None for p in shape.points}
    if shape.lines or shape.polygons:
        rest = Geometry(lines=shape.lines, polygons=shape.polygons)
        inside, crossing = covering(rest, _STORED_COUNT, _STORED_LEVEL)
        made |= dict.fromkeys([*inside, *crossing])
    return list(made)


def query_cells(area: Geometry | Cap) -> Cover:
    """Return the cells that a query for an area searches."""
    if isinstance(area, Cap):
        if RADIUS_MIN <= area.radius <= RADIUS_MAX:
            return circle_cover(area, _SLACK)
        return _cover_circle(area, _CIRCLE_COUNT)
    rest = Geometry(lines=area.lines, polygons=area.polygons) if area.points else area
    bound = _bound(rest) if area.lines or area.polygons else None
    cover = Cover([], [])
    if bound is not None and RADIUS_MIN <= bound[1] <= RADIUS_MAX:
        cover = shape_cover(rest, bound, _SLACK)
    elif area.lines or area.polygons:
        cover = covering(rest, _QUERY_COUNT, LEAF_LEVEL)
    if not area.points:
        return cover
    made = dict.fromkeys(cover.crossing)
    for p in area.points:
        made |= dict.fromkeys(_cover_circle(Cap(p, _SLACK), 4).crossing)
    return Cover(cover.inside, list(made))


def _cover_circle(circle: Cap, count_max: int) -> Cover:
    """Return at most about `count_max` cells that together contain a circle. The largest cells are divided first."""
    relation = SphereCells(circle.centre, 1.0).relation(circle.radius, _SLACK)
    done: list[Cell] = []
    crossing = deque[Cell]()

    def sort_out(cells: Sequence[Cell]) -> None:
        for cell in cells:
            is_inside = relation(cell)
            if is_inside is not None:
                (done if is_inside else crossing).append(cell)

    sort_out(_start((circle.centre, circle.radius), LEAF_LEVEL))
    while crossing and len(done) + len(crossing) + 3 <= count_max and crossing[0].level < LEAF_LEVEL:
        sort_out(crossing.popleft().children)
    return Cover([cell.number for cell in done], [cell.number for cell in crossing])


def covering(area: Geometry, count_max: int, level_max: int) -> Cover:
    """Return at most about `count_max` cells, of at most `level_max`, that together contain a region."""
    done: list[Cell] = []
    wave: list[tuple[Cell, Sequence[_Arc]]] = []
    edges = tuple(map(_arc, area.edges))
    _sort_out(area, [(cell, edges) for cell in _start(_bound(area), level_max)], done, wave)
    while wave and len(done) + len(wave) < count_max:
        if wave[0][0].level == level_max:
            break
        held, following = list(done), list[tuple[Cell, Sequence[_Arc]]]()
        _sort_out(area, [(child, near) for cell, near in wave for child in cell.children], held, following)
        if len(held) + len(following) > count_max:
            break
        done, wave = held, following
    return Cover([cell.number for cell in done], [cell.number for cell, _ in wave])


def _sort_out(
    area: Geometry, cells: list[tuple[Cell, Sequence[_Arc]]], inside: list[Cell],
    crossing: list[tuple[Cell, Sequence[_Arc]]],
) -> None:  # fmt: skip
    """Append cells inside the region to `inside` and cells that meet its edge to `crossing`. Leave out all others."""
    for cell, edges in cells:
        centre, radius = cell.circle
        radius += _SLACK
        near = _near(edges, centre, radius)
        if near:
            crossing.append((cell, near))
        elif any(polygon.contains(centre) for polygon in area.polygons):
            inside.append(cell)


def _arc(edge: Edge) -> _Arc:
    a, b = edge
    half = angle(a, b) / 2
    middle = normalized((a[0] + b[0], a[1] + b[1], a[2] + b[2]))
    return normalized(edge_normal(a, b)), middle, cos(half), sin(half)


def _near(arcs: Sequence[_Arc], centre: Vector, radius: float) -> list[_Arc]:
    """The edges that may come within a radius of a centre."""
    x, y, z = centre
    reach, rest = sin(radius), cos(radius)
    return [
        arc for arc in arcs
        if abs(arc[0][0] * x + arc[0][1] * y + arc[0][2] * z) <= reach
        and arc[1][0] * x + arc[1][1] * y + arc[1][2] * z >= arc[2] * rest - arc[3] * reach - SIGN_ERROR
    ]  # fmt: skip


def _start(bound: tuple[Vector, float] | None, level_max: int) -> Sequence[Cell]:
    """A few cells of one level that together contain the circle around a region and are not much larger."""
    if bound is None or bound[1] > _WIDTH / 4:
        return FACES
    level = floor(log2(_WIDTH / (1.5 * bound[1] + 2 * _SLACK)))
    return sorted(cell_at(bound[0], max(0, min(level, level_max))).around)


def _bound(area: Geometry) -> tuple[Vector, float] | None:
    """A circle around the lines and polygons; None if no small circle contains them."""
    caps = [polygon.outer.cap for polygon in area.polygons]
    if None in caps:
        return None
    vertices = [p for line in area.lines for p in line] + [
        p for polygon in area.polygons for p in polygon.outer.vertices
    ]
    centre = normalized((sum(p[0] for p in vertices), sum(p[1] for p in vertices), sum(p[2] for p in vertices)))
    radius = max(angle(centre, p) for p in vertices)
    return (centre, radius) if radius < pi / 4 else None
