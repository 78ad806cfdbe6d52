"""The change of very many index entries of one document in turns, unseen, before the document is changed.

    claim    its record, its `_id` and the unique keys that come: whoever writes these waits
    put      entries come and go piece by piece, each with what undoes it            → on disk
    end      part of the commit that changes the document: all see both once that is published

Others read the entries as they were before, by `BeforeImages`, until then. Where the process ends in between, or a
commit fails, the pieces are undone as those of a transaction (`commit_in_pieces.py`).

Rule: one document at a time, as the images of its entries take memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace import limits
from headrace.store.catalog import Collection
from headrace.store.commit.before_images import BeforeImages
from headrace.store.commit.commit_in_pieces import Current, first_undo, undo, undo_key, undo_row
from headrace.store.identity import identify
from headrace.store.indexes import index_entries
from headrace.store.kv import TableKey
from headrace.store.view import bounded_key
from headrace.turns import current_turn, freed_in_pieces, in_pieces, tick

if TYPE_CHECKING:
    from headrace.store.indexes.prepared_change import PreparedChange
    from headrace.store.locks import LockHolder
    from headrace.store.write_transaction import WriteTransaction

_ONE: Final = b"entries"
"""A key that each of them claims."""


class EntriesInPieces:
    """The entries of one document that come and go. Holds locks, as a client's transaction does."""

    committing: WriteTransaction | None = None
    number: int = 0

    def __init__(self, txn: WriteTransaction, collection: Collection, record: bytes, made: PreparedChange) -> None:
        """`record`: that of the document, which may be one to come."""
        self.has_ended = False
        self.claims: list[TableKey] = []
        self._store = store = txn.store
        self._made = made
        self._record = record
        self._number_key = collection.number_key
        self._session = (_ONE[:4] + collection.number_key + record).ljust(16, b"\0")
        self._images = BeforeImages(store)
        self._piece_count = 0
        self.key = f"\x00entries {self._session.hex()}"
        """The wake-up key of those who wait for its end."""

    def over(self) -> bool:
        """As `has_ended`, for those who wait."""
        return self.has_ended

    def claim(self) -> LockHolder | None:
        """Lock what nobody else may write meanwhile: the document itself before anything can pause. Answers who holds
        some of it already; then nothing is locked."""
        transactions = self._store.transactions
        for count, key in enumerate(self._locked_keys()):
            holder = transactions.locks.get(key)
            if holder is not None and not holder.has_ended and holder is not self:
                self._release()
                return holder
            transactions.locks[key] = self
            self.claims.append(key)
            if count > limits.COMMIT_PIECE_COUNT and not count % limits.COMMIT_PIECE_COUNT:
                tick()
        return None

    def _locked_keys(self) -> Iterator[TableKey]:
        tables, document = self._store.tables, self._made.old or self._made.new
        assert document is not None
        yield tables["meta"], _ONE
        yield tables["documents"], self._number_key + self._record
        yield tables["ids"], bounded_key(self._number_key, identify(document)[0])
        for change in self._made.changes:
            if change.index.refuses_duplicates:
                for key in change.added:
                    yield tables["indexes"], key

    def put(self, current: Current, collection: Collection) -> None:
        """Put and delete the entries. The caller's turn is the last of its group, so that none reads them. Raises 11000
        before the first, and 50."""
        turn = current_turn()
        assert turn is not None
        turn.interruptible = False
        try:
            self._refuse_duplicates(current, collection)
            self._note_before()
            turn.pause()
            self._store.before_images.append(self._images)
            for change in self._made.changes:
                for keys in in_pieces(change.removed, limits.COMMIT_PIECE_COUNT):
                    self._delete(current(), keys, unique=change.index.unique)
                    tick()
                for keys in in_pieces(change.added, limits.COMMIT_PIECE_COUNT):
                    self._put(current(), keys, unique=change.index.unique)
                    tick()
        except BaseException:
            self.fail()
            raise
        finally:
            turn.interruptible = True

    def _refuse_duplicates(self, current: Current, collection: Collection) -> None:
        if self._made.new is None:
            return
        for change in self._made.changes:
            if change.index.refuses_duplicates:
                for keys in in_pieces(change.added, limits.COMMIT_PIECE_COUNT):
                    txn = current()
                    for key in keys:
                        index_entries.refuse_duplicate(txn, collection, change.index, self._made.new, key, self._record)

    def _note_before(self) -> None:
        table, images = self._store.tables["indexes"], self._images
        for change in self._made.changes:
            unique, ordered = change.index.unique, list[bytes]()
            for keys in in_pieces(change.removed):
                gone = [self._stored(key, unique=unique) for key in keys]
                images.values.update(dict.fromkeys([(table, key) for key in gone], self._record if unique else b""))
                ordered += gone
            for keys in in_pieces(change.added):
                come = [self._stored(key, unique=unique) for key in keys]
                images.values.update(dict.fromkeys([(table, key) for key in come]))
                ordered += come
            tick()
            ordered.sort()  # two lists in order
            images.changed.set_sorted(table, change.index.number.to_bytes(4, "big"), ordered)
        freed_in_pieces(images.values)

    def _stored(self, key: bytes, *, unique: bool) -> bytes:
        return key if unique else key + self._record

    def _delete(self, txn: WriteTransaction, keys: list[bytes], *, unique: bool) -> None:
        before, stored = self._record if unique else b"", [self._stored(key, unique=unique) for key in keys]
        self._put_undo(txn, [("indexes", key, before) for key in stored])
        for key in stored:
            self._store.kv_of_pieces.delete(key, db=txn.tables["indexes"])

    def _put(self, txn: WriteTransaction, keys: list[bytes], *, unique: bool) -> None:
        rows = index_entries.rows(keys, self._record, unique=unique)
        self._put_undo(txn, [("indexes", key, None) for key, _ in rows])
        with self._store.kv_of_pieces.cursor(txn.tables["indexes"]) as cursor:
            cursor.putmulti(rows)

    def _put_undo(self, txn: WriteTransaction, changes: list[tuple[str, bytes, bytes | None]]) -> None:
        key = undo_key(self._session, self._piece_count)
        self._store.kv_of_pieces.put(key, undo_row(changes), db=txn.tables["meta"])
        self._piece_count += 1

    def fits(self, collection: Collection, old: bytes | None, new: bytes | None) -> bool:
        """Whether these are the entries of this change, in the indexes that the collection has now."""
        return collection.number_key == self._number_key and self._made.fits(collection, old, new)

    def end(self, txn: WriteTransaction, collection: Collection) -> None:
        """The document is changed by `txn`: the entries count once that is published."""
        self._made.note_traits(txn, collection)
        for piece in range(self._piece_count):
            self._store.kv_of_pieces.delete(undo_key(self._session, piece), db=txn.tables["meta"])
        if self._store.transactions.open:
            self._store.transactions.written.open.update(self._images.values)
        txn.ended.append(self)

    def undo(self, txn: WriteTransaction) -> None:
        """Undo one piece; behind the last one it is over, once `txn` is published."""
        row = first_undo(txn.kv, txn.tables, self._session)
        if row is None:
            txn.ended.append(self)
        else:
            undo(self._store.kv_of_pieces, txn.tables, *row)

    def fail(self) -> None:
        """What was put is to be undone."""
        if not self._piece_count:
            self.show()
        elif self not in self._store.transactions.undoing:
            self._store.transactions.undoing.append(self)

    def show(self) -> None:
        """Everybody sees what the tables hold, and may write."""
        if self._images in self._store.before_images:
            self._store.before_images.remove(self._images)
        if self in self._store.transactions.undoing:
            self._store.transactions.undoing.remove(self)
        self._release()

    def _release(self) -> None:
        self.has_ended = True
        claims, self.claims = self.claims, []
        self._store.transactions.release(self, claims, self.key)
