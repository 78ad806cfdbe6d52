"""A bounded queue between a change stream and a consumer that may be slow."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator

from headrace.clock import monotonic
from headrace.embedded.change_event import ChangeEvent
from headrace.embedded.error_types import Closed, StreamInvalidated


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
