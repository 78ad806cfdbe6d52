"""One server's stream in the driver: the end of each micro-batch, and its partitions; of one collection or of several.

A stream of one collection, or of everything from a position on, has its own events. While a snapshot of the collection
is read, its events wait.

A stream of several collections that begins with snapshots has the events of a database or of the deployment. A batch
has a range of events and pieces of snapshots, one snapshot after the other. The pieces are read after the range's end
was determined. So no chunk is older than an event of its own batch or of an earlier one: the rule in `tables/fold.py`
requires this. These collections need a snapshot:

- At the beginning, each existing collection, and each that was dropped or renamed while they were listed.
- A collection that is renamed to a selected name, because its documents come in no event. The batch ends at the rename.
- Each newly selected collection, when the options' names have changed.

A collection created later needs none: events bring all its documents. The events of a collection are omitted until its
snapshot begins. Views and time-series collections have neither events nor a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from bson import Timestamp
from pymongo.errors import OperationFailure

from headrace import limits
from headrace.spark.mongodb.collection_selection import CollectionSelection, Namespace, namespace_of, text_of
from headrace.spark.mongodb.event_ranges import ReadPartition
from headrace.spark.mongodb.listed_collections import left_names, list_collections, refusal
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost, position_after
from headrace.spark.mongodb.server_history import (
    check_event,
    check_history,
    check_position,
    serving_processes,
    wait_until_after,
)
from headrace.spark.mongodb.source_options import BatchEnd, BatchLimits, SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.event_marks import CollectionMarks, MarkCursor, open_marks
from headrace.spark.stream.offsets import (
    ArchiveRun,
    Offset,
    ServerOffset,
    SnapshotPiece,
    in_snapshot,
    planned,
    with_next_chunk,
)
from headrace.spark.stream.partitions import (
    EventRange,
    ReplacementSnapshot,
    archived_partitions,
    event_partitions,
    snapshot_of,
    snapshot_partitions,
)
from headrace.spark.stream.read_ahead import ReadAhead
from headrace.spark.timetravel.archive import Archive, ArchiveContents, has_events, resolve
from headrace.spark.timetravel.past import PastUnknown, base_at
from headrace.spark.timetravel.snapshot import Chunk, Snapshot

CHUNK_ROWS: Final = 20_000
ARCHIVED_ROWS: Final = 1_000_000
"""The default number of an archive's documents per micro-batch: large, because each partition scans the whole table."""
_LATEST: Final = StreamPosition("latest")
_LOG: Final = logging.getLogger(__name__)


