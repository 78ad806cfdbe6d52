"""The writer of an archive: stores snapshots of a directory, and its oplog as it is committed.

Rules:
- The archive belongs to one history. A directory whose oplog does not continue the archive's last entry is refused: it
  is an older copy, or was restored to an earlier moment and then written.
- Every file is stored before the next file that needs it. So whenever the process ends, the archive is complete as of
  an earlier moment, and the next run continues there.
- The snapshot and the log that a moment within the retention needs are not removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from headrace.backup.archive import SEGMENT_BYTES_MAX, BackupArchive, BackupSnapshot, Segment, checksum
from headrace.backup.source import NO_ENTRIES, Look, Source
from headrace.clock import Clock
from headrace.errors import reason_of
from headrace.store.lmdb import ReadersChanged

_MERGE_COUNT: Final = 60
"""The number of short segments that are merged into one."""


class OtherHistory(Exception):
    """The archive belongs to another directory, or to another history of this one."""


@dataclass(slots=True)
class Shipped:
    """Counts of a run's additions to the archive."""

    entries: int = 0
    entry_bytes: int = 0
    snapshots: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    """(after, through) of entries that left the oplog before they were shipped. A snapshot follows them."""


class ArchiveWriter:
    """The only writer of an archive; it holds the place's lock. The caller calls `begin` first."""

    def __init__(self, archive: BackupArchive, source: Source, clock: Clock) -> None:
        self._archive = archive
        self._source = source
        self._clock = clock
        self._at: tuple[int, int] = 0, 0
        """The position up to which the oplog is shipped, and the checksum of its entry."""
        self._recent: list[tuple[Segment, int]] = []  # adjacent short segments, with the bytes of their entries
        self._history = b""
        self._snapshot_ms = 0
        """The time of the newest snapshot."""
        self.shipped = Shipped()

    @property
    def position(self) -> int:
        """The position up to which the archive has the oplog."""
        return self._at[0]

    def begin(self) -> None:
        """Find the end of the archive, and continue there. An empty archive gets a snapshot.

        Raises `OtherHistory`, `DamagedArchive` and the source's errors.
        """
        look, known = self._source.look(NO_ENTRIES), self._archive.history()
        self._history = look.history
        if known is None:
            self._archive.begin(look.history)
        elif known != look.history:
            raise OtherHistory(f"the archive is that of another directory than {self._source.name}: give another one")
        self._remove_unfinished()
        snapshots, last = self._archive.snapshots(), self._archive.last_entry()
        ends = [(item.position, item.checksum) for item in snapshots]
        if last is not None:
            ends.append((last[0], checksum(last[1])))
        if not snapshots:
            self.snapshot()
            return
        self._at = max(ends)
        self._snapshot_ms = max(item.taken_ms for item in snapshots)
        self._require_continuation(self._source.look(self.position))

    def _remove_unfinished(self) -> None:
        for position in self._archive.unfinished_snapshots():
            self._archive.remove_snapshot(position)

    def _require_continuation(self, look: Look) -> None:
        """Raise `OtherHistory` unless the directory continues the archive's last entry. If that entry has left the
        oplog, begin again with a snapshot."""
        position, expected = self._at
        if look.before is None and look.newest > position and self._is_pruned(look):
            self.snapshot()
            self.shipped.lost.append((position, self.position))
        elif look.before != expected:
            raise OtherHistory(
                f"{self._source.name} has another history than the archive, which ends at {position:016x}: it is an "
                "older copy, or was restored and then written. Give another archive"
            )

    def _is_pruned(self, look: Look) -> bool:
        first = self._source.look(0).entries[0][0]
        return first > self.position

    def ship(self) -> int:
        """Store the entries committed since; return their number. Raises the errors of `begin`."""
        count = 0
        while True:
            look = self._source.look(self.position)
            if look.before != self._at[1]:
                self._require_continuation(look)
                return count
            entries = look.entries
            if not entries:
                return count
            segment = self._archive.put_segment(*self._at, entries)
            size = sum(len(entry) for _, entry in entries)
            self._at = entries[-1][0], checksum(entries[-1][1])
            self.shipped.entries += len(entries)
            self.shipped.entry_bytes += size
            count += len(entries)
            self._merge(segment, size)

    def _merge(self, segment: Segment, size: int) -> None:
        """Merge many adjacent short segments into one. Meanwhile both exist, which readers accept."""
        if sum(item[1] for item in self._recent) + size > SEGMENT_BYTES_MAX:
            self._recent.clear()
        self._recent.append((segment, size))
        if len(self._recent) < _MERGE_COUNT:
            return
        parts, self._recent = [item[0] for item in self._recent], []
        first_checksum, entries = self._archive.read_segment(parts[0])
        for part in parts[1:]:
            entries += self._archive.read_segment(part)[1]
        self._archive.put_segment(parts[0].after, first_checksum, entries)
        for part in parts:
            self._archive.remove_segment(part)

    def snapshot(self, between: Callable[[], object] = lambda: None) -> BackupSnapshot:
        """Store a snapshot of the last commit. `between` is called after each piece. Raises the errors of `begin`."""
        self._remove_unfinished()
        with self._source.copied() as copy:
            if copy.history != self._history:
                raise OtherHistory(f"another directory has taken the place of {self._source.name}")
            position, pieces = copy.newest, 0
            for data in copy.pieces:
                self._archive.put_snapshot_piece(position, pieces, data)
                pieces += 1
                between()
        snapshot = BackupSnapshot(position, copy.checksum, self._clock.now_ms(), pieces)
        self._archive.complete_snapshot(snapshot)
        self._snapshot_ms = snapshot.taken_ms
        if not self.position or self._is_gap(position):
            self._at, self._recent = (position, snapshot.checksum), []
        self.shipped.snapshots += 1
        return snapshot

    def _is_gap(self, position: int) -> bool:
        """Return whether the oplog has lost the entries between the archive's end and a position."""
        return position > self.position and self._source.look(self.position).before is None

    def is_snapshot_due(self, every_ms: int) -> bool:
        """Return whether the newest snapshot is at least `every_ms` old."""
        return self._clock.now_ms() - self._snapshot_ms >= every_ms

    def retain(self, retain_ms: int) -> None:
        """Remove the snapshots, and the log before the first remaining one, that no moment of the last `retain_ms`
        needs."""
        snapshots = self._archive.snapshots()
        old = [item for item in snapshots if item.taken_ms <= self._clock.now_ms() - retain_ms]
        if not old:
            return
        first = old[-1]
        for snapshot in old[:-1]:
            self._archive.remove_snapshot(snapshot.position)
        for segment in self._archive.segments():
            if segment.last <= first.position:
                self._archive.remove_segment(segment)


