"""Sorting any number of records: chunks in memory are merged, and runs on disk when they exceed a stage's memory.

    sorter = Sorter(memory, key_of, descending=False)
    sorter.add(key, record) ...
    for record in sorter.sorted(): ...

Rule: the sort is stable, and the command may pause between chunks. A chunk is sorted in some milliseconds. The chunks
are merged in parts of a chunk's size as records are read. A run on disk holds only records; their keys are computed
again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import chain, compress, islice
from operator import itemgetter
from typing import Any, Final

from headrace.query.operation_memory import RecordStream, StageMemory
from headrace.turns import paced, tick

CHUNK_COUNT: Final = 4096
"""Records sorted at once, in about four milliseconds."""
_STRIDE: Final = 256
"""Every 256th record of a chunk is in the sample that decides where chunks are cut for merging."""
RECORD_BYTES: Final = 64
"""Bytes counted for a record besides its own."""

Key = tuple[Any, ...]
Item = tuple[Any, ...]
"""A key, a unique number that keeps equal keys in order of insertion, and the record."""


class Sorter:
    """Takes records with their keys and returns them in order."""

    __slots__ = (
        "_bound", "_bytes", "_chunk", "_chunks", "_count_max", "_descending", "_held", "_key_of",
        "_memory", "_next", "_run_start", "_runs", "_step", "_top",
    )  # fmt: skip

    def __init__(
        self, memory: StageMemory, key_of: Callable[[bytes], Key], *, descending: bool = False,
        count_max: int | None = None,
    ) -> None:  # fmt: skip
        """`key_of` computes a record's key again. `count_max`: how many of the first records are wanted."""
        self._memory = memory
        self._key_of = key_of
        self._descending = descending
        self._count_max = count_max
        self._top = count_max is not None and count_max <= CHUNK_COUNT
        self._step = -1 if descending else 1
        self._bound: Key | None = None
        """The key of the last wanted record, once `count_max` records were added."""
        self._next = 0
        self._chunk: list[Item] = []
        self._bytes = 0
        self._chunks: list[list[Item]] = []
        self._held = 0
        self._run_start = 0
        self._runs: list[tuple[int, RecordStream]] = []

    def __len__(self) -> int:
        return abs(self._next)

    def wants(self, key: Key) -> bool:
        """Whether a new record with this key could be among the first `count_max`."""
        bound = self._bound
        return bound is None or (key > bound if self._descending else key < bound)

    def add(self, key: Key, record: bytes) -> None:
        """Add a record. Raises 292 if the records exceed the memory and must not go to disk."""
        chunk = self._chunk
        chunk.append((*key, self._next, record))
        self._next += self._step
        self._bytes += len(record)
        if len(chunk) >= CHUNK_COUNT or self._bytes >= self._memory.step:
            self._end_chunk()

    def add_all(self, keys: Sequence[Key], records: Sequence[bytes]) -> None:
        """Add a batch of records, except those that are not wanted. May pause. Raises as `add`."""
        tick()
        bound, step = self._bound, self._step
        if bound is not None:
            chosen = [key > bound for key in keys] if self._descending else [key < bound for key in keys]
            keys, records = list(compress(keys, chosen)), list(compress(records, chosen))
        end = self._next + step * len(records)
        self._chunk += [
            (*key, number, record) for key, number, record in zip(keys, range(self._next, end, step), records)
        ]
        self._next = end
        self._bytes += sum(map(len, records))
        if len(self._chunk) >= CHUNK_COUNT or self._bytes >= self._memory.step:
            self._end_chunk()

    def _end_chunk(self) -> None:
        """Sort the records added since the last chunk."""
        tick()
        chunk, self._chunk = self._chunk, []
        size, self._bytes = self._bytes + RECORD_BYTES * len(chunk), 0
        if self._top and self._chunks:
            chunk = self._chunks.pop() + chunk
        chunk.sort(reverse=self._descending)
        if self._top and len(chunk) > self._count_max:  # type: ignore[operator]
            size -= sum(len(item[-1]) + RECORD_BYTES for item in chunk[self._count_max :])
            del chunk[self._count_max :]
            self._bound = chunk[-1][:-2] if chunk else None
        self._chunks.append(chunk)
        self._held += size
        self._memory.add(size)
        if self._memory.is_over:
            self._spill()

    def _spill(self) -> None:
        """Write all chunks to disk as one run."""
        stream = self._memory.spill_stream()
        records, size = 0, self._held
        for item in paced(_merged(self._chunks, descending=self._descending)):
            stream.append(item[-1])
            records += 1
        self._chunks, self._held = [], 0
        self._runs.append((self._run_start, stream))
        self._run_start = self._next
        self._memory.add(-size)
        self._memory.spilled(records, size)

    def sorted(self) -> Iterator[bytes]:
        """The records in order. Call it only once."""
        self._end_chunk()
        items = _merged(self._chunks, descending=self._descending)
        if self._runs:
            runs = [self._read(number, stream) for number, stream in self._runs]
            items = paced(merge(*runs, items, reverse=self._descending))
        return islice(map(itemgetter(-1), items), self._count_max)

    def _read(self, number: int, stream: RecordStream) -> Iterator[Item]:
        """The items of a run, with its number: equal keys sort after earlier runs and before later records."""
        key_of = self._key_of
        for record in stream.records():
            yield (*key_of(record), number, record)


def _merged(chunks: Sequence[list[Item]], *, descending: bool) -> Iterator[Item]:
    """The items of sorted chunks in order. A sample of the chunks divides them into parts, and each part is sorted at
    once: much quicker than a merge item by item. Pauses before each part."""
    if len(chunks) == 1:
        yield from chunks[0]
        return
    if descending:
        for chunk in chunks:
            chunk.reverse()  # bisect needs ascending order
    sample = sorted(chain.from_iterable(chunk[_STRIDE - 1 :: _STRIDE] for chunk in chunks))
    bounds = sample[CHUNK_COUNT // _STRIDE - 1 :: CHUNK_COUNT // _STRIDE]
    if descending:
        bounds.reverse()
    reached = [len(chunk) if descending else 0 for chunk in chunks]
    for bound in (*bounds, None):
        tick()
        part: list[Item] = []
        for number, chunk in enumerate(chunks):
            start = reached[number]
            if bound is not None:
                end = bisect_left(chunk, bound)
            else:
                end = 0 if descending else len(chunk)
            part += chunk[end:start] if descending else chunk[start:end]
            reached[number] = end
        part.sort(reverse=descending)
        yield from part
