"""What a change of a long document does to the entries of indexes, made before the change, while others may write.

    made = prepared(store, collection, old, new)      with ticks: the command may pause, and lose its transaction
    made.set_record(record)                           likewise: the rows of the table, once the record is known
    txn.replace(..., made=made)                       takes it if old, new and the indexes are still those

Rule: nothing is read from the store for it, so that it holds whatever others do meanwhile. Whether a unique key is
another's is looked up when the change is made (`check`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace import limits
from headrace.store.catalog import Collection, Index
from headrace.store.checksums.transaction import with_checksums
from headrace.store.indexes import index_entries
from headrace.store.indexes.index_keys import NO_TRAITS, Traits
from headrace.turns import current_turn, freed_in_pieces, in_pieces, sorted_in_pieces, ticking_if_many

if TYPE_CHECKING:
    from headrace.store.store import Store
    from headrace.store.write_transaction import WriteTransaction


@dataclass(slots=True)
class _IndexChange:
    """The keys of one index that come and go, without the record, sorted."""

    index: Index
    added: list[bytes]
    removed: list[bytes]
    traits: Traits
    """Of the new document."""
    added_rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    removed_keys: list[bytes] = field(default_factory=list)
    """Both as they are in the table, with the record and checksums."""


@dataclass(slots=True)
class PreparedChange:
    """The change of a document from `old` to `new`; None: there is none before, or after."""

    old: bytes | None
    new: bytes | None
    changes: list[_IndexChange]
    record: bytes | None = None
    """Of whose entries there are rows; None: there are none."""

    @property
    def count(self) -> int:
        """How many entries come and go."""
        return sum(len(change.added) + len(change.removed) for change in self.changes)

    def set_record(self, record: bytes) -> None:
        """Make the rows of this record, which then need only be put, unless they are very many. Ticks."""
        if self.count > limits.INDEX_KEY_COUNT_MAX:
            return
        for change in self.changes:
            unique, rows, gone = change.index.unique, change.added_rows, change.removed_keys
            for keys in in_pieces(change.added, limits.COMMIT_PIECE_COUNT):
                rows += with_checksums(index_entries.rows(keys, record, unique=unique))
            for keys in in_pieces(change.removed):
                gone += keys if unique else [key + record for key in keys]
            freed_in_pieces(rows, 3 * len(rows))
            freed_in_pieces(gone)
        self.record = record

    def fits(self, collection: Collection, old: bytes | None, new: bytes | None) -> bool:
        """Whether it is this change, in the indexes that the collection has now."""
        indexes = collection.maintained
        return (
            self.old is old
            and self.new is new
            and [change.index.number for change in self.changes] == [index.number for index in indexes]
            and not any(index.building for index in indexes)
        )

    def check(self, txn: WriteTransaction, collection: Collection, record: bytes | None) -> None:
        """Raises 11000 where a unique key is another record's. Notes the traits of the new document."""
        self.note_traits(txn, collection)
        for index, change in zip(collection.maintained, self.changes):
            if self.new is not None and index.refuses_duplicates:
                for key in ticking_if_many(change.added):
                    index_entries.refuse_duplicate(txn, collection, index, self.new, key, record)

    def note_traits(self, txn: WriteTransaction, collection: Collection) -> None:
        """Note what the new document brings to indexes."""
        for index, change in zip(collection.maintained, self.changes):
            if not change.traits <= index.traits:
                index_entries.note_traits(txn, collection, index, change.traits)

    def make(self, txn: WriteTransaction, record: bytes) -> None:
        """Change the entries of the record. Ticks."""
        table, delete, is_made = txn.tables["indexes"], txn.kv.delete, self.record == record
        for change in self.changes:
            unique = change.index.unique
            for keys in in_pieces(change.removed_keys if is_made else change.removed, limits.COMMIT_PIECE_COUNT):
                for key in keys:
                    delete(key if unique or is_made else key + record, db=table)
            with txn.kv.cursor(table) as cursor:
                for rows in in_pieces(change.added_rows if is_made else change.added, limits.COMMIT_PIECE_COUNT):
                    if is_made:
                        cursor.putmulti(rows, checked=True)
                    else:
                        cursor.putmulti(index_entries.rows(rows, record, unique=unique))


def prepared(
    store: Store, collection: Collection, old: bytes | None, new: bytes | None, record: bytes | None = None
) -> PreparedChange | None:
    """The change of a long document in a turn; None for others. Raises 171, 201, 16746, 16766, 7246301.

    `record`: the document's, where it has one.
    """
    longest = max(len(old or b""), len(new or b""))
    if longest <= limits.PREPARED_BYTES or not collection.maintained or current_turn() is None:
        return None
    if any(index.building for index in collection.maintained):
        return None
    changes: list[_IndexChange] = []
    left = store.index_key_count_max
    for index in collection.maintained:
        change, count = _change(index, old, new, left)
        left -= count
        changes.append(change)
    made = PreparedChange(old, new, changes)
    if record is not None:
        made.set_record(record)
    return made


def _change(index: Index, old: bytes | None, new: bytes | None, count_max: int) -> tuple[_IndexChange, int]:
    """The change, and how many keys the new document has in the index: `count_max` at most."""
    maker = index_entries.key_maker(index)
    after, traits = maker.keys(new, count_max) if new is not None else ([], NO_TRAITS)
    before = index_entries.keys_before(index, old) if old is not None else []
    change = _IndexChange(index, _sorted_without(after, before), _sorted_without(before, after), traits)
    return change, len(after)


def _sorted_without(keys: list[bytes], others: list[bytes]) -> list[bytes]:
    left = keys
    if others:
        excluded: dict[bytes, None] = {}
        for piece in in_pieces(others):
            excluded.update(dict.fromkeys(piece))
        left = []
        for piece in in_pieces(keys):
            left += [key for key in piece if key not in excluded]
        freed_in_pieces(excluded)
    freed_in_pieces(keys)
    return freed_in_pieces(sorted_in_pieces(left, _itself))


def _itself(key: bytes) -> bytes:
    return key
