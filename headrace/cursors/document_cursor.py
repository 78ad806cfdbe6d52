"""Cursors over documents: what find, aggregate and the list commands answer from, batch by batch.

A `Scan` walks a collection in natural order and holds only the last record it returned, so that no KV
transaction stays open between batches. A `DocumentCursor` cuts any iterator of raw documents into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from headrace import limits
from headrace.errors import CommandError
from headrace.memory_budget import Account
from headrace.store.catalog import Collection
from headrace.store.view import View
from headrace.turns import examined, tick

Read = TypeVar("Read", bound=tuple[Any, ...])
"""What a walk gives of a document; its BSON comes last."""


def _chunk(walk: Iterable[Read], count_max: int) -> list[Read]:
    """What a scan reads from a view at once: so many documents, or so many bytes of them."""
    chunk: list[Read] = []
    size = 0
    for read in walk:
        chunk.append(read)
        size += len(read[-1])
        if len(chunk) == count_max or size >= limits.VIEW_CHUNK_BYTES:
            break
    return chunk


class Scan:
    """An iterator of a collection's raw documents that survives its views: it asks for the current one."""

    __slots__ = ("_backward", "_buffer", "_collection", "_last", "_view")

    def __init__(self, view: Callable[[], View], collection: Collection, *, backward: bool = False) -> None:
        self._view = view
        self._collection = collection
        self._backward = backward
        self._last: bytes | None = None
        self._buffer: list[bytes] = []  # what was read and not returned, the next one last

    def __iter__(self) -> Scan:
        return self

    def __next__(self) -> bytes:
        if self._buffer:
            return self._buffer.pop()
        chunk = self._view().scan_chunk(self._collection, after=self._last, backward=self._backward)
        examined("COLLSCAN", len(chunk))
        if not chunk:
            raise StopIteration
        self._last = chunk[-1][0]
        self._buffer = [document for _, document in reversed(chunk)]
        return self._buffer.pop()


class IdScan:
    """As `Scan`, in the order of `_id`: what it remembers is the last id key."""

    __slots__ = ("_backward", "_buffer", "_collection", "_count", "_high", "_last", "_low", "_view")

    def __init__(
        self, view: Callable[[], View], collection: Collection, bounds: tuple[bytes, bytes], *, backward: bool = False,
        wanted: int | None = None,
    ) -> None:  # fmt: skip
        """`wanted`: how many documents may be enough."""
        self._view = view
        self._count = min(wanted or limits.VIEW_CHUNK_COUNT, limits.VIEW_CHUNK_COUNT)
        self._collection = collection
        self._low, self._high = bounds
        self._backward = backward
        self._last: bytes | None = None
        self._buffer: list[bytes] = []  # what was read and not returned, the next one last

    def __iter__(self) -> IdScan:
        return self

    def __next__(self) -> bytes:
        if self._buffer:
            return self._buffer.pop()
        low, high = self._low, self._high
        if self._last is not None:
            low, high = (low, self._last) if self._backward else (self._last, high)
        walk = self._view().scan_ids(self._collection, low, high, backward=self._backward)
        chunk = _chunk((item for item in walk if item[0] != self._last), self._count)
        self._count = min(2 * self._count, limits.VIEW_CHUNK_COUNT)
        examined("IXSCAN { _id: 1 }", len(chunk), len(chunk))
        if not chunk:
            raise StopIteration
        self._last = chunk[-1][0]
        self._buffer = [document for _, _, document in reversed(chunk)]
        return self._buffer.pop()


def _check_size(size: int) -> None:
    if size > limits.INTERNAL_DOCUMENT_BYTES_MAX:
        raise CommandError(
            10334,
            f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
            f"{limits.INTERNAL_DOCUMENT_BYTES_MAX}({limits.DOCUMENT_BYTES_MAX // 1024**2}MB)",
        )


class DocumentCursor:
    """Batches of raw documents from an iterator."""

    __slots__ = (
        "_documents", "_held", "_left", "account", "awaits", "command_bytes", "context", "exhausted", "id", "in_use",
        "key", "left_ms", "namespace", "no_timeout", "read_ahead_bytes", "record", "session", "tails", "used_ms",
    )  # fmt: skip

    is_change_stream = False

    def __init__(
        self, namespace: str, documents: Iterator[bytes], context: Any = None, *, no_timeout: bool = False,
        limit: int | None = None,
    ) -> None:  # fmt: skip
        """`context`: what `documents` reads through, for whoever asks for the next batch to prepare."""
        self.namespace = namespace
        self.context = context
        self.id = 0
        self.in_use = False  # a getMore reads it, which may have paused
        self.session: bytes | None = None
        self.used_ms = 0.0
        self.account: Account | None = None
        self.record: Any = None  # see `registry.CursorRecord`
        self.read_ahead_bytes = 0
        """About what it holds, as the registry counts it; see `held_bytes`."""
        self.command_bytes = 0  # about what its parsed filter and stages take
        self.no_timeout = no_timeout
        self.exhausted = False
        self.left_ms: float | None = None  # of its command's maxTimeMS, for all the batches to come
        self.tails = False  # stays open at its end: what is inserted later comes later
        self.awaits = False  # and a getMore waits for it
        self.key = ""  # the scope of that wait; "": the deployment
        self._documents = documents
        self._left = limit  # documents it may still return; None: no bound
        self._held: bytes | None = None  # read, but too large for the batch before

    def next_batch(self, count_max: int | None) -> list[bytes]:
        """Up to `count_max` documents (None: no bound) and 16 MiB; `exhausted` tells whether more may come."""
        batch: list[bytes] = []
        if count_max == 0:
            return batch
        if self._left is not None:
            count_max = self._left if count_max is None else min(count_max, self._left)
        batch = self._take(count_max)
        if self._left is not None:
            self._left -= len(batch)
            self.exhausted = self.exhausted or self._left == 0
        return batch

    def held_bytes(self, batch: Sequence[bytes]) -> int:
        """About what it holds behind this batch: what its scan has read and not returned, where documents are as large
        as those returned, and one that was too large for the batch."""
        size = self.command_bytes
        if self._held is not None:
            size += 2 * len(self._held)  # its scan has it, too, or made it of one as large
        if batch:
            average = sum(map(len, batch)) // len(batch)
            size += min(average * limits.VIEW_CHUNK_COUNT, max(average, limits.VIEW_CHUNK_BYTES))
        return size

    def _take(self, count_max: int | None) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        if self._held is not None:
            batch.append(self._held)
            size, self._held = len(self._held), None
        while count_max is None or len(batch) < count_max:
            tick()
            document: Any = next(self._documents, None)
            if document is None:
                self.exhausted = not self.tails
                return batch
            size += len(document)
            if size > limits.BATCH_BYTES_MAX:
                if batch:
                    self._held = document
                    return batch
                _check_size(size)
            batch.append(document)
        return batch

    def close(self) -> None:
        """Drop what was read ahead."""
        self._documents = iter(())
        self._held = None
        if self.context is not None and self.context.memory is not None:
            self.context.memory.close()
