"""Vectors on the unit sphere: the side of an edge on which a point is, crossings of edges, distances. Signs are exact.

A sign that floating point cannot decide is computed with fractions. If it is zero, the points are moved symbolically,
by amounts that depend only on their order. So no three points are ever on one great circle, and all answers are
consistent. Edges are the shorter arcs of great circles.

Source: the published algorithms of the S2 library (Apache 2.0) and Edelsbrunner and Mücke, "Simulation of Simplicity".
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import atan2, cos, hypot, radians, sin, sqrt
from typing import Final

Vector = tuple[float, float, float]

EARTH_RADIUS: Final = 6_378_100.0
"""The earth's radius in metres, as MongoDB uses it to compute distances."""
TOUCH: Final = 1e-15
"""Radians within which a point counts as on an edge."""
SIGN_ERROR: Final = 4e-15
"""A determinant of three unit vectors whose floating point value exceeds this has the right sign."""


def vector(lng: float, lat: float) -> Vector:
    """Return the unit vector of a longitude and a latitude in degrees."""
    phi, theta = radians(lat), radians(lng)
    cos_phi = cos(phi)
    return cos(theta) * cos_phi, sin(theta) * cos_phi, sin(phi)


def cross(a: Vector, b: Vector) -> Vector:
    """Return the cross product."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def edge_normal(a: Vector, b: Vector) -> Vector:
    """Return a vector in the direction of the cross product of two unit vectors, precise also if they are close
    together."""
    s = (a[0] + b[0], a[1] + b[1], a[2] + b[2])
    d = (b[0] - a[0], b[1] - a[1], b[2] - a[2])
    made = cross(s, d)  # twice the cross product
    return made[0] / 2, made[1] / 2, made[2] / 2


def dot(a: Vector, b: Vector) -> float:
    """Return the scalar product."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def normalized(a: Vector) -> Vector:
    """Return the unit vector of a direction; the first axis for the zero vector."""
    size = sqrt(dot(a, a))
    return (a[0] / size, a[1] / size, a[2] / size) if size else (1.0, 0.0, 0.0)


def angle(a: Vector, b: Vector) -> float:
    """Return the angle between two vectors in radians."""
    product = cross(a, b)
    return atan2(sqrt(dot(product, product)), dot(a, b))


def orientation(a: Vector, b: Vector, c: Vector) -> int:
    """Return 1 if the points are in counter-clockwise order, -1 if clockwise, 0 only if two points are equal."""
    value = a[0] * (b[1] * c[2] - b[2] * c[1]) + a[1] * (b[2] * c[0] - b[0] * c[2]) + a[2] * (b[0] * c[1] - b[1] * c[0])
    if value > SIGN_ERROR:
        return 1
    if value < -SIGN_ERROR:
        return -1
    if a in (b, c) or b == c:
        return 0
    return _exact_orientation(a, b, c)


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def _exact_orientation(a: Vector, b: Vector, c: Vector) -> int:
    order = sorted((0, 1, 2), key=lambda at: (a, b, c)[at])
    parity = 1 if tuple(order) in ((0, 1, 2), (1, 2, 0), (2, 0, 1)) else -1
    x, y, z = [tuple(Fraction(item) for item in (a, b, c)[at]) for at in order]
    y_z = (y[1] * z[2] - y[2] * z[1], y[2] * z[0] - y[0] * z[2], y[0] * z[1] - y[1] * z[0])
    signs = (
        x[0] * y_z[0] + x[1] * y_z[1] + x[2] * y_z[2],
        y_z[2], y_z[1], y_z[0],
        z[0] * x[1] - z[1] * x[0], z[0], -z[1],
        z[2] * x[0] - z[0] * x[2], z[2],
        x[0] * y[1] - x[1] * y[0], -y[0], y[1], x[0],
    )  # fmt: skip
    return parity * next((_sign(value) for value in signs if value), 1)


def is_ordered(a: Vector, b: Vector, c: Vector, centre: Vector) -> bool:
    """Return whether the directions to a, b and c are in counter-clockwise order about `centre`."""
    count = (orientation(b, centre, a) >= 0) + (orientation(c, centre, b) >= 0) + (orientation(a, centre, c) > 0)
    return count >= 2


def reference_direction(a: Vector) -> Vector:
    """Return a fixed direction from a point. The direction decides whether a vertex is in a loop."""
    largest = max(range(3), key=lambda at: abs(a[at]))
    other = [0.012, 0.0053, 0.00457]
    other[(largest - 1) % 3] = 1.0
    return normalized(cross(a, (other[0], other[1], other[2])))


def crosses(a: Vector, b: Vector, c: Vector, d: Vector) -> bool:
    """Return whether the edges ab and cd cross at a point in the interior of both."""
    if a in (c, d) or b in (c, d) or a == b or c == d:
        return False
    side = orientation(a, b, d)
    return orientation(a, b, c) == -side and orientation(c, d, a) == side and orientation(c, d, b) == -side


def crosses_at_vertex(a: Vector, b: Vector, c: Vector, d: Vector) -> bool:
    """Return whether two edges that share a vertex count as crossing there. The choice makes parities consistent."""
    if a == b or c == d:
        return False
    if a == c:
        return b == d or is_ordered(reference_direction(a), d, b, a)
    if b == d:
        return is_ordered(reference_direction(b), c, a, b)
    if a == d:
        return b == c or is_ordered(reference_direction(a), c, b, a)
    return b == c and is_ordered(reference_direction(b), d, a, b)


def edge_distance(p: Vector, a: Vector, b: Vector) -> float:
    """Return the angle between a point and the nearest point of an edge, in radians."""
    normal = edge_normal(a, b)
    if dot(cross(normal, a), p) > 0 and dot(cross(b, normal), p) > 0:
        normal = normalized(normal)
        aside = dot(p, normal)
        along = hypot(p[0] - aside * normal[0], p[1] - aside * normal[1], p[2] - aside * normal[2])
        return atan2(abs(aside), along)
    return min(angle(p, a), angle(p, b))


def line_distance(p: Vector, line: Sequence[Vector]) -> float:
    """Return the angle between a point and the nearest point of a line of two or more vertices."""
    return min(edge_distance(p, a, b) for a, b in pairwise(line))


def turn(a: Vector, b: Vector, c: Vector) -> float:
    """Return the angle by which a path turns at b, positive to the left, in radians."""
    outer = angle(edge_normal(a, b), edge_normal(b, c))
    return outer if orientation(a, b, c) > 0 else -outer
