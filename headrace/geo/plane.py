"""The plane: `$box`, `$center` and `$polygon`, and the grid of a 2d index.

Boxes and circles include their edges. The grid has squares of the plane, each cut into four, numbered along a Z-curve:

    number of a pair   the bits of x and y interleaved, x first, `bits` bits for each between the index's bounds

The squares within a square have the numbers from `first` to `last`. Source: MongoDB's documentation of 2d indexes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, hypot, inf, pi, radians, sin
from typing import Any, Final, NamedTuple

from headrace.geo.cells import least_angle
from headrace.geo.geojson import Pair, number


@dataclass(frozen=True, slots=True)
class Box:
    """All points from `low` to `high`."""

    low: Pair
    high: Pair

    @property
    def bounds(self) -> Box:
        """The box itself."""
        return self

    def holds_pair(self, pair: Pair) -> bool:
        """Return whether a point is inside."""
        return self.low[0] <= pair[0] <= self.high[0] and self.low[1] <= pair[1] <= self.high[1]


@dataclass(frozen=True, slots=True)
class Circle:
    """All points within a distance of a centre."""

    centre: Pair
    radius: float

    @property
    def bounds(self) -> Box:
        """The box around the circle."""
        (x, y), radius = self.centre, self.radius
        return Box((x - radius, y - radius), (x + radius, y + radius))

    def holds_pair(self, pair: Pair) -> bool:
        """Return whether a point is inside."""
        return hypot(pair[0] - self.centre[0], pair[1] - self.centre[1]) <= self.radius


@dataclass(frozen=True, slots=True)
class FlatPolygon:
    """A ring that closes itself. Vertices and edges along an axis are inside, of slanted edges one side."""

    vertices: Sequence[Pair]

    @property
    def bounds(self) -> Box:
        """The box around the polygon."""
        xs, ys = zip(*self.vertices)
        return Box((min(xs), min(ys)), (max(xs), max(ys)))

    def holds_pair(self, pair: Pair) -> bool:
        """Return whether a point is inside."""
        x, y = pair
        inside = False
        ax, ay = self.vertices[-1]
        for bx, by in self.vertices:
            low, high = min(ay, by), max(ay, by)
            if (ax == bx == x and low <= y <= high) or (ay == by == y and min(ax, bx) <= x <= max(ax, bx)):
                return True
            if pair == (bx, by):
                return True
            if low < y <= high and (ax == bx or x <= (y - ay) * (bx - ax) / (by - ay) + ax) and x <= max(ax, bx):
                inside = not inside
            ax, ay = bx, by
        return inside


FlatShape = Box | Circle | FlatPolygon


_ROUNDING: Final = 2.0**-40
"""The fraction of the grid's width by which rounding may move a pair into a neighbouring square."""
_COVER_COUNT: Final = 20


class Square(NamedTuple):
    """A square by its level, from 0 for the whole grid, and its place in the rows and columns of that level."""

    level: int
    i: int
    j: int

    @property
    def children(self) -> list[Square]:
        """The four squares of the next level."""
        level, i, j = self.level + 1, 2 * self.i, 2 * self.j
        return [Square(level, i + a, j + b) for a in (0, 1) for b in (0, 1)]


ROOT: Final = Square(0, 0, 0)


def _spread(value: int) -> int:
    """The bits of a 32-bit number with a zero bit before each."""
    value = (value | value << 16) & 0x0000FFFF0000FFFF
    value = (value | value << 8) & 0x00FF00FF00FF00FF
    value = (value | value << 4) & 0x0F0F0F0F0F0F0F0F
    value = (value | value << 2) & 0x3333333333333333
    return (value | value << 1) & 0x5555555555555555


