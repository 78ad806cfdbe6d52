"""The same for asyncio, with pymongo's names and which of them are awaited: nothing of it blocks the loop.

    async with headrace.open_async("data") as store:
        async with store.shop.orders.watch() as stream:
            async for event in stream: ...

Calls run in threads of the store's. A stream that is waited for has a thread of its own meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from headrace.embedded.async_stream import AsyncEmbeddedChangeStream
from headrace.embedded.collection import EmbeddedCollection
from headrace.embedded.cursor import EmbeddedCommandCursor, EmbeddedCursor
from headrace.embedded.database import EmbeddedDatabase
from headrace.embedded.open_store import OPEN_KEYWORDS, EmbeddedStore, open_store
from headrace.embedded.session import EmbeddedSession
from headrace.keywords import check_keywords

THREAD_COUNT_MAX: Final = 16
"""Calls of one store that run at once: more would wait for the engine's lock, but for those that wait for a commit."""
Opened = TypeVar("Opened")


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


class AsyncEmbeddedCommandCursor(_Wrapper):
    """A cursor: `async for`, `await cursor.to_list()`."""

    to_list = _in_thread(EmbeddedCommandCursor.to_list)
    try_next = _in_thread(EmbeddedCommandCursor.try_next)
    close = _in_thread(EmbeddedCommandCursor.close)

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

    async def __aenter__(self) -> AsyncEmbeddedCommandCursor:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncEmbeddedCursor(AsyncEmbeddedCommandCursor):
    """The cursor that `find` returns: the same options are chained, without `await`."""

    allow_disk_use = _at_once(EmbeddedCursor.allow_disk_use)
    batch_size = _at_once(EmbeddedCursor.batch_size)
    clone = _at_once(EmbeddedCursor.clone)
    collation = _at_once(EmbeddedCursor.collation)
    comment = _at_once(EmbeddedCursor.comment)
    distinct = _in_thread(EmbeddedCursor.distinct)
    explain = _in_thread(EmbeddedCursor.explain)
    hint = _at_once(EmbeddedCursor.hint)
    limit = _at_once(EmbeddedCursor.limit)
    max = _at_once(EmbeddedCursor.max)
    max_await_time_ms = _at_once(EmbeddedCursor.max_await_time_ms)
    max_time_ms = _at_once(EmbeddedCursor.max_time_ms)
    min = _at_once(EmbeddedCursor.min)
    skip = _at_once(EmbeddedCursor.skip)
    sort = _at_once(EmbeddedCursor.sort)
    where = _at_once(EmbeddedCursor.where)

    async def rewind(self) -> AsyncEmbeddedCursor:
        """Begin again."""
        await self._call(self._wrapped.rewind)
        return self


class AsyncEmbeddedSession(_Wrapper):
    """A session; `async with`."""

    commit_transaction = _in_thread(EmbeddedSession.commit_transaction)
    abort_transaction = _in_thread(EmbeddedSession.abort_transaction)
    end_session = _in_thread(EmbeddedSession.end_session)

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


class AsyncEmbeddedCollection(_Watching):
    """`store["shop"]["orders"]`."""

    aggregate = _in_thread(EmbeddedCollection.aggregate)
    bulk_write = _in_thread(EmbeddedCollection.bulk_write)
    count_documents = _in_thread(EmbeddedCollection.count_documents)
    create_index = _in_thread(EmbeddedCollection.create_index)
    create_indexes = _in_thread(EmbeddedCollection.create_indexes)
    delete_many = _in_thread(EmbeddedCollection.delete_many)
    delete_one = _in_thread(EmbeddedCollection.delete_one)
    distinct = _in_thread(EmbeddedCollection.distinct)
    drop = _in_thread(EmbeddedCollection.drop)
    drop_index = _in_thread(EmbeddedCollection.drop_index)
    drop_indexes = _in_thread(EmbeddedCollection.drop_indexes)
    estimated_document_count = _in_thread(EmbeddedCollection.estimated_document_count)
    find = _at_once(EmbeddedCollection.find)
    find_one = _in_thread(EmbeddedCollection.find_one)
    find_one_and_delete = _in_thread(EmbeddedCollection.find_one_and_delete)
    find_one_and_replace = _in_thread(EmbeddedCollection.find_one_and_replace)
    find_one_and_update = _in_thread(EmbeddedCollection.find_one_and_update)
    index_information = _in_thread(EmbeddedCollection.index_information)
    insert_many = _in_thread(EmbeddedCollection.insert_many)
    insert_one = _in_thread(EmbeddedCollection.insert_one)
    list_indexes = _in_thread(EmbeddedCollection.list_indexes)
    options = _in_thread(EmbeddedCollection.options)
    rename = _in_thread(EmbeddedCollection.rename)
    replace_one = _in_thread(EmbeddedCollection.replace_one)
    update_many = _in_thread(EmbeddedCollection.update_many)
    update_one = _in_thread(EmbeddedCollection.update_one)
    with_options = _at_once(EmbeddedCollection.with_options)

    def __getitem__(self, name: str) -> AsyncEmbeddedCollection:
        return AsyncEmbeddedCollection(self._wrapped[name], self._threads)

    def __bool__(self) -> bool:
        return bool(self._wrapped)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped()  # which raises


