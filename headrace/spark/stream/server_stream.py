"""One server's stream in the driver: its offsets, the end of each micro-batch, and the partitions of a batch.

An offset is a dict around a token:

    {"token", ["typeBits"]}                      the events up to the token were read
    … "initial": true                            nothing was read; the first batch is made even if it is empty
    … "after": key, "single": bool               in a snapshot that began at the token; rows up to `key` were read
      ["last": true]                             `key` is the greatest key
    … "after": "3", "archive": {begin, end, slices}
                                                 in a snapshot that is computed, at the token, from the archive's
                                                 snapshot of begin to end; the first 3 of its slices were read
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

from bson import Timestamp

from headrace import limits
from headrace.spark.mongodb.event_ranges import ReadPartition
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.mongodb.server_history import (
    check_event,
    check_history,
    check_position,
    serving_processes,
    wait_until_after,
)
from headrace.spark.mongodb.source_options import BatchEnd, BatchLimits, SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.collections_offset import SnapshotPiece
from headrace.spark.stream.collections_partitions import SnapshotPieces
from headrace.spark.stream.partitions import ArchivedPartition, EventRange, ReplacementSnapshot
from headrace.spark.stream.read_ahead import ReadAhead, read_ahead
from headrace.spark.timetravel.archive import Archive, ArchiveContents, ArchivedSnapshot, has_events, resolve
from headrace.spark.timetravel.past_from_archive import base_at
from headrace.spark.timetravel.past_from_images import PastUnknown
from headrace.spark.timetravel.snapshot import Chunk, Snapshot

CHUNK_ROWS: Final = 20_000
ARCHIVED_ROWS: Final = 1_000_000
"""The default number of an archive's documents per micro-batch: large, because each partition scans the whole table."""
_LATEST: Final = StreamPosition("latest")
_LOG: Final = logging.getLogger(__name__)

Offset = dict[str, Any]


