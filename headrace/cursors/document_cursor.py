"""Cursors over documents, which find, aggregate and the list commands return batch by batch.

A `DocumentCursor` divides any iterator of raw documents into batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace import limits
from headrace.cursors.collection_scan import ChunkedScan
from headrace.errors import CommandError
from headrace.memory_budget import Account
from headrace.running_command import running_command
from headrace.turns import tick


def _check_size(size: int) -> None:
    if size > limits.INTERNAL_DOCUMENT_BYTES_MAX:
        raise CommandError(
            10334,
            f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
            f"{limits.INTERNAL_DOCUMENT_BYTES_MAX}({limits.DOCUMENT_BYTES_MAX // 1024**2}MB)",
        )


def _move(scan: ChunkedScan, batch: list[bytes], count_max: int | None, bytes_max: int) -> int:
    """Move documents that a scan has read to a batch, and return their size; none if they are too large."""
    taken = scan.take(limits.VIEW_CHUNK_COUNT if count_max is None else count_max - len(batch))
    size = sum(map(len, taken))
    if size > bytes_max:
        scan.put_back(taken)
        return 0
    batch += taken
    return size


class DocumentCursor:
    """A cursor that returns an iterator's raw documents in batches."""

    __slots__ = (
        "_documents", "_held", "_left", "_scan_bytes", "account", "awaits", "context", "exhausted",
        "id", "in_use", "key", "left_ms", "namespace", "no_timeout", "read_ahead_bytes", "record",
        "session", "tails", "used_ms",
    )  # fmt: skip

    is_change_stream = False

    def __init__(
        self, namespace: str, documents: Iterator[bytes], context: Any = None, *, no_timeout: bool = False,
        limit: int | None = None,
    ) -> None:  # fmt: skip
        """`context`: the context through which `documents` reads. The next getMore prepares it."""
        self.namespace = namespace
        self.context = context
        self.id = 0
        self.in_use = False  # a getMore, possibly paused, is reading it
        self.session: bytes | None = None
        self.used_ms = 0.0
        self.account: Account | None = None
        self.record: Any = None  # see `registry.CursorRecord`
        self.read_ahead_bytes = 0
        """About the number of bytes that it holds; see `held_bytes`."""
        self.no_timeout = no_timeout
        self.exhausted = False
        self.left_ms: float | None = None  # the rest of its command's maxTimeMS, for all later batches
        self.tails = False  # stays open at its end and returns later inserts
        self.awaits = False  # a getMore waits for later inserts
        self.key = ""  # the scope of that wait; "": the deployment
        self._documents = documents
        self._left = limit  # remaining documents; None: no bound
        self._scan_bytes: int | None = None  # size of its scan's last chunk, if known
        self._held: bytes | None = None  # read, but too large for the last batch

    def next_batch(self, count_max: int | None) -> list[bytes]:
        """Return up to `count_max` documents (None: no bound) and 16 MiB. `exhausted` is then set if there are no
        more."""
        batch: list[bytes] = []
        if count_max == 0:
            return batch
        if self._left is not None:
            count_max = self._left if count_max is None else min(count_max, self._left)
        batch = self._take(count_max)
        if (turn := running_command()) is not None and turn.scan_bytes:
            self._scan_bytes = turn.scan_bytes
        if self._left is not None:
            self._left -= len(batch)
            self.exhausted = self.exhausted or self._left == 0
        return batch

    def held_bytes(self, batch: Sequence[bytes]) -> int:
        """Return an estimate of the bytes that it holds after this batch: the last chunk of its scan, or a chunk of
        documents as large as those returned, and a document that was too large for the batch."""
        size = 0 if self._held is None else 2 * len(self._held)  # its scan holds it, too, or made it from one as large
        if self._scan_bytes is not None:
            size += self._scan_bytes
        elif batch:
            average = sum(map(len, batch)) // len(batch)
            size += min(average * limits.VIEW_CHUNK_COUNT, max(average, limits.VIEW_CHUNK_BYTES))
        return size

    def _take(self, count_max: int | None) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        if self._held is not None:
            batch.append(self._held)
            size, self._held = len(self._held), None
        documents = self._documents
        scan = documents if isinstance(documents, ChunkedScan) else None
        while count_max is None or len(batch) < count_max:
            tick()
            document: Any = next(documents, None)
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
            if scan is not None:
                size += _move(scan, batch, count_max, limits.BATCH_BYTES_MAX - size)
        return batch

    def close(self) -> None:
        """Drop documents that were read ahead."""
        self._documents = iter(())
        self._held = None
        if self.context is not None and self.context.memory is not None:
            self.context.memory.close()
