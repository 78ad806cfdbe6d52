"""The embedded store for asyncio. Names are pymongo's, and so is what must be awaited. No call blocks the loop.

    async with headrace.open_async("data") as store:
        async with store.shop.orders.watch() as stream:
            async for event in stream: ...

Calls run in the store's threads. A stream has its own thread while a task waits for its events. A cancelled `await`
loses no event: the next one returns the event that the thread has read.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial, wraps
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from headrace.embedded.change_event import ChangeEvent
from headrace.embedded.collection import EmbeddedCollection
from headrace.embedded.cursor import EmbeddedCommandCursor, EmbeddedCursor
from headrace.embedded.database import EmbeddedDatabase
from headrace.embedded.error_types import Closed, StreamInvalidated, Timeout
from headrace.embedded.open_store import OPEN_KEYWORDS, EmbeddedStore, open_store
from headrace.embedded.session import EmbeddedSession
from headrace.keywords import check_keywords

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


THREAD_COUNT_MAX: Final = 16
"""The most calls of one store that run at a time. More would mostly wait for the engine's lock."""
Opened = TypeVar("Opened")
Form = TypeVar("Form", bound="_Wrapper")


_KINDS: Final[dict[type, Callable[[Any, ThreadPoolExecutor], Any]]] = {}
"""The asynchronous class for each class of the store; `_form_of` fills it."""


class Opening(Generic[Opened]):
    """A store or stream that is being opened. Await it, or use `async with`, which also closes it."""

    def __init__(self, open_it: Callable[[], Awaitable[Opened]]) -> None:
        self._open_it = open_it
        self._opened: Any = None

    def __await__(self) -> Generator[Any, None, Opened]:
        return self._open_it().__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._open_it()
        return self._opened  # type: ignore[no-any-return]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.close()


class _Threads(ThreadPoolExecutor):
    """The threads that run a store's calls.

    A forked child has no such threads. There a call runs in the calling thread and raises `Closed` at once.
    """

    def __init__(self) -> None:
        super().__init__(THREAD_COUNT_MAX, thread_name_prefix="headrace-call")
        self._process = os.getpid()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call, as with any executor."""
        if os.getpid() == self._process:
            return super().submit(function, *args, **kwargs)
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _Wrapper:
    """An object of the store, and the threads that call its methods."""

    def __init__(self, wrapped: Any, threads: ThreadPoolExecutor) -> None:
        self._wrapped = wrapped
        self._threads = threads

    async def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in a thread and return its result, wrapped in its asynchronous class if there is one."""
        args = tuple(_plain(value) for value in args)
        kwargs = {name: _plain(value) for name, value in kwargs.items()}
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, partial(function, *args, **kwargs))
        return _wrapped_in(self._threads, result)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._wrapped == other._wrapped

    def __hash__(self) -> int:
        return hash(self._wrapped)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._wrapped!r})"

    def __getattr__(self, name: str) -> Any:
        """Return what needs no `await`: an attribute of the wrapped object, or a collection or database by name."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return _wrapped_in(self._threads, getattr(self._wrapped, name))


def _plain(value: Any) -> Any:
    return value._wrapped if isinstance(value, _Wrapper) else value


def _wrapped_in(threads: ThreadPoolExecutor, value: Any) -> Any:
    """Return a value wrapped in its asynchronous class, if there is one."""
    kind = _KINDS.get(type(value))
    return value if kind is None else kind(value, threads)


def _in_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the awaitable form of a method, with its parameters and documentation."""

    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._call(partial(method, self._wrapped), *args, **kwargs)

    return call


