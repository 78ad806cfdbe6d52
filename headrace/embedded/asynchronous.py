"""The same for asyncio, with pymongo's names and which of them are awaited: nothing of it blocks the loop.

    async with headrace.open_async("data") as store:
        async with store.shop.orders.watch() as stream:
            async for event in stream: ...

Calls run in threads of the store's. A stream that is waited for has a thread of its own meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from headrace.embedded.async_stream import AsyncClosing, AsyncEmbeddedChangeStream
from headrace.embedded.collection import EmbeddedCollection
from headrace.embedded.cursor import EmbeddedCommandCursor, EmbeddedCursor
from headrace.embedded.database import EmbeddedDatabase
from headrace.embedded.open_store import OPEN_KEYWORDS, EmbeddedStore, open_store
from headrace.embedded.session import EmbeddedSession
from headrace.keywords import check_keywords

THREAD_COUNT_MAX: Final = 16
"""Calls of one store that run at once: more would wait for the engine's lock, but for those that wait for a commit."""
Opened = TypeVar("Opened")
Form = TypeVar("Form", bound="_Wrapper")


_KINDS: Final[dict[type, Callable[[Any, ThreadPoolExecutor], Any]]] = {}
"""The asynchronous forms of the store's classes, which `_form_of` adds."""


class Opening(Generic[Opened]):
    """An opening store or stream: await it, or enter it with `async with`, which also closes it."""

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
    """The threads in which a store's calls run. The child of a fork has none of them: there a call, which raises
    `Closed` at once, runs in the caller's."""

    def __init__(self) -> None:
        super().__init__(THREAD_COUNT_MAX, thread_name_prefix="headrace-call")
        self._process = os.getpid()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As any executor."""
        if os.getpid() == self._process:
            return super().submit(function, *args, **kwargs)
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _Wrapper:
    """Something of the store's and the threads in which its methods are called."""

    def __init__(self, wrapped: Any, threads: ThreadPoolExecutor) -> None:
        self._wrapped = wrapped
        self._threads = threads

    async def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in a thread and return its result, in its asynchronous form if there is one."""
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
        """The members without `await`: attributes of the wrapped object, and collections and databases by their
        names."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return _wrapped_in(self._threads, getattr(self._wrapped, name))


def _plain(value: Any) -> Any:
    return value._wrapped if isinstance(value, _Wrapper) else value


def _wrapped_in(threads: ThreadPoolExecutor, value: Any) -> Any:
    """A value in its asynchronous form, if it has one."""
    kind = _KINDS.get(type(value))
    return value if kind is None else kind(value, threads)


def _in_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the awaited form of a method, with its parameters and documentation."""

    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._call(partial(method, self._wrapped), *args, **kwargs)

    return call


def _at_once(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the form of a method that does nothing that takes time, and so is not awaited."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(_plain(value) for value in args)
        kwargs = {name: _plain(value) for name, value in kwargs.items()}
        result = method(self._wrapped, *args, **kwargs)
        return self if result is self._wrapped else _wrapped_in(self._threads, result)

    return call


def _form_of(wrapped: type, at_once: Container[str] = ()) -> Callable[[type[Form]], type[Form]]:
    """Give a class the methods of another that it does not have itself: those that are not `at_once` are awaited."""

    def complete(form: type[Form]) -> type[Form]:
        for name, method in inspect.getmembers(wrapped, callable):
            if not name.startswith("_") and not hasattr(form, name):
                setattr(form, name, _at_once(method) if name in at_once else _in_thread(method))
        _KINDS[wrapped] = form
        return form

    return complete


class _Closing(AsyncClosing, _Wrapper):
    """Is closed in a thread."""

    async def close(self) -> None:
        """Close it."""
        await self._call(self._wrapped.close)


@_form_of(EmbeddedCommandCursor)
class AsyncEmbeddedCommandCursor(_Closing):
    """A cursor: `async for`, `await cursor.to_list()`."""

    async def next(self) -> Any:
        """The next document. Raises StopAsyncIteration after the last."""
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
    """The cursor that `find` returns: the same options are chained, without `await`."""

    async def rewind(self) -> AsyncEmbeddedCursor:
        """Begin again."""
        await self._call(self._wrapped.rewind)
        return self


@_form_of(EmbeddedSession, at_once={"advance", "advance_cluster_time", "advance_operation_time", "apply_to", "retries"})
class AsyncEmbeddedSession(_Wrapper):
    """A session; `async with`."""

    async def start_transaction(self, *args: Any, **kwargs: Any) -> _AsyncTransaction:
        """Begin a transaction: `async with await session.start_transaction():` commits it, or aborts it on an error."""
        self._wrapped.start_transaction(*args, **kwargs)
        return _AsyncTransaction(self)

    async def with_transaction(self, callback: Callable[[Any], Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Return the result of `await callback(session)`, committed; it is called again after a conflict."""
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


