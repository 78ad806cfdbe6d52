"""Documents through views and write transactions: natural order, batches that fall back, what is given up is gone."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Timestamp

from headrace.errors import CommandError
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.store.store import Store
from headrace.testing.clock import FakeClock
from headrace.values.bson import decode, encode


@pytest.fixture
def store() -> Store:
    return Store(None, clock=FakeClock())


def make(store: Store, namespace: str = "a.x", **options: Any) -> Collection:
    txn = store.begin()
    made = catalog_changes.create(txn, namespace, options)
    store.commit(txn)
    return made


def insert(store: Store, collection: Collection, *documents: dict[str, Any]) -> None:
    txn = store.begin()
    for document in documents:
        txn.insert(collection, encode(document))
    store.commit(txn)


def ids(store: Store, collection: Collection, **scan: Any) -> list[Any]:
    with store.reading() as view:
        return [decode(document)["_id"] for _, document in view.scan(collection, **scan)]


def entry_count(store: Store) -> int:
    with store.reading() as view:
        return sum(1 for _ in view.entries(0))


def test_a_scan_goes_on_strictly_past_a_record_both_ways(store: Store) -> None:
    before, mine, behind = make(store, "a.a"), make(store, "a.b"), make(store, "a.c")
    for collection in (before, behind):
        insert(store, collection, {"_id": "other"})
    assert ids(store, mine) == [] == ids(store, mine, backward=True)
    insert(store, mine, {"_id": 1}, {"_id": 2}, {"_id": 3})
    with store.reading() as view:
        records = [record for record, _ in view.scan(mine)]
    assert ids(store, mine) == [1, 2, 3]
    assert ids(store, mine, backward=True) == [3, 2, 1]
    assert ids(store, mine, after=records[0]) == [2, 3]
    assert ids(store, mine, after=records[2]) == []
    assert ids(store, mine, after=records[2], backward=True) == [2, 1]
    assert ids(store, mine, after=records[0], backward=True) == []


def test_a_batch_with_one_refused_document_stores_nothing_and_moves_no_position(store: Store) -> None:
    collection = make(store)
    insert(store, collection, {"_id": 5})
    entries = entry_count(store)
    for refused in ([{"_id": 6}, {"_id": 5}], [{"_id": 6}, {"_id": 6}], [{"_id": 6}, {"_id": [1]}]):
        txn = store.begin()
        assert txn.insert_many(collection, [encode(document) for document in refused]) is None
        assert txn.clock_position == store.last_position
        store.commit(txn)
        assert ids(store, collection) == [5] and entry_count(store) == entries


def test_a_refused_insert_gives_its_position_back(store: Store) -> None:
    collection = make(store)
    insert(store, collection, {"_id": 5})
    last = store.last_position
    txn = store.begin()
    with pytest.raises(CommandError) as duplicate:
        txn.insert(collection, encode({"_id": 5}))
    assert duplicate.value.code == 11000 and txn.clock_position == last
    store.commit(txn)
    assert store.last_position == last


def test_a_batch_numbers_empty_timestamps_by_their_entries(store: Store) -> None:
    collection = make(store)
    txn = store.begin()
    assert txn.insert_many(collection, [encode({"_id": n, "at": Timestamp(0, 0)}) for n in range(3)]) == 3
    store.commit(txn)
    with store.reading() as view:
        for position, raw in view.entries_of([view.catalog.topics["a.x"]], 0):
            entry = decode(raw)
            assert entry["o"]["at"] == entry["ts"] == Timestamp(position >> 32, position & 0xFFFFFFFF)


def test_ids_too_long_for_a_key_are_distinguished(store: Store) -> None:
    collection = make(store)
    long = ["x" * 5000 + tail for tail in "abc"]
    insert(store, collection, *[{"_id": text} for text in long])
    for again in (long[0], long[2]):
        with pytest.raises(CommandError):
            insert(store, collection, {"_id": again})
        store.abandon(store.begin() if store.writing is None else store.writing)
        collection = store.catalog.collections["a.x"]
    insert(store, collection, {"_id": Binary(b"y" * 499)}, {"_id": Binary(b"y" * 498)})
    assert ids(store, collection) == [*long, b"y" * 499, b"y" * 498]


def test_what_is_abandoned_is_gone_from_the_tables_and_from_memory(store: Store) -> None:
    collection = make(store)
    insert(store, collection, {"_id": 1})
    entries, last = entry_count(store), store.last_position
    txn = store.begin()
    catalog_changes.create(txn, "a.new", {})
    txn.insert(collection, encode({"_id": 2}))
    catalog_changes.rename(txn, collection, "b.y", None)
    store.set_cluster_parameter(txn, "changeStreamOptions", {"x": 1})
    store.prepare(txn)
    store.abandon(txn)
    assert sorted(store.catalog.collections) == ["a.x"] and "a.new" not in store.catalog.topics
    assert (store.last_position, entry_count(store), store.cluster_parameters) == (last, entries, {})
    again = store.catalog.collections["a.x"]
    with store.reading() as view:
        assert view.count(again) == 1
    insert(store, again, {"_id": 2})
    assert ids(store, again) == [1, 2]


def test_a_count_during_a_commit_is_not_stored(store: Store) -> None:
    insert(store, make(store), {"_id": 1})
    store.abandon(store.begin())  # memory is read again, and the count with it forgotten
    collection = store.catalog.collections["a.x"]
    txn = store.begin()
    txn.insert(collection, encode({"_id": 2}))
    store.prepare(txn)
    with store.reading() as view:
        assert view.count(collection) == 1
    store.sync(txn)
    store.publish(txn)
    with store.reading() as view:
        assert view.count(collection) == 2


def test_dropped_documents_go_in_pieces_and_no_others(store: Store) -> None:
    gone, stored = make(store, "a.gone"), make(store, "a.kept")
    insert(store, gone, *[{"_id": n} for n in range(25)])
    insert(store, stored, {"_id": 1})
    txn = store.begin()
    catalog_changes.drop(txn, gone)
    store.commit(txn)
    new = make(store, "a.gone")
    insert(store, new, {"_id": 3})
    rounds = 0
    while True:
        txn = store.begin()
        more = catalog_changes.collect_garbage(txn, 7)
        store.commit(txn)
        if not more:
            break
        rounds += 1
    with store.reading() as view:
        assert not catalog_changes.has_garbage(view)
        assert [view.kv.stat(view.tables[table])["entries"] for table in ("documents", "ids")] == [2, 2]
    assert rounds >= 7 and ids(store, new) == [3] and ids(store, stored) == [1]
