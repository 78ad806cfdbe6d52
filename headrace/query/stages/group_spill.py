"""A group that exceeds its memory: its keys are divided into partitions, and some partitions go to disk for a while.

    resident partition     its groups are in memory and take new documents
    spilled partition      a stream on disk: the groups at the time of the spill, then the documents that came later

After the last document, the groups of the resident partitions leave. Then the spilled partitions are grouped one by one
in the same way, with another hash. So each group sees its documents in order, and no merge is needed. The states of
accumulators are pickled: the file has no name, and only this process reads it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.query.expansion import encoded_between
from headrace.query.expressions import Env
from headrace.query.operation_memory import RecordStream, StageMemory
from headrace.query.stages.growth_watch import Groups, GrowthWatch
from headrace.turns import paced
from headrace.values.bson import decode
from headrace.values.order import hash_key

if TYPE_CHECKING:
    from headrace.query.stages.group import Group
    from headrace.query.stages.stage import Document

PARTITION_COUNT: Final = 16
LEVEL_MAX: Final = 8
"""The number of hashes. Groups that all of these put into one partition stay together."""
_DOCUMENT, _GROUP = b"d", b"g"


class PartitionedGroups:
    """The groups of one level, divided into partitions."""

    def __init__(self, group: Group, memory: StageMemory, level: int = 0) -> None:
        self._group = group
        self._memory = memory
        self._level = level
        self._collation = group.context.collation
        self._resident: list[Groups] = [{} for _ in range(PARTITION_COUNT)]
        self._bytes = [0] * PARTITION_COUNT
        self._streams: list[RecordStream | None] = [None] * PARTITION_COUNT
        self._uncounted = 0
        self._watch = GrowthWatch(group, memory) if group.grows else None

    def add_document(self, value: Any, document: Document) -> None:
        """Add a document to the group with this key."""
        hashed = hash_key(value, self._collation)
        number = self._number(hashed)
        stream = self._streams[number]
        if stream is not None:
            stream.append(_DOCUMENT + encoded_between({"k": value, "d": document}))
            return
        group, groups = self._group, self._resident[number]
        entry = groups.get(hashed)
        states = entry[1] if entry is not None else [accumulator.new_state() for _, accumulator in group.fields]
        env = Env(document, group.context.bound)
        for (_, accumulator), state in zip(group.fields, states):
            accumulator.add(state, env)
        if entry is None:
            groups[hashed] = (value, states)
            self._grow(number, group.size(value, states))
        elif self._watch is not None and self._watch.is_due():
            self._measure()

    def take(self, groups: Groups) -> None:
        """Take over existing groups and the memory that they hold."""
        self._memory.add(-self._memory.used)
        for key in paced(list(groups)):  # each group is removed there as it is added here
            self._add_group(*groups.pop(key))

    def _add_group(self, value: Any, states: list[Any]) -> None:
        """Add an existing group with its states."""
        hashed = hash_key(value, self._collation)
        number = self._number(hashed)
        stream = self._streams[number]
        if stream is not None:
            stream.append(self._packed(value, states))
            return
        self._resident[number][hashed] = (value, states)
        self._grow(number, self._group.size(value, states))

    def _number(self, hashed: Any) -> int:
        return hash((self._level, hashed)) % PARTITION_COUNT

    def _measure(self) -> None:
        """Measure all groups again."""
        assert self._watch is not None
        for number, groups in enumerate(self._resident):
            size = self._watch.measure(groups.values())
            self._uncounted += size - self._bytes[number]
            self._bytes[number] = size
        self.count()

    def _grow(self, number: int, size: int) -> None:
        self._bytes[number] += size
        self._uncounted += size
        if self._uncounted >= self._memory.step:
            self.count()

    def count(self) -> None:
        """Count the memory taken since the last call. Spill partitions to disk until the rest fits."""
        size, self._uncounted = self._uncounted, 0
        self._memory.add(size)
        while self._memory.is_over and self._level < LEVEL_MAX and self._spill():
            pass

    def _spill(self) -> bool:
        """Spill the largest partition to disk. Return False if that would gain nothing."""
        number = max(range(PARTITION_COUNT), key=self._bytes.__getitem__)
        groups, size = self._resident[number], self._bytes[number]
        if len(groups) < 2:
            return False
        stream = self._streams[number] = self._memory.spill_stream()
        for value, states in paced(groups.values()):
            stream.append(self._packed(value, states))
        self._memory.spilled(len(groups), size)
        self._resident[number], self._bytes[number] = {}, 0
        self._memory.add(-size)
        return True

    def results(self) -> Iterator[Document]:
        """One document for each group."""
        for number, groups in enumerate(self._resident):
            for value, states in groups.values():
                yield self._group.result(value, states)
            self._resident[number] = {}
        self._memory.add(-sum(self._bytes))
        for number, stream in enumerate(self._streams):
            if stream is not None:
                self._streams[number] = None
                yield from self._regrouped(stream)

    def _regrouped(self, stream: RecordStream) -> Iterator[Document]:
        inner = PartitionedGroups(self._group, self._memory, self._level + 1)
        for record in paced(stream.records()):
            if record[:1] == _DOCUMENT:
                item = decode(record[1:])
                inner.add_document(item["k"], item["d"])
            else:
                inner._add_group(*self._unpacked(record))
        inner.count()
        yield from inner.results()

    def _packed(self, value: Any, states: list[Any]) -> bytes:
        file = io.BytesIO()
        file.write(_GROUP)
        _Pickler(file, self._collation).dump((value, states))
        return file.getvalue()

    def _unpacked(self, record: bytes) -> tuple[Any, list[Any]]:
        unpacked: tuple[Any, list[Any]] = _Unpickler(io.BytesIO(record[1:]), self._collation).load()
        return unpacked


class _Pickler(pickle.Pickler):
    """Leaves out the collation, to which states refer."""

    def __init__(self, file: io.BytesIO, collation: Any) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._collation = collation

    def persistent_id(self, obj: Any) -> str | None:
        return "collation" if obj is self._collation and obj is not None else None


class _Unpickler(pickle.Unpickler):
    """Restores the collation."""

    def __init__(self, file: io.BytesIO, collation: Any) -> None:
        super().__init__(file)
        self._collation = collation

    def persistent_load(self, pid: str) -> Any:
        return self._collation
