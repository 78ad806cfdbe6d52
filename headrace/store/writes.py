"""A write transaction: every change of a document together with its oplog entry, in one KV transaction.

Rule: no document changes without its entry. `insert`, `replace` and `delete` write both; the bare puts are
private. Nothing is visible to others, in the tables or in memory, before `Store.commit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.errors import CommandError
from headrace.store import entries, images, unique
from headrace.store.catalog import Collection
from headrace.store.identity import identify, with_id_first, with_timestamps
from headrace.store.lmdb import Transaction
from headrace.store.view import View, bounded_key

if TYPE_CHECKING:
    from headrace.store.store import Store
    from headrace.store.transaction import ClientTransaction


class RetryableWrite:
    """The session part of a retryable write's entries: which of its command's statements is being done.

    Whoever runs the statements sets `statement` before each; a document of an insert is a statement of its own.
    """

    __slots__ = ("_previous", "head", "statement")

    def __init__(self, lsid: bytes, txn_number: int) -> None:
        self.head = entries.session_head(lsid, txn_number)
        self.statement = 0
        self._previous = 0

    def logged(self, last: int) -> tuple[int, int]:
        """What the next entry tells, as `entries.entry` takes it; `last` is its position, or the last one's of many."""
        told = self.statement, self._previous
        self._previous = last
        return told


class Staged:
    """Entries of one command or more that wait for the commit, and the runs they form."""

    __slots__ = ("entries", "runs")

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, bytes]] = []  # (position key, entry), ascending
        self.runs: list[tuple[tuple[str, ...], int, int]] = []  # (topics, first, last), ascending

    def add_run(self, topics: tuple[str, ...], first: int, last: int) -> None:
        if self.runs:
            before_topics, before_first, before_last = self.runs[-1]
            if before_topics == topics and before_last == first - 1:
                self.runs[-1] = (topics, before_first, last)
                return
        self.runs.append((topics, first, last))


