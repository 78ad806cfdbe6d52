"""Walks through ranges of an index's keys to the documents. A walk resumes at its last key after a pause.

A document to which several keys lead is returned once; the walk remembers its record.

The walk of a text search first reads the keys of all terms and adds up the scores of each record. Then it fetches the
documents, highest scores first. If it reads another view, documents may have changed, so their scores are computed
again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from headrace import limits
from headrace.cursors.collection_scan import WITHOUT_KEYS, ChunkedScan, check_collection, clustered_summary
from headrace.errors import CommandError
from headrace.running_command import examined
from headrace.store.catalog import Collection, Index
from headrace.store.view import LEFT_OUT, Skip, View, id_bounds
from headrace.values.keystring.decoding import decode_value

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
    check_collection(view, collection)
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


SCORED_RECORD_BYTES: Final = 200
"""The approximate memory of a record with its score, in bytes."""
_KEY_COUNT: Final = 1024
"""The maximum number of keys that are read from one view before a possible pause."""
_KNOWN_COUNT_MAX: Final = 10_000
_RECORD_LENGTH: Final = 8
_SCORE_BYTES: Final = 8
_DOUBLE: Final = 1
_INTEGERS: Final = (0x10, 0x12)

_UNKNOWN: Final = -1.0


def score_of(item: bytes) -> tuple[bytes, float | None]:
    """Return the raw document and the score from an item of the walk; None: the score must be computed."""
    score: float = struct.unpack("<d", item[-_SCORE_BYTES:])[0]
    return item[:-_SCORE_BYTES], None if score == _UNKNOWN else score


@dataclass(slots=True)
class TermKeys:
    """The keys of one term, with the number of keys read."""

    index: Index
    ranges: Sequence[Range]
    skip: Skip | None
    score_at: int
    """The offset of the score in a key."""
    key_count: int = 0
    left_out_count: int = 0


class TextScan(ChunkedScan):
    """The documents of a collection by descending score, each followed by its score (`score_of`)."""

    __slots__ = (
        "_collection", "_is_mixed", "_known", "_last", "_note_bytes", "_read", "_records", "_scores", "_seen_by",
        "_term", "terms",
    )  # fmt: skip

    def __init__(
        self, view: Callable[[], View], collection: Collection, terms: Sequence[TermKeys],
        note_bytes: Callable[[int], None], wanted: int | None = None,
    ) -> None:  # fmt: skip
        """`note_bytes` is called with the memory of new records in bytes."""
        super().__init__(view, wanted)
        self.terms = list(terms)
        self._collection = collection
        self._note_bytes = note_bytes
        self._term = 0
        self._last: bytes | None = None
        self._scores: dict[bytes, float] = {}
        self._known: dict[bytes, float] = {}
        self._records: list[bytes] | None = None
        self._read = 0
        self._seen_by: View | None = None
        self._is_mixed = False
        """Whether keys were read from several views."""

    def _chunk(self) -> list[bytes] | None:
        if self._records is None:
            self._read_keys()
            return []
        if self._read >= len(self._records):
            return None
        view = self._view()
        is_same = view is self._seen_by and not self._is_mixed
        chunk: list[bytes] = []
        size = fetched = 0
        while fetched < self._count and size < limits.VIEW_CHUNK_BYTES and self._read < len(self._records):
            record = self._records[self._read]
            self._read += 1
            if is_same:
                raw = view.fetch(self._collection, self.terms[0].index, record)
            elif (read := view.by_record(self._collection, record)) is None:
                continue  # it was deleted meanwhile
            else:
                raw = read
            fetched += 1
            size += len(raw)
            chunk.append(raw + struct.pack("<d", self._scores[record] if is_same else _UNKNOWN))
        examined("TEXT_OR", fetched, 0)
        return chunk

    def _read_keys(self) -> None:
        """Read some keys. After the last key, sort the records by score."""
        view = self._view()
        self._seen_by = self._seen_by or view
        self._is_mixed = self._is_mixed or view is not self._seen_by
        if self._term >= len(self.terms):
            scores = self._scores
            self._records = sorted(scores, key=lambda record: -scores[record])
            return
        term = self.terms[self._term]
        check_index(view, self._collection, term.index)
        before, count = len(self._scores), 0
        for key, record in walk_keys(view, term.index, term.ranges, backward=True, after=self._last, skip=term.skip):
            self._last = key
            count += 1
            if record is LEFT_OUT:
                term.left_out_count += 1
            else:
                self._scores[record] = self._scores.get(record, 0.0) + self._score(key[term.score_at :])
            if count == _KEY_COUNT:
                break
        else:
            self._term += 1
            self._last = None
        term.key_count += count
        self._note_bytes((len(self._scores) - before) * SCORED_RECORD_BYTES)
        examined(plan_summary("IXSCAN", term.index), 0, count)

    def _score(self, piece: bytes) -> float:
        """Return the score at the beginning of a piece of a key."""
        known = self._known.get(piece[:-_RECORD_LENGTH])
        if known is not None:
            return known
        kind, value = decode_value(piece)
        score = struct.unpack("<d", value)[0] if kind == _DOUBLE else float(int.from_bytes(value, "little"))
        if len(self._known) >= _KNOWN_COUNT_MAX:
            self._known.clear()
        self._known[piece[:-_RECORD_LENGTH]] = score
        return score
