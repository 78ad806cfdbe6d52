"""Walks through ranges of an index's keys to the documents. A walk resumes at its last key after a pause.

A document to which several keys lead is returned once; the walk remembers its record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from headrace import limits
from headrace.cursors.collection_scan import WITHOUT_KEYS, ChunkedScan, check_collection, clustered_summary
from headrace.errors import CommandError
from headrace.running_command import examined
from headrace.store.catalog import Collection, Index
from headrace.store.view import LEFT_OUT, Skip, View, id_bounds

RECORD_BYTES: Final = 64
"""The approximate memory of a remembered record, in bytes."""
_REPORTED_COUNT: Final = 1024
RANGE_COUNT: Final = 512
"""The maximum number of ranges that are read from one view. They may all be empty."""

Range = tuple[bytes, bytes]
Reader = Callable[[View, bytes, bytes], tuple[bytes, bool]]
"""Makes a result other than the document from a key and its record; also returns whether it fetched the document."""


def check_index(view: View, collection: Collection, index: Index) -> Index:
    """Return an index that a walk goes through as a view has it. Raise 175 if it is missing or incomplete there."""
    now = view.collection(collection.namespace)
    for item in () if now is None else now.indexes:
        if item.number == index.number:
            return item
    raise CommandError(175, f"query plan killed :: index '{index.name}' dropped")


Walk = Iterator[tuple[bytes, bytes]]


def walk_keys(
    view: View, index: Index, ranges: Sequence[Range], *, backward: bool, after: bytes | None = None,
    skip: Skip | None = None,
) -> Walk:  # fmt: skip
    """Yield (key, record) of all ranges past the key `after`. The ranges are in the order of the walk.

    A key that does not count according to `skip` has `LEFT_OUT` for a record.
    """
    if skip is None and not backward and len(ranges) > 1:
        return view.index_ranges(index, ranges if after is None else _past(ranges, after))
    walk: Callable[..., Walk]
    walk = partial(view.index_keys, index) if skip is None else partial(view.index_keys_within, index, skip=skip)
    return walk_ranges(walk, ranges, backward=backward, after=after)


def walk_ranges(
    walk: Callable[..., Walk], ranges: Sequence[Range], *, backward: bool, after: bytes | None
) -> Walk:  # fmt: skip
    """Yield keys as `walk_keys` does. `walk`: walks through one range."""
    start = 0 if after is None else first_past(ranges, after, backward=backward)
    for number in range(start, len(ranges)):
        low, high = ranges[number]
        if after is not None:
            if backward:
                high = min(high, after)
            else:
                low = max(low, after + b"\0")
            if low >= high:
                continue
        yield from walk(low, high, backward=backward)


def _past(ranges: Sequence[Range], after: bytes) -> Sequence[Range]:
    """Return the parts of ascending ranges past a key."""
    start = first_past(ranges, after, backward=False)
    if start == len(ranges):
        return ()
    low, high = ranges[start]
    return [(max(low, after + b"\0"), high), *ranges[start + 1 :]]


def first_past(ranges: Sequence[Range], after: bytes, *, backward: bool) -> int:
    """Return the number of the first range that may have keys past `after`, by binary search: there may be hundreds of
    thousands of ranges."""
    start, end = 0, len(ranges)
    while start < end:
        middle = (start + end) // 2
        low, high = ranges[middle]
        if low >= after if backward else high <= after:
            start = middle + 1
        else:
            end = middle
    return start


def plan_summary(stage: str, index: Index) -> str:
    """Return the log's name of a walk through an index."""
    return f"{stage} {{ " + ", ".join(f"{path}: {kind}" for path, kind in index.spec["key"].items()) + " }"


class SeenRecords:
    """The records that a walk has returned. `count` is called with their memory in bytes."""

    __slots__ = ("_count", "_records", "_unreported")

    def __init__(self, count: Callable[[int], None] = lambda size: None) -> None:
        self._records: set[bytes] = set()
        self._count = count
        self._unreported = 0

    def is_new(self, record: bytes) -> bool:
        """Return whether the record is new, and remember it."""
        if record in self._records:
            return False
        self._records.add(record)
        self._unreported += 1
        if self._unreported == _REPORTED_COUNT:
            self._count(_REPORTED_COUNT * RECORD_BYTES)
            self._unreported = 0
        return True


