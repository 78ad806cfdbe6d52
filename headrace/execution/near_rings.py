"""The circles around a place whose documents a search by distance reads first.

    keys around the place  →  documents by area  →  a circle with a few more documents than wanted
    the next circle: more than twice the area; only its cells outside of the last one are read

A circle is read with few ranges of keys, so this is cheaper than a search cell by cell (`near_documents.py`). That
search finds the rest after some hundred documents, and does all of it for lines and polygons, for several key prefixes,
and for 2d indexes.
"""

from __future__ import annotations

from itertools import islice
from math import hypot, inf, pi, sqrt
from typing import TYPE_CHECKING, Final

from headrace.execution.planner.near_access import NearAccess
from headrace.store.indexes.geo_keys import SPHERE
from headrace.store.view import View
from headrace.values.keystring import encode_value

if TYPE_CHECKING:
    from headrace.geo.covers import Span

_KEY_COUNT: Final = 8
_KEY_COUNT_MAX: Final = 32
"""The least and the largest number of keys on each side of the place from which the density is estimated."""
_LEAST_KEY_COUNT: Final = 4
_COUNT: Final = 16
"""The number of documents in the first circle, if more are not wanted."""
_MORE: Final = 1.3
"""The documents in the first circle for each wanted one, because the estimate may be wrong."""
_COUNT_MAX: Final = 1000
"""After this number of documents no more circles are read: their cells would be large."""
_GROWTH_MAX: Final = 16.0
"""The most by which the area of a circle exceeds the last one's."""
_FINENESS: Final = 3.0
_FINENESS_OF_MANY: Final = 5.5
"""Cells along the radius of a circle, about: with few documents, larger cells cost less than more ranges."""
_MANY: Final = 50
_SLACK: Final = 2e-9
_ROUNDING: Final = 1e-12


class NearRings:
    """The circles of one search. `radius`: of the circle to read now, in radians; None if there is none."""

    __slots__ = ("_access", "_count", "_is_last", "_most", "is_complete", "radius", "spans")

    def __init__(self, access: NearAccess, wanted: int | None) -> None:
        """`wanted`: the number of documents that may be enough."""
        self._access = access
        self._count = min(_COUNT_MAX, max(_COUNT, int(_MORE * (wanted or 0))))
        self._most = access.near.most / access.near.unit
        self._is_last = False
        self.radius: float | None = None
        self.spans: list[Span] = []
        """The leaves that need no further look: they were read, or are nearer than the least distance."""
        self.is_complete = False
        """Whether all documents within the largest distance were read."""

    def begin(self, view: View) -> None:
        """Choose the first circle; none if the index does not suit."""
        access, near = self._access, self._access.near
        if access.kind != SPHERE or access.has_shapes or access.prefixes is None or len(access.prefixes) != 1:
            return
        radius = self._estimate(view, access.prefixes[0])
        if radius is None:
            return
        if near.least:
            from headrace.geo.rows import RADIUS_MAX, RADIUS_MIN, circle_cover
            from headrace.geo.shapes import Cap

            least = near.least / near.unit
            radius = hypot(radius, least)
            if RADIUS_MIN < least < RADIUS_MAX:
                self.spans = circle_cover(Cap(near.centre, least * (1 - _ROUNDING)), _SLACK).sure_spans()
        self._set(radius)

    def _estimate(self, view: View, prefix: bytes) -> float | None:
        """The radius of a circle with about `_count` documents, from the keys on both sides of the place."""
        from headrace.geo.cells import leaf, leaf_area, signed

        index, here = self._access.index, signed(leaf(self._access.near.centre))
        at, key_count = prefix + encode_value(here), max(_KEY_COUNT, min(_KEY_COUNT_MAX, self._count // 4))
        after = [key for key, _ in islice(view.index_keys(index, at, prefix + b"\xff"), key_count)]
        before = [
            key for key, _ in islice(view.index_keys(index, prefix + b"\x01", at, backward=True), key_count)
        ]  # fmt: skip
        count = len(after) + len(before)
        if count < _LEAST_KEY_COUNT:
            return None
        high = _number(after[-1], len(prefix)) if after else here
        low = _number(before[-1], len(prefix)) if before else here
        return sqrt(self._count * (high - low) * leaf_area(self._access.near.centre) / (pi * count))

    def _set(self, radius: float) -> None:
        from headrace.geo.rows import RADIUS_MAX, RADIUS_MIN

        self._is_last = radius >= self._most and radius >= RADIUS_MIN
        if self._is_last:
            radius = max(self._most * (1 + _ROUNDING), RADIUS_MIN)
        self.radius = radius if RADIUS_MIN <= radius <= RADIUS_MAX else None

    @property
    def reach(self) -> float:
        """The distance, in the unit of the query, within which all documents are known once this circle was read."""
        assert self.radius is not None
        return inf if self._is_last else self.radius * (1 - _ROUNDING) * self._access.near.unit

    def unread(self) -> list[Span]:
        """Return the leaves of the circle that were not read, and count them as read."""
        from headrace.geo.covers import joined, without
        from headrace.geo.rows import circle_cover
        from headrace.geo.shapes import Cap

        assert self.radius is not None
        fineness = _FINENESS if self._count < _MANY else _FINENESS_OF_MANY
        cover = circle_cover(Cap(self._access.near.centre, self.radius), _SLACK, fineness)
        made = without(cover.spans(), self.spans)
        self.spans = joined([*self.spans, *made])
        return made

    def grow(self, count: int) -> None:
        """Choose the next circle, after `count` documents within the last ones."""
        assert self.radius is not None
        if self._is_last:
            self.radius, self.is_complete = None, True
        elif count > _COUNT_MAX:
            self.radius = None
        else:
            growth = 1 + max(self._count, count) / count if count else _GROWTH_MAX
            self._set(self.radius * sqrt(min(_GROWTH_MAX, growth)))


def _number(key: bytes, at: int) -> int:
    """Return the integer at a place in a key."""
    kind = key[at]
    if kind >= 0x29:
        return int.from_bytes(key[at + 1 : at + kind - 0x29], "big") >> 1
    size = 0x28 - kind
    return -(((1 << 8 * size) - 1 - int.from_bytes(key[at + 1 : at + 1 + size], "big")) >> 1)