class ServerStream:
    """Plans the batches of one server's stream. Not thread-safe; workers read partitions without it."""

    def __init__(self, options: SourceOptions, *, alone: bool = True) -> None:
        """Set up the stream. `alone`: it may wait long, because no other server is asked in turn."""
        self.options = options
        self._idle_factor = limits.IDLE_WAIT_FACTOR if alone else limits.SHARED_IDLE_WAIT_FACTOR
        self.bounds = BatchLimits(options.rows_max, options.bytes_max)
        self.until: Timestamp | None = None
        self._processes: tuple[str, ...] = ()
        self._last_event: Token | None = None
        self._empty_count = 0
        """How often in a row there was nothing new."""

    @cached_property
    def mongodb(self) -> MongoDBStream:
        """The server's change stream."""
        return MongoDBStream(self.options)

    @cached_property
    def ahead(self) -> ReadAhead:
        """The tokens that were read ahead of Spark."""
        return read_ahead(self.mongodb, sizes=self.options.bytes_max is not None)

    @cached_property
    def _snapshot(self) -> Snapshot:
        return Snapshot(self.options)

    def initial_offset(self) -> Offset:
        """Return the offset of `startingPosition`. Raise PositionLost."""
        start = self.options.start
        if start.kind == "snapshot":
            return self._archived_snapshot() or self.snapshot_offset()
        # Spark records no offset before the first batch, so the first batch is made even if it is empty.
        return offset_of(resolve(self.mongodb, start), initial=True)

    def snapshot_offset(self) -> Offset:
        """Return the offset at which a new snapshot begins."""
        return offset_of(self.mongodb.resolve(_LATEST), after="")

    def stop_at_now(self) -> None:
        """End the stream at the server's present time, for the trigger availableNow."""
        self.until = self.mongodb.now()

    def latest_offset(self, start: Offset) -> Offset:
        """Return the end of the batch after `start`; `start` itself if there is nothing new. Raise PositionLost."""
        if in_snapshot(start):
            return self._next_chunk(start)
        token = token_of(start)
        try:
            end = self.advance(token, wait_ms=self.wait_ms)
            self.ahead.read_on(self.bounds, until=self.until)
        except PositionLost as error:
            archived = self._archived_end(token) if error.pruned else None
            if archived is None:
                return self.restart(error, token)
            if not archived.rows and archived.token.text > token.text:
                return offset_of(archived.token)
            end = archived
        if self.has_moved(token, end, initial=bool(start.get("initial"))):
            # After an invalidate there may be a collection without events: one that was renamed to this name.
            again = end.closed and self.options.start.kind == "snapshot"
            return offset_of(end.token, after="") if again else offset_of(end.token)
        return start

    def advance(self, token: Token, *, wait_ms: int) -> BatchEnd:
        """Return the end of a batch of events after `token`. Raise PositionLost."""
        self.check_server(token)
        end = self.ahead.advance(token, self.bounds, until=self.until, wait_ms=wait_ms)
        self.check_server(token)
        return end

    def has_moved(self, token: Token, end: BatchEnd, *, initial: bool) -> bool:
        """Record the end of the events after `token`. Return whether it makes a batch; the `initial` one does."""
        self._last_event = end.token if end.rows else self._last_event
        self.note_rows(end.rows)
        quiet_ms = (end.token.time.time - token.time.time) * 1000
        return bool(end.rows or end.closed or initial) or quiet_ms >= self.options.idle_advance_ms

    @property
    def wait_ms(self) -> int:
        """How long to wait for an event. The time doubles after each empty wait, because each wait makes Spark plan a
        batch.

        An event ends a wait at once, and so does the end of the query.
        """
        factor = min(1 << min(self._empty_count, 10), self._idle_factor)
        return min(self.options.await_ms * factor, max(self._wait_ms_max, self.options.await_ms))

    @cached_property
    def _wait_ms_max(self) -> int:
        """Half the time after which the client considers a server dead."""
        options = self.mongodb.client.options
        seconds = [each for each in (options.timeout, options.pool_options.socket_timeout) if each]
        return int(min(seconds) * 500) if seconds else limits.AWAIT_MS_MAX

    def note_rows(self, rows: int) -> None:
        """Record how many rows came by the last wait."""
        self._empty_count = 0 if rows else self._empty_count + 1

    def check_server(self, token: Token) -> None:
        """Raise PositionLost if the position is not in the server's history. Check at the start and after
        reconnections."""
        processes = serving_processes(self.mongodb.client)
        if self._processes and (processes == self._processes or not processes):
            # The server is the same as before; or no server answers, and the reading cursor waits for one.
            return
        check_history(self.options)
        check_position(self.mongodb, token)
        if self._last_event:
            check_event(self.options, self._last_event)
        self._processes = serving_processes(self.mongodb.client)

    def restart(self, error: PositionLost, token: Token) -> Offset:
        """Return the offset of a new snapshot, if `onPositionLost` requests one; otherwise raise `error`.

        The snapshot's tokens are after `token`, the lost position, so that every sink treats the snapshot as newer.
        """
        if self.options.on_position_lost == "fail":
            raise error
        _LOG.warning("%s Beginning again from a snapshot, as onPositionLost asks.", error)
        self.ahead.close()
        self._last_event = None
        wait_until_after(self.mongodb, token)
        return self.snapshot_offset()

    def partitions(self, start: Offset, end: Offset) -> Sequence[ReadPartition]:
        """Return the partitions between two offsets, which give the same rows at each call. Raise HistoryChanged."""
        check_history(self.options)
        if not in_snapshot(start):
            events = EventRange(token_of(start), token_of(end))
            if self.options.on_position_lost == "resnapshot" and not has_events(self.mongodb, events.start, events.end):
                # The range was planned and then pruned before it was read: read a snapshot instead, unless one follows
                # anyway.
                return [] if in_snapshot(end) else [ReplacementSnapshot(events.end)]
            return self.divided(events)
        if "archive" in start:
            return archived_partitions(start, end)
        token, first = token_of(start), start["after"] == ""
        if not in_snapshot(end):
            return [self._piece(token, first, last=True)]
        chunk = Chunk(end["after"], "" if end["single"] else start["after"])
        rows = self.options.rows_max or CHUNK_ROWS
        chunks = self._snapshot.split(chunk, rows, self.options.partitions)
        return [self._piece(token, first and not nth, each) for nth, each in enumerate(chunks)]

    def _piece(self, token: Token, first: bool, *chunks: Chunk, last: bool = False) -> SnapshotPieces:
        """Return a partition of the snapshot that began at `token`."""
        name = f"{self.options.database}.{self.options.collection}"
        return SnapshotPieces((SnapshotPiece(name, token, first, chunks, last),))

    def divided(self, events: EventRange) -> list[EventRange]:
        """Return the range in partitions: by documents, or, if the options say so and the batch is large, by time."""
        options = self.options
        if options.partition_by == "document" or options.archive:
            return events.sliced(options.partitions)
        return events.cut(self.ahead.splits(events.start, events.end, options.partitions))

    def close(self) -> None:
        """Close the cursor that reads ahead."""
        if "ahead" in self.__dict__:
            self.ahead.close()

    def _archived_end(self, token: Token) -> BatchEnd | None:
        """Return the end of a batch of the archive after `token`; None if no archive has these events."""
        self.ahead.close()
        return Archive(self.options).batch_end(token, self.bounds, self.until) if self.options.archive else None

    def _archived_snapshot(self) -> Offset | None:
        """Return the first offset of a snapshot from the archive; None if the server's oplog does not continue the
        archive."""
        contents = Archive(self.options).contents() if self.options.archive else ArchiveContents()
        if not contents.spans:
            return None
        last = contents.spans[-1].last
        token = max([last, *(base.end for base in contents.snapshots)])
        try:
            if not has_events(self.mongodb, last, token):
                raise PastUnknown(f"the server no longer has what follows {last.text}, where the archive ends")
            base = base_at(self.options, token)
        except PastUnknown as unknown:
            _LOG.warning("%s. The snapshot is the server's.", unknown)
            return None
        count = Archive(self.options).table.count(base, token)
        batches = max(-(-count // (self.options.rows_max or ARCHIVED_ROWS)), 1)
        snapshot = {"begin": base.begin.text, "end": base.end.text, "slices": batches * self.options.partitions}
        return offset_of(token, after="", archive=snapshot)

    def _next_chunk(self, start: Offset) -> Offset:
        if "archive" in start:
            done = int(start["after"] or 0) + self.options.partitions
            rest = start | {"after": str(done)}
            return offset_of(token_of(start)) if done >= start["archive"]["slices"] else rest
        rows = self.options.rows_max or CHUNK_ROWS
        chunk = None if start.get("last") else self._snapshot.next_chunk(start["after"], rows)
        if chunk:
            last = {"last": True} if chunk.last else {}
            return offset_of(token_of(start), after=chunk.upto, single=not chunk.after, **last)
        if self.until:
            # Rows of the snapshot may be newer than the end of the run, so the end moves to the present time.
            self.until = self.mongodb.now()
        return offset_of(token_of(start))


def archived_partitions(start: Offset, end: Offset) -> list[ArchivedPartition]:
    """Return the partitions between two offsets of a snapshot from the archive."""
    snapshot = start["archive"]
    base, slices = ArchivedSnapshot(Token(snapshot["begin"]), Token(snapshot["end"])), snapshot["slices"]
    first, last = int(start["after"] or 0), int(end["after"]) if in_snapshot(end) else slices
    token = token_of(start)
    return [
        ArchivedPartition(token, base, number, slices, number == 0, number == slices - 1)
        for number in range(first, last)
    ]


def offset_of(token: Token, **more: Any) -> Offset:
    """Return the offset of a token, with further fields as listed above."""
    bits = {"typeBits": token.type_bits} if token.type_bits else {}
    return {"token": token.text} | bits | more


def token_of(offset: Offset) -> Token:
    """Return the token of an offset of one server."""
    return Token(offset["token"], offset.get("typeBits", ""))


def in_snapshot(offset: Offset) -> bool:
    """Whether the offset is within a snapshot."""
    return "after" in offset
