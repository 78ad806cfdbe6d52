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
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace import limits
from headrace.cursors.index_scan import SeenRecords, check_index, plan_summary, walk_keys
from headrace.dispatch.context import CommandContext
from headrace.execution.command_memory import memory_of
from headrace.execution.near_rings import NearRings
from headrace.execution.plan import Finder
from headrace.execution.planner.near_access import NearAccess, has_shapes
from headrace.query.match import Predicate
from headrace.query.match.match_expression import AlwaysBoolean, DocumentTest
from headrace.running_command import examined
from headrace.store.catalog import Collection
from headrace.store.view import LEFT_OUT, View
from headrace.values.bson import MISSING, decode

if TYPE_CHECKING:
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
    from headrace.query.match.geo_near import without_near  # the geospatial modules are imported only when used

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

    def _add(self, distance: float, item: Any) -> None:
        heappush(self._heap, (distance, next(self._serial), item))

    def _add_cell(self, cell: Any) -> None:
        self._add(self._cells.least(cell), cell)

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
        from headrace.geo.covers import without

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
