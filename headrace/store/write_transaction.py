"""A write transaction: every change of a document together with its oplog entry, in one KV transaction.

Rule: no document changes without its entry. `insert`, `replace` and `delete` write both; the bare puts are private.
Other readers see nothing of it, in the tables or in memory, before `Store.commit`.

The same code runs a statement of a client's transaction. Its KV transaction is then an overlay in memory, and the
catalog, the records and the change log are provisional (`overlay.py`, `client_transaction.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.store import capped, entries
from headrace.store.catalog import Collection, Index
from headrace.store.catalog_draft import CatalogDraft
from headrace.store.change_log import NO_LOG, OPLOG, ChangeLog
from headrace.store.identity import identified, identified_many, identify, key_document, with_timestamps
from headrace.store.indexes import index_entries
from headrace.store.kv import Transaction
from headrace.store.state import CountChange, DocumentCount, StoreState
from headrace.store.view import View, bounded_key
from headrace.values.rows import EqualRows, longest, total_bytes

if TYPE_CHECKING:
    from headrace.store.client_transaction import ClientTransaction
    from headrace.store.store import Store

_EMPTY_TIMESTAMP: Final = bytes(8)
_KEY: Final = Struct(">Q").pack
"""Packs a record or a position as a key."""


class RetryableWrite:
    """The session fields of a retryable write's entries, with the number of the present statement.

    The code that runs the statements sets `statement` before each. Each document of an insert is a statement.
    """

    __slots__ = ("head", "previous", "statement")

    def __init__(self, lsid: bytes, txn_number: int, previous: int = 0) -> None:
        """`previous`: the position of the write's last entry so far, or 0 if there is none."""
        self.head = entries.session_head(lsid, txn_number)
        self.statement = 0
        self.previous = previous

    def logged(self, last: int) -> tuple[int, int]:
        """Return the `retried` of `entries.retried_entry` for the next entry or entries; `last` is the last one's
        position."""
        retried = self.statement, self.previous
        self.previous = last
        return retried


class StagedEntries:
    """Entries of one or more commands that wait for the commit, and the runs they form."""

    __slots__ = ("entries", "entry_bytes", "keys", "last_run", "runs")

    def __init__(self) -> None:
        self.keys: list[bytes] = []  # of the positions, ascending
        self.entries: list[bytes] = []
        self.entry_bytes = 0  # the sum over all entries
        self.runs: list[tuple[tuple[str, ...], int, int]] = []  # (topics, first, last), ascending
        self.last_run: tuple[tuple[str, ...], list[bytes]] | None = None
        """The `LastRun` after the commit; set by `Store.prepare`."""

    def add(self, position: int, entry: bytes, topics: tuple[str, ...]) -> None:
        """Add an entry with these topics."""
        self.keys.append(position.to_bytes(8, "big"))
        self.entries.append(entry)
        self.entry_bytes += len(entry)
        runs = self.runs
        if runs:  # `add_run` without the call
            before, first, last = runs[-1]
            if last == position - 1 and before == topics:
                runs[-1] = (topics, first, position)
                return
        runs.append((topics, position, position))

    def add_many(self, first: int, entries: list[bytes], topics: tuple[str, ...]) -> None:
        """Add entries with the same topics, at the positions from `first` on."""
        self.keys += map(_KEY, range(first, first + len(entries)))
        self.entries += entries
        self.entry_bytes += total_bytes(entries)
        self.add_run(topics, first, first + len(entries) - 1)

    def add_run(self, topics: tuple[str, ...], first: int, last: int) -> None:
        """Add a run for positions `first` to `last`, both inclusive. It extends the previous run if that is adjacent
        and has the same topics."""
        if self.runs:
            before_topics, before_first, before_last = self.runs[-1]
            if before_topics == topics and before_last == first - 1:
                self.runs[-1] = (topics, before_first, last)
                return
        self.runs.append((topics, first, last))


CatalogChange = tuple[str, dict[str, Any]]
"""A database, and the command in an entry of the oplog; the command of a view has `viewOn`."""


