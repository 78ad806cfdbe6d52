"""The logs that record document changes: the oplog, a client's transaction, or none.

OPLOG     entries staged in the write transaction and put into the tables with its commit
NO_LOG    nothing: for a store without an oplog, and for a write that is only tried
client_transaction.TransactionLog   elements of the `applyOps` that the client's commit writes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.store import entries, pre_images

if TYPE_CHECKING:
    from headrace.store.catalog import Collection
    from headrace.store.write_transaction import RetryableWrite, WriteTransaction


class ChangeLog(Protocol):
    """The calls that a write transaction makes for each change; documents are raw BSON."""

    def insert(
        self, txn: WriteTransaction, collection: Collection, document: bytes, key: bytes, position: int,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        """Record the insert of a document at a reserved position. `key` is its `{_id}`."""

    def insert_many(
        self, txn: WriteTransaction, collection: Collection, documents: list[bytes], keys: list[bytes], first: int,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        """Record the insert of several documents at the positions from `first` on."""

    def change(
        self, txn: WriteTransaction, collection: Collection, head: bytes, o: bytes, o2: bytes | None, old: bytes,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        """Record the change or deletion of a document, `old` before. `head`, `o` and `o2` are arguments of
        `entries.entry`."""

    def command(
        self, txn: WriteTransaction, database: str, uuid: bytes | None, o: dict[str, Any], o2: dict[str, Any] | None,
        also: tuple[str, ...],
    ) -> int:  # fmt: skip
        """Record a change of the catalog by a command; return the position of its entry, or 0 if it has none yet."""


class Oplog:
    """A change log that stages oplog entries."""

    def insert(
        self, txn: WriteTransaction, collection: Collection, document: bytes, key: bytes, position: int,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        if retryable is None:
            entry = entries.plain_entry(collection.insert_head, document, key, position, txn.entry_end)
        else:
            entry = _entry(txn, collection.insert_head, document, key, position, retryable)
        txn.staged.add(position, entry, collection.topics)

    def insert_many(
        self, txn: WriteTransaction, collection: Collection, documents: list[bytes], keys: list[bytes], first: int,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        last = first + len(documents) - 1
        head, retried = collection.insert_head, None
        if retryable is not None:
            head, retried = retryable.head + head, retryable.logged(last)
        raw = entries.insert_entries(head, documents, keys, first, txn.wall_ms, retried)
        txn.staged.add_many(first, raw, collection.topics)

    def change(
        self, txn: WriteTransaction, collection: Collection, head: bytes, o: bytes, o2: bytes | None, old: bytes,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        position = txn.reserve(1)
        if retryable is None:
            entry = entries.plain_entry(head, o, o2, position, txn.entry_end)
        else:
            entry = _entry(txn, head, o, o2, position, retryable)
        txn.staged.add(position, entry, collection.topics)
        if collection.images:
            pre_images.put(txn, collection, position, 0, txn.wall_ms, old)

    def change_many(
        self, txn: WriteTransaction, collection: Collection, head: bytes,
        changes: Sequence[tuple[bytes, bytes | None, bytes]],
    ) -> None:  # fmt: skip
        """Record several changes that are not retryable, each (`o`, `o2`, `old`); see `change`."""
        first, end = txn.reserve(len(changes)), txn.entry_end
        made = [entries.plain_entry(head, o, o2, at, end) for at, (o, o2, _) in enumerate(changes, first)]
        txn.staged.add_many(first, made, collection.topics)
        if collection.images:
            for position, (_, _, old) in enumerate(changes, first):
                pre_images.put(txn, collection, position, 0, txn.wall_ms, old)

    def command(
        self, txn: WriteTransaction, database: str, uuid: bytes | None, o: dict[str, Any], o2: dict[str, Any] | None,
        also: tuple[str, ...],
    ) -> int:  # fmt: skip
        position = txn.reserve(1)
        entry = entries.command_entry(database, uuid, o, o2, position, txn.wall_ms)
        txn.log(position, entry, tuple(f"{name}.$cmd" for name in dict.fromkeys((database, *also))))
        return position


class NoLog:
    """A change log that records nothing, except whether the database of users and roles has changed."""

    def _note(self, txn: WriteTransaction, collection: Collection, *change: Any) -> None:
        txn.admin_changed = txn.admin_changed or collection.database == "admin"

    insert = insert_many = change = _note

    def command(
        self, txn: WriteTransaction, database: str, uuid: bytes | None, o: dict[str, Any], o2: dict[str, Any] | None,
        also: tuple[str, ...],
    ) -> int:  # fmt: skip
        txn.admin_changed = txn.admin_changed or database == "admin" or "admin" in also
        return 0


OPLOG: Final = Oplog()
NO_LOG: Final = NoLog()


def _entry(
    txn: WriteTransaction, head: bytes, o: bytes, o2: bytes | None, position: int, retryable: RetryableWrite
) -> bytes:
    retried = retryable.logged(position)
    return entries.retried_entry(retryable.head, head, o, o2, position, txn.entry_end, retried)
