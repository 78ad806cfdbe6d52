"""How far cells are from a place, so that a search can read them in the order of their distance.

A cell lies between four planes through the centre of the earth. It is at least as far from a place as the place is
outside of each of them, and the place, if it is in the cell, is as far from what is outside of the cell as from the
nearest of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import asin, cos, pi, sin, sqrt
from typing import Final

from headrace.geo.cells import FACES, LEAF_LEVEL, Cell, cell_at, ends, signed
from headrace.geo.sphere import Vector, angle

_ERROR: Final = 1e-12
"""Radians (6 µm) by which a bound may be too large: points are rounded to cells."""
_ROUNDING: Final = 1e-15
"""The error of a cosine."""


def _in_face(face: int, p: Vector) -> Vector:
    """A point by the axes of a face: towards its middle, and those of u and v."""
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


def _flat(s: float) -> float:
    return (4 * s * s - 1) / 3 if s >= 0.5 else (1 - 4 * (1 - s) * (1 - s)) / 3


class SphereCells:
    """The cells of the sphere about a place. Distances are in the unit of the caller, `unit` to the radian."""

    __slots__ = ("_centre", "_faces", "_unit")

    level_max: Final = LEAF_LEVEL

    def __init__(self, centre: Vector, unit: float) -> None:
        self._centre = centre
        self._unit = unit
        self._faces = [_in_face(face, centre) for face in range(6)]

    def roots(self) -> tuple[Cell, ...]:
        """Return cells that are all of the earth."""
        return FACES

    def at(self, level: int) -> Cell:
        """Return the cell of a level in which the place is."""
        return cell_at(self._centre, level)

    def numbers(self, cell: Cell) -> tuple[int, int]:
        """Return the first and the last key of a cell."""
        first, last = ends(cell.number)
        return signed(first), signed(last)

    def key(self, cell: Cell) -> int:
        """Return the key under which an index holds a shape that has the cell itself."""
        return signed(cell.number)

    def parent(self, cell: Cell) -> Cell:
        """Return the cell that a cell is in."""
        return Cell(cell.face, cell.level - 1, cell.i >> 1, cell.j >> 1)

    def _outside(self, cell: Cell) -> tuple[float, float, float, float]:
        """The sines of the distances by which the place is outside of the four planes."""
        f, u, v = self._faces[cell.face]
        count = 1 << cell.level
        left, right = _flat(cell.i / count), _flat((cell.i + 1) / count)
        low, high = _flat(cell.j / count), _flat((cell.j + 1) / count)
        return (
            (left * f - u) / sqrt(1 + left * left), (u - right * f) / sqrt(1 + right * right),
            (low * f - v) / sqrt(1 + low * low), (v - high * f) / sqrt(1 + high * high),
        )  # fmt: skip

    def least(self, cell: Cell) -> float:
        """Return a distance from which on the points of a cell are."""
        found = asin(min(1.0, max(0.0, *self._outside(cell))))
        if self._faces[cell.face][0] <= 0:
            middle, radius = cell.circle
            found = max(found, angle(self._centre, middle) - radius)
        return max(0.0, found - _ERROR) * self._unit

    def most(self, cell: Cell) -> float:
        """Return a distance up to which the points of a cell are."""
        middle, radius = cell.circle
        return (angle(self._centre, middle) + radius + _ERROR) * self._unit

    def relation(self, radius: float, slack: float) -> Callable[[Cell], bool | None]:
        """Return the function that says of a cell that it is within a radius (True), that it may have a point that is
        not farther than the radius and the slack (False), or none. In radians."""
        if radius + slack >= pi / 4:
            return lambda cell: None if self.least(cell) > radius + slack else self.most(cell) <= radius
        far, near, faces = sin(radius + slack) + _ERROR, cos(radius) + _ROUNDING, self._faces

        def relation(cell: Cell) -> bool | None:
            face, level, i, j = cell
            f, u, v = faces[face]
            if f <= 0:
                return None if self.least(cell) > radius + slack else False
            count = 1 << level
            left, right, low, high = _flat(i / count), _flat((i + 1) / count), _flat(j / count), _flat((j + 1) / count)
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

    def inside(self, cell: Cell) -> float:
        """Return a distance from which on all is that is not in a cell in which the place is."""
        return max(0.0, asin(min(1.0, max(0.0, -max(self._outside(cell))))) - _ERROR) * self._unit
