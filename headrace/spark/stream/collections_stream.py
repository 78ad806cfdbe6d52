"""One server's stream of several collections in the driver: one snapshot after the other, and events meanwhile.

A batch has a range of events and pieces of snapshots. The pieces are read after the range's end was determined. So no
chunk is older than an event of its own batch or of an earlier one: the rule in `tables/fold.py` requires this.

These collections need a snapshot:

- At the beginning, each existing collection, and each that was dropped or renamed while they were listed.
- A collection that is renamed to a selected name, because its documents come in no event. Its snapshot begins after the
rename, in the rename's batch if the documents fit; otherwise the batch ends at the rename.
- Each newly selected collection, when the options' names have changed.

A collection created later needs none: events bring all its documents. The events of a collection are omitted until its
snapshot begins. Views and time-series collections have neither events nor a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

from pymongo.errors import OperationFailure

from headrace import limits
from headrace.spark.mongodb.collection_selection import CollectionSelection, Namespace, namespace_of, text_of
from headrace.spark.mongodb.event_ranges import ReadPartition
from headrace.spark.mongodb.listed_collections import ListedCollections, left_names, list_collections, refusal
from headrace.spark.mongodb.mongodb_stream import PositionLost, position_after
from headrace.spark.mongodb.server_history import check_history
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.collections_offset import ALL, CollectionsOffset, Offset, SnapshotPiece, planned
from headrace.spark.stream.collections_partitions import event_partitions, snapshot_of, snapshot_partitions
from headrace.spark.stream.event_marks import EventMark, MarkCursor, RunBounds, open_marks
from headrace.spark.stream.read_ahead import ReadAhead
from headrace.spark.stream.server_stream import CHUNK_ROWS, ServerStream
from headrace.spark.timetravel.snapshot import Chunk, Snapshot

_LATEST: Final = StreamPosition("latest")
_LOG: Final = logging.getLogger(__name__)


class CollectionsStream(ServerStream):
    """Plans the batches of a stream of several collections. Not thread-safe; workers read partitions without it."""

    def __init__(self, options: SourceOptions, *, alone: bool = True) -> None:
        super().__init__(options, alone=alone)
        self._marks: CollectionMarks | None = None
        self._skipped: tuple[str, ...] = ()
        self._in_snapshot: frozenset[str] = frozenset()
        self._seen: set[Namespace] = set()
        self._snapshots: dict[str, Snapshot] = {}
        """The collection whose chunks are planned."""

    @cached_property
    def ahead(self) -> ReadAhead:
        return ReadAhead(self.mongodb, self._open_marks)

    def initial_offset(self) -> Offset:
        return self._beginning().document()

    def latest_offset(self, start: Offset) -> Offset:
        before = CollectionsOffset.of(start)
        if before.selection != self.options.selection:
            return self._with_selection(before).document()
        self._skipped = before.skipped
        self._in_snapshot = frozenset((*before.waiting, *([before.reading.name] if before.reading else [])))
        rows = self.options.rows_max or CHUNK_ROWS
        if self._marks:
            self._marks.begin_batch(before.token)
        try:
            after = planned(before, position_after(before.token), rows, self)
            end = self.advance(before.token, wait_ms=1 if after.snapshots else self.wait_ms)
        except PositionLost as error:
            return self.restart(error, before.token)
        joined = self._joined(end.token)
        if self.until and (joined or (before.in_snapshot and not after.in_snapshot)):
            # Rows of the snapshots may be newer than the end of the run, so the end moves to the present time.
            self.until = self.mongodb.now()
        after = replace(after, snapshots=(*after.snapshots, *joined))
        if not self.has_moved(before.token, end, initial=before.initial) and not after.snapshots:
            return start
        return self._with_marks(replace(after, token=max(end.token, before.token)), closed=end.closed).document()

    def snapshot_offset(self) -> Offset:
        return replace(self._beginning(), initial=False).document()

    def partitions(self, start: Offset, end: Offset) -> Sequence[ReadPartition]:
        check_history(self.options)
        before, after = CollectionsOffset.of(start), CollectionsOffset.of(end)
        rows = self.options.rows_max or CHUNK_ROWS
        events = event_partitions(before, after, self.divided)
        return [*events, *snapshot_partitions(after.snapshots, self.options, rows)]

    def _beginning(self) -> CollectionsOffset:
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
        return CollectionsOffset(token, selection, tuple(names), skipped=_capped(listed), initial=True)

    def _gone(self, token: Token, selection: CollectionSelection) -> list[str]:
        """Return the selected collections that were dropped, renamed or created by a rename since the token."""
        return [text_of(name) for name in left_names(self.mongodb, token)[0] if selection.matches(name)]

    def _with_selection(self, before: CollectionsOffset) -> CollectionsOffset:
        """Return the offset with the options' selection: newly selected collections wait for a snapshot."""
        selection = self.options.selection
        self.ahead.close()
        new = [*list_collections(self.options).names, *self._gone(before.token, selection)]
        new = [name for name in new if not before.selection.matches(namespace_of(name))]
        waiting = tuple(name for name in before.waiting if selection.matches(namespace_of(name)))
        running = before.reading
        reading = running if running and selection.matches(namespace_of(running.name)) else None
        again = replace(before, selection=selection, waiting=waiting, reading=reading, snapshots=(), initial=False)
        return again.with_waiting(new)

    def _joined(self, end: Token) -> list[SnapshotPiece]:
        """Return the snapshots, read in this batch, of collections that the batch renames."""
        return [
            SnapshotPiece(each.name, position_after(each.renamed_at), True, (ALL,), True)
            for each in (self._marks.joined if self._marks else ())
            if each.renamed_at <= end
        ]

    def _with_marks(self, after: CollectionsOffset, *, closed: bool) -> CollectionsOffset:
        """Return the end of a batch, updated by the collections that its marks skip or rename."""
        marks = self._marks
        if marks is None:
            return after
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
        cursor = open_marks(self.mongodb, start, sizes=self.options.bytes_max is not None, names=True)
        rows = self.options.rows_max or CHUNK_ROWS
        self._marks = CollectionMarks(cursor, self.options.selection, self._skipped, self, rows)
        return self._marks

    def count(self, name: str) -> int:
        """Return about how many documents the collection has."""
        database, collection = namespace_of(name)
        return self.mongodb.client[database][collection].estimated_document_count()

    def next_chunk(self, name: str, after: str, rows_max: int) -> Chunk | None:
        """Return the next chunk of the collection; see `Snapshot.next_chunk`."""
        if name not in self._snapshots:
            self._snapshots = {name: snapshot_of(self.options, name)}
        return self._snapshots[name].next_chunk(after, rows_max)

    def snapshot_rows(self, name: str) -> int | None:
        """Return about how many rows a snapshot of the collection has; None if its snapshot already waits or runs."""
        return None if name in self._in_snapshot else self.count(name)

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


