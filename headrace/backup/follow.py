"""Continuous backup: the oplog is shipped as it is committed, with a snapshot now and then.

A place that cannot be reached, or a directory that is being started again, is tried again at the next look. While the
pieces of a snapshot are stored, the oplog is shipped in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.backup.writer import ArchiveWriter
from headrace.errors import reason_of
from headrace.store.lmdb import ReadersChanged

LOOK_SECONDS: Final = 1.0
"""How long to wait between two looks at the oplog."""


class Schedule(NamedTuple):
    """How often a snapshot is stored, and for how long moments can be restored; both in ms, None: always."""

    every_ms: int
    retain_ms: int | None


def follow(
    writer: ArchiveWriter, schedule: Schedule, wait: Callable[[float], bool], report: Callable[[str], None],
    note: Callable[[str], None] | None = None,
) -> None:  # fmt: skip
    """Ship until `wait`, which gets the seconds to wait, returns False. The writer has begun.

    `note` is called with what happens in the ordinary course, and `report` with the rest; None: `report` with both.

    Raises what `ArchiveWriter.ship` raises, except `OSError` and `ReadersChanged`, which it reports once in a row.
    """
    failed = False
    while True:
        try:
            _look(writer, schedule, report, note or report)
            if failed:
                report("the backup goes on")
            failed = False
        except (OSError, ReadersChanged) as error:
            if not failed:
                report(f"the backup waits: {reason_of(error)}")
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
