"""The commit of a large transaction of a client, in turns: its writes go into the tables piece by piece, unseen.

    prepared ── pieces ──▶ the last one: catalog, oplog entry, session ──▶ on disk: COMMITTED
                  └──────── a group of writes fails ──▶ undone piece by piece ──▶ ABORTED

    meta   "undo" + session (16) + number of a piece (4)   → {d: [table, key, value before it or null, ...]}   (BSON);
           for a session the key of a document (`long_insert.py`)

Each piece is committed together with what undoes it, and the last one removes that. Others read the tables as they were
before, by `BeforeImages`, until the last piece is published; a restart in between undoes the pieces before anything
else. The entries of the oplog's chain but the last are part of the pieces. They are in no index; those of a commit that
was undone stay, and nothing leads to them.

Rule: as for any commit, nothing can refuse it; nor can anything interrupt it, but the end of the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from headrace import limits
from headrace.store import entries, pre_images
from headrace.store.catalog import Collection
from headrace.store.client_transaction import AppliedOperation, ClientTransaction
from headrace.store.commit.before_images import BeforeImages
from headrace.store.kv import Environment, Table, Transaction
from headrace.store.transaction_registry import RECORD_START
from headrace.store.write_transaction import WriteTransaction
from headrace.turns import current_turn, freed_in_pieces, sorted_in_pieces, tick, ticking_all
from headrace.values.bson import decode, encode

if TYPE_CHECKING:
    from headrace.store.store import Store

PROVISIONAL: Final = RECORD_START.to_bytes(8, "big")
_UNDO: Final = b"undo"

Current = Callable[[], WriteTransaction]
"""The write transaction of the moment: another one after each pause."""
Change = tuple[Table, bytes, bytes | None]
"""A table, a key, and its new value; None: none."""


def is_large(transaction: ClientTransaction) -> bool:
    """Whether its commit would hold up others if it were one piece."""
    return len(transaction.operations) > limits.COMMIT_PIECE_COUNT or transaction.bytes > limits.COMMIT_PIECE_BYTES


def commit(current: Current, transaction: ClientTransaction, lsid: bytes) -> CommitInPieces:
    """Write all but the last piece. The caller ends with that, in the turn in which this returns."""
    turn = current_turn()
    assert turn is not None
    turn.interruptible = False
    pieces = transaction.pieces = CommitInPieces(current().store, transaction)
    try:
        pieces.prepare(current)
        turn.pause()  # from here on the write is the last of its group, so that none reads the pieces
        current().store.before_images.append(pieces.before_images)
        pieces.write(current)
        pieces.log(current, entries.session_head(lsid, transaction.number))
    except BaseException:
        pieces.fail()
        raise
    return pieces


class CommitInPieces:
    """How far the commit of one transaction has come."""

    def __init__(self, store: Store, transaction: ClientTransaction) -> None:
        self.transaction = transaction
        self.before_images = BeforeImages(store)
        self.failed = False
        """It is being undone."""
        self.numbers: dict[bytes, bytes] = {}
        """The real number of each collection and index that the transaction makes, by the provisional one."""
        self.counts: dict[bytes, int] = {}
        """How many documents more a collection has, by the provisional key of its number."""
        self.topics: dict[str, None] = {}
        """The namespaces of its operations."""
        self.last_chunk: list[AppliedOperation] = []
        self.previous = 0
        """The position of the entry before the last of the chain, 0: none."""
        self._store = store
        self._first_records: dict[bytes, int] = {}
        self._changes: list[Change] = []
        self._piece_count = 0
        transaction.account.may_close = False  # it cannot be refused any more

    # Before the first piece.

    def prepare(self, current: Current) -> None:
        """Give out numbers and records, and find what each key holds now."""
        self._number_collections(current)
        inserted = self._count_inserted(current)
        self._reserve(current, inserted)
        self._list_changes(current)
        self._sort_before_images()

    def _number_collections(self, current: Current) -> None:
        for made in self.transaction.created.values():
            for provisional in (made.number, *(index.number for index in made.indexes)):
                tick()
                txn = current()
                self.numbers[_key(provisional)] = _key(txn.catalog.new_number(txn.kv))

    def _count_inserted(self, current: Current) -> dict[bytes, int]:
        documents = current().tables["documents"]
        inserted: dict[bytes, int] = {}
        for (db, key), value in ticking_all(self.transaction.overlay.values.items()):
            if db is not documents:
                continue
            prefix, is_new = key[:4], key[4:] >= PROVISIONAL
            if is_new and value is not None:
                inserted[prefix] = inserted.get(prefix, 0) + 1
            change = int(is_new) if value is not None else int(is_new) - 1
            if value is not None or not is_new:
                self.counts[prefix] = self.counts.get(prefix, 0) + change
        return inserted

    def _reserve(self, current: Current, inserted: dict[bytes, int]) -> None:
        """Consecutive records of each collection; those of documents that are there already are hidden."""
        txn = current()
        names = {key: name for name, key in self.transaction.touched.items()}
        for prefix, count in inserted.items():
            number = self.numbers.get(prefix)
            first = 1
            if number is None:
                number = prefix
                first = txn.next_record(txn.catalog.collections[names[prefix]], count)
                self._store.transactions.reserved[prefix] = first + count
            self._first_records[prefix] = first
            self.before_images.hidden[number] = (
                number + first.to_bytes(8, "big"),
                number + (first + count).to_bytes(8, "big"),
            )

    def _list_changes(self, current: Current) -> None:
        """In the order of the statements, which is that of the records."""
        documents = current().tables["documents"]
        next_records, records = dict(self._first_records), {}
        for (db, key), value in ticking_all(self.transaction.overlay.values.items()):
            if db is documents and key[4:] >= PROVISIONAL and value is not None:
                number = next_records[key[:4]]
                next_records[key[:4]] = number + 1
                records[key[4:]] = number.to_bytes(8, "big")
        for (db, key), value in ticking_all(self.transaction.overlay.values.items()):
            prefix, rest = self.numbers.get(key[:4], key[:4]), key[4:]
            if db is documents:
                if rest >= PROVISIONAL:
                    if value is not None:
                        self._changes.append((db, prefix + records[rest], value))
                    continue
            elif value is not None:
                if not value and rest[-8:] in records:  # an entry of an index, which ends with the record
                    rest = rest[:-8] + records[rest[-8:]]
                value = records.get(value, value)
            key = prefix + rest
            before = current().kv.get(key, db=db)
            if before is not None or value is not None:
                self._changes.append((db, key, value))
                self.before_images.values[db, key] = before
        freed_in_pieces(self._changes)

    def _sort_before_images(self) -> None:
        by_prefix: dict[tuple[Table, bytes], list[bytes]] = {}
        for db, key in ticking_all(self.before_images.values):
            by_prefix.setdefault((db, key[:4]), []).append(key)
        for (db, prefix), keys in by_prefix.items():
            self.before_images.changed.set_sorted(db, prefix, sorted_in_pieces(keys, _itself))

    # Piece by piece.

    def write(self, current: Current) -> None:
        """Put the changes into the tables."""
        piece: list[Change] = []
        size = 0
        for change in self._changes:
            piece.append(change)
            size += len(change[2] or b"")
            if size > limits.COMMIT_PIECE_BYTES or len(piece) >= limits.COMMIT_PIECE_COUNT:
                self._put(current(), piece)
                piece, size = [], 0
                tick()
        self._put(current(), piece)

    def _put(self, txn: WriteTransaction, piece: list[Change]) -> None:
        kv, values = self._store.kv_of_pieces, self.before_images.values
        names = {table: name for name, table in txn.tables.items()}
        undo: list[tuple[str, bytes, bytes | None]] = []
        by_table: dict[Table, list[tuple[bytes, bytes]]] = {}
        for db, key, value in piece:
            undo.append((names[db], key, values.get((db, key))))
            if value is None:
                kv.delete(key, db=db)
            else:
                by_table.setdefault(db, []).append((key, value))
        kv.put(undo_key(self.transaction.session, self._piece_count), undo_row(undo), db=txn.tables["meta"])
        for db, items in by_table.items():
            with kv.cursor(db) as cursor:
                cursor.putmulti(sorted(items))
        self._piece_count += 1

    def log(self, current: Current, head: bytes) -> None:
        """Write all entries of the chain but the last, whose operations stay in `last_chunk`."""
        chunk, size = self.last_chunk, 0
        for operation in self.transaction.operations:
            length = len(operation.item) + entries.ARRAY_ELEMENT_BYTES_MAX
            if chunk and (size + length > limits.COMMIT_PIECE_BYTES or len(chunk) >= limits.COMMIT_PIECE_COUNT):
                self._log(current(), head, chunk)
                chunk.clear()
                size = 0
                tick()
            chunk.append(operation)
            size += length
            self.topics[operation.topic] = None
        freed_in_pieces(self.transaction.operations)
        freed_in_pieces(self.transaction.claims)
        freed_in_pieces(self.transaction.overlay.values)
        freed_in_pieces(self.before_images.values)

    def _log(self, txn: WriteTransaction, head: bytes, chunk: list[AppliedOperation]) -> None:
        position = txn.reserve(1)
        entry = entries.transaction_entry(
            head, [operation.item for operation in chunk], position, txn.wall_ms, previous=self.previous, partial=True,
            count=None,
        )  # fmt: skip
        txn.log(position, entry, ())
        put_images(txn, chunk, position)
        self.previous = position

    # The end.

    def end(self, txn: WriteTransaction, collections: dict[bytes, Collection]) -> None:
        """The last piece: what the tables hold counts once `txn` is on disk. `collections`: by provisional number."""
        for prefix, change in self.counts.items():
            collection = collections[prefix]
            txn.count_change(collection).begins_anew = True
            txn.add_count(collection, change)
        for prefix, first in self._first_records.items():
            if prefix in self.numbers:
                self._store.next_records[collections[prefix].number] = first + max(0, self.counts.get(prefix, 0))
        for piece in range(self._piece_count):
            self._store.kv_of_pieces.delete(undo_key(self.transaction.session, piece), db=txn.tables["meta"])
        if len(self._store.transactions.open) > 1:
            self._store.transactions.written.open.update(self.before_images.values)

    # Giving up.

    def fail(self) -> None:
        """What was written is to be undone; where that is nothing, the transaction is open as before."""
        if self.failed:
            return
        if self._piece_count:
            self.failed = True
            self._store.transactions.undoing.append(self)
            return
        self.show()
        self.transaction.pieces = None
        self.transaction.account.may_close = True

    def show(self) -> None:
        """Everybody sees what the tables hold."""
        if self.before_images in self._store.before_images:
            self._store.before_images.remove(self.before_images)
        for prefix in self._first_records:
            self._store.transactions.reserved.pop(prefix, None)

    def undo(self, txn: WriteTransaction) -> None:
        """Undo one piece; behind the last one the transaction has ended, once `txn` is published."""
        row = first_undo(txn.kv, txn.tables, self.transaction.session)
        if row is not None:
            undo(self._store.kv_of_pieces, txn.tables, *row)
            return
        self.transaction.committing = txn
        txn.commits.append(self.transaction)


def undo_key(session: bytes, piece: int) -> bytes:
    """The key of what undoes a piece. `session`: 16 bytes that nothing else which is made in pieces has."""
    return _UNDO + session + piece.to_bytes(4, "big")


def undo_row(changes: Iterable[tuple[str, bytes, bytes | None]]) -> bytes:
    """What undoes changes of (the table's name, the key, the value before it)."""
    return encode({"d": [item for change in changes for item in change]})


def put_images(txn: WriteTransaction, chunk: list[AppliedOperation], position: int) -> None:
    """Store the pre-images of the operations of one entry."""
    for index, operation in enumerate(chunk):
        if operation.image is not None:
            pre_images.put(txn, operation.image[0], position, index, txn.wall_ms, operation.image[1])


def first_undo(kv: Transaction, tables: dict[str, Table], session: bytes = b"") -> tuple[bytes, bytes] | None:
    """(key, row) of the first piece that can be undone, of a session or of all."""
    with kv.cursor(tables["meta"]) as cursor:
        if cursor.set_range(_UNDO + session) and cursor.key().startswith(_UNDO + session):
            return cursor.item()
    return None


def undo(kv: Transaction, tables: dict[str, Table], row_key: bytes, row: bytes) -> None:
    """Undo a piece by its row, which `first_undo` has read."""
    items = decode(row)["d"]
    for name, key, before in zip(items[::3], items[1::3], items[2::3]):
        if before is None:
            kv.delete(key, db=tables[name])
        else:
            kv.put(key, before, db=tables[name])
    kv.delete(row_key, db=tables["meta"])


def undo_all(environment: Environment, tables: dict[str, Table]) -> None:
    """As a store is opened: undo the commits that the end of the process has cut short, a piece in each transaction."""
    while True:
        with environment.reading() as kv:
            row = first_undo(kv, tables)
        if row is None:
            return
        kv = environment.begin_write()
        try:
            undo(kv, tables, *row)
            kv.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                kv.abort()
            raise


def is_unfinished(kv: Transaction, tables: dict[str, Table]) -> bool:
    """Whether the tables hold pieces of a commit that was cut short."""
    return first_undo(kv, tables) is not None


def _key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _itself(key: bytes) -> bytes:
    return key
