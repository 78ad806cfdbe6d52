"""A transaction conflicts with what others have written since it began, and reads the state of its start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.store.client_transaction import ClientTransaction, TransactionView
from headrace.store.kv import TableKey
from headrace.store.overlay import Conflict
from headrace.store.store import Store


@pytest.fixture(name="store")
def _store() -> Iterator[Store]:
    store = Store(None)
    yield store
    store.close()


def put(store: Store, *items: tuple[bytes, bytes]) -> None:
    """Commit some keys of `ids`."""
    txn = store.begin()
    for key, value in items:
        txn.kv.put(key, value, db=store.tables["ids"])
    store.commit(txn)


def start(store: Store, number: int) -> ClientTransaction:
    return store.transactions.start(bytes([number]) * 16, number, 0.0)


def conflicts(store: Store, transaction: ClientTransaction, key: bytes) -> bool:
    try:
        store.transactions.claim(transaction, (store.tables["ids"], key))
    except Conflict as conflict:
        assert conflict.code == 112
        return True
    return False


def test_a_transaction_reads_as_of_its_start_in_both_directions(store: Store) -> None:
    put(store, (b"0000a", b"1"), (b"0000c", b"1"))
    transaction = start(store, 1)
    put(store, (b"0000a", b"2"), (b"0000b", b"2"))
    view = TransactionView(store, transaction)
    view.kv.put(b"0000d", b"own", db=store.tables["ids"])
    with view.kv.cursor(store.tables["ids"]) as cursor:
        items = list(cursor.iternext())
        cursor.last()
        assert list(cursor.iterprev()) == items[::-1]
    assert items == [(b"0000a", b"1"), (b"0000c", b"1"), (b"0000d", b"own")]
    assert view.kv.get(b"0000b", db=store.tables["ids"]) is None


def test_what_was_written_since_conflicts_and_what_was_written_before_does_not(store: Store) -> None:
    put(store, (b"0000a", b"1"))
    first = start(store, 1)
    put(store, (b"0000b", b"1"))
    second = start(store, 2)
    assert conflicts(store, first, b"0000b") and not conflicts(store, first, b"0000a")
    assert not conflicts(store, second, b"0000b")


def test_a_value_that_has_come_back_conflicts(store: Store) -> None:
    put(store, (b"0000a", b"1"))
    transaction = start(store, 1)
    put(store, (b"0000a", b"2"))
    put(store, (b"0000a", b"1"))
    assert conflicts(store, transaction, b"0000a")


def test_the_open_write_transaction_conflicts_until_it_is_abandoned(store: Store) -> None:
    transaction = start(store, 1)
    txn = store.begin()
    txn.kv.put(b"0000a", b"1", db=store.tables["ids"])
    with txn.kv.cursor(store.tables["ids"]) as cursor:
        cursor.put_many([b"0000b"], [b"1"])
    assert conflicts(store, transaction, b"0000a") and conflicts(store, transaction, b"0000b")
    store.abandon(txn)
    assert not conflicts(store, transaction, b"0000a") and not conflicts(store, transaction, b"0000b")


def test_keys_are_forgotten_with_the_last_transaction_that_began_before(store: Store) -> None:
    written = store.transactions.written
    put(store, (b"0000x", b"1"))
    assert not written._last
    transactions = [start(store, 1)]
    for number in range(2, 5):
        put(store, (b"0000a", bytes([number])), (bytes([number]) * 5, b""))
        transactions.append(start(store, number))
    keys: set[TableKey] = set(written._last)
    assert len(keys) == 4
    store.transactions.abort(transactions.pop(0), 0.0)
    assert len(written._last) == 3 and conflicts(store, transactions[0], b"0000a")
    while transactions:
        store.transactions.abort(transactions.pop(), 0.0)
    assert not written._last and not written._commits and not written._account.bytes


def test_no_transaction_starts_while_a_write_transaction_is_open(store: Store) -> None:
    txn = store.begin()
    with pytest.raises(RuntimeError):
        start(store, 1)
    store.abandon(txn)