class IndexScan(ChunkedScan):
    """The documents of a collection in the order of an index."""

    __slots__ = (
        "_backward", "_collection", "_index", "_keys_move", "_last", "_range", "_ranges", "_reader", "_seen", "_skip",
        "_state", "_summary", "key_count", "keys", "left_out_count",
    )  # fmt: skip

    def __init__(
        self, view: Callable[[], View], collection: Collection, index: Index, ranges: Sequence[Range], *,
        backward: bool = False, seen: SeenRecords | None = None, wanted: int | None = None,
        reader: Reader | None = None, skip: Skip | None = None, keys_move: bool = False,
    ) -> None:  # fmt: skip
        """`seen`: needed if documents may be reached more than once. `keys_move`: the keys of a document may change
        although the client's documents in it do not."""
        super().__init__(view, wanted)
        self._collection = collection
        self._index = index
        self._ranges = ranges
        self._backward = backward
        self._seen = seen
        self._reader = reader
        self._skip = skip
        self._keys_move = keys_move
        self._state = -1  # the last position of the state that was read
        self._summary = plan_summary("IXSCAN", index)
        self._last: bytes | None = None
        self._range = 0  # earlier ranges were read
        self.keys: list[bytes] = []
        """The keys of the documents of the last chunk, if these are whole and each has one key."""
        self.key_count = 0
        self.left_out_count = 0

    def _walk(self, view: View, ranges: Sequence[Range]) -> Walk:
        check_index(view, self._collection, self._index)
        return walk_keys(
            view, self._index, ranges, backward=self._backward, after=self._last, skip=self._skip
        )  # fmt: skip

    def _chunk(self) -> list[bytes] | None:
        if self._reader is None and self._seen is None:
            return self._whole_documents()
        view, index, seen = self._view(), self._index, self._seen
        if self._keys_move and view.state.last_position != self._state:  # keys may have moved to passed ones
            self._state, self._last, self._range = view.state.last_position, None, 0
        ranges = self._ranges[self._range : self._range + RANGE_COUNT]
        if not ranges:
            return None
        chunk: list[bytes] = []
        size = count = fetched = 0
        reader = self._reader
        for key, record in self._walk(view, ranges):
            self._last = key
            count += 1
            if record is LEFT_OUT:
                self.left_out_count += 1
            elif seen is None or seen.is_new(record):
                if reader is None:
                    document, is_fetched = view.fetch(self._collection, index, record), True
                else:
                    document, is_fetched = reader(view, key, record)
                fetched += is_fetched
                chunk.append(document)
                size += len(document)
            if count == self._count or size >= limits.VIEW_CHUNK_BYTES:
                break
        else:
            self._range += len(ranges)
        self._note(count, fetched)
        return chunk

    def _note(self, count: int, fetched: int) -> None:
        self.key_count += count
        examined(self._summary, fetched, 0 if self._summary in WITHOUT_KEYS else count)

    def _whole_documents(self) -> list[bytes] | None:
        """Return a chunk of whole documents, each with its key in `keys`. They are fetched many at a time."""
        ranges = self._ranges[self._range : self._range + RANGE_COUNT]
        if not ranges:
            return None
        view = self._view()
        walked = list(islice(self._walk(view, ranges), self._count))
        there = [item for item in walked if item[1] is not LEFT_OUT]
        self.left_out_count += len(walked) - len(there)
        chunk = view.fetch_many(self._collection, self._index, there, limits.VIEW_CHUNK_BYTES)
        if len(chunk) < len(there):  # these are large: walk to the others again
            there = there[: len(chunk)]
            walked = walked[: walked.index(there[-1]) + 1]
        elif len(walked) < self._count:
            self._range += len(ranges)
        if walked:
            self._last = walked[-1][0]
        self.keys = [key for key, _ in there]
        self._note(len(walked), len(chunk))
        return chunk


class IdScan(IndexScan):
    """The documents of a collection in the order of `_id`, from ascending ranges of keys without the collection's
    number."""

    __slots__ = ()

    def __init__(
        self, view: Callable[[], View], collection: Collection, ranges: Sequence[Range], *, backward: bool = False,
        wanted: int | None = None, reader: Reader | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            view, collection, collection.indexes[0], ranges[::-1] if backward else ranges, backward=backward,
            wanted=wanted, reader=reader,
        )  # fmt: skip
        if collection.clustered:
            self._summary = clustered_summary(is_bounded=list(ranges) != [id_bounds(None, None)])

    def _walk(self, view: View, ranges: Sequence[Range]) -> Walk:
        check_collection(view, self._collection)
        walk = partial(view.id_keys, self._collection)
        return walk_ranges(walk, ranges, backward=self._backward, after=self._last)
