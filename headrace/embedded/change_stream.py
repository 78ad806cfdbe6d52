"""A change stream as an object. A program pulls its events, iterates over them, or gets them by queue or callback.

The stream reads a cursor of the engine by getMore, as a driver does. If the engine has closed the cursor to free
memory, the stream resumes after its token by itself.

Rule: no event is dropped. A slow consumer delays the reading of the oplog, but never a writer.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bson import Int64

from headrace import limits
from headrace.clock import monotonic
from headrace.embedded.calls import Closing, options_of, pipeline_of
from headrace.embedded.change_event import ChangeEvent, EventBuffer, EventQueue
from headrace.embedded.error_types import Closed, StreamInvalidated, Timeout
from headrace.embedded.errors_raised import raise_closed
from headrace.keywords import keywords_of, nearest
from headrace.log_lines import emit
from headrace.values.bson import decode, encode

if TYPE_CHECKING:
    from typing import Self

    from headrace.embedded.calls import Calls


OPERATIONS: Final = frozenset({
    "create", "createIndexes", "delete", "drop", "dropDatabase", "dropIndexes", "insert", "invalidate", "modify",
    "rename", "replace", "update",
})  # fmt: skip
"""The types of events that a callback may name."""
EXPANDED: Final = frozenset({"create", "createIndexes", "dropIndexes", "modify"})
"""The types of events that come only with `showExpandedEvents`."""

_FIELDS: Final[dict[str, frozenset[str]]] = {
    "_id": frozenset(),
    "clusterTime": frozenset(),
    "collectionUUID": frozenset(),
    "documentKey": frozenset(),
    "fullDocument": frozenset(),
    "fullDocumentBeforeChange": frozenset(),
    "lsid": frozenset(),
    "ns": frozenset({"coll", "db"}),
    "nsType": frozenset(),
    "operationDescription": frozenset(),
    "operationType": frozenset(),
    "splitEvent": frozenset(),
    "stateBeforeChange": frozenset(),
    "to": frozenset({"coll", "db"}),
    "txnNumber": frozenset(),
    "updateDescription": frozenset({"disambiguatedPaths", "removedFields", "truncatedArrays", "updatedFields"}),
    "wallTime": frozenset(),
}
"""The fields of events, each with its nested fields; an empty set allows any nested field."""
_OTHER_NAMES: Final = {"coll": "ns.coll", "collection": "ns.coll", "database": "ns.db", "db": "ns.db"}


def stages(
    options: Mapping[str, Any], operations: Iterable[str] | None, fields: Iterable[str] | None,
    filter: Mapping[str, Any] | None, pipeline: Iterable[Mapping[str, Any]],
) -> list[Mapping[str, Any]]:  # fmt: skip
    """Return the whole pipeline. Raises ValueError for an unknown operation, or an unknown event field in `filter`."""
    made: list[Mapping[str, Any]] = []
    options = dict(options)
    if operations is not None:
        names = sorted(check_operations(operations))
        if EXPANDED.intersection(names):
            options["showExpandedEvents"] = True
        made.append({"$match": {"operationType": {"$in": names}}})
    if fields is not None:
        made.append({"$match": _touching([fields] if isinstance(fields, str) else list(fields))})
    if filter is not None:
        _check_fields(filter)
        made.append({"$match": filter})
    return [{"$changeStream": options}, *made, *pipeline]


def check_operations(operations: Iterable[str]) -> set[str]:
    """Return the names of operations. Raises ValueError for an unknown one."""
    names = {operations} if isinstance(operations, str) else set(operations)
    if unknown := names - OPERATIONS:
        raise ValueError(f"no such operation: {', '.join(sorted(unknown))}; there are {', '.join(sorted(OPERATIONS))}")
    return names


def _check_fields(filter: Any) -> None:
    """Raise ValueError for a field that no event has. The engine reports a filter that is no document."""
    for name, value in filter.items() if isinstance(filter, Mapping) else ():
        if name in ("$and", "$nor", "$or") and isinstance(value, list | tuple):
            for branch in value:
                _check_fields(branch)
        elif isinstance(name, str) and not name.startswith("$"):
            _check_field(name)


def _check_field(name: str) -> None:
    first, *rest = name.split(".")[:2]
    if first not in _FIELDS:
        use = _OTHER_NAMES.get(first.lower()) or nearest(first, _FIELDS)
        hint = f"use {use!r}" if use else f"a field of the document is {f'fullDocument.{name}'!r}"
        raise ValueError(f"a change event has no field {name!r}: {hint}")
    inner = _FIELDS[first]
    if rest and inner and rest[0] not in inner:
        use = nearest(rest[0], inner)
        hint = " or ".join(repr(f"{first}.{known}") for known in ([use] if use else sorted(inner)))
        raise ValueError(f"a change event has no field {f'{first}.{rest[0]}'!r}: use {hint}")


def _touching(fields: list[str]) -> dict[str, Any]:
    """Return a filter that drops updates which change none of the fields, nor a part or a parent of one."""
    patterns = []
    for field in fields:
        names = field.split(".")
        above = [re.escape(".".join(names[:count])) for count in range(1, len(names))]
        patterns += [rf"{re.escape(field)}(\..*)?", *above]
    expression = f"^({'|'.join(patterns)})$"
    description = "$updateDescription."
    paths = {
        "$concatArrays": [
            {"$map": {"input": {"$objectToArray": f"{description}updatedFields"}, "in": "$$this.k"}},
            {"$ifNull": [f"{description}removedFields", []]},
            {"$map": {"input": {"$ifNull": [f"{description}truncatedArrays", []]}, "in": "$$this.field"}},
        ]
    }
    touched = {"$map": {"input": paths, "in": {"$regexMatch": {"input": "$$this", "regex": expression}}}}
    return {"$or": [{"operationType": {"$ne": "update"}}, {"$expr": {"$anyElementTrue": [touched]}}]}


LOG = logging.getLogger("headrace.embedded")
_REOPENED_CODES: Final = frozenset({43, 237})
"""CursorNotFound and CursorKilled, after which the stream resumes: its position is still valid."""


class EmbeddedChangeStream(Closing):
    """The stream that `watch` returns, a context manager and an iterator. All methods are safe from any thread.

    Args:
        pipeline: Stages after `$changeStream`.
        full_document, full_document_before_change: `updateLookup`, `whenAvailable`, `required`, as in MongoDB.
        resume_after, start_after: The token to resume after; `start_after` also resumes after an `invalidate`.
        start_at_operation_time: The `Timestamp` to begin at.
        batch_size: The number of events that are read at a time.
        show_expanded_events: Include `create`, `createIndexes` and other expanded events.
        filter: A query on the event, such as `{"fullDocument.status": "paid"}`.
        operation_types: Return only events of these types, such as `["insert", "update"]`.
        fields: Return an update only if it changes one of these fields of the document.

    Raises:
        HistoryLost: The oplog no longer has the start of the stream, or its position if the stream lags too far.
    """

    def __init__(
        self, calls: Calls, database: str, collection: str | None, pipeline: Sequence[Mapping[str, Any]] | None = None,
        *, full_document: str | None = None, resume_after: Mapping[str, Any] | None = None,
        max_await_time_ms: int | None = None, batch_size: int | None = None, collation: Any = None,
        start_at_operation_time: Any = None, session: Any = None, start_after: Mapping[str, Any] | None = None,
        comment: Any = None, full_document_before_change: str | None = None, show_expanded_events: bool | None = None,
        filter: Mapping[str, Any] | None = None, operation_types: Sequence[str] | None = None,
        fields: Sequence[str] | None = None, everything: bool = False,
    ) -> None:  # fmt: skip
        self._calls = calls
        self._local = calls.local
        self._store = calls.local.store
        self._database = database
        self._target: str | int = 1 if collection is None else collection
        self._options = options_of(
            fullDocument=full_document, resumeAfter=resume_after, startAfter=start_after,
            startAtOperationTime=start_at_operation_time, fullDocumentBeforeChange=full_document_before_change,
            showExpandedEvents=show_expanded_events, allChangesForCluster=everything or None,
        )  # fmt: skip
        self._stages = stages(
            self._options, operation_types, fields, filter, pipeline_of([] if pipeline is None else pipeline)
        )
        self._more = options_of(collation=collation, comment=comment)
        self._batch_size = batch_size
        self._session = session
        self._reading = threading.Lock()
        self._events: deque[Any] = deque()
        self._token: Mapping[str, Any] | None = None  # of the last returned event, or of the batch after it
        self._batch_token: Mapping[str, Any] | None = None
        self._read_through = -1  # everything was read up to this position of the oplog
        self._is_closed = False
        self._is_invalidated = False
        self._failure: BaseException | None = None
        self._cursor: Any = None
        self._cursor_id = 0
        self._threads: list[threading.Thread] = []
        self._buffers: list[EventBuffer] = []
        self._functions: list[tuple[frozenset[str] | None, Callable[[ChangeEvent], object]]] = []
        self._open()
        self._local.streams.add(self)

    # Reading.

    def next(self, timeout: float | None = None) -> ChangeEvent:
        """Wait for the next event and return it.

        Raises `Timeout` after `timeout` seconds (None: never), `Closed`, `StreamInvalidated`, `HistoryLost`.
        """
        if self._events and (event := self._taken()) is not None:
            return event
        ends = None if timeout is None else monotonic() + timeout
        if not self._reading.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
            raise Timeout(f"no event within {timeout} s")
        try:
            while True:
                if (event := self._taken()) is not None:
                    return event
                self._check()
                left_ms = float(limits.AWAIT_MS_MAX) if ends is None else (ends - monotonic()) * 1000
                self._fetch(max(left_ms, 0.0))
                if ends is not None and not self._events and monotonic() >= ends:
                    self._check()
                    raise Timeout(f"no event within {timeout} s")
        finally:
            self._reading.release()

    def try_next(self) -> ChangeEvent | None:
        """Return the next event if there is one, otherwise None. Raises the errors of `next`.

        It never waits, neither for an event nor for another thread's `next`.
        """
        if not self._events:
            if self.has_read_all:
                return None
            self._check()
            if not self._reading.acquire(blocking=False):
                return None
            try:
                while not self._events:
                    last = self._store.last_position
                    self._fetch(0.0)
                    if not self._events and (self._cursor is None or self._cursor.idle):
                        self._check()
                        self._read_through = last
                        return None
            finally:
                self._reading.release()
        return self._taken()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ChangeEvent:
        try:
            return self.next()
        except (Closed, StreamInvalidated):
            raise StopIteration from None

    @property
    def resume_token(self) -> Mapping[str, Any] | None:
        """The token with which another stream, also a driver's, resumes after the events that this one has returned."""
        return self._token

    @property
    def has_read_all(self) -> bool:
        """Whether nothing was committed since `try_next` returned None, so that it would return None again."""
        is_open = not self._is_closed and self._local.unusable is None
        return is_open and self._store.last_position == self._read_through

    @property
    def alive(self) -> bool:
        """Whether more events may come."""
        return bool(self._events) or not (self._is_closed or self._is_invalidated)

    @property
    def buffered(self) -> int:
        """The number of events that were read from the oplog and not returned yet."""
        return len(self._events)

    # Queues and callbacks.

    def events(self, maxsize: int = 1000) -> EventQueue:
        """Return a queue of at most `maxsize` events that a thread of the stream fills.

        When the queue is full, the thread waits for room and then reads on. No event is dropped and no writer waits.
        `resume_token` is now the token of the newest event in the queue; to resume after an event from the queue, use
        the event's token. The stream closes when nothing refers to the queue.
        """
        if maxsize < 1:
            raise ValueError("maxsize must be at least 1")
        buffer = EventBuffer(maxsize)
        self._buffers.append(buffer)

        def fill() -> None:
            try:
                while True:
                    buffer.put(self.next())
            except BaseException as error:
                buffer.end(error)

        self._start(fill)
        return EventQueue(buffer, self._forget)

    def on(
        self, operation: str | Sequence[str] | None, function: Callable[[ChangeEvent], object] | None = None
    ) -> Callable[..., Any]:
        """Call `function` with each event of one or several operations (None: all); without `function`, a decorator.

        A thread of the stream calls the functions one after the other. If a function raises an `Exception`, the logger
        `headrace.embedded` gets the traceback, and the next function or event follows; the event is not repeated. The
        function may call `close` to end the stream. Raises `Closed` or `StreamInvalidated` if no event can come.
        """
        if function is None:
            return lambda decorated: self.on(operation, decorated)
        names = None if operation is None else frozenset(check_operations(operation))
        self._check()
        self._functions.append((names, function))
        if len(self._functions) == 1:
            self._start(self._call_functions)
        return function

    def join(self, timeout: float | None = None) -> None:
        """Wait until the threads of the stream have ended. Raises `Timeout` if they do not end in time.

        Raises the error that ended the stream, such as `HistoryLost` or the SystemExit of a function of `on`. An end by
        `close` or `invalidate` is no error.
        """
        ends = None if timeout is None else monotonic() + timeout
        for thread in self._threads:
            thread.join(None if ends is None else max(0.0, ends - monotonic()))
            if thread.is_alive():
                raise Timeout(f"the stream has not ended within {timeout} s")
        if self._failure is not None and not isinstance(self._failure, Closed | StreamInvalidated):
            raise self._failure

    def _call_functions(self) -> None:
        try:
            while True:
                event = self.next()
                operation = event.operation_type
                for names, function in tuple(self._functions):
                    if names is None or operation in names:
                        self._call(function, event)
        except BaseException as error:
            self._failure = error
            self.close()

    def _call(self, function: Callable[[ChangeEvent], object], event: ChangeEvent) -> None:
        """Call a function of the program. If it fails, log the error; the stream goes on."""
        try:
            function(event)
        except Exception:
            name = getattr(function, "__qualname__", repr(function))
            emit(LOG, logging.ERROR, "%s failed on a change event; the stream goes on", name, exc_info=True)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="headrace-stream", daemon=True)
        self._threads.append(thread)
        thread.start()

    # The end.

    def close(self) -> None:
        """End the stream. A thread that waits for its next event gets `Closed`, and an iteration ends.

        Safe from any thread. A second call has no effect.
        """
        if self._is_closed:
            return
        self._end()
        if self._cursor_id and self._local.unusable is None:
            body = {"killCursors": self._collection, "cursors": [Int64(self._cursor_id)]}
            raw = encode(body)
            try:
                self._local.execute(self._database, "killCursors", decode(raw), raw)
            except Closed:
                return

    def _end(self) -> None:
        self._is_closed = True
        for buffer in self._buffers:
            buffer.end(Closed("the stream is closed"))
        self._events.clear()

    def leave_to_parent(self, reason: str) -> None:
        """End the stream in a forked child, where a thread of the parent may hold the lock."""
        self._reading = threading.Lock()
        self._events.clear()
        for buffer in self._buffers:
            buffer.leave_to_parent(Closed(reason))

    def _forget(self) -> None:
        """Close the stream soon. A finalizer calls this, so it must not wait."""
        if not self._is_closed:
            self._end()
            self._local.forget_cursor(self._cursor_id)

    def __del__(self) -> None:
        if getattr(self, "_cursor_id", 0):
            self._forget()

    def _check(self) -> None:
        """Raise the reason if there is no next event."""
        if self._local.is_forked:
            raise_closed(self._local.unusable)
        if self._is_closed:
            raise Closed("the stream is closed")
        if self._is_invalidated and not self._events:
            raise StreamInvalidated("the stream has ended: what it watched was dropped or renamed")

    # The cursor.

    def _taken(self) -> ChangeEvent | None:
        try:
            raw = self._events.popleft()
        except IndexError:
            return None
        self._token = raw["_id"] if self._events else self._batch_token
        if self._is_invalidated and not self._events:
            self._token = raw["_id"]
        return ChangeEvent(raw)

    def _open(self) -> None:
        """Open the cursor, after the token if there is one."""
        options = self._stages[0]["$changeStream"]
        if self._token is not None:
            options = {name: value for name, value in options.items() if not name.startswith(("resume", "start"))}
            options["resumeAfter"] = self._token
        body = {
            "aggregate": self._target, "pipeline": [{"$changeStream": options}, *self._stages[1:]],
            "cursor": options_of(batchSize=self._batch_size), **self._more,
        }  # fmt: skip
        self._calls.add_read_concern(body, self._session)
        self._take(self._calls.reply(self._database, body, self._session), "firstBatch")
        if self._token is None:
            self._token = self._batch_token if not self._events else self._options.get("resumeAfter")
            self._token = self._token or self._options.get("startAfter")

    def _fetch(self, wait_ms: float) -> None:
        """Read the next batch, or wait up to `wait_ms` for one. The caller holds the reading lock."""
        if self._cursor is None:
            self._body = {
                "getMore": Int64(self._cursor_id), "collection": self._collection, "maxTimeMS": limits.AWAIT_MS_MAX,
            }  # fmt: skip
            if self._batch_size:
                self._body["batchSize"] = self._batch_size
            if self._session is not None:
                self._session.apply_to(self._body)
            self._raw = encode({**self._body, "$db": self._database})
        try:
            reply = self._local.execute(
                self._database, "getMore", self._body, self._raw, cursor=self._cursor, wait_ms=wait_ms
            )
            self._take(reply, "nextBatch")
        except Exception as error:
            if self._is_closed:
                raise Closed("the stream is closed") from None
            code = getattr(error, "code", None)
            if code not in _REOPENED_CODES or self._local.unusable is not None:
                self._is_closed = code is not None
                raise
            self._open()

    def _take(self, reply: bytes, name: str) -> None:
        cursor = self._calls.documents(reply)["cursor"]
        cursor_id = int(cursor["id"])
        if cursor_id != self._cursor_id:
            self._cursor_id = cursor_id
            self._database, _, self._collection = cursor["ns"].partition(".")
            self._cursor = None
        if cursor_id == 0:
            self._is_invalidated = True
        elif self._cursor is None and name == "nextBatch":
            self._cursor = self._local.engine.cursors.peek(cursor_id)
            if self._cursor is not None:
                self._cursor.no_timeout = True
        self._batch_token = cursor.get("postBatchResumeToken", self._batch_token)
        self._events.extend(cursor[name])
        if not self._events and self._batch_token is not None and not self._is_invalidated:
            self._token = self._batch_token


STREAM_KEYWORDS: Final = keywords_of(EmbeddedChangeStream.__init__) - {
    "calls", "collection", "database", "everything", "self",
}  # fmt: skip
"""The arguments of the three methods `watch`."""
