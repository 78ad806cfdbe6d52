"""Shapes on the plane that contain points: `$box`, `$center` and `$polygon`. Boxes and circles include their edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

Pair = tuple[float, float]


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
