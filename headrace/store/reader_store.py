"""The store of a reader process: a data directory read beside the server that has it open.

    store = ReaderStore(path, ...)
    store.refresh()      publish the last commit, as in the server

LMDB shows a commit to another process only after it is on the disk, so a reader shows nothing that a crash could undo.
The server publishes that commit a moment later, and sends the reader's answer only then.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace.clock import Clock
from headrace.store import catalog as catalogs
from headrace.store.catalog import Catalog, CatalogRows
from headrace.store.checksums.names import describe
from headrace.store.checksums.transaction import SharedTransaction
from headrace.store.lmdb import LmdbEnvironment, ReaderEnvironment
from headrace.store.state import StoreState
from headrace.store.store import Store
from headrace.store.view import View
from headrace.values.bson import decode
from headrace.values.position import seconds


class ReaderStore(Store):
    """The read-only store of another process's directory.

    A collection's count is exact for one state. In the next state it is an estimate, good enough to choose a plan. A
    command that returns a number of documents counts them.
    """

    is_beside = True
    _rows: CatalogRows | None = None
    number = 0
    """The number of the published commit."""

    def __init__(
        self, path: Path, number_base: int, files: str, *, clock: Clock, oplog: bool, map_bytes: int
    ) -> None:  # fmt: skip
        """`number_base`, `files`: taken from the server's environment. Raises `FileReplaced`."""
        self._number_base, self._files = number_base, files
        super().__init__(path, clock=clock, oplog=oplog, map_bytes=map_bytes)

    def _open(self, path: str | os.PathLike[str] | None, map_bytes: int) -> LmdbEnvironment:
        assert path is not None
        return ReaderEnvironment(Path(path), map_bytes=map_bytes, number_base=self._number_base, files=self._files)

    def reopen(self, number_base: int, files: str) -> None:
        """Read the file that has replaced the data file. Open transactions read the old file. Raises `FileReplaced` if
        that file was replaced, too."""
        assert isinstance(self.environment, ReaderEnvironment)
        self.environment.reopen(number_base, files)
        self.forget_read()
        self.tables = self.environment.tables

    def _start(self) -> None:
        self.environment.describe = lambda table, key: describe(self.catalog, self.environment.name_of(table), key)
        self.refresh()
        with self.reading() as view:
            self.history_id = view.kv.get(b"history-id", db=self.tables["meta"])

    def refresh(self, position: int = 0) -> None:
        """Publish the last commit. `position`: the server's published position, which may be after the newest entry."""
        kv = self.environment.begin_read()
        if kv.number == self.number and self._published is not None:
            kv.abort()
        else:
            self.forget_read()
            self._published = kv
            if kv.number != self.number:
                self.estimates |= {number: count.documents for number, count in self.state.counts.items()}
                self.number, self.state = kv.number, self._state(kv)
        if position > self.state.last_position:
            self.state = self.state._replace(last_position=position)

    def begin_read(self) -> SharedTransaction:
        """Return a read transaction that belongs to the published state, as in the server."""
        if self._published is None:
            self.refresh()
        return super().begin_read()

    def _state(self, kv: SharedTransaction) -> StoreState:
        meta = self.tables["meta"]
        parameters, pruned = kv.get(b"parameters", db=meta), kv.get(b"pruned", db=meta)
        position = View(self, kv).newest_position()
        if position is None:
            position = int.from_bytes(kv.get(b"last-position", db=meta) or b"", "big")
        return StoreState(
            self._catalog(kv),
            {},
            position,
            seconds(position) * 1000,
            -1 if pruned is None else int.from_bytes(pruned, "big"),
            decode(parameters) if parameters else {},
        )

    def _catalog(self, kv: SharedTransaction) -> Catalog:
        """Return the catalog. An unchanged catalog stays the same object, with the caches of the planner."""
        rows = catalogs.rows_of(kv, self.tables)
        if rows == self._rows:
            return self.state.catalog
        made = catalogs.load(rows)
        made.version = self.state.catalog.version + 1
        self._rows = rows
        return made