class ServerStream:
    """Plans the batches of one server's stream. Not thread-safe; workers read partitions without it."""

    def __init__(self, options: SourceOptions, *, alone: bool = True) -> None:
        """Set up the stream. `alone`: it may wait long, because no other server is asked in turn."""
        self.options = options
        self._idle_factor = limits.IDLE_WAIT_FACTOR if alone else limits.SHARED_IDLE_WAIT_FACTOR
        self.bounds = BatchLimits(options.rows_max, options.bytes_max)
        self.until: Timestamp | None = None
        self._name = "" if options.several else f"{options.database}.{options.collection}"
        """The name of the only collection."""
        self._chunk_rows = options.rows_max or CHUNK_ROWS
        self._processes: tuple[str, ...] = ()
        self._last_event: Token | None = None
        self._empty_count = 0
        """How often in a row there was nothing new."""
        self._marks: CollectionMarks | None = None
        self._skipped: tuple[str, ...] = ()
        self._seen: set[Namespace] = set()
        self._snapshots: dict[str, Snapshot] = {}
        """The collection whose chunks are planned."""

    @cached_property
    def mongodb(self) -> MongoDBStream:
        """The server's change stream."""
        return MongoDBStream(self.options)

    @cached_property
    def ahead(self) -> ReadAhead:
        """The tokens that were read ahead of Spark."""
        return ReadAhead(self.mongodb, self._open_marks)

    def initial_offset(self) -> Offset:
        """Return the offset of `startingPosition`. Raise PositionLost."""
        if self.options.several:
            return self._beginning().document()
        start = self.options.start
        if start.kind == "snapshot":
            return self._archived_snapshot() or self.snapshot_offset()
        # Spark records no offset before the first batch, so the first batch is made even if it is empty.
        return ServerOffset(resolve(self.mongodb, start), initial=True).document()

    def snapshot_offset(self) -> Offset:
        """Return the offset at which a new snapshot begins."""
        if self.options.several:
            return replace(self._beginning(), initial=False).document()
        return ServerOffset(self.mongodb.resolve(_LATEST), waiting=(self._name,)).document()

    def offset_after(self, token: Token, *, closed: bool) -> Offset:
        """Return the offset after a batch of events of the only collection, which ends at the token."""
        return self._with_marks(ServerOffset(token), closed=closed).document()

    def stop_at_now(self) -> None:
        """End the stream at the server's present time, for the trigger availableNow."""
        self.until = self.mongodb.now()

    def latest_offset(self, start: Offset) -> Offset:
        """Return the end of the batch after `start`; `start` itself if there is nothing new. Raise PositionLost."""
        before = ServerOffset.of(start, self._name)
        if before.archive:
            return self._after_slices(before, before.archive).document()
        several, after = self.options.several, replace(before, snapshots=(), initial=False)
        if several and before.selection != self.options.selection:
            return self._with_selection(before).document()
        if before.in_snapshot and not several:
            after = with_next_chunk(before, self._chunk_rows, self)
            self._extend_run(ended=not after.in_snapshot)
            return after.document()
        try:
            if several:
                self._skipped = before.skipped
                after = planned(before, position_after(before.token), self._chunk_rows, self)
            end = self.advance(before.token, wait_ms=1 if after.snapshots else self.wait_ms)
            if not several:
                self.ahead.read_on(self.bounds, until=self.until)
        except PositionLost as error:
            archived = self._archived_end(before.token) if error.pruned else None
            if archived is None:
                return self.restart(error, before.token)
            if not archived.rows and archived.token.text > before.token.text:
                return replace(after, token=archived.token).document()
            end = archived
        self._extend_run(ended=before.in_snapshot and not after.in_snapshot)
        if not self.has_moved(before.token, end, initial=before.initial) and not after.snapshots:
            return start
        after = replace(after, token=max(end.token, before.token))
        return self._with_marks(after, closed=end.closed).document()

    def _extend_run(self, *, ended: bool) -> None:
        """Move the end of the run to the present time, because rows of an `ended` snapshot may be newer."""
        if self.until and ended:
            self.until = self.mongodb.now()

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
        before, after = ServerOffset.of(start, self._name), ServerOffset.of(end, self._name)
        if before.archive:
            return archived_partitions(before.token, before.archive, after.archive)
        if self._is_pruned(before, after):
            # The range was planned and then pruned before it was read: read a snapshot instead, unless one follows.
            return [] if after.in_snapshot else [ReplacementSnapshot(after.token)]
        events = event_partitions(before, after, self.divided)
        pieces = after.snapshots or self._earlier_pieces(start, end)
        return [*events, *snapshot_partitions(pieces, self.options, self._chunk_rows)]

    def _is_pruned(self, before: ServerOffset, after: ServerOffset) -> bool:
        """Whether the oplog no longer has the only collection's events of the batch, and a snapshot replaces them."""
        again = self.options.on_position_lost == "resnapshot" and not self.options.several and not before.in_snapshot
        return again and not has_events(self.mongodb, before.token, after.token)

    def _earlier_pieces(self, start: Offset, end: Offset) -> tuple[SnapshotPiece, ...]:
        """Return the piece of a snapshot between two offsets of 0.1.0, which do not have it."""
        if "after" not in start:
            return ()
        chunks = (Chunk(end["after"], "" if end["single"] else start["after"]),) if in_snapshot(end) else ()
        return (SnapshotPiece(self._name, ServerOffset.of(start).token, not start["after"], chunks, not chunks),)

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
        count = Archive(self.options).count(base, token)
        batches = max(-(-count // (self.options.rows_max or ARCHIVED_ROWS)), 1)
        run = ArchiveRun(base.begin.text, base.end.text, batches * self.options.partitions)
        return ServerOffset(token, archive=run).document()

    def _after_slices(self, before: ServerOffset, run: ArchiveRun) -> ServerOffset:
        """Return the offset after the next slices of a snapshot from the archive."""
        done = run.done + self.options.partitions
        return replace(before, archive=None if done >= run.slices else replace(run, done=done))

    def _beginning(self) -> ServerOffset:
        """Return the offset from which the snapshots of all selected collections are read."""
        token = self.mongodb.resolve(_LATEST)
        listed = list_collections(self.options)
        for name, reason in listed.refused.items():
            _LOG.warning("%s is left out: it is %s", name, reason)
        selection = self.options.selection
        # Collections that have a table, but may be gone by now.
        seen = [*self.options.also, *map(text_of, sorted(self._seen))]
        also = [name for name in seen if selection.matches(namespace_of(name))]
        waiting = dict.fromkeys([*listed.names, *also, *self._gone(token, selection)])
        names = [name for name in waiting if name not in listed.refused]
        capped = sorted(name for name, reason in listed.refused.items() if "capped" in reason)
        return ServerOffset(token, selection, tuple(names), skipped=tuple(capped), initial=True)

    def _gone(self, token: Token, selection: CollectionSelection) -> list[str]:
        """Return the selected collections that were dropped, renamed or created by a rename since the token."""
        return [text_of(name) for name in left_names(self.mongodb, token)[0] if selection.matches(name)]

    def _with_selection(self, before: ServerOffset) -> ServerOffset:
        """Return the offset with the options' selection: newly selected collections wait for a snapshot."""
        selection = self.options.selection
        self.ahead.close()
        new = [*list_collections(self.options).names, *self._gone(before.token, selection)]
        known = before.selection
        new = [name for name in new if not (known and known.matches(namespace_of(name)))]
        waiting = tuple(name for name in before.waiting if selection.matches(namespace_of(name)))
        running = before.reading
        reading = running if running and selection.matches(namespace_of(running.name)) else None
        again = replace(before, selection=selection, waiting=waiting, reading=reading, snapshots=(), initial=False)
        return again.with_waiting(new)

    def _with_marks(self, after: ServerOffset, *, closed: bool) -> ServerOffset:
        """Return the end of a batch, updated by the collections that its marks skip or rename."""
        marks = self._marks
        if marks is None:
            # After an invalidate there may be a collection without events: one that was renamed to this name.
            again = closed and self.options.start.kind == "snapshot" and not self.options.several
            return replace(after, waiting=(self._name,)) if again else after
        skipped = dict.fromkeys(after.skipped)
        for token, name, skips in marks.skips:
            if token <= after.token and skips:
                skipped[name] = None
            elif token <= after.token:
                skipped.pop(name, None)
        marks.skips = [each for each in marks.skips if each[0] > after.token]
        after = replace(after, skipped=tuple(skipped))
        return after.with_waiting(marks.renamed_to) if closed and marks.stopped_at == after.token else after

    def _open_marks(self, start: Token) -> MarkCursor:
        sizes, several = self.options.bytes_max is not None, self.options.several
        cursor = open_marks(self.mongodb, start, sizes=sizes, names=several)
        if not several:
            return cursor
        self._marks = CollectionMarks(cursor, self.options.selection, self._skipped, self)
        return self._marks

    def count(self, name: str) -> int:
        """Return how many rows of a batch the collection takes; see `Snapshot.batch_rows`."""
        return snapshot_of(self.options, name).batch_rows(self._chunk_rows)

    def next_chunk(self, name: str, after: str, rows_max: int) -> Chunk | None:
        """Return the next chunk of the collection, with the share of a batch's bytes that `rows_max` is of its rows."""
        if name not in self._snapshots:
            self._snapshots = {name: snapshot_of(self.options, name)}
        snapshot = self._snapshots[name]
        return snapshot.next_chunk(after, rows_max, snapshot.batch_bytes * rows_max // self._chunk_rows)

    def unseen(self, names: list[Namespace]) -> set[Namespace]:
        """Return the collections among `names`, which were not seen before, that must be skipped."""
        self._seen.update(names)
        if self.options.capped != "skip":
            return set()
        skipped = set()
        for database in dict.fromkeys(name[0] for name in names):
            some = [collection for of, collection in names if of == database]
            try:
                listed = list(self.mongodb.client[database].list_collections(filter={"name": {"$in": some}}))
            except OperationFailure:
                continue  # unknown without the privilege
            for one in listed:
                if reason := refusal(one, self.options):
                    _LOG.warning("%s.%s is left out: it is %s", database, one["name"], reason)
                    skipped.add((database, one["name"]))
        return skipped
