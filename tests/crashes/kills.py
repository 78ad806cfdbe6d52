"""Kills: a store lives, is killed at a random moment or at a named point, perhaps again while it recovers, and is
checked. One directory lives through all kills of a run."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

from headrace.store.check.directory import check
from headrace.store.store import Store
from tests.crashes.checks import Checker, Finding
from tests.crashes.child import DISK_POINTS, STORE_POINTS, Task, use_small_limits
from tests.crashes.lives import WORKER_COUNT, Acknowledged, live, warm_up

SERVER_SHARE: Final = 0.3
THOROUGH_SHARE: Final = 0.1
NEW_SHARE: Final = 0.05


class Kills:
    """A directory and what must be in it."""

    disk_is_full = False
    error_share = 0.0

    def __init__(self, path: Path, seed: int) -> None:
        warm_up()
        use_small_limits()
        self.random = Random(seed)
        self.checker = Checker(path, WORKER_COUNT)
        self.checker.prepare()
        self.counts: Counter[str] = Counter()
        self._life = 0

    def cycle(self) -> None:
        """Work until killed, perhaps get killed again while it recovers, and check. Raises `Finding`."""
        if self.random.random() < NEW_SHARE:
            self._first_life()
        known = Acknowledged(self.checker, disk_is_full=self.disk_is_full or bool(self.error_share))
        self._one_life(known, works=True)
        while self.random.random() < 0.3:
            self._one_life(known, works=False)
        thorough = self.random.random() < THOROUGH_SHARE
        self.checker.check(known.under_way, known.last, self.random, thorough=thorough)
        self.counts.update(known.counts)

    def _first_life(self) -> None:
        """Kill a store that makes its directory: the next one opens it. Raises `Finding`."""
        path = self.checker.path.with_name("new")
        shutil.rmtree(path, ignore_errors=True)
        point = self.random.choice(("", *DISK_POINTS))
        task = Task(path, 0, 0, [], {}, works=False, point=point, count=self.random.randrange(6))
        live(task, 0.02 * self.random.random() if not point else 0.2, is_server=self.random.random() < SERVER_SHARE)
        Store(path).close()
        if problems := check(path).problems:
            raise Finding(f"a new directory: {problems[0]}")
        self.counts["kills"] += 1
        self.counts["kills of a new store"] += 1

    def _one_life(self, known: Acknowledged, *, works: bool) -> None:
        self._life += 1
        point, count, after_ms = "", 0, self.random.choice((10, 40, 100)) * self.random.random()
        if self.random.random() < 0.5:
            point = self.random.choice((*STORE_POINTS, *DISK_POINTS))
            count, after_ms = self.random.randrange(40), 300.0
        checker = self.checker
        task = Task(
            checker.path, self._life, self.random.randrange(1 << 30), checker.models, checker.streams.tokens, works,
            point=point, count=count, sync_ms=self.random.choice((0, 0, 0, 5)),
            error_share=self.error_share,
            free_bytes=self.random.choice((0, 8192, 65536)) if self.disk_is_full else None,
        )  # fmt: skip
        is_server = self.random.random() < SERVER_SHARE
        for report in live(task, after_ms / 1000, is_server=is_server).reports:
            known.take(report)
        self.counts["kills"] += 1
        self.counts["kills of a server"] += is_server


class KillsOnFullDisk(Kills):
    """The same while the disk is full or fills up; each check has room again."""

    disk_is_full = True


class KillsOnFailingDisk(Kills):
    """The same while some writes and syncs fail with an error."""

    error_share = 0.02