@dataclass(frozen=True, slots=True)
class Grid:
    """The bounds and the bits of a 2d index."""

    bits: int = 26
    low: float = -180.0
    high: float = 180.0

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Grid:
        """Return the grid of an index specification."""
        return cls(
            int(number(spec.get("bits", 26))), number(spec.get("min", -180)), number(spec.get("max", 180)),
        )  # fmt: skip

    def holds(self, pair: Pair) -> bool:
        """Return whether a pair is in the bounds, both inclusive."""
        return self.low <= pair[0] <= self.high and self.low <= pair[1] <= self.high

    def _step(self, value: float, level: int) -> int:
        count = 1 << level
        return max(0, min(count - 1, int((value - self.low) / (self.high - self.low) * count)))

    def at(self, pair: Pair, level: int) -> Square:
        """Return the square of a level that contains a pair, or the nearest one."""
        return Square(level, self._step(pair[0], level), self._step(pair[1], level))

    def numbers(self, square: Square) -> tuple[int, int]:
        """Return the first and the last number in a square, as signed 64-bit integers."""
        shift = 2 * (self.bits - square.level)
        first = (_spread(square.i) << 1 | _spread(square.j)) << shift
        if self.bits == 32:
            first -= 1 << 63
        return first, first + (1 << shift) - 1

    def number(self, pair: Pair) -> int:
        """Return the number under which an index holds a pair."""
        return self.numbers(self.at(pair, self.bits))[0]

    def bounds(self, square: Square) -> Box:
        """Return the edges of a square, slightly widened because pairs are rounded."""
        width = self.high - self.low
        size, error = width / (1 << square.level), width * _ROUNDING
        x, y = self.low + square.i * size, self.low + square.j * size
        return Box((x - error, y - error), (x + size + error, y + size + error))

    def covering(self, box: Box) -> list[Square]:
        """Return a few squares that together contain a box."""
        wave = [ROOT] if _meet(self.bounds(ROOT), box) else []
        while wave and wave[0].level < self.bits:
            following = [child for square in wave for child in square.children if _meet(self.bounds(child), box)]
            if len(following) > _COVER_COUNT:
                break
            wave = following
        return wave


def _meet(a: Box, b: Box) -> bool:
    return (
        a.low[0] <= b.high[0] and b.low[0] <= a.high[0] and a.low[1] <= b.high[1] and b.low[1] <= a.high[1]
    )  # fmt: skip


class GridCells:
    """The squares around a place, with distances on the plane, or in radians on the sphere; see `SphereCells`."""

    __slots__ = ("_grid", "_is_sphere", "_pair", "level_max")

    def __init__(self, grid: Grid, pair: Pair, *, is_sphere: bool) -> None:
        self._grid = grid
        self._pair = pair
        self._is_sphere = is_sphere
        self.level_max = grid.bits

    def roots(self) -> tuple[Square, ...]:
        """Return the whole grid."""
        return (ROOT,)

    def numbers(self, cell: Square) -> tuple[int, int]:
        """Return the first and the last key of a square."""
        return self._grid.numbers(cell)

    def key(self, cell: Square) -> None:
        """Return None: only leaf squares are keys in an index."""

    def least(self, cell: Square) -> float:
        """Return a lower bound for the distance from the place to any point of a square."""
        x, y = self._pair
        (left, low), (right, high) = (box := self._grid.bounds(cell)).low, box.high
        if not self._is_sphere:
            return hypot(max(left - x, x - right, 0.0), max(low - y, y - high, 0.0))
        found = radians(max(low - y, y - high, 0.0))
        left, right = max(left, -180.0), min(right, 180.0)  # pairs off the earth have no distance
        if not left <= x <= right:
            found = max(found, min(self._meridian(left), self._meridian(right)))
        return max(0.0, found - 1e-12)

    def _meridian(self, lng: float) -> float:
        """The least distance from the place to a half of a meridian."""
        away = abs((lng - self._pair[0] + 180) % 360 - 180)
        aside = radians(self._pair[1])
        return pi / 2 - abs(aside) if away >= 90 else least_angle(cos(aside) * sin(radians(away)))

    def most(self, cell: Square) -> float:
        """Return an upper bound for the distance from the place to any point of a square."""
        if self._is_sphere:
            return inf
        x, y = self._pair
        (left, low), (right, high) = (box := self._grid.bounds(cell)).low, box.high
        return hypot(max(abs(left - x), abs(right - x)), max(abs(low - y), abs(high - y)))
