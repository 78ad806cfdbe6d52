"""The distances of cells from a place, so that a search can read cells from near to far.

A cell lies between four planes through the centre of the earth. A place outside of one of the planes is at least that
far from the cell.
"""

from __future__ import annotations

from collections.abc import Callable
from math import asin, cos, pi, sin, sqrt
from typing import Final

from headrace.geo.cells import FACES, LEAF_LEVEL, Cell, ends, flat, signed
from headrace.geo.sphere import Vector, angle

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
