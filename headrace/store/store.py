"""The store: an open data directory, read through views, changed through one write transaction at a time.

Life of a write: `begin` → commands change documents and stage entries → `prepare` writes the staged entries into the
same KV transaction → `sync` commits it (the only slow step; it may run on another thread) → `publish` makes it the
state in memory and calls the listeners. `abandon`, instead of `prepare` or after a failed `sync`, undoes everything in
the tables and in memory.

    meta   "format"         → see `checksums/upgrade.py`
           "gaps"         → see `standby.py`
           "history-id"     → the id of this directory's history, which is the replica set's id: 12 bytes
           "history-lost"   → b"1" after changes were made without an oplog: older positions are gone
           "last-position"  → the end of a dropped oplog, 8 bytes big-endian: positions continue after it
           "parameters"     → cluster parameters (BSON)
           "pruned"         → the newest position that was pruned, 8 bytes big-endian
           "standby"        → see `standby.py`
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, Final, NamedTuple, cast

from headrace import limits
from headrace.clock import Clock, SystemClock
from headrace.errors import CommandError
from headrace.memory_budget import Memory
from headrace.store import catalog as catalogs
from headrace.store.catalog import Catalog, Collection
from headrace.store.checksums.names import describe
from headrace.store.checksums.transaction import CheckedTransaction, DamagedValue, SharedTransaction
from headrace.store.checksums.upgrade import open_format
from headrace.store.compaction import Compaction
from headrace.store.data_file import DATA_FILE, UnusableDirectory
from headrace.store.entries import noop_entry
from headrace.store.indexes.uses import Uses
from headrace.store.kv import TableKey, Transaction
from headrace.store.lmdb import LmdbEnvironment, LmdbError
from headrace.store.standby import Gaps, gaps, require_promoted
from headrace.store.state import DocumentCount, StoreState
from headrace.store.temporary.snapshot_copies import SnapshotCopies
from headrace.store.temporary.spill_file import SpillFolder
from headrace.store.transaction_registry import Transactions
from headrace.store.view import View
from headrace.store.write_transaction import WriteTransaction
from headrace.values.bson import decode, encode
from headrace.values.position import seconds

INITIATING: Final = "initiating set"
_NOOP_TOPICS: Final[tuple[str, ...]] = ()

Run = tuple[tuple[str, ...], int, int]
LastRun = tuple[tuple[str, ...], list[bytes]]
"""The topics of the oplog's last run, and its keys."""


class Committed(NamedTuple):
    """The additions of one commit to the oplog: entries with their positions, and the runs they form."""

    first: int
    last: int
    wall_ms: int
    keys: list[bytes]
    """The position of each entry, as the key in the oplog."""
    entries: list[bytes]
    runs: list[Run]


