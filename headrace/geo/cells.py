"""Cells of the S2 hierarchy: squares on the six faces of a cube, each cut into four, numbered along a Hilbert curve.

    number   face (3 bits) | position of the cell on its face, two bits a level | 1 | zeros

The cells within a cell have the numbers from `first` to `last`. The cell's own number is in the middle of that range. A
leaf (level 30) is about 1 cm wide. Indexes hold the numbers as signed 64-bit integers, as MongoDB's do.

A cell lies between four planes through the centre of the earth. A place outside of one of the planes is at least that
far from the cell, so that a search can read cells from near to far.
Source: the published scheme of the S2 library (Apache 2.0), with its quadratic projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import asin, cos, pi, sin, sqrt
from typing import Final, NamedTuple

from headrace.geo.sphere import Vector, angle

LEAF_LEVEL: Final = 30
_SIZE: Final = 1 << LEAF_LEVEL
_SWAP: Final = 1
_POSITIONS: Final = ((0, 1, 3, 2), (0, 3, 1, 2), (2, 3, 1, 0), (2, 1, 3, 0))
"""The position on the curve, by orientation and quadrant (2 i + j)."""
_TURNS: Final = (1, 0, 0, 3)
"""How the curve is turned within a quadrant, by the quadrant's position."""
_ACROSS: Final = 1 + 1e-12  # a point beyond the edge of a face


def _table() -> list[int]:
    """Map orientation, four bits of i and four of j to eight bits of position and the next orientation."""
    made = []
    for start in range(4):
        for i in range(16):
            for j in range(16):
                position, orientation = 0, start
                for bit in (3, 2, 1, 0):
                    step = _POSITIONS[orientation][2 * (i >> bit & 1) + (j >> bit & 1)]
                    position, orientation = position << 2 | step, orientation ^ _TURNS[step]
                made.append(position << 2 | orientation)
    return made


_LOOKUP: Final = _table()


def _leaf_at(face: int, i: int, j: int) -> int:
    made, orientation = face << 60, face & _SWAP
    for shift in (28, 24, 20, 16, 12, 8, 4, 0):
        found = _LOOKUP[orientation << 8 | (i >> shift & 15) << 4 | j >> shift & 15]
        made |= found >> 2 << 2 * shift
        orientation = found & 3
    return made << 1 | 1


