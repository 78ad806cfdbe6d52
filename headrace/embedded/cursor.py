"""Cursors on documents: the cursor of `find`, with options to chain, and the cursors of other commands."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from bson import Int64

from headrace.embedded.calls import Closing, is_not_negative, is_type, key_document, options_of

if TYPE_CHECKING:
    from typing import Self

    from headrace.embedded.calls import Calls
    from headrace.embedded.collection import EmbeddedCollection
    from headrace.embedded.session import EmbeddedSession


class EmbeddedCommandCursor(Closing):
    """The cursor of a command, read batch by batch. It is an iterator and a context manager."""

    def __init__(
        self, calls: Calls, database: str, body: dict[str, Any], session: EmbeddedSession | None,
        batch_size: int | None = None,
    ) -> None:  # fmt: skip
        self._calls = calls
        self._database = database
        self._body = body
        self._batch_size = batch_size or 0
        self._await_ms: int | None = None
        self._documents: deque[Any] = deque()
        self._collection = ""
        self.session = session
        self.cursor_id: int | None = None
        """The cursor's number; None before it is opened, 0 once all documents were read."""

    @property
    def alive(self) -> bool:
        """Whether `next` may return a document."""
        return bool(self._documents) or self.cursor_id != 0

    def next(self) -> Any:
        """Return the next document. Raises StopIteration after the last one."""
        return self.__next__()

    def try_next(self) -> Any | None:
        """Return the next document, or None."""
        if not self._documents and self.cursor_id != 0:
            self._fetch()
        return self._documents.popleft() if self._documents else None

    def to_list(self, length: int | None = None) -> list[Any]:
        """Return all remaining documents, or at most `length`."""
        if length is not None and length < 1:
            raise ValueError("length must be at least 1")
        taken: list[Any] = []
        while length is None or len(taken) < length:
            if not self._documents:
                if self.cursor_id == 0:
                    break
                self._fetch()
                if not self._documents and self._tails:
                    break
            count = len(self._documents) if length is None else min(len(self._documents), length - len(taken))
            taken += [self._documents.popleft() for _ in range(count)]
        return taken

    def close(self) -> None:
        """Close the cursor. Documents that were already read can still be taken."""
        cursor_id, self.cursor_id = self.cursor_id, 0
        if cursor_id and self._calls.local.unusable is None:
            body = {"killCursors": self._collection, "cursors": [Int64(cursor_id)]}
            self._calls.run(self._database, body, self.session)

    _tails = False

    def _fetch(self) -> None:
        """Run the command, or get the next batch."""
        if self.cursor_id is None:
            self._take(self._calls.reply(self._database, self._body, self.session), "firstBatch")
            return
        body: dict[str, Any] = {"getMore": Int64(self.cursor_id), "collection": self._collection}
        if self._batch_size:
            body["batchSize"] = self._batch_size
        if self._await_ms is not None:
            body["maxTimeMS"] = self._await_ms
        try:
            self._take(self._calls.reply(self._database, body, self.session), "nextBatch")
        except Exception:
            self.cursor_id = 0
            raise

    def _take(self, reply: bytes, name: str) -> None:
        cursor = self._calls.documents(reply, self.session)["cursor"]
        self.cursor_id = int(cursor["id"])
        self._database, _, self._collection = cursor["ns"].partition(".")
        self._documents.extend(cursor[name])

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while not self._documents:
            if self.cursor_id == 0:
                raise StopIteration
            self._fetch()
            if not self._documents and self._tails:
                raise StopIteration
        return self._documents.popleft()

    def __del__(self) -> None:
        if getattr(self, "cursor_id", 0):
            self._calls.local.forget_cursor(self.cursor_id)  # type: ignore[arg-type]


NON_TAILABLE: Final = 0
TAILABLE: Final = 2
TAILABLE_AWAIT: Final = 34


