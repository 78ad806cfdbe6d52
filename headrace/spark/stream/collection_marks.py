"""Marks of the events of several collections, and how drops and renames affect the collections' snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace import limits
from headrace.spark.mongodb.collection_selection import CollectionSelection, Namespace, text_of
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.event_marks import EventMark, MarkCursor, RunBounds

if TYPE_CHECKING:
    from headrace.spark.stream.server_stream import ServerStream

_GOES: Final = frozenset({"drop", "rename"})


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
        self, cursor: MarkCursor, selection: CollectionSelection, skipped: Iterable[str], source: ServerStream,
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
