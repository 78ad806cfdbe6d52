"""What keys held before: the notes that let a transaction read as of its start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.store import catalog_changes
from headrace.store.changed_keys import KeyOrder
from headrace.store.client_transaction import TransactionState, TransactionView
from headrace.store.history import History
from headrace.store.store import Store
from headrace.store.write_transaction import WriteTransaction
from headrace.testing.clock import FakeClock
from headrace.values.bson import decode, encode

SESSION = bytes(16)


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store(None, clock=FakeClock())
    txn = made.begin()
    catalog_changes.create(txn, "d.c", {})
    made.commit(txn)
    yield made
    made.close()


def write(store: Store, *ids: int) -> None:
    txn = store.begin()
    txn.insert_many(txn.catalog.collections["d.c"], [encode({"_id": number}) for number in ids])
    store.commit(txn)


def delete_first(store: Store, txn: WriteTransaction) -> None:
    collection = txn.catalog.collections["d.c"]
    record, document = next(txn.scan(collection))
    txn.delete(collection, record, document)


def ids(view: WriteTransaction, *, backward: bool = False) -> list[int]:
    collection = view.collection("d.c")
    assert collection is not None
    return [decode(document)["_id"] for _, document in view.scan(collection, backward=backward) if document]


def test_keys_are_walked_in_order_and_backward_from_a_bound() -> None:
    order = KeyOrder()
    for key in (b"c", b"a", b"d", b"a"):
        order.add(key)
    assert list(order.walk(None, backward=False)) == [b"a", b"c", b"d"]
    assert list(order.walk(b"b", backward=False)) == [b"c", b"d"]
    assert list(order.walk(b"c", backward=True)) == [b"c", b"a"]
    order.discard(b"c")
    assert list(order.walk(b"b", backward=False)) == [b"d"]


def test_the_oldest_note_after_a_snapshot_is_what_it_reads(store: Store) -> None:
    table = store.tables["documents"]
    history, key = History(store.tables), (table, b"0001key")
    history.record(key, 1, b"one")
    history.record(key, 3, b"three")
    assert [history.before(key, snapshot) for snapshot in (0, 1, 2, 3)] == [(b"one",), (b"three",), (b"three",), None]
    history.forget(1)
    assert history.before(key, 2) == (b"three",) and len(history) == 1
    history.undo(3)
    assert history.before(key, 2) is None and len(history) == 0


def test_nothing_is_noted_while_no_transaction_is_open(store: Store) -> None:
    write(store, 1, 2)
    assert len(store.transactions.history) == 0
    transaction = store.transactions.start(SESSION, 1, 0)
    write(store, 3)
    assert len(store.transactions.history) == 2
    store.transactions.end(transaction, TransactionState.ABORTED, 0)
    assert len(store.transactions.history) == 0


def test_a_transaction_reads_as_of_its_start_in_both_directions(store: Store) -> None:
    write(store, 1, 2, 3)
    transaction = store.transactions.start(SESSION, 1, 0)
    txn = store.begin()
    delete_first(store, txn)
    store.commit(txn)
    write(store, 4)
    with store.reading() as view:
        seen = TransactionView(view, transaction)
        assert ids(seen) == [1, 2, 3] and ids(seen, backward=True) == [3, 2, 1]


def test_notes_of_a_write_that_was_given_up_are_taken_back(store: Store) -> None:
    write(store, 1)
    transaction = store.transactions.start(SESSION, 1, 0)
    txn = store.begin()
    delete_first(store, txn)
    with store.reading() as view:
        assert ids(TransactionView(view, transaction)) == [1]
    store.abandon(txn)
    assert len(store.transactions.history) == 0
    with store.reading() as view:
        assert ids(TransactionView(view, transaction)) == [1]


def test_no_transaction_starts_while_a_write_transaction_is_open(store: Store) -> None:
    txn = store.begin()
    with pytest.raises(RuntimeError, match="may not start"):
        store.transactions.start(SESSION, 1, 0)
    store.abandon(txn)


def test_nothing_is_recorded_once_the_last_transaction_has_ended(store: Store) -> None:
    write(store, 1, 2)
    transaction = store.transactions.start(SESSION, 1, 0.0)
    txn = store.begin()
    delete_first(store, txn)
    assert len(store.transactions.history) == 2
    store.transactions.abort(transaction, 0.0)
    delete_first(store, txn)
    store.commit(txn)
    assert len(store.transactions.history) == 0
