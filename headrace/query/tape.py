"""Documents that are read again, or later: in memory, and on disk when the memory is full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from headrace.query.expansion import encoded_between
from headrace.query.operation_memory import RecordStream, StageMemory
from headrace.values.bson import decode


class Tape:
    """All documents of an iterator, read at once when the tape is made."""

    def __init__(
        self, documents: Iterable[dict[str, Any] | bytes], memory: StageMemory, *, without_asking: bool = False
    ) -> None:
        """`documents` may be decoded or raw. `without_asking`: use the disk even without `allowDiskUse`.

        Raises 292 if the disk may not be used.
        """
        self._records: list[bytes] = []
        self._stream: RecordStream | None = None
        count = size = 0
        for document in documents:
            record = document if isinstance(document, bytes) else encoded_between(document)
            if self._stream is not None:
                self._stream.append(record)
                count, size = count + 1, size + len(record)
                continue
            self._records.append(record)
            size += len(record)
            if size >= memory.step:
                memory.add(size)
                size = 0
                if memory.is_over:
                    self._stream = memory.spill_stream(without_asking=without_asking)
        if count:
            memory.spilled(count, size)

    def documents(self) -> Iterator[dict[str, Any]]:
        """All documents, from the first."""
        for record in chain(self._records, () if self._stream is None else self._stream.records()):
            yield decode(record)
