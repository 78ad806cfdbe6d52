"""The documents near a place, the nearest first, read from a geospatial index.

    heap of cells and documents by distance:  nearest is a document  →  it is the next result
                                              nearest is a cell      →  replaced by its documents or its four children

The key of a cell in the heap is the least distance of any point in the cell. So documents leave the heap in order, and
only cells near the requested documents are read. The search begins at the cells that together cover the world.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, islice
from math import hypot, inf, pi, sqrt
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace import limits
from headrace.cursors.index_scan import SeenRecords, check_index, plan_summary, walk_keys
from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.execution.command_memory import memory_of
from headrace.execution.plan import Finder
from headrace.execution.planner.near_access import NearAccess, field_of_only_index, has_shapes
from headrace.query.expressions import with_more
from headrace.query.match import Predicate
from headrace.query.match.match_expression import AlwaysBoolean, DocumentTest
from headrace.query.stages.geo_near import GeoNear
from headrace.running_command import examined
from headrace.store.catalog import Collection
from headrace.store.indexes.geo_keys import SPHERE
from headrace.store.view import LEFT_OUT, View
from headrace.values.bson import MISSING, decode
from headrace.values.keystring.encoding import encode_value

if TYPE_CHECKING:
    from headrace.geo.covering import Span
    from headrace.geo.near import Near
    from headrace.query.document_metadata import Readers
    from headrace.query.expressions import Env

_KEY_COUNT: Final = 12
"""A cell with at most this many keys is read at once; a larger one is divided, if possible."""
_WAITING_BYTES: Final = 500
"""The approximate memory of a document in the heap, besides its bytes."""


class NearDocument(NamedTuple):
    """A document, its distance in the unit of the query, and the geometry that has this distance."""

    distance: float
    record: bytes
    raw: bytes
    point: Any
    """None: the value of the query's field, which is a plain point."""


def near_documents(context: CommandContext, finder: Finder, wanted: int | None = None) -> Iterator[NearDocument]:
    """Return the matches of a filter with a `$near`, the nearest first. Raise 291 without a suitable index.

    `wanted`: the number of documents that may be enough."""
    from headrace.query.match.index_conditions import without_near  # the geospatial modules are imported only when used

    access = finder.near_access(context.current_view)
    rest = without_near(finder.predicate.node)
    test = None if rest == AlwaysBoolean(True) else Predicate(rest).test
    note_bytes = memory_of(context, {}).add
    return iter(NearSearch(context, finder.collection, access, test, note_bytes, wanted))


def near_metadata(near: Near) -> Readers:
    """Return the functions that evaluate `{$meta: "geoNearDistance"}` and `{$meta: "geoNearPoint"}` for a match."""
    find = near.finder()

    def distance(env: Env) -> Any:
        found = find(env.root)
        return MISSING if found is None else found.distance

    def point(env: Env) -> Any:
        found = find(env.root)
        return MISSING if found is None else found.value

    return {"geoNearDistance": lambda: distance, "geoNearPoint": lambda: point}


