"""Continuous work: a backup ships the oplog as it is committed, and a snapshot now and then; a standby applies it.

If the place cannot be reached, or the directory is being opened again, the next round tries again. The oplog is also
shipped between the pieces of a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from headrace.backup.writer import ArchiveWriter
from headrace.errors import reason_of
from headrace.store.lmdb import ReadersChanged

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
