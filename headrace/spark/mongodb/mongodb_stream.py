"""Change events from one server through pymongo: a cursor that resumes after a fault, and ranges of events.

Rules:

- A range (start, end] of tokens gives the same events whenever and wherever it is read.
- The end of a range is a token that a cursor reported after a getMore: an event's, or a postBatchResumeToken when the
server had nothing more. Every other cursor reaches it, too. The token of a newly opened stream is no such end: it may
lie after the last oplog entry, and on a quiet server no cursor ever reports having passed it.
- An event of over 16 MB is one event with one token, even if the server sends fragments; see `fragments.py`.

Commands are sent directly and not through `watch()`, which does not support every option of $changeStream.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final

from bson import Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from headrace.spark.mongodb.fragments import (
    SERVERS_WITHOUT_SPLIT,
    SPLIT_STAGE,
    STAGE_UNKNOWN_CODES,
    FragmentAssembler,
    has_split_stage,
)
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.values.bson import OPTIONS
from headrace.values.position import from_timestamp
from headrace.values.token import decode_token, high_water_mark

HISTORY_LOST: Final = 286
_FATAL: Final = 280
_NOT_FOUND: Final = "resume token was not found"
_CURSOR_NOT_FOUND: Final = 43
RAW: Final = OPTIONS.with_options(document_class=RawBSONDocument)
_RETRY_WAITS_S: Final = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)

Event = dict[str, Any]


def position_after(token: Token) -> Token:
    """Return the position after the token's event and its whole cluster time: a stream of any scope can open there.

    A position between events is returned unchanged. At an event's token only streams with that event can open.
    """
    if decode_token(token.document()).is_high_water_mark:
        return token
    return Token(high_water_mark(from_timestamp(token.time) + 1))


def position_before(token: Token) -> Token:
    """Return a position before the token's event at which a stream can open, if the token is masked; else the token.

    Other events of the same cluster time may come before the event; skip them by their masked tokens.
    """
    return Token(high_water_mark(from_timestamp(token.time))) if token.is_masked else token


class PositionLost(RuntimeError):
    """The server cannot continue at the position.

    `pruned`: the oplog no longer has the events after it (MongoDB's ChangeStreamHistoryLost, error 286). Otherwise the
    position is not in this server's history (280).
    """

    def __init__(self, message: str, *, pruned: bool = False) -> None:
        super().__init__(message)
        self.pruned = pruned


@lru_cache(maxsize=64)
def _client(uri: str, process: int) -> MongoClient[dict[str, Any]]:
    # Spark forks its workers, and a client does not survive a fork. So the process id is part of the key.
    return MongoClient(
        uri, appname="headrace-spark", datetime_conversion="DATETIME_MS", uuidRepresentation="unspecified"
    )


def client_of(uri: str) -> MongoClient[dict[str, Any]]:
    """Return the client for `uri` that this process shares; it is never closed."""
    return _client(uri, os.getpid())


@lru_cache(maxsize=64)
def _supports_arrow(uri: str, process: int) -> bool:
    extension = _client(uri, process).admin.command("buildInfo").get("headrace")
    return isinstance(extension, dict) and bool(extension.get("arrow"))


class MongoDBStream:
    """The change stream that the options describe; it can be opened at any position.

    Safe to use from several threads, like pymongo's client; a cursor is not.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.client = client_of(options.uri)
        deployment_wide = options.database is None
        self._database = self.client.get_database(options.database or "admin", codec_options=OPTIONS)
        self._aggregate: str | int = options.collection or 1
        self._pipeline = [*(() if options.collection else options.selection.stages()), *options.pipeline]
        self._stream = dict(options.stream) | ({"allChangesForCluster": True} if deployment_wide else {})

    @property
    def arrow(self) -> bool:
        """Whether ranges are read as Arrow: by the option `transport`, or because the server supports Arrow."""
        transport = self.options.transport
        return _supports_arrow(self.options.uri, os.getpid()) if transport == "auto" else transport == "arrow"

    def open(
        self, position: StreamPosition, *, stages: tuple[dict[str, Any], ...] = (), batch_rows: int | None = None,
        raw: bool = False,
    ) -> ResumingCursor:  # fmt: skip
        """Return a cursor at `position` (after a token, from a time inclusive, or latest); `stages` follow the user's.

        With `raw` its events are `RawBSONDocument`s. Raise PositionLost, and pymongo's OperationFailure if the server
        refuses.
        """
        pipeline = [*self._pipeline, *stages]
        return ResumingCursor(self, position, pipeline, batch_rows or self.options.batch_rows, raw=raw)

    def try_open(self, position: StreamPosition) -> None:
        """Raise what `open` raises.

        Only the token of the first event is read, because an event too large for a reply is read in another way.
        """
        self.open(position, stages=({"$project": {"_id": 1}},), batch_rows=1).close()

    def resolve(self, position: StreamPosition) -> Token:
        """Return the token of a position; the token of `latest` precedes all later events. Raise PositionLost."""
        if position.token is not None:
            return position.token
        if position.kind == "earliest":
            position = StreamPosition("time", time=self._oldest())
        with self.open(position, batch_rows=1) as cursor:
            return cursor.opened_at

    def now(self) -> Timestamp:
        """Return the server's operation time: everything acknowledged before the call happened at or before it."""
        moment: Timestamp = self.client.admin.command("ping")["operationTime"]
        return moment

    def end_at(self, moment: Timestamp) -> Token:
        """Return the token that ends a range of everything up to `moment`, inclusive; wait until the server is past it.

        Raise PositionLost.
        """
        with self.open(StreamPosition("time", time=moment)) as cursor:
            while not cursor.covers(moment):
                cursor.next_batch(wait_ms=20)
            return cursor.token_at(moment)

    def read(self, start: Token, end: Token) -> Iterator[Event]:
        """Yield the events after `start` up to and including `end`, in order; wait until the server reaches `end`."""
        for batch in self._batches(start, end, raw=False):
            yield from batch

    def read_raw(self, start: Token, end: Token) -> Iterator[list[bytes]]:
        """Yield the events as `read` does, but in batches of BSON."""
        for batch in self._batches(start, end, raw=True):
            yield [bytes(event.raw) for event in batch]

    def _batches(self, start: Token, end: Token, *, raw: bool) -> Iterator[list[Any]]:
        if start >= end:
            return
        with self.open(StreamPosition("token", token=start), raw=raw) as cursor:
            while cursor.token < end:
                events = cursor.next_batch(wait_ms=1000)
                if events and events[-1]["_id"]["_data"] > end.text:
                    events = [event for event in events if event["_id"]["_data"] <= end.text]
                    yield events
                    return
                if events:
                    yield events

    def changes(self, after: Token, until: Token | None, **fields: Any) -> Event:
        """Return the reply of `headraceChanges`: the next events of a range as Arrow, as many as fit one reply.

        Retry after a network fault; raise what `open` raises.
        """
        for wait_s in _RETRY_WAITS_S:
            try:
                return self._database.command(
                    "headraceChanges", self._aggregate, codec_options=OPTIONS, after=after.document(),
                    until=until.document() if until else None, stream=self._stream,
                    pipeline=self._pipeline, **fields,
                )  # fmt: skip
            except PyMongoError as error:
                if not _is_resumable(error) or wait_s == _RETRY_WAITS_S[-1]:
                    raise _translated(error, after) from error
                time.sleep(wait_s)
        raise AssertionError("unreachable: the last wait raises")

    def aggregate(
        self, stream: Event, pipeline: list[Event], batch_rows: int, session: ClientSession, *, raw: bool
    ) -> Event:
        """Return the reply of `aggregate`, which opens the stream with the options `stream`. Raise pymongo's errors."""
        stages = [{"$changeStream": self._stream | stream}, *pipeline]
        return self._command(
            session, "aggregate", self._aggregate, raw=raw, pipeline=stages, cursor={"batchSize": batch_rows}
        )

    def get_more(self, cursor: Event, batch_rows: int, wait_ms: int, session: ClientSession, *, raw: bool) -> Event:
        """Return the reply of `getMore`, which waits at most `wait_ms` for an event. Raise pymongo's errors."""
        name = cursor["ns"].partition(".")[2]
        return self._command(
            session, "getMore", cursor["id"], raw=raw, collection=name, batchSize=batch_rows, maxTimeMS=wait_ms
        )

    def kill(self, cursor: Event, session: ClientSession) -> None:
        """Close the server's cursor. Raise pymongo's errors."""
        self._command(session, "killCursors", cursor["ns"].partition(".")[2], raw=False, cursors=[cursor["id"]])

    def _command(self, session: ClientSession, name: str, value: Any, *, raw: bool, **fields: Any) -> Event:
        return self._database.command(name, value, codec_options=RAW if raw else OPTIONS, session=session, **fields)

    def _oldest(self) -> Timestamp:
        entry = self.client.local["oplog.rs"].find_one(sort=[("$natural", 1)], projection={"ts": 1})
        if entry is None:
            raise PositionLost("the server's oplog is empty or not readable: there is no earliest position")
        oldest: Timestamp = entry["ts"]
        return oldest


class ResumingCursor:
    """An open change stream that reopens itself at its token after a network fault or a lost cursor.

    `token` is its position: everything up to it was returned. `drained`: the last getMore returned nothing, so the
    server had nothing more at that time. `closed`: an invalidate ended the stream; the next `next_batch` reopens it
    after the invalidate. Not thread-safe.
    """

    def __init__(
        self,
        mongodb: MongoDBStream,
        position: StreamPosition,
        pipeline: list[dict[str, Any]],
        batch_rows: int,
        *,
        raw: bool = False,
    ) -> None:
        self._mongodb = mongodb
        self._raw = raw
        self._pipeline = pipeline
        self._batch_rows = batch_rows
        self._fragments = None if has_split_stage(pipeline) else FragmentAssembler()
        self._session = mongodb.client.start_session(causal_consistency=False)
        self._cursor: dict[str, Any] | None = None
        self._first: list[Event] = []
        self.drained = False
        self.closed = False
        self.opened_at = self.token = position.token or Token("")
        self._open(_start_options(position))

    def __enter__(self) -> ResumingCursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_batch(self, *, wait_ms: int) -> list[Event]:
        """Return the next events; none if no event comes within `wait_ms`. Raise PositionLost."""
        if self._first:
            events, self._first = self._first, []
            self._advance(events, self._cursor)
            return events
        for wait_s in _RETRY_WAITS_S:
            try:
                return self._ask(wait_ms)
            except PyMongoError as error:
                if not _is_resumable(error) or wait_s == _RETRY_WAITS_S[-1]:
                    raise _translated(error, self.token) from error
                time.sleep(wait_s)
                self._cursor = None
        raise AssertionError("unreachable: the last wait raises")

    @property
    def cursor_id(self) -> int:
        """The id of the server's cursor; 0 while there is no cursor."""
        return self._cursor["id"] if self._cursor else 0

    def covers(self, moment: Timestamp) -> bool:
        """Whether everything that happened up to `moment`, inclusive, was returned."""
        return self.token.time > moment or (self.drained and self.token.time == moment)

    def token_at(self, moment: Timestamp) -> Token:
        """Return the token that ends everything up to `moment`, inclusive; the cursor must cover that moment."""
        # The last batch may have later events, too.
        return min(self.token, Token(high_water_mark(from_timestamp(moment) + 1)))

    def close(self) -> None:
        """Close the server's cursor and the session; ignore an unreachable server."""
        if self._cursor and self._cursor["id"]:
            # A cursor that cannot be killed times out on the server; nothing depends on it here.
            with suppress(PyMongoError):
                self._mongodb.kill(self._cursor, self._session)
        self._cursor = None
        self._session.end_session()

    def _ask(self, wait_ms: int) -> list[Event]:
        if self._cursor is None or not self._cursor["id"]:
            self._open({"startAfter": self.token.document()})
            if self._first:
                return self.next_batch(wait_ms=wait_ms)
            if self._cursor is None or not self._cursor["id"]:
                return []
        while True:
            reply = self._mongodb.get_more(self._cursor, self._batch_rows, wait_ms, self._session, raw=self._raw)
            events: list[Event] = reply["cursor"]["nextBatch"]
            self.drained = not events
            events = self._assembled(events)
            self._advance(events, reply["cursor"])
            self._cursor = {"id": reply["cursor"]["id"], "ns": reply["cursor"]["ns"]}
            # Otherwise fragments of an event were read, and the server has the remaining fragments.
            if events or self.drained or not self._cursor["id"]:
                return events

    def _assembled(self, events: list[Event]) -> list[Event]:
        return self._fragments.assemble(events) if self._fragments else events

    def _open(self, stream: dict[str, Any]) -> None:
        try:
            # Without a token, the reply must have the position of the beginning, not the one after the first events.
            rows = self._batch_rows if self.token.text else 0
            reply = self._aggregate(stream, rows)["cursor"]
        except OperationFailure as error:
            raise _translated(error, self.token) from error
        self._cursor = {"id": reply["id"], "ns": reply["ns"], "postBatchResumeToken": reply["postBatchResumeToken"]}
        if self._fragments:
            self._fragments.reset()
        self._first = self._assembled(reply["firstBatch"])
        self.drained = self.closed = False
        if not self.token.text:
            self.opened_at = Token.of(reply["postBatchResumeToken"])
        if not self._first:
            self._advance([], reply)

    def _aggregate(self, stream: dict[str, Any], rows: int) -> dict[str, Any]:
        """Open the stream, with large events in fragments if the server supports that."""
        uri = self._mongodb.options.uri
        asked = partial(self._mongodb.aggregate, stream, batch_rows=rows, session=self._session, raw=self._raw)
        if self._fragments is None or uri in SERVERS_WITHOUT_SPLIT:
            return asked(pipeline=self._pipeline)
        try:
            return asked(pipeline=[*self._pipeline, SPLIT_STAGE])
        except OperationFailure as error:
            if error.code not in STAGE_UNKNOWN_CODES:
                raise
        reply = asked(pipeline=self._pipeline)
        SERVERS_WITHOUT_SPLIT.add(uri)
        return reply

    def _advance(self, events: list[Event], reply: dict[str, Any] | None) -> None:
        """Move to the end of `events`, or to the reply's resume token if that is later."""
        assert reply is not None
        position = reply["postBatchResumeToken"]
        reported = self._fragments.position_of(position) if self._fragments else Token.of(position)
        reached = Token.of(events[-1]["_id"]) if events else self.token
        self.token = max(reported, reached, self.token)
        self.closed = not reply["id"]


def _start_options(position: StreamPosition) -> dict[str, Any]:
    # startAfter, unlike resumeAfter, also resumes after an invalidate.
    if position.token is not None:
        return {"startAfter": position.token.document()}
    if position.time is not None:
        return {"startAtOperationTime": position.time}
    return {}


def _is_resumable(error: PyMongoError) -> bool:
    """Whether the stream will probably continue if it is reopened at its token."""
    if isinstance(error, ConnectionFailure):
        return True
    return error.has_error_label("ResumableChangeStreamError") or getattr(error, "code", None) == _CURSOR_NOT_FOUND


def _translated(error: PyMongoError, token: Token) -> Exception:
    code = getattr(error, "code", None)
    if code == _FATAL and _NOT_FOUND in str(error):
        return PositionLost(
            f"the server's history has no event {token.text} (ChangeStreamFatalError, 280): it was restored from an "
            "older copy, or is another server. Begin again from a snapshot (onPositionLost = 'resnapshot', or "
            "`headrace pipeline reset`)."
        )
    if code != HISTORY_LOST:
        return error
    return PositionLost(
        f"the server no longer keeps the events after {token.text or 'the position asked for'}: its oplog has gone "
        "past them (ChangeStreamHistoryLost, 286). Begin again from a snapshot, and keep a longer oplog.",
        pruned=True,
    )


# Best first; `tables/apply_update.py` says where each is inexact.
_DESCRIPTION_OPTIONS: Final = ("showRawUpdateDescription", "showExpandedEvents")
_REFUSAL_CODES: Final = frozenset({323, 9, 40415})


def description_option(uri: str, database: str | None, collection: str | None) -> dict[str, str]:
    """Return the option for the most exact description of updates that the server supports; {} if it supports none.

    Open a change stream to find out. Raise pymongo's errors, except for a refusal of the option.
    """
    for option in _DESCRIPTION_OPTIONS:
        feed = MongoDBStream(SourceOptions(uri, database, collection, stream={option: True}))
        try:
            feed.open(StreamPosition("latest")).close()
            return {option: "true"}
        except OperationFailure as error:
            if error.code not in _REFUSAL_CODES:
                raise
    return {}
