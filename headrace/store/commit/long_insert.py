"""The insert of a long document in two commits: others wait to write for one of them at most, half as long.

    put      the document under its record, unseen, with what undoes it                         → on disk
    insert   its `_id`, its index entries and its entry in the oplog, and the other row goes    → on disk: it is there

Others read the table without it, by `BeforeImages`, until the second commit is published. Where the process ends in
between, `commit_in_pieces.undo_all` removes it as the store is opened; where a commit fails, a background job does.

Rule: nobody else gets its record, which is reserved (`Store.first_free_record`), nor writes under it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import CommandError
from headrace.store.catalog import Collection
from headrace.store.commit.before_images import BeforeImages
from headrace.store.commit.commit_in_pieces import Current, undo_key, undo_row
from headrace.turns import current_turn

if TYPE_CHECKING:
    from headrace.store.indexes.prepared_change import PreparedChange
    from headrace.store.write_transaction import WriteTransaction


class LongInsert:
    """One document that is stored and not seen."""

    def __init__(self, txn: WriteTransaction, collection: Collection) -> None:
        """Give out a record, which others do not see from here on."""
        number_key, record = collection.number_key, txn.next_record(collection)
        self.record = record.to_bytes(8, "big")
        self.before_images = BeforeImages(txn.store)
        self._store = txn.store
        self._key = number_key + self.record
        self._undo_key = undo_key(self._key.ljust(16, b"\x00"), 0)
        end = number_key + (record + 1).to_bytes(8, "big")
        self.before_images.hidden[number_key] = self._key, end
        self._store.before_images.append(self.before_images)

    def put(self, current: Current, document: bytes, made: PreparedChange | None) -> None:
        """Put the document, and pause; then make what it brings to indexes ready. The caller's turn is the last of its
        group, so that none reads what it puts. Raises 50."""
        turn = current_turn()
        assert turn is not None
        turn.interruptible = False
        try:
            kv, tables = self._store.kv_of_pieces, self._store.tables
            kv.put(self._undo_key, undo_row([("documents", self._key, None)]), db=tables["meta"])
            kv.put(self._key, document, db=tables["documents"])
            turn.pause()
            if made is not None:
                made.set_record(self.record)
        except CommandError:  # its time is up, which is seen before a pause
            self.undo(current())
            raise
        except BaseException:
            self.fail()
            raise
        finally:
            turn.interruptible = True

    def fits(self, collection: Collection) -> bool:
        """Whether it is stored in this collection, which may have been made anew meanwhile."""
        return self._key.startswith(collection.number_key)

    def end(self, txn: WriteTransaction, collection: Collection) -> None:
        """Its insert is part of `txn`: it is seen once that is published."""
        txn.count_change(collection).begins_anew = True
        self._store.kv_of_pieces.delete(self._undo_key, db=txn.tables["meta"])
        txn.ended.append(self)

    def undo(self, txn: WriteTransaction) -> None:
        """Remove the document: it is not inserted."""
        self._store.kv_of_pieces.delete(self._key, db=txn.tables["documents"])
        self._store.kv_of_pieces.delete(self._undo_key, db=txn.tables["meta"])
        txn.ended.append(self)

    def fail(self) -> None:
        """A commit has failed: what is stored is to be removed."""
        if self not in self._store.transactions.undoing:
            self._store.transactions.undoing.append(self)

    def show(self) -> None:
        """What was to be done is on disk: everybody sees what the tables hold."""
        self._store.before_images.remove(self.before_images)
        if self in self._store.transactions.undoing:
            self._store.transactions.undoing.remove(self)