class _AsyncTransaction:
    """Ends a transaction with the `async with` block."""

    def __init__(self, session: AsyncEmbeddedSession) -> None:
        self._session = session

    async def __aenter__(self) -> _AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session.in_transaction:
            await (self._session.commit_transaction() if error is None else self._session.abort_transaction())


class _Watching(_Wrapper):
    """The methods `watch` and `aggregate`."""

    def watch(self, *args: Any, **kwargs: Any) -> Opening[AsyncEmbeddedChangeStream]:
        """A change stream; `async with ... as stream`, or awaited."""

        async def open_it() -> AsyncEmbeddedChangeStream:
            return AsyncEmbeddedChangeStream(await self._call(self._wrapped.watch, *args, **kwargs), self._threads)

        return Opening(open_it)


@_form_of(EmbeddedCollection, at_once={"find", "with_options"})
class AsyncEmbeddedCollection(_Watching):
    """`store["shop"]["orders"]`."""

    def __getitem__(self, name: str) -> AsyncEmbeddedCollection:
        return AsyncEmbeddedCollection(self._wrapped[name], self._threads)

    def __bool__(self) -> bool:
        return bool(self._wrapped)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped()  # which raises


@_form_of(EmbeddedDatabase, at_once={"get_collection", "with_options"})
class AsyncEmbeddedDatabase(_Watching):
    """`store["shop"]`."""

    def __getitem__(self, name: str) -> AsyncEmbeddedCollection:
        return AsyncEmbeddedCollection(self._wrapped[name], self._threads)

    def __bool__(self) -> bool:
        return bool(self._wrapped)


class AsyncServedStore(_Closing):
    """A store that is served: its `uri` and `port`; `async with`. To close it finishes the writes that clients have
    sent, and closes their connections; the store stays open."""


@_form_of(EmbeddedStore, at_once={"get_database", "start_session"})
class AsyncEmbeddedStore(_Closing, _Watching):
    """An open data directory, for asyncio."""

    def serve(self, *args: Any, **kwargs: Any) -> Opening[AsyncServedStore]:
        """Serve the same data to other processes: `async with store.serve() as served: served.uri`, or awaited."""

        async def open_it() -> AsyncServedStore:
            return AsyncServedStore(await self._call(self._wrapped.serve, *args, **kwargs), self._threads)

        return Opening(open_it)

    def __getitem__(self, name: str) -> AsyncEmbeddedDatabase:
        return AsyncEmbeddedDatabase(self._wrapped[name], self._threads)


def open_async(*args: Any, **kwargs: Any) -> Opening[AsyncEmbeddedStore]:
    """As `headrace.open`, for asyncio: `async with headrace.open_async("data") as store`, or awaited."""
    check_keywords("open_async", kwargs, OPEN_KEYWORDS)

    async def open_it() -> AsyncEmbeddedStore:
        threads = _Threads()
        loop = asyncio.get_running_loop()
        return AsyncEmbeddedStore(await loop.run_in_executor(threads, partial(open_store, *args, **kwargs)), threads)

    return Opening(open_it)