class EmbeddedCursor(EmbeddedCommandCursor):
    """The cursor that `find` returns. The query runs when the first document is requested."""

    def __init__(
        self, collection: EmbeddedCollection, calls: Calls, filter: Any = None, projection: Any = None, skip: int = 0,
        limit: int = 0, no_cursor_timeout: bool = False, cursor_type: int = NON_TAILABLE, sort: Any = None,
        allow_partial_results: bool = False, oplog_replay: bool = False, batch_size: int = 0, collation: Any = None,
        hint: Any = None, max_scan: None = None, max_time_ms: int | None = None, max: Any = None, min: Any = None,
        return_key: bool | None = None, show_record_id: bool | None = None, snapshot: None = None, comment: Any = None,
        session: EmbeddedSession | None = None, allow_disk_use: bool | None = None, let: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(calls, collection.database.name, {}, session, batch_size)
        if filter is not None and not hasattr(filter, "keys"):
            raise TypeError(f"filter must be a mapping, not {type(filter).__name__}")
        if skip or limit or batch_size:
            is_type(skip, int, "skip")
            is_type(limit, int, "limit")
            is_not_negative(batch_size, "batch_size")
        is_type(max_time_ms, int, "max_time_ms", optional=True)
        self.collection = collection
        self._tails = cursor_type in (TAILABLE, TAILABLE_AWAIT)
        self._spec: dict[str, Any] = {"find": collection.name, "filter": {} if filter is None else filter}
        self._spec |= options_of(
            projection=projection, sort=sort, skip=skip or None, limit=limit or None, collation=collation, hint=hint,
            maxTimeMS=max_time_ms, comment=comment, allowDiskUse=allow_disk_use, let=let,
            noCursorTimeout=no_cursor_timeout or None, tailable=self._tails or None,
            awaitData=cursor_type == TAILABLE_AWAIT or None, max=None if max is None else dict(max),
            min=None if min is None else dict(min), returnKey=return_key, showRecordId=show_record_id,
        )  # fmt: skip

    def _changed(self, **fields: Any) -> Self:
        if self.cursor_id is not None:
            from pymongo.errors import InvalidOperation

            raise InvalidOperation("cannot set options after executing query")
        self._spec |= fields
        return self

    def sort(self, key_or_list: Any, direction: Any = None) -> Self:
        """Sort by a field and direction, or by a list of (field, direction)."""
        keys = {key_or_list: 1 if direction is None else direction} if isinstance(key_or_list, str) else key_or_list
        return self._changed(sort=key_document(keys))

    def skip(self, skip: int) -> Self:
        """Skip the first `skip` documents."""
        if skip < 0:
            raise ValueError("skip must be >= 0")
        return self._changed(skip=skip)

    def limit(self, limit: int) -> Self:
        """Return at most `limit` documents; 0 means all. A negative limit means its amount, in a single batch."""
        is_type(limit, int, "limit")
        return self._changed(limit=limit)

    def batch_size(self, batch_size: int) -> Self:
        """Read this many documents at a time."""
        is_not_negative(batch_size, "batch_size")
        self._batch_size = batch_size
        return self._changed()

    def hint(self, index: Any) -> Self:
        """Use the index with this name or these keys; with None the planner chooses."""
        self._changed()
        self._spec.pop("hint", None)
        self._spec |= options_of(hint=index)
        return self

    def collation(self, collation: Any) -> Self:
        """Compare strings with this collation."""
        return self._changed(**options_of(collation=collation))

    def comment(self, comment: Any) -> Self:
        """Set a comment, which `currentOp` and the log show."""
        return self._changed(comment=comment)

    def max(self, spec: Any) -> Self:
        """Set the exclusive upper bound in the index of `hint`: (field, value) pairs in the index's order."""
        return self._changed(max=dict(spec))

    def min(self, spec: Any) -> Self:
        """Set the inclusive lower bound in the index of `hint`: (field, value) pairs in the index's order."""
        return self._changed(min=dict(spec))

    def max_time_ms(self, max_time_ms: int | None) -> Self:
        """Raise `ExecutionTimeout` after this time."""
        is_type(max_time_ms, int, "max_time_ms", optional=True)
        return self._changed(**options_of(maxTimeMS=max_time_ms))

    def max_await_time_ms(self, max_await_time_ms: int | None) -> Self:
        """Set how long a tailable cursor waits for more documents."""
        self._await_ms = max_await_time_ms
        return self._changed()

    def allow_disk_use(self, allow_disk_use: bool) -> Self:
        """Set whether a sort may write to disk."""
        is_type(allow_disk_use, bool, "allow_disk_use")
        return self._changed(allowDiskUse=allow_disk_use)

    def where(self, code: Any) -> Self:
        """Add a condition in JavaScript, which the engine refuses."""
        return self._changed(filter={**self._spec["filter"], "$where": code})

    def distinct(self, key: str) -> list[Any]:
        """Return the distinct values of a field in the documents that match."""
        return self.collection.distinct(key, self._spec["filter"], session=self.session)

    def explain(self) -> dict[str, Any]:
        """Return the plan of the query."""
        self._prepare()
        return self._calls.run(self._database, {"explain": self._body, "verbosity": "allPlansExecution"})

    def clone(self) -> Self:
        """Return a copy of the cursor that has not run yet."""
        return copy.copy(self).rewind()

    def rewind(self) -> Self:
        """Return to the first document; the query runs again."""
        if self.cursor_id:
            self.close()
        self.cursor_id = None
        self._documents = deque()
        self._spec = dict(self._spec)
        return self

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.cursor_id = None
        return made

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop = index.start or 0, index.stop
            if index.step is not None or start < 0 or (stop is not None and stop <= start):
                raise IndexError("cursor slices have no step, and end after their start")
            return self.skip(start).limit(0 if stop is None else stop - start)
        if index < 0:
            raise IndexError("cursor instances do not support negative indices")
        for document in self.clone().skip(index + self._spec.get("skip", 0)).limit(-1):
            return document
        raise IndexError("no such item for the cursor")

    def _prepare(self) -> None:
        body = dict(self._spec)
        limit = body.get("limit", 0)
        if limit < 0:
            body["limit"], body["singleBatch"] = -limit, True
        elif not limit:
            body.pop("limit", None)
        if self._batch_size:
            body["batchSize"] = self._batch_size
        self._calls.add_read_concern(body, self.session)
        self._body = body

    def _fetch(self) -> None:
        if self.cursor_id is None:
            self._prepare()
        super()._fetch()


def names(documents: Iterator[Any]) -> list[str]:
    """Return the `name` of each document."""
    return [document["name"] for document in documents]
