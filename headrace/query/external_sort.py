"""Sorting any number of records: in chunks that are merged, and in runs on disk where they exceed a stage's memory.

    sorter = Sorter(memory, key_of, descending=False)
    sorter.add(key, record) ...
    for record in sorter.sorted(): ...

Rule: stable, and the command may pause before each record that leaves: a chunk is sorted in some milliseconds, and
chunks are merged as records are asked for. A run on disk holds records only; their keys are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from typing import Any, Final

from headrace.query.operation_memory import RecordStream, StageMemory
from headrace.turns import paced, tick

CHUNK_COUNT: Final = 4096
"""Records sorted at once: about four milliseconds."""
RECORD_BYTES: Final = 64
"""Counted for a record besides its own bytes."""

Key = tuple[Any, ...]
Item = tuple[Any, ...]
"""A key, a number that makes it unique and orders equal ones as they came, and the record."""


class Sorter:
    """Takes records with their keys and gives them back in order."""

    __slots__ = (
        "_bound", "_bytes", "_chunk", "_chunks", "_count_max", "_descending", "_held", "_key_of",
        "_memory", "_next", "_run_start", "_runs", "_step", "_top",
    )  # fmt: skip

    def __init__(
        self, memory: StageMemory, key_of: Callable[[bytes], Key], *, descending: bool = False,
        count_max: int | None = None,
    ) -> None:  # fmt: skip
        """`key_of` computes a record's key again. `count_max`: how many of the first are wanted."""
        self._memory = memory
        self._key_of = key_of
        self._descending = descending
        self._count_max = count_max
        self._top = count_max is not None and count_max <= CHUNK_COUNT
        self._step = -1 if descending else 1
        self._bound: Key | None = None
        """The key of the last one wanted, once as many as are wanted have come."""
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
        """Whether a record of this key, if it came now, could be among the first that are wanted."""
        bound = self._bound
        return bound is None or (key > bound if self._descending else key < bound)

    def add(self, key: Key, record: bytes) -> None:
        """Take a record. Raises 292 where there are too many for the memory and they may not go to disk."""
        chunk = self._chunk
        chunk.append((*key, self._next, record))
        self._next += self._step
        self._bytes += len(record)
        if len(chunk) >= CHUNK_COUNT or self._bytes >= self._memory.step:
            self._end_chunk()

    def _end_chunk(self) -> None:
        """Sort what has come since the last chunk."""
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
        """Put all chunks on disk, as one run."""
        stream = self._memory.spill_stream()
        records, size = 0, self._held
        for item in self._merged(self._chunks):
            stream.append(item[-1])
            records += 1
        self._chunks, self._held = [], 0
        self._runs.append((self._run_start, stream))
        self._run_start = self._next
        self._memory.add(-size)
        self._memory.spilled(records, size)

    def sorted(self) -> Iterator[bytes]:
        """The records in order. Called once."""
        self._end_chunk()
        runs = [self._read(number, stream) for number, stream in self._runs]
        left = -1 if self._count_max is None else self._count_max
        for item in self._merged([*runs, *self._chunks]):
            if not left:
                return
            left -= 1
            yield item[-1]

    def _read(self, number: int, stream: RecordStream) -> Iterator[Item]:
        """A run, its items numbered alike: after those of the runs before it, and before all that came later."""
        key_of = self._key_of
        for record in stream.records():
            yield (*key_of(record), number, record)

    def _merged(self, sources: list[Any]) -> Iterator[Item]:
        return paced(sources[0] if len(sources) == 1 else merge(*sources, reverse=self._descending))
