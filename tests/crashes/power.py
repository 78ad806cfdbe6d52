"""Losses of power: the disk of a life is recorded, cut at many points, and each file that may be left is checked.

Lives follow one another. Each begins with what a loss of power left, or with what a kill left: then writes of
the killed process may still not be on the disk, and what was read since must be there all the same.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

from headrace.store.data_file import DATA_FILE
from headrace.store.lmdb import LOCK_FILE
from tests.crashes.checks import Checker, Finding
from tests.crashes.child import Task, use_small_limits
from tests.crashes.disk_calls import observed
from tests.crashes.disk_record import THROUGH, DiskEntry, DiskState, Recorder, entries_of_record
from tests.crashes.lives import CHILD_SECONDS_MAX, WORKER_COUNT, Acknowledged, live, warm_up

SERVER_SHARE: Final = 0.3
THOROUGH_SHARE: Final = 0.05
LOSSES_OF_A_LIFE: Final = 60
LOSSES_AT_A_POINT: Final = 2


class PowerLosses:
    """A directory, what must be in it, and what is on its disk."""

    def __init__(self, path: Path, seed: int) -> None:
        warm_up()
        use_small_limits()
        self.path = path
        self.random = Random(seed)
        self.checker = Checker(path, WORKER_COUNT)
        self.checker.prepare()
        self.counts: Counter[str] = Counter()
        self._disk = DiskState((path / DATA_FILE).read_bytes())
        self._life = 0

    def cycle(self) -> None:
        """Record a life, and lose the power at many points of it. Raises `Finding`."""
        events = self._record()
        known, disk = Acknowledged(self.checker.copy()), self._disk.copy()
        end = self._end_of_life(events)
        points = LOSSES_OF_A_LIFE // LOSSES_AT_A_POINT
        cuts = Counter(self.random.choices(range(end + 1), k=points - 6) + self.random.choices(range(min(end, 8)), k=6))
        survivor: Checker | None = None
        for number in range(end + 1):
            for _ in range(cuts[number] * LOSSES_AT_A_POINT):
                survivor = self._lose_power(known, disk)
            if number < end:
                take(events[number], known, disk)
        self.counts.update(known.counts)
        self.counts["recorded writes"] += sum(isinstance(event, DiskEntry) for event in events[:end])
        if survivor is None or self.random.random() < 0.5:
            self._go_on_after_kill(known, disk)
        else:
            self._go_on_after_power_loss(survivor)

    def _end_of_life(self, events: list[Any]) -> int:
        """How many events there are before the process is killed: often while it makes a commit count."""
        commits = [at for at, event in enumerate(events, 1) if isinstance(event, DiskEntry) and event.kind == THROUGH]
        late = [at for at in commits if at > len(events) // 2]
        return self.random.choice(late) if late and self.random.random() < 0.7 else len(events)

    def _record(self) -> list[Any]:
        """What a life did to its disk and what it reported, in order of time."""
        self._life += 1
        task = Task(
            self.path, self._life, self.random.randrange(1 << 30), self.checker.models, self.checker.streams.tokens,
            count_max=self.random.choice((5, 20, 40)), records=True, sync_ms=self.random.choice((0, 0, 0, 3)),
        )  # fmt: skip
        is_server = self.random.random() < SERVER_SHARE
        life = live(task, CHILD_SECONDS_MAX, is_server=is_server)
        self.counts["lives"] += 1
        entries = list(entries_of_record(life.disk))
        return sorted([*entries, *life.reports], key=moment)

    def _lose_power(self, known: Acknowledged, disk: DiskState) -> Checker:
        """Check a directory as a loss of power may leave it; what is known of it then."""
        self.counts["power losses"] += 1
        path = self.path.with_name("lost")
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        (path / DATA_FILE).write_bytes(disk.after_power_loss(self.random))
        self._leave_others(path)
        checker = known.checker.copy(path)
        before = checker.event_count
        try:
            thorough = self.random.random() < THOROUGH_SHARE
            checker.check(known.under_way, known.last, self.random, thorough=thorough)
        except Exception as error:
            raise Finding(f"after loss {self.counts['power losses']}, in {path}: {error!r}") from error
        self.checker.event_count += checker.event_count - before
        self.checker.resent_count += checker.resent_count
        return checker

    def _leave_others(self, path: Path) -> None:
        """What is left of the files beside the data file, which are never synced: nothing, their size or their text."""
        for name in (LOCK_FILE, "lock.mdb"):
            beside = self.path / name
            content = beside.read_bytes() if beside.exists() else b""
            left = self.random.choice((None, b"", bytes(len(content)), content))
            if left is not None and beside.exists():
                (path / name).write_bytes(left)

    # How it goes on.

    def _go_on_after_kill(self, known: Acknowledged, disk: DiskState) -> None:
        """Go on with what a killed process leaves: all that it wrote. What the check does to the disk is recorded."""
        killed = disk.copy()
        killed.settle()
        (self.path / DATA_FILE).write_bytes(killed.content)
        known.checker.event_count = self.checker.event_count
        known.checker.resent_count = self.checker.resent_count
        self.checker, record = known.checker, bytearray()
        with observed(Recorder(record.extend)):
            self.checker.check(known.under_way, known.last, self.random, thorough=False)
        for entry in entries_of_record(bytes(record)):
            disk.take(entry)
        self._disk = disk

    def _go_on_after_power_loss(self, survivor: Checker) -> None:
        shutil.rmtree(self.path)
        shutil.move(survivor.path, self.path)
        event_count, resent_count = self.checker.event_count, self.checker.resent_count
        self.checker = survivor.copy(self.path)
        self.checker.event_count, self.checker.resent_count = event_count, resent_count
        self._disk = DiskState((self.path / DATA_FILE).read_bytes())


def moment(event: Any) -> int:
    """When it was, in ns."""
    return event.at if isinstance(event, DiskEntry) else int(event["at"])


def take(event: Any, known: Acknowledged, disk: DiskState) -> None:
    """Go on by one event of a life."""
    if isinstance(event, DiskEntry):
        disk.take(event)
    else:
        known.take(event)