class NearSearch:
    """An iterator over the matching documents, the nearest first. Between two documents it holds no LMDB cursor."""

    def __init__(
        self, context: CommandContext, collection: Collection, access: NearAccess, rest: DocumentTest | None,
        note_bytes: Callable[[int], None], wanted: int | None = None,
    ) -> None:  # fmt: skip
        """`rest`: the filter without the `$near`.

        `note_bytes` is called with the memory of each document that enters the heap, negative when it leaves."""
        near = access.near
        self._current = context.current_view
        self._tick = context.tick
        self._collection = collection
        self._access = access
        self._rest = rest
        self._seen: SeenRecords | None = None
        """The records found, if a document may be found more than once."""
        self._note_bytes = note_bytes
        self._find = near.finder()
        self._rings = NearRings(access, wanted)
        self._cells: Any = access.cells()
        self._heap: list[tuple[float, int, Any]] = []
        self._serial = count()
        self._summary = plan_summary(f"GEO_NEAR_{access.kind.upper()}", access.index)
        self.key_count = self.document_count = 0

    def __iter__(self) -> Iterator[NearDocument]:
        rings, near, taken = self._rings, self._access.near, 0
        rings.begin(self._view())
        while rings.radius is not None:
            self._read_all(rings.unread())
            ready = self._within(rings.reach)
            taken += len(ready)
            for _, _, item in ready:
                self._tick()
                if self._matches(item):
                    yield item
            rings.grow(taken)
        if not rings.is_complete:
            for root in self._cells.roots():
                self._add_cell(root)
        while self._heap:
            distance, _, item = heappop(self._heap)
            if distance > near.most:
                return
            if isinstance(item, NearDocument):
                if self._matches(item):
                    yield item
                continue
            self._tick()
            if not near.least or self._cells.most(item) >= near.least:
                self._open(item)

    def _within(self, distance: float) -> list[tuple[float, int, Any]]:
        """Remove the items up to a distance from the heap, which has documents only, and return them in order."""
        self._heap.sort()  # a sorted list is a heap
        count = bisect_right(self._heap, distance, key=itemgetter(0))
        ready = self._heap[:count]
        del self._heap[:count]
        return ready

    def _matches(self, item: NearDocument) -> bool:
        """Whether a document that leaves the heap matches the rest of the filter."""
        self._note_bytes(-len(item.raw) - _WAITING_BYTES)
        return self._rest is None or self._rest(decode(item.raw))

    def _add_cell(self, cell: Any) -> None:
        heappush(self._heap, (self._cells.least(cell), next(self._serial), cell))

    def _open(self, cell: Any) -> None:
        """Replace a cell by its documents, or by its children if it has many keys."""
        spans = self._unread(self._cells.numbers(cell))
        if not spans or cell.level == self._cells.level_max:
            self._read_all(spans)
            return
        ranges, skip = self._access.ranges(spans)
        view = self._view()
        keys = list(islice(walk_keys(view, self._access.index, ranges, backward=False, skip=skip), _KEY_COUNT + 1))
        if len(keys) <= _KEY_COUNT:
            self._read(view, keys)
            return
        self.key_count += len(keys)
        examined(self._summary, 0, len(keys))
        if self._access.has_shapes:
            self._read_own(cell)
        for child in cell.children:
            self._add_cell(child)

    def _read_own(self, cell: Any) -> None:
        """Read the shapes whose index keys are this cell itself."""
        number = self._cells.key(cell)
        if number is not None:
            self._read_all([(number, number)])

    def _unread(self, span: tuple[int, int]) -> Sequence[tuple[int, int]]:
        """Return the cell numbers from and up to two, without those that the circles have."""
        if not self._rings.spans:
            return (span,)
        from headrace.geo.covering import without

        return without([span], self._rings.spans)

    def _read_all(self, spans: Sequence[tuple[int, int]]) -> None:
        """Read all documents with keys of these cell numbers."""
        ranges, skip = self._access.ranges(spans)
        after: bytes | None = None
        while True:
            view = self._view()
            walk = walk_keys(view, self._access.index, ranges, backward=False, after=after, skip=skip)
            keys = list(islice(walk, limits.VIEW_CHUNK_COUNT))
            if not keys:
                return
            after = keys[-1][0]
            self._read(view, keys)

    def _read(self, view: View, keys: list[tuple[bytes, bytes]]) -> None:
        """Fetch the documents of keys, then compute their distances. This may pause, because no LMDB cursor is open."""
        fetched = self._fetched(view, keys)
        self.key_count += len(keys)
        self.document_count += len(fetched)
        examined(self._summary, len(fetched), len(keys))
        near, distances = self._access.near, self._find.distances([raw for _, raw in fetched])
        size, serial, found = 0, self._serial, list[tuple[float, int, NearDocument]]()
        self._tick()
        for (record, raw), distance in zip(fetched, distances):
            point = None
            if distance is None:
                self._tick()
                nearest = self._find(decode(raw))
                if nearest is None:
                    continue
                distance, point = nearest
            elif not near.least <= distance <= near.most:
                continue
            size += len(raw) + _WAITING_BYTES
            found.append((distance, next(serial), NearDocument(distance, record, raw, point)))
        self._note_bytes(size)
        if self._rings.radius is not None:
            self._heap += found  # sorted when the circle was read
            return
        for item in found:
            heappush(self._heap, item)

    def _fetched(self, view: View, keys: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return (record, document) of keys, without records that were seen."""
        seen, made = self._seen, list[tuple[bytes, bytes]]()
        entries = [
            entry for entry in keys if entry[1] is not LEFT_OUT and (seen is None or seen.is_new(entry[1]))
        ]  # fmt: skip
        while len(made) < len(entries):
            missing = entries[len(made) :]
            found = view.fetch_many(self._collection, self._access.index, missing, limits.VIEW_CHUNK_BYTES)
            made += zip([record for _, record in missing], found)
        return made

    def _view(self) -> View:
        """The state to read from now. Documents may have several keys in it that had one in the state before."""
        view = self._current()
        index = check_index(view, self._collection, self._access.index)
        if self._seen is None and has_shapes(index):
            self._seen = SeenRecords(self._note_bytes)
            for _, _, item in self._heap:
                if isinstance(item, NearDocument):
                    self._seen.is_new(item.record)
        return view


_NEAR_KEY_COUNT: Final = 8
_KEY_COUNT_MAX: Final = 32
"""The least and the largest number of keys on each side of the place from which the density is estimated."""
_LEAST_KEY_COUNT: Final = 4
_FIRST_COUNT: Final = 16
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
    """The circles around a place whose documents a search reads first.

        keys around the place  →  documents by area  →  a circle with a few more documents than wanted
        the next circle: more than twice the area; only its cells outside of the last one are read

    A circle is read with few ranges of keys, so this is cheaper than a search cell by cell. That search finds the rest
    after some hundred documents, and does all of it for lines and polygons, for several key prefixes, and for 2d
    indexes. `radius`: of the circle to read now, in radians; None if there is none.
    """

    __slots__ = ("_access", "_count", "_is_last", "_most", "is_complete", "radius", "spans")

    def __init__(self, access: NearAccess, wanted: int | None) -> None:
        """`wanted`: the number of documents that may be enough."""
        self._access = access
        self._count = min(_COUNT_MAX, max(_FIRST_COUNT, int(_MORE * (wanted or 0))))
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
            from headrace.geo.covering import RADIUS_MAX, RADIUS_MIN, circle_cover
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
        at, key_count = prefix + encode_value(here), max(_NEAR_KEY_COUNT, min(_KEY_COUNT_MAX, self._count // 4))
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
        from headrace.geo.covering import RADIUS_MAX, RADIUS_MIN

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
        from headrace.geo.covering import circle_cover, joined, without
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


def geo_near_filter(collection: Collection | None, namespace: str, stage: GeoNear) -> dict[str, Any]:
    """Return the filter of the find. Raise 26 without a collection, 27 if the index to use is ambiguous or missing."""
    if collection is None:
        raise CommandError(26, f"$geoNear requires a geo index to run, but {namespace} does not exist")
    return stage.filter_on(stage.key or field_of_only_index(collection))


def geo_near_documents(
    context: CommandContext, namespace: str, stage: GeoNear, hint: Any = None
) -> Iterator[dict[str, Any]]:
    """Return the documents, the nearest first. Raise the errors of the stage at once, not at the first document."""
    collection = context.view.collection(namespace)
    spec = geo_near_filter(collection, namespace, stage)
    assert collection is not None
    variables = with_more(stage.context.variables, stage.context.bound)
    finder = Finder(collection, spec, stage.context.collation, variables, hint)
    finder.near_access(context.current_view)
    return _placed(context, finder, stage)


def _placed(context: CommandContext, finder: Finder, stage: GeoNear) -> Iterator[dict[str, Any]]:
    assert finder.near is not None
    path = finder.near.path
    for near in near_documents(context, finder):
        document = decode(near.raw)
        yield stage.placed(document, near.distance, document[path] if near.point is None else near.point)