def block(face: int, level: int, i: int, j: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Return the position of a cell on the curve of its face, two bits a level, and the positions of the cells four
    levels below it within this cell, by j and i."""
    padding = -level % 4
    made, orientation = 0, (face ^ padding) & _SWAP
    for shift in range(level + padding - 4, -1, -4):
        found = _LOOKUP[orientation << 8 | (i >> shift & 15) << 4 | j >> shift & 15]
        made = made << 8 | found >> 2
        orientation = found & 3
    return made, _BLOCKS[orientation]


_BLOCKS: Final = tuple(
    tuple(tuple(_LOOKUP[orientation << 8 | i << 4 | j] >> 2 for i in range(16)) for j in range(16))
    for orientation in range(4)
)
BLOCK_LEVELS: Final = 4
"""The levels of cells in a block. Cells of such a level or of a deeper one are in blocks."""


def _place(p: Vector) -> tuple[int, int, int]:
    """(face, i, j) of the leaf that contains a point."""
    x, y, z = p
    ax, ay, az = abs(x), abs(y), abs(z)
    if ax > ay and ax > az:
        face, u, v = (0, y / x, z / x) if x > 0 else (3, z / x, y / x)
    elif ay >= ax and ay > az:
        face, u, v = (1, -x / y, z / y) if y > 0 else (4, z / y, -x / y)
    else:
        face, u, v = (2, -x / z, -y / z) if z > 0 else (5, -y / z, -x / z)
    return face, _leaf_step(u), _leaf_step(v)


def _leaf_step(u: float) -> int:
    return max(0, min(_SIZE - 1, int(step(u) * _SIZE)))


def step(x: float) -> float:
    """Return the fraction of the width of a face's grid at a coordinate on the face; the inverse of `flat`."""
    if x >= 1 or x <= -1:
        return float(x > 0)
    return 0.5 * sqrt(1 + 3 * x) if x >= 0 else 1 - 0.5 * sqrt(1 - 3 * x)


def flat(s: float) -> float:
    """Return the coordinate on a face, from -1 to 1, at a fraction of the width of the face's grid."""
    if s < 0 or s > 1:
        return -_ACROSS if s < 0 else _ACROSS
    return (4 * s * s - 1) / 3 if s >= 0.5 else (1 - 4 * (1 - s) * (1 - s)) / 3


def _raised(face: int, u: float, v: float) -> Vector:
    size = 1 / sqrt(1 + u * u + v * v)
    u, v = u * size, v * size
    if face == 0:
        return size, u, v
    if face == 1:
        return -u, size, v
    if face == 2:
        return -u, -v, size
    if face == 3:
        return -size, -v, -u
    return (v, -size, -u) if face == 4 else (v, u, -size)


def leaf(p: Vector) -> int:
    """Return the number of the leaf that contains a point."""
    return _leaf_at(*_place(p))


def leaf_area(p: Vector) -> float:
    """Return about the area of the sphere for each number of a leaf there. Every second number is a leaf's."""
    x, y, z = p
    f = max(abs(x), abs(y), abs(z))
    aside = (1 + 3 * abs(x) / f) * (1 + 3 * abs(y) / f) * (1 + 3 * abs(z) / f) / 4
    return 16 / 9 * sqrt(aside) * f**3 / (1 << 2 * LEAF_LEVEL + 1)


class Cell(NamedTuple):
    """A cell by its face, its level and its place in the grid of that level."""

    face: int
    level: int
    i: int
    j: int

    @property
    def number(self) -> int:
        """The cell's number, unsigned."""
        shift = LEAF_LEVEL - self.level
        low = 1 << 2 * shift
        return _leaf_at(self.face, self.i << shift, self.j << shift) & -low | low

    @property
    def children(self) -> list[Cell]:
        """The four cells of the next level."""
        face, level, i, j = self.face, self.level + 1, 2 * self.i, 2 * self.j
        return [
            Cell(face, level, i, j),
            Cell(face, level, i, j + 1),
            Cell(face, level, i + 1, j),
            Cell(face, level, i + 1, j + 1),
        ]

    @property
    def circle(self) -> tuple[Vector, float]:
        """(centre, radius in radians) of a circle about the cell."""
        count = 1 << self.level
        left, right = flat(self.i / count), flat((self.i + 1) / count)
        low, high = flat(self.j / count), flat((self.j + 1) / count)
        x, y, z = centre = _raised(self.face, (left + right) / 2, (low + high) / 2)
        square = 0.0
        for u in (left, right):
            for v in (low, high):
                a, b, c = _raised(self.face, u, v)
                square = max(square, (a - x) ** 2 + (b - y) ** 2 + (c - z) ** 2)
        return centre, 2 * asin(sqrt(square) / 2)

    @property
    def around(self) -> set[Cell]:
        """The cell and its neighbours, also on other faces."""
        count = 1 << self.level
        made = set()
        for i in (self.i - 0.5, self.i + 0.5, self.i + 1.5):
            for j in (self.j - 0.5, self.j + 0.5, self.j + 1.5):
                made.add(cell_at(_raised(self.face, flat(i / count), flat(j / count)), self.level))
        return made


def cell_at(p: Vector, level: int) -> Cell:
    """Return the cell of a level that contains a point."""
    face, i, j = _place(p)
    shift = LEAF_LEVEL - level
    return Cell(face, level, i >> shift, j >> shift)


FACES: Final = tuple(Cell(face, 0, 0, 0) for face in range(6))


def signed(number: int) -> int:
    """Return a number as a signed 64-bit integer."""
    return number - (1 << 64) if number >> 63 else number


def ends(number: int) -> tuple[int, int]:
    """Return the first and the last number of a cell's leaves."""
    low = number & -number
    return number - low + 1, number + low - 1


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last numbers, signed, of the leaves in some cells. Neighbouring cells share a span."""
    made: list[tuple[int, int]] = []
    first = last = -_SIGN
    for number in sorted([number - _SIGN if number >> 63 else number for number in numbers]):
        low = number & -number
        if number - low >= last + _NEXT:
            made.append((first, last))
            first, last = number - low + 1, number + low - 1
        elif number + low > last:
            last = number + low - 1
    return [*made[1:], (first, last)] if made else []


_NEXT: Final = 2
"""The difference between the numbers of neighbouring leaves."""
_SIGN: Final = 1 << 64


def cells_around(numbers: Iterable[int]) -> set[int]:
    """Return the numbers of all larger cells that contain any of some cells."""
    made = set[int]()
    for number in numbers:
        low = number & -number
        while low < 1 << 2 * LEAF_LEVEL:
            low <<= 2
            number = number & -low | low
            if number in made:
                break
            made.add(number)
    return made


_ERROR: Final = 1e-12
"""Radians (6 µm) by which a lower bound may be too large, because points are rounded to cells."""
_ROUNDING: Final = 1e-15
"""The error of a sine or cosine."""


def in_face(face: int, p: Vector) -> Vector:
    """Return the coordinates of a point on the axes of a face: the axis through its middle, then u and v."""
    x, y, z = p
    if face == 0:
        return x, y, z
    if face == 1:
        return y, -x, z
    if face == 2:
        return z, -x, -y
    if face == 3:
        return -x, -z, -y
    return (-y, -z, x) if face == 4 else (-z, y, x)


def least_angle(sine: float) -> float:
    """Return a lower bound for an angle whose sine is known but for rounding; 0 for a negative one. Near 90 degrees,
    the error of the angle is many times that of the sine."""
    return asin(min(1.0, max(0.0, sine - _ROUNDING)))


class SphereCells:
    """The cells of the sphere around a place. Distances are in the caller's unit, `unit` of which make a radian."""

    __slots__ = ("_centre", "_faces", "_unit")

    level_max: Final = LEAF_LEVEL

    def __init__(self, centre: Vector, unit: float) -> None:
        self._centre = centre
        self._unit = unit
        self._faces = [in_face(face, centre) for face in range(6)]

    def roots(self) -> tuple[Cell, ...]:
        """Return the cells that together cover the earth."""
        return FACES

    def numbers(self, cell: Cell) -> tuple[int, int]:
        """Return the first and the last key of a cell."""
        first, last = ends(cell.number)
        return signed(first), signed(last)

    def key(self, cell: Cell) -> int:
        """Return the key under which an index holds a shape whose covering includes this very cell."""
        return signed(cell.number)

    def _outside(self, cell: Cell) -> tuple[float, float, float, float]:
        """The sines of the distances by which the place is outside of each of the four planes."""
        f, u, v = self._faces[cell.face]
        count = 1 << cell.level
        left, right = flat(cell.i / count), flat((cell.i + 1) / count)
        low, high = flat(cell.j / count), flat((cell.j + 1) / count)
        return (
            (left * f - u) / sqrt(1 + left * left), (u - right * f) / sqrt(1 + right * right),
            (low * f - v) / sqrt(1 + low * low), (v - high * f) / sqrt(1 + high * high),
        )  # fmt: skip

    def least(self, cell: Cell) -> float:
        """Return a lower bound for the distance from the place to any point of a cell."""
        found = least_angle(max(self._outside(cell)))
        if self._faces[cell.face][0] <= 0:
            middle, radius = cell.circle
            found = max(found, angle(self._centre, middle) - radius)
        return max(0.0, found - _ERROR) * self._unit

    def most(self, cell: Cell) -> float:
        """Return an upper bound for the distance from the place to any point of a cell."""
        middle, radius = cell.circle
        return (angle(self._centre, middle) + radius + _ERROR) * self._unit

    def relation(self, radius: float, slack: float) -> Callable[[Cell], bool | None]:
        """Return a function that classifies a cell: True if all of it is within a radius, False if a point of it may be
        within the radius plus the slack, None if no point is. In radians."""
        if radius + slack >= pi / 4:
            return lambda cell: None if self.least(cell) > radius + slack else self.most(cell) <= radius
        far, near, faces = sin(radius + slack) + _ERROR, cos(radius) + _ROUNDING, self._faces

        def relation(cell: Cell) -> bool | None:
            face, level, i, j = cell
            f, u, v = faces[face]
            if f <= 0:
                return None if self.least(cell) > radius + slack else False
            count = 1 << level
            left, right, low, high = flat(i / count), flat((i + 1) / count), flat(j / count), flat((j + 1) / count)
            if left * f - u > far * sqrt(1 + left * left) or u - right * f > far * sqrt(1 + right * right):
                return None
            if low * f - v > far * sqrt(1 + low * low) or v - high * f > far * sqrt(1 + high * high):
                return None
            for x in (left, right):  # a cell is within a circle if its corners are
                for y in (low, high):
                    if f + x * u + y * v < near * sqrt(1 + x * x + y * y):
                        return False
            return True

        return relation