class WriteTransaction(View):
    """The one write transaction. Commands of several clients share it; the shell commits them together."""

    __slots__ = ("clock_position", "commits", "staged", "wall_ms")

    def __init__(self, store: Store, kv: Transaction) -> None:
        super().__init__(store, kv)
        self.staged = Staged()
        self.clock_position = store.last_position
        self.wall_ms = store.clock.now_ms()
        self.commits: list[ClientTransaction] = []  # clients' transactions that this one commits

    # Positions and entries.

    def reserve(self, count: int) -> int:
        """The first of `count` consecutive new positions: seconds of the wall clock, then a counter.

        Who reserves and then logs nothing gives them back: a position that was told to a client (operationTime, a
        high-water mark) but is not in the oplog could be handed out again after a restart, and be missed.
        """
        now = (self.wall_ms // 1000) << 32
        first = max(now, self.clock_position) + 1
        self.clock_position = first + count - 1
        return first

    def log(self, position: int, entry: bytes, topics: tuple[str, ...]) -> None:
        """Stage an entry at a reserved position; `topics` are the namespaces under which it is found."""
        if self.store.oplog_enabled:
            self.staged.entries.append((position.to_bytes(8, "big"), entry))
            self.staged.add_run(topics, position, position)

    def log_command(
        self, database: str, uuid: bytes | None, o: dict[str, Any], o2: dict[str, Any] | None = None,
        *, also: tuple[str, ...] = (),
    ) -> int:  # fmt: skip
        """Stage a `c` entry under `<database>.$cmd` and the databases `also`; returns its position."""
        position = self.reserve(1)
        entry = entries.command_entry(database, uuid, o, o2, position, self.wall_ms)
        self.log(position, entry, tuple(f"{name}.$cmd" for name in dict.fromkeys((database, *also))))
        return position

    # Documents.

    def next_record(self, collection: Collection, count: int = 1) -> int:
        if collection.next_record is None:
            last = next(self.scan(collection, backward=True), None)
            collection.next_record = int.from_bytes(last[0], "big") + 1 if last else 1
        first = collection.next_record
        collection.next_record = first + count
        return first

    def insert(self, collection: Collection, document: bytes, retryable: RetryableWrite | None = None) -> bytes:
        """Store one new document and its entry; returns it as stored. Raises 11000 and what `_id` rules raise."""
        before = self.clock_position
        position = self.reserve(1)
        try:
            document = with_timestamps(with_id_first(document), position)
            key, key_document = identify(document)
            full_key = bounded_key(collection.number_key, key)
            if self.kv.get(full_key, db=self.tables["ids"]) is not None:
                raise unique.duplicate_id(collection, key_document)
            index_keys = unique.keys_to_add(self, collection, document, None) if collection.unique_indexes else ()
        except CommandError:
            self.clock_position = before
            raise
        if len(key) > limits.KEY_BYTES_MAX and not collection.long_ids:
            collection.long_ids = True
            self.catalog.save(self.kv, collection)
        record = self.next_record(collection).to_bytes(8, "big")
        self.kv.put(full_key, record, db=self.tables["ids"])
        self.kv.put(collection.number_key + record, document, db=self.tables["documents"])
        for index_key in index_keys:
            self.kv.put(index_key, record, db=self.tables["indexes"])
        self.counted(collection, 1)
        if self.store.oplog_enabled:
            self._log_insert(collection, document, key_document, position, retryable)
        return document

    def _log_insert(
        self, collection: Collection, document: bytes, key: bytes, position: int, retryable: RetryableWrite | None
    ) -> None:  # fmt: skip
        head, retried = _head(collection.insert_head, retryable, position)
        entry = entries.entry(head, document, key, entries.tail(position, self.wall_ms), retried)
        self.log(position, entry, (collection.namespace,))

    def insert_many(
        self, collection: Collection, documents: Sequence[bytes], retryable: RetryableWrite | None = None
    ) -> int | None:
        """Store all documents at once, or none and answer None where one of them would be refused.

        The fast path of bulk inserts: no unique index but `_id`, and no over-long one. The caller falls back to
        `insert`, one by one, to find which document was refused and why.
        """
        if collection.unique_indexes:
            return None
        try:
            ready = [with_id_first(document) for document in documents]
        except CommandError:
            return None
        before = self.clock_position
        first = self.reserve(len(ready))
        if any(_has_empty_timestamp(document) for document in ready):
            ready = [with_timestamps(document, position) for position, document in enumerate(ready, first)]
        identities = [identify(document) for document in ready]
        if any(len(key) > limits.KEY_BYTES_MAX for key, _ in identities):
            self.clock_position = before
            return None
        prefix = collection.number_key
        record = self.next_record(collection, len(ready))
        records = [number.to_bytes(8, "big") for number in range(record, record + len(ready))]
        id_items = [(prefix + key, number) for (key, _), number in zip(identities, records)]
        if not self._add_ids(id_items):
            self.clock_position = before
            return None
        with self.kv.cursor(self.tables["documents"]) as cursor:
            cursor.putmulti([(prefix + number, document) for number, document in zip(records, ready)])
        self.counted(collection, len(ready))
        if self.store.oplog_enabled:
            self._log_inserts(collection, ready, [key for _, key in identities], first, retryable)
        return len(ready)

    def _add_ids(self, items: list[tuple[bytes, bytes]]) -> bool:
        """Put all new ids, or none of them if one is taken."""
        with self.kv.cursor(self.tables["ids"]) as cursor:
            _, added = cursor.putmulti(items, overwrite=False)
        if added == len(items):
            return True
        for key, record in items:
            if self.kv.get(key, db=self.tables["ids"]) == record:
                self.kv.delete(key, db=self.tables["ids"])
        return False

    def _log_inserts(
        self, collection: Collection, documents: list[bytes], keys: list[bytes], first: int,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        last = first + len(documents) - 1
        head, retried = _head(collection.insert_head, retryable, last)
        made = entries.insert_entries(head, documents, keys, first, self.wall_ms, retried)
        self.staged.entries += [(position.to_bytes(8, "big"), entry) for position, entry in enumerate(made, first)]
        self.staged.add_run((collection.namespace,), first, last)

    def replace(
        self, collection: Collection, record: bytes, old: bytes, new: bytes, logged: bytes,
        retryable: RetryableWrite | None = None,
    ) -> None:  # fmt: skip
        """Put `new` in the place of `old`; `logged` is the entry's `o`: the whole document, or a `$v: 2` diff.

        Both documents begin with the same `_id`. Raises 11000 where a unique index is in the way.
        """
        if collection.unique_indexes:
            unique.change(self, collection, record, old, new)
        self.kv.put(collection.number_key + record, new, db=self.tables["documents"])
        if self.store.oplog_enabled:
            self._log_change(collection, collection.update_head, logged, identify(old)[1], old, retryable)

    def delete(
        self, collection: Collection, record: bytes, old: bytes, retryable: RetryableWrite | None = None
    ) -> None:
        """Remove a document that is there."""
        key, key_document = identify(old)
        if collection.unique_indexes:
            unique.change(self, collection, record, old, None)
        self.kv.delete(bounded_key(collection.number_key, key), db=self.tables["ids"])
        self.kv.delete(collection.number_key + record, db=self.tables["documents"])
        self.counted(collection, -1)
        if self.store.oplog_enabled:
            self._log_change(collection, collection.delete_head, key_document, None, old, retryable)

    def _log_change(
        self, collection: Collection, head: bytes, o: bytes, o2: bytes | None, old: bytes,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        position = self.reserve(1)
        head, retried = _head(head, retryable, position)
        entry = entries.entry(head, o, o2, entries.tail(position, self.wall_ms), retried)
        self.log(position, entry, (collection.namespace,))
        if collection.images:
            images.put(self, collection, position, 0, self.wall_ms, old)

    def is_locked(self, collection: Collection, record: bytes) -> bool:
        """Whether an open transaction has written the document, so that nobody else may."""
        locks = self.store.transactions.locks
        return bool(locks) and (self.tables["documents"], collection.number_key + record) in locks

    def forget(self, collection: Collection) -> None:
        """One document went that no entry tells of (a capped collection's)."""
        self.counted(collection, -1)

    def counted(self, collection: Collection, change: int) -> None:
        """Keep the number of documents in memory, once it is known."""
        if collection.document_count is not None:
            collection.document_count += change


def _head(head: bytes, retryable: RetryableWrite | None, last: int) -> tuple[bytes, tuple[int, int] | None]:
    """An entry's head, and what else it tells if it is a retryable write's; `last` as in `RetryableWrite.logged`."""
    return (head, None) if retryable is None else (retryable.head + head, retryable.logged(last))


def _has_empty_timestamp(document: bytes) -> bool:
    return 0x11 in document and bytes(8) in document  # the first is looked for ten times as fast, and seldom found
