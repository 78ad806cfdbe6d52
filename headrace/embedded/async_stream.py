"""A change stream for asyncio. A thread of the stream waits for events, so that the loop is not blocked.

Rule: a cancelled `await` loses no event; the next one returns the event that the thread has read.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.embedded.change_event import ChangeEvent
from headrace.embedded.error_types import Closed, StreamInvalidated, Timeout

if TYPE_CHECKING:
    from headrace.embedded.change_stream import EmbeddedChangeStream


class _Reader:
    """A daemon thread that waits for one event at each request. The interpreter can exit while it waits."""

    def __init__(self, stream: EmbeddedChangeStream) -> None:
        self._stream = stream
        self._asked: SimpleQueue[asyncio.Future[ChangeEvent] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="headrace-stream", daemon=True).start()

    def next(self) -> asyncio.Future[ChangeEvent]:
        """Return the next event. Call it again only after the previous future has its result."""
        future: asyncio.Future[ChangeEvent] = asyncio.get_running_loop().create_future()
        future.add_done_callback(asyncio.Future.exception)  # otherwise asyncio logs an error that is never awaited
        self._asked.put(future)
        return future

    def end(self) -> None:
        """End the thread. The stream is closed, so the thread does not wait for an event."""
        self._asked.put(None)

    def _run(self) -> None:
        while (future := self._asked.get()) is not None:
            event = failure = None
            try:
                event = self._stream.next()
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                future.get_loop().call_soon_threadsafe(_settle, future, event, failure)


def _settle(future: asyncio.Future[Any], event: ChangeEvent | None, failure: Exception | None) -> None:
    if failure is None:
        future.set_result(event)
    else:
        future.set_exception(failure)


class AsyncClosing:
    """An object that its `async with` closes."""

    async def close(self) -> None:
        """Close the object. A second call has no effect."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncEmbeddedChangeStream(AsyncClosing):
    """The stream that `watch` opens, for one task at a time.

    Use `async for`, `await anext(stream)` or `await stream.next(timeout=...)`.
    """

    def __init__(self, stream: EmbeddedChangeStream, threads: Executor) -> None:
        self._stream = stream
        self._threads = threads
        self._thread: _Reader | None = None
        self._pending: asyncio.Future[ChangeEvent] | None = None

    async def next(self, timeout: float | None = None) -> ChangeEvent:
        """Wait for the next event and return it.

        Raises `Timeout` after `timeout` seconds (None: never), `Closed`, `StreamInvalidated`, `HistoryLost`.
        """
        if self._stream._local.is_forked:
            self._pending = None
            return self._stream.next()  # raises, because the thread belongs to the parent
        if self._pending is None:
            event = self._stream._taken()
            if event is not None:
                return event
            if self._thread is None:
                self._thread = _Reader(self._stream)
            self._pending = self._thread.next()
        pending = self._pending
        done, _ = await asyncio.wait((pending,), timeout=timeout)  # a timeout of `wait` does not cancel the future
        if not done:
            raise Timeout(f"no event within {timeout} s")
        self._pending = None
        return pending.result()

    async def try_next(self) -> ChangeEvent | None:
        """Return the next event if there is one, otherwise None."""
        if self._pending is not None and not self._stream._local.is_forked:
            return await self.next() if self._pending.done() else None
        event = self._stream._taken()
        if event is not None or self._stream.has_read_all:
            return event
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._stream.try_next)

    def __aiter__(self) -> AsyncIterator[ChangeEvent]:
        return self

    async def __anext__(self) -> ChangeEvent:
        try:
            return await self.next()
        except (Closed, StreamInvalidated):
            raise StopAsyncIteration from None

    @property
    def resume_token(self) -> Mapping[str, Any] | None:
        """The token with which another stream resumes after the events that this stream has returned."""
        return self._stream.resume_token

    @property
    def alive(self) -> bool:
        """Whether more events may come."""
        return self._pending is not None or self._stream.alive

    def __del__(self) -> None:
        self._stream._forget()
        if self._thread is not None:
            self._thread.end()

    async def close(self) -> None:
        """End the stream. A task that waits for its next event gets `Closed`, and an iteration ends.

        A second call has no effect.
        """
        await asyncio.get_running_loop().run_in_executor(self._threads, self._stream.close)
        if self._thread is not None:
            self._thread.end()
