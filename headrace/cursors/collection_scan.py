"""Scans of a collection: iterators of raw documents that outlive their views, a chunk at a time.

A scan holds its place and the documents that it has read but not returned, but no KV transaction. It fetches the
current view for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Self, TypeVar

from headrace import limits
from headrace.errors import CommandError
from headrace.running_command import examined, holds_chunk
from headrace.store.catalog import Collection
from headrace.store.view import LEFT_OUT, View
from headrace.turns import tick

_COLLECTION_FACTOR: Final = 4
"""The greatest chunk of a scan of a collection, in chunks of other scans: it only steps from document to document."""
Read = TypeVar("Read", bound=tuple[Any, ...])
"""A document as a walk yields it, with its BSON last."""


def take_chunk(walk: Iterable[Read], count_max: int, bytes_max: int = limits.VIEW_CHUNK_BYTES) -> list[Read]:
    """Return the documents that a scan reads from a view at once: at most `count_max`, and `bytes_max` bytes. A larger
    document is returned alone, so that it does not delay others."""
    chunk: list[Read] = []
    size = 0
    for read in walk:
        size += len(read[-1])
        if size > bytes_max and chunk:
            break
        chunk.append(read)
        if len(chunk) == count_max or size >= bytes_max:
            break
    return chunk


def check_collection(view: View, collection: Collection) -> None:
    """Raise 175 if the collection of a walk no longer has its name in a view. The documents of a dropped collection are
    removed bit by bit, so a walk must not continue through them."""
    now = view.collection(collection.namespace)
    if now is None or now.number != collection.number:
        raise CommandError(175, f"query plan killed :: collection '{collection.namespace}' dropped or renamed")


class ChunkedScan:
    """An iterator of raw documents. After its end it can be called again for documents that were added since."""

    __slots__ = ("_buffer", "_count", "_count_max", "_view", "keep")

    def __init__(self, view: Callable[[], View], wanted: int | None = None) -> None:
        """`wanted`: the number of documents that may be enough, the size of the first chunk. Each next chunk may be
        twice as large."""
        self._view = view
        self._count_max = limits.VIEW_CHUNK_COUNT
        self._count = min(wanted or self._count_max, self._count_max)
        self._buffer: list[bytes] = []  # read but not returned, the next one last
        self.keep: Callable[[list[bytes]], list[bytes]] | None = None
        """Selects the documents of a chunk that are returned; may pause."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        if self._buffer:
            return self._buffer.pop()
        while (chunk := self._chunk()) is not None:
            self._count = min(2 * self._count, self._count_max)
            if chunk:
                holds_chunk(sum(map(len, chunk)))
                if self.keep is not None:
                    chunk = self.keep(chunk)
                    if not chunk:
                        continue
                chunk.reverse()
                self._buffer = chunk
                return chunk.pop()
            tick()
        raise StopIteration

    def take(self, count_max: int) -> list[bytes]:
        """Return documents that were read but not returned: the next ones, at most this many. Read no more."""
        start = max(0, len(self._buffer) - count_max)
        taken = self._buffer[start:]
        del self._buffer[start:]
        taken.reverse()
        return taken

    def put_back(self, documents: list[bytes]) -> None:
        """Put documents back that `take` has returned."""
        self._buffer += reversed(documents)

    def chunks(self) -> Iterator[list[bytes]]:
        """Yield the remaining documents in chunks. May pause before each."""
        for first in self:
            chunk, self._buffer = [first, *reversed(self._buffer)], []
            yield chunk

    def _chunk(self) -> list[bytes] | None:
        """Return about `_count` documents at most; an empty list if all were left out, None at the end."""
        raise NotImplementedError


class Scan(ChunkedScan):
    """A collection's documents in natural order."""

    __slots__ = ("_backward", "_collection", "_last")

    def __init__(self, view: Callable[[], View], collection: Collection, *, backward: bool = False) -> None:
        super().__init__(view)
        self._count_max *= _COLLECTION_FACTOR
        self._collection = collection
        self._backward = backward
        self._last: bytes | None = None

    def _chunk(self) -> list[bytes] | None:
        view = self._view()
        if self._last is not None:
            check_collection(view, self._collection)
        backward, count_max = self._backward, self._count
        chunk = view.scan_chunk(self._collection, after=self._last, backward=backward, count_max=count_max)
        examined("COLLSCAN", len(chunk))
        if not chunk:
            return None
        self._last = chunk[-1][0]
        return [document for _, document in chunk if document is not LEFT_OUT]


WITHOUT_KEYS: Final = frozenset({"CLUSTERED_IXSCAN", "COLLSCAN"})
"""Stages that examine documents but no keys."""


def clustered_summary(*, is_bounded: bool) -> str:
    """Return the stage name of a walk through a clustered collection."""
    return "CLUSTERED_IXSCAN" if is_bounded else "COLLSCAN"
