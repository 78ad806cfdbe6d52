"""A standby follows an archive or a server: it applies new entries to its directory, each at its own position.

Rules:
- Entries and their position are in one commit. So whenever the process ends, the directory is in the state of a moment,
  and the next run continues there.
- A transaction that is logged as a chain is applied after its last entry has come.
- The standby retains as much of the oplog as a server does, counted from its newest entry.
- A promotion first applies the rest of the archive. If the place supports locks, it is refused while another process
  writes to the archive: the followed server would continue with another history. A followed server must be gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from headrace import limits
from headrace.backup.archive import BackupArchive, Entry, checksum
from headrace.backup.replay import Replayer
from headrace.backup.writer import repeat
from headrace.clock import Clock, SystemClock
from headrace.store import catalog_changes, standby
from headrace.store.retention import AgedScan, Retention, default_bytes_max, first_to_keep, prune
from headrace.store.store import Store

RETENTION_HOURS: Final = 24.0


class NoStandby(Exception):
    """The directory is not a standby, or is a standby of another archive or server."""


class Followed(Protocol):
    """An archive or a server that a standby follows."""

    def history(self) -> bytes | None:
        """Return the id of its history; None if it has none."""

    def new_entries(self, after: int, after_checksum: int) -> Iterator[Entry]:
        """Yield the entries after a position. `after_checksum`: the checksum of the entry at the position."""


def followed_by(path: Path) -> str:
    """Return the archive or server that a directory follows. Another process may have the directory open.

    Raises `NoStandby`, `UnusableDirectory`.
    """
    from headrace.store.lmdb import Beside

    with Beside(path).reading() as (kv, tables):
        followed = standby.followed(kv, tables["meta"])
    if followed is None:
        raise NoStandby(f"{path} is no standby; it may have been promoted")
    return followed


class Promotion(NamedTuple):
    """The last position of the followed history, and the first position of the directory's own."""

    last: int
    begins: int


class Standby:
    """An open directory that follows an archive or a server. No other process may open it."""

    def __init__(
        self, followed: Followed | None, path: Path, *, clock: Clock | None = None, hours: float = RETENTION_HOURS
    ) -> None:
        """`followed`: None if it is lost and the directory is to be promoted as it is. `hours`: retention of the oplog.

        Raises `NoStandby` and the errors of `Store`.
        """
        self._followed = followed
        self._hours = hours
        self.store = Store(path, clock=clock or SystemClock(), standby=True)
        try:
            with self.store.reading() as view:
                if standby.followed(view.kv, view.tables["meta"]) is None:
                    raise NoStandby(f"{path} is no standby; give a directory that is empty or missing")
            if followed is not None and (history := followed.history()) != self.store.history_id:
                if history is None:
                    raise NoStandby(f"{followed}, which {path} follows, is not an archive of `headrace backup`")
                raise NoStandby(f"{path} is a standby of another history than that of {followed}")
        except BaseException:
            self.store.close()
            raise
        self._replayer = Replayer(self.store)
        self._aged = AgedScan()

    def close(self) -> None:
        """Close the directory."""
        self.store.close()

    @property
    def position(self) -> int:
        """The position of the last applied entry."""
        return self.store.last_position

    def apply(self) -> int:
        """Apply the new entries; return their number.

        Raises `DamagedArchive`, `DivergedHistory` and `OSError`.
        """
        if self._followed is None:
            return 0
        with self.store.reading() as view:
            entry = view.entry(self.position)
        assert entry is not None
        entries = self._followed.new_entries(self.position, checksum(entry))
        first = next(entries, None)
        return 0 if first is None else self._replayer.replay(chain((first,), entries))

    def tend(self) -> None:
        """Run a server's background jobs: prune the oplog, and remove the rows of dropped collections."""
        store = self.store
        store.environment.forget_dead_readers()
        with store.reading() as view:
            reusable = view.table_bytes("oplog") + view.free_bytes
            free = shutil.disk_usage(store.environment.path).free + reusable
            retention = Retention(self._hours, default_bytes_max(free), None)
            keep, oldest = first_to_keep(view, retention, store.last_wall_ms, self._aged), view.oldest_position()
            more = catalog_changes.has_garbage(view)
        pruned = limits.PRUNE_COUNT_MAX if oldest is not None and keep > oldest else 0
        while pruned == limits.PRUNE_COUNT_MAX:
            txn = store.begin()
            pruned = prune(txn, keep, limits.PRUNE_COUNT_MAX)
            store.commit(txn)
        while more:
            txn = store.begin()
            more = catalog_changes.collect_garbage(txn, limits.PRUNE_COUNT_MAX)
            store.commit(txn)

    def follow(self, wait: Callable[[float], bool], report: Callable[[str], None]) -> None:
        """Apply and tend until `wait`, which gets the seconds to wait, returns False.

        Raises the errors of `apply`, except `OSError`: an unreachable source is reported once, and tried again.
        """

        def tend_and_wait(seconds: float) -> bool:
            self.tend()
            return wait(seconds)

        repeat("the standby", self.apply, tend_and_wait, report)

    def promote(self) -> Promotion:
        """Apply the rest of the archive, and stop following. Raises `ArchiveInUse` and the errors of `apply`."""
        archive = self._followed if isinstance(self._followed, BackupArchive) else None
        with nullcontext() if archive is None else archive.place.lock():
            while self.apply():
                pass
            last = self.position
            txn = self.store.begin()
            begins = standby.promote(txn)
            self.store.commit(txn)
        return Promotion(last, begins)
