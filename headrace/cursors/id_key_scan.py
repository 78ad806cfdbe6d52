"""A walk through ranges of the keys of `_id`, for nothing but the `_id`s, which goes on where it was after a pause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace import limits
from headrace.cursors.index_scan import Range
from headrace.store.catalog import Collection
from headrace.store.view import View
from headrace.turns import examined, tick

Reader = Callable[[View, bytes, bytes], tuple[bytes, bool]]
"""Makes the document `{_id: ...}` of a key and its record, and says whether it has fetched the document for that."""


class IdKeyScan:
    """An iterator of what `reader` makes of the keys. It survives its views: it asks for the current one."""

    __slots__ = ("_backward", "_buffer", "_collection", "_count", "_ranges", "_reader", "_view")

    def __init__(
        self, view: Callable[[], View], collection: Collection, ranges: Sequence[Range], reader: Reader, *,
        backward: bool = False, wanted: int | None = None,
    ) -> None:  # fmt: skip
        """`ranges`: ascending, of keys without the collection's number. `wanted`: how many may be enough."""
        self._view = view
        self._collection = collection
        self._ranges = list(ranges if backward else reversed(ranges))
        self._reader = reader
        self._backward = backward
        self._count = min(wanted or limits.VIEW_CHUNK_COUNT, limits.VIEW_CHUNK_COUNT)
        self._buffer: Iterator[bytes] = iter(())

    def __iter__(self) -> IdKeyScan:
        return self

    def __next__(self) -> bytes:
        for document in self._buffer:
            return document
        while self._ranges:
            self._buffer = iter(self._chunk())
            for document in self._buffer:
                return document
            tick()
        raise StopIteration

    def _chunk(self) -> list[bytes]:
        """The next documents of the last range, which is cut behind them, or gone where it has no more."""
        low, high = self._ranges.pop()
        view, backward = self._view(), self._backward
        chunk: list[bytes] = []
        size = fetched = 0
        for key, record in view.id_keys(self._collection, low, high, backward=backward):
            document, is_fetched = self._reader(view, key, record)
            fetched += is_fetched
            chunk.append(document)
            size += len(document)
            if len(chunk) == self._count or size >= limits.VIEW_CHUNK_BYTES:
                self._count = min(2 * self._count, limits.VIEW_CHUNK_COUNT)
                self._ranges.append((low, key) if backward else (key + b"\0", high))
                break
        examined("IXSCAN { _id: 1 }", fetched, len(chunk))
        return chunk