class Store:
    """An open data directory. One thread uses it; only `sync` may be called from another thread."""

    is_beside = False
    """Whether another process has the directory open and writes to it: see `reader_store.py`."""
    compaction: Compaction | None = None
    """The running compaction."""
    changed_position = 0
    """The position of the last commit that changed data; periodic no-ops do not count."""

    def __init__(
        self, path: str | os.PathLike[str] | None, *, clock: Clock | None = None, oplog: bool = True,
        map_bytes: int = limits.MAP_BYTES, standby: bool = False,
    ) -> None:  # fmt: skip
        """Open `path`, created if missing; None makes a temporary store. `standby`: the directory may be one
        (`standby.py`).

        Raises `DirectoryInUse` and `UnusableDirectory`.
        """
        self.clock = clock or SystemClock()
        self.oplog_enabled = oplog
        self.environment = self._open(path, map_bytes)
        self.tables = self.environment.tables
        self.spill_folder = SpillFolder(self.environment.path, clears=not self.is_beside)
        self.snapshot_copies = SnapshotCopies(self.environment, self.spill_folder)
        self.state = StoreState(Catalog(), {}, 0, 0, -1, {})
        """The state that readers see; `publish` replaces it."""
        self.listeners: list[Callable[[Committed], None]] = []
        self.admin_listeners: list[Callable[[], None]] = []
        """Called after a commit that changed the database `admin`, and with it maybe users and roles, in a store
        without an oplog. Commits of such a store have no runs."""
        self._last_run: LastRun | None = None
        self.next_records: dict[int, int] = {}
        """The next record of a collection, by its number. Only the writer uses it. Reserved records that are not used
        are skipped."""
        self.history_id: bytes | None = None
        """Twelve bytes that identify this history of documents. A later history under the same path has others, and a
        copy of the directory has the same. None, until `keep_history_id`, in a directory of 0.1.0 or one that had no
        oplog."""
        self.memory = Memory()
        """The memory of the process. It has no limit unless the engine sets one."""
        self.file_listeners: list[Callable[[], None]] = []
        """Called after a compaction has replaced the data file."""
        self.transactions = Transactions(self)
        self._published: SharedTransaction | None = None
        """The read transaction of the published state, shared by all readers. It begins with the first reader or before
        the next commit."""
        self._written: set[TableKey] | None = None
        """The keys that the open write transaction has written; None: they are not recorded."""
        self.index_key_count_max = limits.INDEX_KEY_COUNT_MAX
        """The maximum number of a document's keys in one index. Stored documents may have more."""
        self.uses = Uses()
        self.estimates: dict[int, int] = {}
        """Earlier numbers of documents, by the collection's number. A reader uses them as estimates for plans."""
        self.index_filters: dict[bytes | None, dict[Any, Any]] = {}
        """The planner's index filters, by the collection's UUID."""
        self.writing: WriteTransaction | None = None
        """The write transaction that is open or being written to the disk."""
        self._may_be_standby = standby
        self.gaps: Gaps = ()
        """Pairs of positions between which another history may have had entries: see `standby.py`."""
        try:
            self._start()
        except (DamagedValue, LmdbError) as error:
            self.environment.close()
            raise UnusableDirectory(f"{self.environment.path / DATA_FILE} cannot be read: {error}") from error
        except BaseException:
            self.environment.close()
            raise

    def _open(self, path: str | os.PathLike[str] | None, map_bytes: int) -> LmdbEnvironment:
        return LmdbEnvironment(path, map_bytes=map_bytes)

    def _start(self) -> None:
        open_format(self.environment)
        self.environment.describe = lambda table, key: describe(self.catalog, self.environment.name_of(table), key)
        with self.environment.reading() as kv:
            self.state = self.state._replace(catalog=catalogs.load(catalogs.rows_of(kv, self.tables)))
            meta = self.tables["meta"]
            parameters, pruned = kv.get(b"parameters", db=meta), kv.get(b"pruned", db=meta)
            self.history_id = kv.get(b"history-id", db=meta)
            if not self._may_be_standby:
                require_promoted(self.environment.path, kv, meta)
            self.gaps = gaps(kv, meta)
            view = View(self, kv)
            newest = view.newest_position()
            wall_ms = 0 if newest is None else _wall_ms(view, newest)
            dropped_at = kv.get(b"last-position", db=meta)
            history_lost = kv.get(b"history-lost", db=meta) is not None
        self.state = self.state._replace(
            last_position=newest or int.from_bytes(dropped_at or b"", "big"),
            last_wall_ms=wall_ms,
            pruned_through=-1 if pruned is None else int.from_bytes(pruned, "big"),
            cluster_parameters=decode(parameters) if parameters else {},
        )
        begins = self.oplog_enabled and newest is None
        ends = not self.oplog_enabled and (newest is not None or not history_lost)
        if begins or ends:
            self._prepare_tables()
        from headrace.store.indexes.index_builds import migrate

        migrate(self)

    def _prepare_tables(self) -> None:
        """Write the first entries of a new oplog, or note that this directory has no oplog from here on."""
        txn = self.begin()
        if self.oplog_enabled:
            history_lost = txn.kv.get(b"history-lost", db=self.tables["meta"]) is not None
            if not history_lost:
                self.log_noop(txn, INITIATING)
                self.history_id = os.urandom(12)
                txn.kv.put(b"history-id", self.history_id, db=self.tables["meta"])
            self.log_noop(txn, "new primary")
        else:
            txn.kv.put(b"history-lost", b"1", db=self.tables["meta"])
            last = self.last_position + 1  # the greatest position in any token: everything after it is lost
            txn.kv.put(b"last-position", last.to_bytes(8, "big"), db=self.tables["meta"])
            for table in ("oplog", "runs", "images"):
                txn.kv.drop(self.tables[table], delete=False)
        self.commit(txn)

    def keep_history_id(self, history_id: bytes) -> None:
        """Store the id of the history, if there is none."""
        txn = self.begin()
        txn.kv.put(b"history-id", history_id, db=self.tables["meta"])
        self.commit(txn)
        self.history_id = history_id

    def close(self) -> None:
        """Abandon the open write transaction and close the directory."""
        if self.writing is not None:
            with contextlib.suppress(Exception):  # after a disk failure the memory may be inconsistent
                self.abandon(self.writing)
        self.snapshot_copies.close()
        if (compaction := self.compaction) is not None:
            self.end_compaction(compaction)
            compaction.wait()
        self.environment.close()

    # Reading.

    @property
    def catalog(self) -> Catalog:
        """The catalog of the published state."""
        return self.state.catalog

    @property
    def last_position(self) -> int:
        """The position of the newest published entry of the oplog."""
        return self.state.last_position

    @property
    def last_wall_ms(self) -> int:
        """The wall clock of the newest published entry, in ms since the Unix epoch."""
        return self.state.last_wall_ms

    @property
    def pruned_through(self) -> int:
        """The newest pruned position, or -1."""
        return self.state.pruned_through

    @property
    def cluster_parameters(self) -> dict[str, Any]:
        """The cluster parameters that have been set."""
        return self.state.cluster_parameters

    def keep_count(self, state: StoreState, collection: Collection, count: DocumentCount) -> StoreState:
        """Store a count that a reader of `state` has taken; return the state with the count. The newest state gets the
        count, too, unless the collection may have changed since."""
        number, published = collection.number, self.state
        counted = state._replace(counts={**state.counts, number: count})
        if state is published:
            self.state = counted
        elif (known := state.counts.get(number)) is not None and published.counts.get(number) is known:
            self.state = published._replace(counts={**published.counts, number: count})
        return counted

    @contextlib.contextmanager
    def reading(self) -> Iterator[View]:
        """Open a view of the last commit for the duration of a `with`. The block must not await."""
        kv = self.begin_read()
        try:
            yield View(self, kv)
        except LmdbError:
            self.forget_read()
            raise
        finally:
            kv.abort()

    def published_kv(self) -> Transaction:
        """Return the transaction that reads the published state, for immediate use. The caller must not abort it."""
        kv = self._published
        if kv is None:
            kv = self._published = self.environment.begin_read()
        return kv

    def begin_read(self) -> SharedTransaction:
        """Return the transaction that reads the published state. It keeps this state until the caller aborts it."""
        kv = self._published
        if kv is None:
            kv = self._published = self.environment.begin_read()
        kv.join()
        return kv

    def forget_read(self) -> None:
        """Let the next reader begin a new read transaction: after a commit, or after LMDB met a damaged page and
        stopped reading in the present one."""
        if self._published is not None:
            self._published.abort()
            self._published = None

    # Writing.

    def begin(self, kv: Transaction | None = None) -> WriteTransaction:
        """Open the write transaction; only one may be open. `kv`: the environment's transaction, if it has begun
        already."""
        if self.writing is not None:
            raise RuntimeError("a write transaction is open already")
        kv = kv or self.environment.begin_write()
        self._written = None
        if self.compaction is not None or self.transactions.open:
            checked = cast("CheckedTransaction", kv)
            self._written = checked.written = set()
            if self.compaction is not None:
                checked.removed = self._written
            if self.transactions.open:
                self.transactions.record(self._written)
        self.writing = WriteTransaction(self, kv)
        return self.writing

    def prepare(self, txn: WriteTransaction, *, is_read_meanwhile: bool = True) -> None:
        """Put the staged entries and their runs into the tables.

        Afterwards `sync` may run in another thread, that of `begin_write_in`. Until `publish`, readers see the tables
        as of the commit before. `is_read_meanwhile`: whether a read may begin until then.
        """
        staged = txn.staged
        if staged.entries:
            if len(staged.entries) == 1:
                txn.kv.put(staged.keys[0], staged.entries[0], db=self.tables["oplog"])
            else:
                with txn.kv.cursor(self.tables["oplog"]) as cursor:
                    cursor.put_many(staged.keys, staged.entries, ascending=True)
            last_run = self._last_run
            for topics, first, last in staged.runs:
                if last_run is None or last_run[0] != topics:
                    start = first.to_bytes(8, "big")
                    last_run = topics, [txn.catalog.topic(txn.kv, topic).to_bytes(4, "big") + start for topic in topics]
                # Otherwise this run continues the one before, of this or the previous commit. So a collection that is
                # written alone has one run, however many commits there were.
                for key in last_run[1]:
                    txn.kv.put(key, last.to_bytes(8, "big"), db=self.tables["runs"])
            staged.last_run = last_run
        if is_read_meanwhile and self._published is None:
            self._published = self.environment.begin_read()

    def sync(self, txn: WriteTransaction) -> None:
        """Commit the transaction. On return it is on disk (at default settings)."""
        txn.kv.commit()

    def publish(self, txn: WriteTransaction) -> None:
        """Make a synced commit the published state, and call the listeners."""
        self.writing = None
        if self._published is not None:  # `forget_read` without the call
            self._published.abort()
            self._published = None
        self.state = txn.next_state(self.state)
        if txn.commits or self.transactions.awaited or self.transactions.written.open:
            self.transactions.published(txn)
        if self.compaction is not None and self.compaction.published(self._written or set()):
            self._file_replaced(self.compaction)
        staged = txn.staged
        if not staged.entries:
            if txn.admin_changed:
                for note in self.admin_listeners:
                    note()
            return
        self._last_run = staged.last_run
        published = staged.runs[0][1], self.state.last_position, txn.wall_ms, staged.keys, staged.entries, staged.runs
        committed = tuple.__new__(Committed, published)  # avoids a call per commit
        for topics, _, _ in staged.runs:
            if topics:
                self.changed_position = self.state.last_position
                break
        for listener in self.listeners:
            listener(committed)

    def begin_compaction(self, size: int) -> Compaction:
        """Note the keys that later transactions change. The caller begins the copy after this transaction's commit.
        `size`: bytes that the file will have. Raises 117, 14031 and `OSError`."""
        if self.compaction is not None:
            raise CommandError(117, "another compaction is in progress")
        self.compaction = Compaction(self.environment, self.spill_folder, size=size)
        return self.compaction

    def end_compaction(self, compaction: Compaction) -> None:
        """Remove the rest of a finished or abandoned compaction."""
        compaction.close()
        if self.compaction is compaction:
            self.compaction = None

    def _file_replaced(self, compaction: Compaction) -> None:
        """Switch to the compacted file. Clients' transactions are aborted, because they read the old file."""
        self.end_compaction(compaction)
        self.forget_read()  # may have begun since the commit, for who waited for it
        self.tables = self.environment.tables
        self.transactions.abort_older(inf, self.clock.monotonic_ms())
        for listener in self.file_listeners:
            listener()

    def commit(self, txn: WriteTransaction) -> None:
        """Call `prepare`, `sync` and `publish`, for callers without an event loop."""
        try:
            self.prepare(txn)
            self.sync(txn)
        except BaseException:
            self.abandon(txn)
            raise
        self.publish(txn)

    def abandon(self, txn: WriteTransaction) -> None:
        """Abandon the transaction and undo all its changes, in the tables and in memory."""
        self.writing = None
        with contextlib.suppress(Exception):  # a failed commit has already ended the KV transaction
            txn.kv.abort()
        self.transactions.settled()

    def log_noop(self, txn: WriteTransaction, message: str) -> int:
        """Stage a `n` entry, which advances the tokens of idle streams; return its position."""
        position = txn.reserve(1)
        txn.log(position, noop_entry(message, position, txn.wall_ms), _NOOP_TOPICS)
        return position

    def set_cluster_parameter(self, txn: WriteTransaction, name: str, value: dict[str, Any]) -> None:
        """Store a cluster parameter, as `setClusterParameter` does."""
        txn.cluster_parameters = {**txn.cluster_parameters, name: value}
        txn.kv.put(b"parameters", encode(txn.cluster_parameters), db=self.tables["meta"])


def _wall_ms(view: View, position: int) -> int:
    """Return the wall clock of an entry, or the time of its position if the entry cannot be read."""
    with contextlib.suppress(DamagedValue):
        if (entry := view.entry(position)) is not None:
            return int(decode(entry)["wall"])
    return seconds(position) * 1000
