"""A walk through ranges of the keys of `_id` that reads only the `_id`s, and resumes where it was after a pause."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace import limits
from headrace.cursors.collection_scan import ChunkedScan, check_collection
from headrace.cursors.index_scan import Range
from headrace.running_command import examined
from headrace.store.catalog import Collection
from headrace.store.view import LEFT_OUT, View

Reader = Callable[[View, bytes, bytes], tuple[bytes, bool]]
"""Makes the document `{_id: ...}` of a key and its record, and says whether it has fetched the document for that."""


class IdKeyScan(ChunkedScan):
    """A scan of the documents that `reader` makes of the keys."""

    __slots__ = ("_backward", "_collection", "_ranges", "_reader")

    def __init__(
        self, view: Callable[[], View], collection: Collection, ranges: Sequence[Range], reader: Reader, *,
        backward: bool = False, wanted: int | None = None,
    ) -> None:  # fmt: skip
        """`ranges`: ascending, of keys without the collection's number."""
        super().__init__(view, wanted)
        self._collection = collection
        self._ranges = list(ranges if backward else reversed(ranges))
        self._reader = reader
        self._backward = backward

    def _chunk(self) -> list[bytes] | None:
        """The next documents of the last range, which is cut after them, or removed when it is used up."""
        if not self._ranges:
            return None
        low, high = self._ranges.pop()
        view, backward = self._view(), self._backward
        check_collection(view, self._collection)
        chunk: list[bytes] = []
        size = fetched = count = 0
        for key, record in view.id_keys(self._collection, low, high, backward=backward):
            count += 1
            if record is not LEFT_OUT:
                document, is_fetched = self._reader(view, key, record)
                fetched += is_fetched
                chunk.append(document)
                size += len(document)
            if count == self._count or size >= limits.VIEW_CHUNK_BYTES:
                self._ranges.append((low, key) if backward else (key + b"\0", high))
                break
        examined("IXSCAN { _id: 1 }", fetched, count)
        return chunk
