"""Scans of a collection, the oplog and the pre-images: iterators of raw documents that outlive their views.

A scan holds its place and the documents that it has read but not returned, but no KV transaction. It fetches the
current view for each chunk. Scans for tailable cursors, over a capped collection or the oplog, continue after their end
when documents are added. They end with MongoDB's error: 136 if the capped collection has dropped the document at their
position, 175 if the collection was dropped or renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from bson import Binary, Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.errors import CommandError
from headrace.query.operation_memory import encoded
from headrace.running_command import examined, holds_chunk
from headrace.store.catalog import Collection
from headrace.store.view import LEFT_OUT, View
from headrace.turns import tick
from headrace.values.bson import decode, encode
from headrace.values.position import LAST, from_key, from_timestamp, to_timestamp

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
        uuid = UUID(bytes=collection.uuid)
        renamed = view.catalog.by_number.get(collection.number)
        if renamed is None or renamed.namespace == collection.namespace:
            raise CommandError(175, f"collection dropped. UUID {uuid}")
        names = f"'{collection.namespace}' to '{renamed.namespace}'"
        raise CommandError(175, f"collection renamed from {names}. UUID {uuid}")


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


class OplogScan(ChunkedScan):
    """Raw entries from `first` to `last`, both inclusive."""

    __slots__ = ("_backward", "_first", "_last")

    def __init__(self, view: Callable[[], View], *, first: int = 0, last: int = LAST, backward: bool = False) -> None:
        super().__init__(view)
        self._first = first
        self._last = last
        self._backward = backward

    def _chunk(self) -> list[bytes] | None:
        walk = self._view().entries(self._first, self._last, backward=self._backward)
        chunk = take_chunk(walk, self._count)
        if not chunk:
            return None
        if self._backward:
            self._last = chunk[-1][0] - 1
        else:
            self._first = chunk[-1][0] + 1
        return [entry for _, entry in chunk]


def time_bounds(spec: dict[str, Any]) -> tuple[int, int]:
    """Return the first and last position that a filter's conditions on `ts` allow, so that the scan begins there."""
    condition = spec.get("ts")
    first, last = 0, LAST
    if type(condition) is Timestamp:
        return from_timestamp(condition), from_timestamp(condition)
    if type(condition) is not dict:
        return first, last
    for operator, value in condition.items():
        if type(value) is not Timestamp:
            continue
        position = from_timestamp(value)
        if operator in ("$gt", "$gte"):
            first = max(first, position + (operator == "$gt"))
        elif operator in ("$lt", "$lte"):
            last = min(last, position - (operator == "$lt"))
    return first, max(last, 0)


def pre_images(view: View) -> Iterator[bytes]:
    """Yield the documents of `config.system.preimages`, made from the images table."""
    with view.kv.cursor(view.tables["images"]) as cursor:
        for key, value in cursor.iternext(keys=True, values=True):
            yield encode({
                "_id": {
                    "nsUUID": Binary(key[:16], 4),
                    "ts": to_timestamp(from_key(key[16:24])),
                    "applyOpsIndex": Int64(int.from_bytes(key[24:28], "big")),
                },
                "operationTime": DatetimeMS(int.from_bytes(value[:8], "big", signed=True)),
                "preImage": decode(value[8:]),
            })  # fmt: skip


class TailableScan(Scan):
    """The documents of a capped collection in natural order, past the last one read while that document exists."""

    __slots__ = ()

    def _chunk(self) -> list[bytes] | None:
        self._check()
        return super()._chunk()

    def _check(self) -> None:
        view, collection, last = self._view(), self._collection, self._last
        check_collection(view, collection)
        if last is not None and view.by_record(collection, last) is None:
            raise CommandError(
                136,
                "CollectionScan died due to position in capped collection being deleted. "
                f"Last seen record id: RecordId({int.from_bytes(last, 'big')})",
            )


class Matching:
    """An iterator of the raw documents that a filter accepts."""

    __slots__ = ("_documents", "_predicate")

    def __init__(self, documents: Iterator[bytes], predicate: Callable[[dict[str, Any]], bool]) -> None:
        self._documents = documents
        self._predicate = predicate

    def __iter__(self) -> Matching:
        return self

    def __next__(self) -> bytes:
        for raw in self._documents:
            tick()
            if self._predicate(decode(raw)):
                return raw
        raise StopIteration


class Skipping:
    """An iterator of all raw documents but the first `count`."""

    __slots__ = ("_documents", "_left")

    def __init__(self, documents: Iterator[bytes], count: int) -> None:
        self._documents = documents
        self._left = count

    def __iter__(self) -> Skipping:
        return self

    def __next__(self) -> bytes:
        for raw in self._documents:
            tick()
            if not self._left:
                return raw
            self._left -= 1
        raise StopIteration


class Projected:
    """An iterator of raw documents after a projection."""

    __slots__ = ("_documents", "_project")

    def __init__(self, documents: Iterator[bytes], project: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._documents = documents
        self._project = project

    def __iter__(self) -> Projected:
        return self

    def __next__(self) -> bytes:
        return encoded(self._project(decode(next(self._documents))))