class WriteTransaction(View):
    """The only write transaction. Commands of several clients share it; the shell commits them together."""

    is_trial = False
    """Whether its changes are discarded: see `locks.TrialView`."""

    __slots__ = (
        "_changes",
        "_second",
        "admin_changed",
        "catalog_changes",
        "clock_position",
        "cluster_parameters",
        "commits",
        "count_changes",
        "entry_end",
        "pruned_through",
        "staged",
        "wall_ms",
    )

    catalog: CatalogDraft

    def __init__(
        self, store: Store, kv: Transaction, *, catalog: CatalogDraft | None = None, changes: ChangeLog | None = None,
    ) -> None:  # fmt: skip
        """`catalog` and `changes` None: a draft of the published catalog, and the store's oplog if it has one."""
        self.store = store  # `View.__init__` inlined: saves a call per write
        self.kv = kv
        self.state = store.state
        self.catalog = catalog or CatalogDraft(self.state.catalog, store.tables)
        self.tables = store.tables
        self._changes: ChangeLog = changes or (OPLOG if store.oplog_enabled else NO_LOG)
        self.count_changes: dict[int, CountChange] = {}
        """Its changes of the counts of collections, by number."""
        self.pruned_through = self.state.pruned_through
        self.cluster_parameters = self.state.cluster_parameters
        self.staged = StagedEntries()
        self.admin_changed = False  # only set without an oplog
        self.catalog_changes: list[CatalogChange] = []
        """The changes of collections, views and indexes, for the audit log."""
        self.clock_position = self.state.last_position
        self.wall_ms = store.clock.now_ms()
        self._second = self.wall_ms // 1000 << 32
        self.entry_end = entries.end(self.wall_ms)
        """The last fields of this transaction's entries."""
        self.commits: list[ClientTransaction] = []  # clients' transactions that this one commits

    def next_state(self, published: StoreState) -> StoreState:
        """Return the state after its commit. `published`: the state before."""
        counts = published.counts
        if self.count_changes:
            counts = dict(counts)
            for number, change in self.count_changes.items():
                count = change.applied(counts.get(number))
                if count is not None and number in self.catalog.by_number:
                    counts[number] = count
                else:
                    counts.pop(number, None)
        runs = self.staged.runs
        fields = (
            self.catalog.published(has_readers=bool(self.store.transactions.open)),
            counts,
            runs[-1][2] if runs else max(published.last_position, self.clock_position),
            self.wall_ms if runs else published.last_wall_ms,
            self.pruned_through,
            self.cluster_parameters,
        )
        return tuple.__new__(StoreState, fields)  # avoids a call per commit

    # Positions and entries.

    def record_with(self, changes: ChangeLog) -> None:
        """Record later changes of documents and of the catalog with `changes`."""
        self._changes = changes

    def reserve(self, count: int) -> int:
        """Return the first of `count` consecutive new positions: seconds of the wall clock, then a counter.

        A caller that logs nothing must give them back. Otherwise a client could see a position (operationTime, a
        high-water mark) that is not in the oplog. A restart could give it out again, and a stream would skip it.
        """
        first = (self._second if self._second > self.clock_position else self.clock_position) + 1
        self.clock_position = first + count - 1
        return first

    def log(self, position: int, entry: bytes, topics: tuple[str, ...]) -> None:
        """Stage an entry at a reserved position. `topics`: the namespaces under which it is indexed."""
        if self.store.oplog_enabled:
            self.staged.add(position, entry, topics)

    def log_command(
        self, database: str, uuid: bytes | None, o: dict[str, Any], o2: dict[str, Any] | None = None,
        *, also: tuple[str, ...] = (),
    ) -> int:  # fmt: skip
        """Stage a `c` entry under `<database>.$cmd` and the databases `also`; return its position, or 0 if it has none
        yet."""
        self.catalog_changes.append((database, o))
        return self._changes.command(self, database, uuid, o, o2, also)

    # Documents.

    def next_record(self, collection: Collection, count: int = 1) -> int:
        """Return the first of `count` consecutive new records."""
        next_records, number = self.store.next_records, collection.number
        first = next_records.get(number)
        if first is None:
            with self.store.reading() as committed:  # this transaction may have deleted the last document, and may fail
                last = max(self.last_record(collection) or b"", committed.last_record(collection) or b"")
            first = int.from_bytes(last, "big") + 1
        next_records[number] = first + count
        return first

    def count_change(self, collection: Collection) -> CountChange:
        """Return the transaction's change of the collection's count; the caller may add to it."""
        change = self.count_changes.get(collection.number)
        if change is None:
            change = self.count_changes[collection.number] = CountChange()
        return change

    def add_count(self, collection: Collection, documents: int, size: int = 0, removed: bytes | None = None) -> None:
        """Add to the collection's count. A positive `documents` counts new last documents; a negative one removes the
        document of the record `removed`. `size`: bytes."""
        change = self.count_changes.get(collection.number)
        if change is None:
            change = self.count_changes[collection.number] = CountChange()
        change.documents += documents
        change.size += size
        if removed is not None and not self.is_counted(collection):
            change.removed.append(removed)

    def known_count(self, collection: Collection) -> DocumentCount | None:
        """Return the full or partial count of a collection, with the changes of the transaction; None if there is
        none."""
        count, change = self.state.counts.get(collection.number), self.count_changes.get(collection.number)
        return count if change is None else change.applied(count)

    def keep_count(self, collection: Collection, count: DocumentCount) -> None:
        """Store a count that this view has taken."""
        self.count_change(collection).reset(count)

    @property
    def makes_room(self) -> bool:
        """Whether an insert into a capped collection removes the oldest documents at once, not at the commit."""
        return True

    def insert(
        self, collection: Collection, document: bytes, retryable: RetryableWrite | None = None, *,
        keeps_empty_timestamps: bool = False,
    ) -> bytes:  # fmt: skip
        """Store a new document and its entry; return the document as stored. Raises 11000 and the errors of `_id`
        rules."""
        # The hottest path: `Catalog.current`, `reserve` and `bounded_key` are inlined.
        collection = self.catalog.by_number.get(collection.number, collection)
        before = self.clock_position
        self.clock_position = position = (self._second if self._second > before else before) + 1
        tables, prefix = self.tables, collection.number_key
        try:
            document, key, key_document = identified(document)
            if 0x11 in document and not keeps_empty_timestamps:
                document = with_timestamps(document, position)
            is_long = len(key) > limits.KEY_BYTES_MAX
            full_key = bounded_key(prefix, key) if is_long else prefix + key
            added: list[index_entries.Entry] | None = None
            if collection.maintained:
                if self.kv.get(full_key, db=tables["ids"]) is not None:
                    raise index_entries.duplicate_id(collection, key_document)
                added = index_entries.to_add(self, collection, document, None)
            record = self.next_record(collection).to_bytes(8, "big")
            if not self.kv.put_new(full_key, record, db=tables["ids"]):
                raise index_entries.duplicate_id(collection, key_document)
        except CommandError:
            self.clock_position = before
            raise
        if is_long and not collection.long_ids:
            self.catalog.set_long_ids(self.kv, collection)
        self.kv.put(prefix + record, document, db=tables["documents"])
        if added:
            index_entries.put(self, added, record)
        self.add_count(collection, 1, len(document))
        self._changes.insert(self, collection, document, key_document, position, retryable)
        if collection.capped is not None and self.makes_room:
            capped.make_room(self, collection)
        return document

    def insert_many(
        self, collection: Collection, documents: Sequence[bytes], retryable: RetryableWrite | None = None,
        *, keeps_empty_timestamps: bool = False,
    ) -> int | None:  # fmt: skip
        """Store all documents at once; return None, with nothing stored, if one of them would be refused.

        This is the fast path of bulk inserts: no unique index except `_id`, no over-long `_id`, not capped. The caller
        falls back to `insert`, one by one, to find the refused document. Raises `TooManyEntries`, with nothing stored,
        if the documents must be stored in smaller numbers.
        """
        collection = self.catalog.current(collection)
        if collection.unique_indexes or collection.capped is not None:
            return None
        prefix = collection.number_key
        try:
            ready, ids, key_documents = identified_many(documents, prefix)
        except CommandError:
            return None
        if longest(ids) > limits.KEY_BYTES_MAX + len(prefix):
            return None
        before = self.clock_position
        first = self.reserve(len(ready))
        if not keeps_empty_timestamps and any(  # the first condition is quick
            0x11 in document and _EMPTY_TIMESTAMP in document for document in ready
        ):
            ready = [with_timestamps(document, position) for position, document in enumerate(ready, first)]
        record = self.next_record(collection, len(ready))
        records = EqualRows(map(_KEY, range(record, record + len(ready))), 8)
        try:
            added = index_entries.of_many(self, collection, ready, records) if collection.maintained else []
        except CommandError:
            self.clock_position = before
            return None
        except index_entries.TooManyEntries:
            self.clock_position = before
            raise
        if not self._add_ids(ids, records):
            self.clock_position = before
            return None
        if added:
            index_entries.put_many(self, added)
        with self.kv.cursor(self.tables["documents"]) as cursor:
            cursor.put_many([prefix + record for record in records], ready, ascending=True)
        self.add_count(collection, len(ready))
        self._changes.insert_many(self, collection, ready, key_documents, first, retryable)
        return len(ready)

    def _add_ids(self, ids: list[bytes], records: list[bytes]) -> bool:
        """Put all new ids, or none if one is taken."""
        table = self.tables["ids"]
        with self.kv.cursor(table) as cursor:
            if cursor.put_many(ids, records, overwrite=False) == len(ids):
                return True
        for key, record in zip(ids, records):
            if self.kv.get(key, db=table) == record:
                self.kv.delete(key, db=table)
        return False

    def replace(
        self, collection: Collection, record: bytes, old: bytes, new: bytes, logged: bytes,
        retryable: RetryableWrite | None = None, fields: frozenset[str] | None = None, identity: bytes | None = None,
    ) -> None:  # fmt: skip
        """Replace `old` by `new`. `logged` is the entry's `o`: the new document, or a `$v: 2` diff.

        Both documents begin with the same `_id`. `fields`: all top-level fields that may differ; None: any. `identity`:
        the `key_document` of both, if it is known. Raises 11000 if a unique index refuses the document.
        """
        collection = self.catalog.by_number.get(collection.number, collection)  # `Catalog.current` inlined
        if collection.maintained:
            indexes = index_entries.affected(self, collection, len(new), fields)
            index_entries.change(self, collection, record, old, new, indexes)
        self.kv.put(collection.number_key + record, new, db=self.tables["documents"])
        if collection.capped is not None:
            self.add_count(collection, 0, len(new) - len(old))
        o2 = identity or key_document(old)
        self._changes.change(self, collection, collection.update_head, logged, o2, old, retryable)

    def delete(
        self, collection: Collection, record: bytes, old: bytes, retryable: RetryableWrite | None = None
    ) -> None:
        """Delete an existing document."""
        collection = self.catalog.current(collection)
        key, key_document = identify(old)
        if collection.maintained:
            index_entries.change(self, collection, record, old, None)
        self.kv.delete(bounded_key(collection.number_key, key), db=self.tables["ids"])
        self.kv.delete(collection.number_key + record, db=self.tables["documents"])
        self.add_count(collection, -1, -len(old), record)
        self._changes.change(self, collection, collection.delete_head, key_document, None, old, retryable)

    def replace_many(
        self, collection: Collection, changes: Sequence[tuple[bytes, bytes, bytes, bytes]], fields: frozenset[str]
    ) -> int:
        """Replace documents; each change is (record, old, new, logged) as in `replace`. Stop before the first change
        that an index refuses; return the number of replaced documents."""
        collection = self.catalog.current(collection)
        indexes: Sequence[Index] = ()
        if collection.maintained:
            indexes = index_entries.affected(self, collection, max(len(change[2]) for change in changes), fields)
        if indexes:
            for count, (record, old, new, _) in enumerate(changes):
                try:
                    index_entries.change(self, collection, record, old, new, indexes)
                except CommandError:
                    changes = changes[:count]
                    break
        prefix = collection.number_key
        with self.kv.cursor(self.tables["documents"]) as cursor:
            cursor.put_many([prefix + record for record, *_ in changes], [new for _, _, new, _ in changes])
        if collection.capped is not None:
            self.add_count(collection, 0, sum(len(new) - len(old) for _, old, new, _ in changes))
        logged = [(o, identify(old)[1], old) for _, old, _, o in changes]
        self._log_many(collection, collection.update_head, logged)
        return len(changes)

    def _log_many(
        self, collection: Collection, head: bytes, changes: Sequence[tuple[bytes, bytes | None, bytes]]
    ) -> None:
        """Record changes, each (`o`, `o2`, the document before)."""
        if self._changes is OPLOG:
            OPLOG.change_many(self, collection, head, changes)
            return
        for o, o2, old in changes:
            self._changes.change(self, collection, head, o, o2, old, None)

    def delete_many(self, collection: Collection, documents: Sequence[tuple[bytes, bytes]]) -> None:
        """Delete existing documents, each (record, document)."""
        collection = self.catalog.current(collection)
        kv, prefix, ids, table = self.kv, collection.number_key, self.tables["ids"], self.tables["documents"]
        logged: list[tuple[bytes, bytes | None, bytes]] = []
        if is_counted := self.is_counted(collection):
            self.add_count(collection, -len(documents), -sum(len(old) for _, old in documents))
        for record, old in documents:
            key, key_document = identify(old)
            if collection.maintained:
                index_entries.change(self, collection, record, old, None)
            kv.delete(bounded_key(prefix, key), db=ids)
            kv.delete(prefix + record, db=table)
            if not is_counted:
                self.add_count(collection, -1, -len(old), record)
            logged.append((key_document, None, old))
        self._log_many(collection, collection.delete_head, logged)

    def is_locked(self, collection: Collection, record: bytes) -> bool:
        """Return whether an open transaction has written the document. No other write may change it then."""
        locks = self.store.transactions.locks
        holder = locks.get((self.tables["documents"], collection.number_key + record)) if locks else None
        return holder is not None and not holder.has_ended