class AsyncEmbeddedDatabase(_Watching):
    """`store["shop"]`."""

    aggregate = _in_thread(EmbeddedDatabase.aggregate)
    command = _in_thread(EmbeddedDatabase.command)
    create_collection = _in_thread(EmbeddedDatabase.create_collection)
    drop_collection = _in_thread(EmbeddedDatabase.drop_collection)
    get_collection = _at_once(EmbeddedDatabase.get_collection)
    list_collection_names = _in_thread(EmbeddedDatabase.list_collection_names)
    list_collections = _in_thread(EmbeddedDatabase.list_collections)
    validate_collection = _in_thread(EmbeddedDatabase.validate_collection)
    with_options = _at_once(EmbeddedDatabase.with_options)

    def __getitem__(self, name: str) -> AsyncEmbeddedCollection:
        return AsyncEmbeddedCollection(self._wrapped[name], self._threads)

    def __bool__(self) -> bool:
        return bool(self._wrapped)


class AsyncServedStore(_Wrapper):
    """A store that is served: its `uri` and `port`; `async with`."""

    async def close(self) -> None:
        """Finish the writes that clients have sent, and close their connections. The store stays open."""
        await self._call(self._wrapped.close)

    async def __aenter__(self) -> AsyncServedStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncEmbeddedStore(_Watching):
    """An open data directory, for asyncio."""

    drop_database = _in_thread(EmbeddedStore.drop_database)
    get_database = _at_once(EmbeddedStore.get_database)
    list_database_names = _in_thread(EmbeddedStore.list_database_names)
    list_databases = _in_thread(EmbeddedStore.list_databases)
    prune = _in_thread(EmbeddedStore.prune)
    server_info = _in_thread(EmbeddedStore.server_info)
    start_session = _at_once(EmbeddedStore.start_session)

    def serve(self, *args: Any, **kwargs: Any) -> Opening[AsyncServedStore]:
        """Serve the same data to other processes: `async with store.serve() as served: served.uri`, or awaited."""

        async def open_it() -> AsyncServedStore:
            return AsyncServedStore(await self._call(self._wrapped.serve, *args, **kwargs), self._threads)

        return Opening(open_it)

    async def close(self) -> None:
        """Close the store."""
        await self._call(self._wrapped.close)

    def __getitem__(self, name: str) -> AsyncEmbeddedDatabase:
        return AsyncEmbeddedDatabase(self._wrapped[name], self._threads)

    async def __aenter__(self) -> AsyncEmbeddedStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


_KINDS: Final[dict[type, Callable[[Any, ThreadPoolExecutor], Any]]] = {
    EmbeddedCollection: AsyncEmbeddedCollection,
    EmbeddedCommandCursor: AsyncEmbeddedCommandCursor,
    EmbeddedCursor: AsyncEmbeddedCursor,
    EmbeddedDatabase: AsyncEmbeddedDatabase,
    EmbeddedSession: AsyncEmbeddedSession,
    EmbeddedStore: AsyncEmbeddedStore,
}


def open_async(*args: Any, **kwargs: Any) -> Opening[AsyncEmbeddedStore]:
    """As `headrace.open`, for asyncio: `async with headrace.open_async("data") as store`, or awaited."""
    check_keywords("open_async", kwargs, OPEN_KEYWORDS)

    async def open_it() -> AsyncEmbeddedStore:
        threads = _Threads()
        loop = asyncio.get_running_loop()
        return AsyncEmbeddedStore(await loop.run_in_executor(threads, partial(open_store, *args, **kwargs)), threads)

    return Opening(open_it)