def _capped(listed: ListedCollections) -> tuple[str, ...]:
    return tuple(sorted(name for name, reason in listed.refused.items() if "capped" in reason))


_GOES = frozenset({"drop", "rename"})


class JoinedSnapshot(NamedTuple):
    """The snapshot of a renamed collection. It begins after the rename and fits into the rename's batch."""

    renamed_at: Token
    name: str
    rows: int


class CollectionMarks:
    """Marks of the events of several collections, and how they affect the collections' snapshots; see `MarkCursor`.

    A rename to a selected name brings documents without events. They are read in the batch of the rename, if the
    renamed collections have about `rows_max` documents at most. Otherwise the marks stop there, as at an invalidate:
    the batch ends, and the collection waits for its snapshot. The marks also stop at the drop of a skipped collection,
    because a later collection of that name is another one.
    """

    def __init__(
        self, cursor: MarkCursor, selection: CollectionSelection, skipped: Iterable[str], source: CollectionsStream,
        rows_max: int,
    ) -> None:  # fmt: skip
        self._cursor, self._selection, self._source, self._rows_max = cursor, selection, source, rows_max
        self.token = cursor.token
        self.drained = self.closed = False
        self.stopped_at: Token | None = None
        """The last mark at which a batch had to end."""
        self.renamed_to: tuple[str, ...] = ()
        """The selected names to which that mark renames a collection, and whose snapshots must wait."""
        self.joined: list[JoinedSnapshot] = []
        """Snapshots read in the batch of their rename; only of batches that the caller has not finished."""
        self.skips: list[tuple[Token, str, bool]] = []
        """The events from which on a collection is skipped (True) or no longer skipped (False)."""
        self._skipped = set(skipped)
        self._seen: set[Namespace] = set()
        self._waiting: list[EventMark] = []

    def begin_batch(self, start: Token) -> None:
        """Begin a batch at `start`: forget the joined snapshots of earlier batches."""
        self.joined = [each for each in self.joined if each.renamed_at > start]

    def next_batch(self, *, wait_ms: int, run: RunBounds | None = None) -> list[EventMark]:
        cursor = self._cursor
        marks = self._waiting or cursor.next_batch(wait_ms=wait_ms)
        self._look(marks)
        stop = next((number for number, each in enumerate(marks, 1) if self._stops(each)), None)
        if stop is None:
            self.token, self._waiting = max(cursor.token, self.token), []
            self.drained, self.closed = cursor.drained, cursor.closed
            return marks
        self.token = self.stopped_at = marks[stop - 1].token
        self.drained, self.closed = False, True
        self._waiting = marks[stop:]
        return marks[:stop]

    def close(self) -> None:
        self._cursor.close()

    def _look(self, marks: list[EventMark]) -> None:
        """Ask the server about the collections that were not seen before."""
        names = dict.fromkeys(name for each in marks for name in (each.namespace, each.to) if name)
        new = [name for name in names if name not in self._seen and self._selection.matches(name)]
        if new:
            skipped = self._source.unseen(new)
            self._seen.update(new)
            first = {each.namespace: each.token for each in reversed(marks)}
            self.skips += [(first.get(name, marks[0].token), text_of(name), True) for name in skipped]
            self._skipped.update(map(text_of, skipped))

    def _stops(self, each: EventMark) -> bool:
        if each.operation not in _GOES or each.namespace is None:
            return False
        self._seen.discard(each.namespace)
        name = text_of(each.namespace)
        freed = name in self._skipped
        if freed:
            self._skipped.discard(name)
            self.skips.append((each.token, name, False))
        self.renamed_to = ()
        if each.to and self._selection.matches(each.to) and text_of(each.to) not in self._skipped:
            self._renamed_to(text_of(each.to), each.token, stops=freed)
        return freed or bool(self.renamed_to)

    def _renamed_to(self, name: str, token: Token, *, stops: bool) -> None:
        """Decide whether the renamed collection's snapshot is read in the batch of the rename."""
        full = len(self.joined) >= limits.SNAPSHOT_COLLECTION_COUNT_MAX
        again = any(each.name == name for each in self.joined)
        rows = None if stops or full or again else self._source.snapshot_rows(name)
        if rows is None or sum(each.rows for each in self.joined) + rows > self._rows_max:
            self.renamed_to = (name,)
        else:
            self.joined.append(JoinedSnapshot(token, name, rows))
