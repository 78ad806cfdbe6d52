"""A change event as an object: attributes for the usual fields, and `raw` for the document that drivers return."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.clock import monotonic
from headrace.embedded.error_types import Closed, StreamInvalidated


class ChangeEvent(Mapping[str, Any]):
    """One event of a change stream, a mapping with the fields of `raw`, so that it is used as a driver's event is."""

    __slots__ = ("raw",)

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        """The event's document, as drivers return it."""

    @property
    def operation_type(self) -> str:
        """`insert`, `update`, `replace`, `delete`, `drop`, `rename`, `dropDatabase`, `invalidate`, or another."""
        return str(self.raw["operationType"])

    @property
    def resume_token(self) -> Mapping[str, Any]:
        """The event's resume token. A stream with this `resume_after` begins with the next event."""
        return self.raw["_id"]  # type: ignore[no-any-return]

    @property
    def cluster_time(self) -> Any:
        """The `Timestamp` of the change; all events of a transaction have the same one."""
        return self.raw.get("clusterTime")

    @property
    def wall_time(self) -> Any:
        """The server's date and time of the change, in the date type of the codec options."""
        return self.raw.get("wallTime")

    @property
    def database(self) -> str | None:
        """The database's name; None for `invalidate`."""
        return self.raw.get("ns", {}).get("db")  # type: ignore[no-any-return]

    @property
    def collection(self) -> str | None:
        """The collection's name; None for an event without a collection."""
        return self.raw.get("ns", {}).get("coll")  # type: ignore[no-any-return]

    @property
    def document_key(self) -> Mapping[str, Any] | None:
        """The document's key: `{"_id": ...}`."""
        return self.raw.get("documentKey")

    @property
    def document_id(self) -> Any:
        """The `_id` of the document; None for an event without a document."""
        return (self.raw.get("documentKey") or {}).get("_id")

    @property
    def full_document(self) -> Any:
        """The document after an insert or a replace; after an update if the stream has `full_document`."""
        return self.raw.get("fullDocument")

    @property
    def full_document_before_change(self) -> Any:
        """The document before the change, if the stream has `full_document_before_change`."""
        return self.raw.get("fullDocumentBeforeChange")

    @property
    def updated_fields(self) -> Mapping[str, Any]:
        """The fields that an update has set, by dotted path."""
        return self.raw.get("updateDescription", {}).get("updatedFields", {})  # type: ignore[no-any-return]

    @property
    def removed_fields(self) -> list[str]:
        """The fields that an update has removed, as dotted paths."""
        return list(self.raw.get("updateDescription", {}).get("removedFields", ()))

    @property
    def truncated_arrays(self) -> list[Mapping[str, Any]]:
        """The arrays that an update has made shorter: `field`, `newSize`."""
        return list(self.raw.get("updateDescription", {}).get("truncatedArrays", ()))

    @property
    def transaction(self) -> tuple[Any, int] | None:
        """The session and number that identify the transaction of the change; None outside transactions."""
        return (self.raw["lsid"]["id"], int(self.raw["txnNumber"])) if "txnNumber" in self.raw else None

    def __getitem__(self, name: str) -> Any:
        return self.raw[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __repr__(self) -> str:
        where = ".".join(name for name in (self.database, self.collection) if name)
        return f"<{self.operation_type} {where}{'' if self.document_key is None else f' {self.document_id!r}'}>"


class EventBuffer:
    """A buffer of events between the thread that reads a stream and the threads that take them."""

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self._events: deque[ChangeEvent] = deque()
        self._changed = threading.Condition()
        self._end: BaseException | None = None

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: ChangeEvent) -> None:
        """Wait for room and add an event. Raises the error that has ended the queue."""
        with self._changed:
            while len(self._events) >= self.maxsize and self._end is None:
                self._changed.wait()
            if self._end is not None:
                raise self._end
            self._events.append(event)
            self._changed.notify_all()

    def end(self, error: BaseException) -> None:
        """End the queue; `get` raises `error` after the last event. A second call has no effect."""
        with self._changed:
            if self._end is None:
                self._end = error
            if isinstance(error, Closed):
                self._events.clear()
            self._changed.notify_all()

    def leave_to_parent(self, error: BaseException) -> None:
        """End the queue in a forked child, where a thread of the parent may hold the lock."""
        self._changed = threading.Condition()
        self.end(error)

    def get(self, block: bool, timeout: float | None) -> ChangeEvent:
        """Return the next event; see `EventQueue.get`."""
        ends = None if timeout is None else monotonic() + timeout
        with self._changed:
            while not self._events:
                if self._end is not None:
                    raise self._end
                left = 0.0 if not block else None if ends is None else ends - monotonic()
                if left is not None and left <= 0:
                    raise queue.Empty
                self._changed.wait(left)
            event = self._events.popleft()
            self._changed.notify_all()
            return event


class EventQueue:
    """The queue that `EmbeddedChangeStream.events` returns. It is an iterator; many threads may read it.

    When nothing refers to the queue any longer, its stream is closed and its events are lost.
    """

    def __init__(self, buffer: EventBuffer, forget: Callable[[], None]) -> None:
        """Make a queue. `forget` closes the stream; it may be called at any time and does not wait."""
        self._buffer = buffer
        self._forget = forget

    def __del__(self) -> None:
        self._forget()

    @property
    def maxsize(self) -> int:
        """The most events that the queue holds."""
        return self._buffer.maxsize

    def qsize(self) -> int:
        """Return the number of events in the queue."""
        return len(self._buffer)

    def get(self, block: bool = True, timeout: float | None = None) -> ChangeEvent:
        """Return the next event. Raises `queue.Empty` if none comes in time.

        After the last event raises the error that ended the stream: `Closed`, `StreamInvalidated`, `HistoryLost`.
        """
        return self._buffer.get(block, timeout)

    def get_nowait(self) -> ChangeEvent:
        """Return the next event. Raises `queue.Empty` if there is none."""
        return self.get(block=False)

    def __iter__(self) -> Iterator[ChangeEvent]:
        return self

    def __next__(self) -> ChangeEvent:
        try:
            return self.get()
        except (Closed, StreamInvalidated):
            raise StopIteration from None