def _at_once(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the form of a method that needs no `await`, because it takes no time."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(_plain(value) for value in args)
        kwargs = {name: _plain(value) for name, value in kwargs.items()}
        result = method(self._wrapped, *args, **kwargs)
        return self if result is self._wrapped else _wrapped_in(self._threads, result)

    return call


def _form_of(wrapped: type, at_once: Container[str] = ()) -> Callable[[type[Form]], type[Form]]:
    """Return a decorator that adds the missing methods of `wrapped` to a class; all but `at_once` are awaitable."""

    def complete(form: type[Form]) -> type[Form]:
        for name, method in inspect.getmembers(wrapped, callable):
            if not name.startswith("_") and not hasattr(form, name):
                setattr(form, name, _at_once(method) if name in at_once else _in_thread(method))
        _KINDS[wrapped] = form
        return form

    return complete


class _Closing(_Wrapper):
    """An object whose `close` runs in a thread. Its `async with` closes it."""

    async def close(self) -> None:
        """Close the object. A second call has no effect."""
        await self._call(self._wrapped.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncEmbeddedChangeStream(_Closing):
    """The stream that `watch` opens, for one task at a time.

    Use `async for`, `await anext(stream)` or `await stream.next(timeout=...)`.
    """

    _wrapped: EmbeddedChangeStream

    def __init__(self, wrapped: EmbeddedChangeStream, threads: ThreadPoolExecutor) -> None:
        super().__init__(wrapped, threads)
        self._thread: _Reader | None = None
        self._pending: asyncio.Future[ChangeEvent] | None = None

    async def next(self, timeout: float | None = None) -> ChangeEvent:
        """Wait for the next event and return it.

        Raises `Timeout` after `timeout` seconds (None: never), `Closed`, `StreamInvalidated`, `HistoryLost`.
        """
        if self._wrapped._local.is_forked:
            self._pending = None
            return self._wrapped.next()  # raises, because the thread belongs to the parent
        if self._pending is None:
            event = self._wrapped._taken()
            if event is not None:
                return event
            if self._thread is None:
                self._thread = _Reader(self._wrapped)
            self._pending = self._thread.next()
        pending = self._pending
        done, _ = await asyncio.wait((pending,), timeout=timeout)  # a timeout of `wait` does not cancel the future
        if not done:
            raise Timeout(f"no event within {timeout} s")
        self._pending = None
        return pending.result()

    async def try_next(self) -> ChangeEvent | None:
        """Return the next event if there is one, otherwise None."""
        if self._pending is not None and not self._wrapped._local.is_forked:
            return await self.next() if self._pending.done() else None
        event = self._wrapped._taken()
        if event is not None or self._wrapped.has_read_all:
            return event
        return await self._call(self._wrapped.try_next)  # type: ignore[no-any-return]

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
        return self._wrapped.resume_token

    @property
    def alive(self) -> bool:
        """Whether more events may come."""
        return self._pending is not None or self._wrapped.alive

    def __del__(self) -> None:
        self._wrapped._forget()
        if self._thread is not None:
            self._thread.end()

    async def close(self) -> None:
        """End the stream. A task that waits for its next event gets `Closed`, and an iteration ends.

        A second call has no effect.
        """
        await super().close()
        if self._thread is not None:
            self._thread.end()


@_form_of(EmbeddedCommandCursor)
class AsyncEmbeddedCommandCursor(_Closing):
    """A cursor for `async for` and `await cursor.to_list()`."""

    async def next(self) -> Any:
        """Return the next document. Raises StopAsyncIteration after the last one."""
        return await self.__anext__()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._wrapped._documents:
            return self._wrapped._documents.popleft()
        nothing = object()
        document = await self._call(next, self._wrapped, nothing)
        if document is nothing:
            raise StopAsyncIteration
        return document


@_form_of(
    EmbeddedCursor,
    at_once={
        "allow_disk_use", "batch_size", "clone", "collation", "comment", "hint", "limit", "max", "max_await_time_ms",
        "max_time_ms", "min", "skip", "sort", "where",
    },
)  # fmt: skip
class AsyncEmbeddedCursor(AsyncEmbeddedCommandCursor):
    """The cursor that `find` returns. Its options are chained without `await`."""

    async def rewind(self) -> AsyncEmbeddedCursor:
        """Return to the first document; the query runs again."""
        await self._call(self._wrapped.rewind)
        return self


@_form_of(EmbeddedSession, at_once={"advance", "advance_cluster_time", "advance_operation_time", "apply_to", "retries"})
class AsyncEmbeddedSession(_Wrapper):
    """A session, for `async with`."""

    async def start_transaction(self, *args: Any, **kwargs: Any) -> AbstractAsyncContextManager[AsyncEmbeddedSession]:
        """Begin a transaction. `async with` on the awaited result commits it, or aborts it on an exception."""
        self._wrapped.start_transaction(*args, **kwargs)
        return self._ending_transaction()

    @asynccontextmanager
    async def _ending_transaction(self) -> AsyncIterator[AsyncEmbeddedSession]:
        """End the transaction with the body of an `async with`."""
        try:
            yield self
        except BaseException:
            if self.in_transaction:
                await self.abort_transaction()
            raise
        if self.in_transaction:
            await self.commit_transaction()

    async def with_transaction(self, callback: Callable[[Any], Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Run `await callback(session)`, commit and return its result; after a conflict run it again."""
        retry = self._wrapped.retries()
        while True:
            self._wrapped.start_transaction(*args, **kwargs)
            try:
                result = await callback(self)
                if self.in_transaction:
                    await self.commit_transaction()
                return result
            except BaseException as error:
                if self.in_transaction:
                    await self.abort_transaction()
                pause = retry(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def __aenter__(self) -> AsyncEmbeddedSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end_session()


class _Watching(_Wrapper):
    """An object with the methods `watch` and `aggregate`."""

    def watch(self, *args: Any, **kwargs: Any) -> Opening[AsyncEmbeddedChangeStream]:
        """Open a change stream: `async with ... as stream`, or `await`."""

        async def open_it() -> AsyncEmbeddedChangeStream:
            return AsyncEmbeddedChangeStream(await self._call(self._wrapped.watch, *args, **kwargs), self._threads)

        return Opening(open_it)


@_form_of(EmbeddedCollection, at_once={"find", "with_options"})
class AsyncEmbeddedCollection(_Watching):
    """A collection: `store["shop"]["orders"]`."""

    def __getitem__(self, name: str) -> AsyncEmbeddedCollection:
        return AsyncEmbeddedCollection(self._wrapped[name], self._threads)

    def __bool__(self) -> bool:
        return bool(self._wrapped)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped()  # raises TypeError


@_form_of(EmbeddedDatabase, at_once={"get_collection", "with_options"})
class AsyncEmbeddedDatabase(_Watching):
    """A database: `store["shop"]`."""

    def __getitem__(self, name: str) -> AsyncEmbeddedCollection:
        return AsyncEmbeddedCollection(self._wrapped[name], self._threads)

    def __bool__(self) -> bool:
        return bool(self._wrapped)


class AsyncServedStore(_Closing):
    """A served store, for `async with`, with its `uri` and `port`.

    `close` finishes the writes that clients have sent and closes their connections. The store stays open.
    """


@_form_of(EmbeddedStore, at_once={"get_database", "start_session"})
class AsyncEmbeddedStore(_Closing, _Watching):
    """An open data directory, for asyncio."""

    def serve(self, *args: Any, **kwargs: Any) -> Opening[AsyncServedStore]:
        """Serve the store to other processes: `async with store.serve() as served`, or `await`."""

        async def open_it() -> AsyncServedStore:
            return AsyncServedStore(await self._call(self._wrapped.serve, *args, **kwargs), self._threads)

        return Opening(open_it)

    def __getitem__(self, name: str) -> AsyncEmbeddedDatabase:
        return AsyncEmbeddedDatabase(self._wrapped[name], self._threads)


def open_async(*args: Any, **kwargs: Any) -> Opening[AsyncEmbeddedStore]:
    """Open a store for asyncio, with the arguments of `headrace.open`: `async with ... as store`, or `await`."""
    check_keywords("open_async", kwargs, OPEN_KEYWORDS)

    async def open_it() -> AsyncEmbeddedStore:
        threads = _Threads()
        loop = asyncio.get_running_loop()
        return AsyncEmbeddedStore(await loop.run_in_executor(threads, partial(open_store, *args, **kwargs)), threads)

    return Opening(open_it)