LOOK_SECONDS: Final = 1.0
"""The time between two reads of the oplog, or of the followed archive or server."""


class Schedule(NamedTuple):
    """The interval of snapshots, and how long moments can be restored, both in ms. `retain_ms` None: forever."""

    every_ms: int
    retain_ms: int | None


def follow(
    writer: ArchiveWriter, schedule: Schedule, wait: Callable[[float], bool], report: Callable[[str], None],
    note: Callable[[str], None] | None = None,
) -> None:  # fmt: skip
    """Ship until `wait`, which gets the seconds to wait, returns False. The caller has called the writer's `begin`.

    `note` is called for ordinary events and `report` for all others; None: `report` gets both. Raises the errors of
    `ArchiveWriter.ship` as `repeat` does.
    """
    repeat("the backup", partial(_look, writer, schedule, report, note or report), wait, report)


def repeat(
    name: str, look: Callable[[], object], wait: Callable[[float], bool], report: Callable[[str], None]
) -> None:  # fmt: skip
    """Call `look` until `wait`, which gets the seconds to wait, returns False.

    Raises the errors of `look`, except `OSError` and `ReadersChanged`, which are reported once in a row.
    """
    failed = False
    while True:
        try:
            look()
            if failed:
                report(f"{name} goes on")
            failed = False
        except (OSError, ReadersChanged) as error:
            if not failed:
                report(f"{name} waits: {reason_of(error)}")
            failed = True
        if not wait(LOOK_SECONDS):
            return


def _look(
    writer: ArchiveWriter, schedule: Schedule, report: Callable[[str], None], note: Callable[[str], None]
) -> None:
    writer.ship()
    while writer.shipped.lost:
        after, through = writer.shipped.lost.pop()
        report(f"the oplog had lost the entries from {after:016x} to {through:016x}: no moment between can be restored")
    if writer.is_snapshot_due(schedule.every_ms):
        snapshot = writer.snapshot(writer.ship)
        note(f"stored a snapshot at {snapshot.position:016x}: {snapshot.pieces} pieces")
        writer.ship()
        if schedule.retain_ms is not None:
            writer.retain(schedule.retain_ms)
