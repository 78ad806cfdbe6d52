"""The oplog pruned by time, by size and by number, with its runs and images, as of a moment that is given."""

from __future__ import annotations

import pytest

from headrace import limits
from headrace.server.background import prune_count
from headrace.store import catalog_changes, pre_images
from headrace.store.catalog import Collection
from headrace.store.retention import (
    HOUR_MS,
    AgedScan,
    Retention,
    expired_images,
    first_to_keep,
    outlived,
    prune,
    prune_entries,
    remove,
)
from headrace.store.store import Store
from headrace.testing.clock import FakeClock
from headrace.values.bson import encode

PAST_ALL = 1 << 62


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return Store(None, clock=clock)


def make(store: Store, namespace: str, *, with_images: bool = False) -> Collection:
    txn = store.begin()
    made = catalog_changes.create(txn, namespace, {"changeStreamPreAndPostImages": {"enabled": with_images}})
    store.commit(txn)
    return made


def insert(store: Store, collection: Collection, *numbers: int, padding: int = 0) -> None:
    txn = store.begin()
    for number in numbers:
        txn.insert(collection, encode({"_id": number, "padding": "x" * padding}))
    store.commit(txn)


def change_all(store: Store, collection: Collection) -> list[int]:
    """Replace each document in a commit of its own; the positions of the changes."""
    with store.reading() as view:
        there = list(view.scan(collection))
    made = []
    for record, document in there:
        txn = store.begin()
        txn.replace(collection, record, document, document, document)
        store.commit(txn)
        made.append(store.last_position)
    return made


def test_many_entries_of_a_wrong_future_go_when_what_follows_them_is_too_old(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PRUNE_COUNT_MAX", 10)
    collection, right = make(store, "t.c"), clock.now_ms()
    clock.set_wall(right + 10_000 * HOUR_MS)
    insert(store, collection, *range(95))
    clock.set_wall(right)
    insert(store, collection, *range(100, 105))
    clock.advance(20 * HOUR_MS)
    insert(store, collection, *range(200, 205))
    clock.advance(10 * HOUR_MS)
    made, aged = positions(store), AgedScan()
    with store.reading() as view:
        looks = [first_to_keep(view, Retention(24, None, None), clock.now_ms(), aged) for _ in range(15)]
    assert looks[0] <= made[3] and looks[-1] == made[-5]


def positions(store: Store) -> list[int]:
    with store.reading() as view:
        return [position for position, _ in view.entries(0)]


def keep(
    store: Store, now_ms: int, *, hours: float | None = None, size: int | None = None, count: int | None = None
) -> int:
    with store.reading() as view:
        return first_to_keep(view, Retention(hours, size, count), now_ms)


def prune_through(store: Store, before: int, count_max: int = PAST_ALL) -> int:
    txn = store.begin()
    removed = prune(txn, before, count_max)
    store.commit(txn)
    return removed


def test_by_number_the_oldest_go(store: Store, clock: FakeClock) -> None:
    insert(store, make(store, "a.x"), *range(10))
    before = positions(store)
    assert prune_through(store, keep(store, clock.now_ms(), count=4)) == len(before) - 4
    assert positions(store) == before[-4:] and store.pruned_through == before[-5]
    assert prune_through(store, keep(store, clock.now_ms(), count=4)) == 0


def test_by_time_what_is_older_goes_and_the_newest_stays(store: Store, clock: FakeClock) -> None:
    collection = make(store, "a.x")
    insert(store, collection, 1)
    old = positions(store)
    clock.advance(2 * HOUR_MS)
    insert(store, collection, 2, 3)
    young = positions(store)[len(old) :]
    assert prune_through(store, keep(store, clock.now_ms(), hours=3.0)) == 0
    assert prune_through(store, keep(store, clock.now_ms(), hours=1.0)) == len(old)
    assert positions(store) == young
    prune_through(store, keep(store, clock.now_ms() + 100 * HOUR_MS, hours=1.0))
    assert positions(store) == young[-1:]
    assert keep(store, clock.now_ms(), hours=1e9) == 0


def test_by_size_the_table_shrinks_below_the_bound(store: Store, clock: FakeClock) -> None:
    collection = make(store, "a.x")
    for number in range(200):
        insert(store, collection, number, padding=3000)
    bound = 200_000
    while prune_through(store, keep(store, clock.now_ms(), size=bound)):
        pass
    with store.reading() as view:
        assert 0 < view.table_bytes("oplog") <= bound
    assert len(positions(store)) > 30


def test_no_bound_keeps_everything_and_an_empty_oplog_has_nothing_to_prune(clock: FakeClock) -> None:
    store = Store(None, clock=clock)
    insert(store, make(store, "a.x"), 1, 2)
    assert keep(store, clock.now_ms() + 1000 * HOUR_MS) == 0
    without = Store(None, clock=clock, oplog=False)
    assert keep(without, clock.now_ms(), hours=1.0, count=1) == 0


def test_pruning_goes_in_pieces_and_takes_the_runs_with_it(store: Store) -> None:
    first, second = make(store, "a.x"), make(store, "b.y")
    for number in range(6):
        insert(store, first, number, 100 + number)
        insert(store, second, number)
    before = positions(store)
    removed = 0
    while piece := prune_through(store, before[-5], 3):
        assert piece <= 3
        removed += piece
    assert removed == len(before) - 5
    left = before[-5:]
    with store.reading() as view:
        topics = view.catalog.topics
        result = [position for position, _ in view.entries_of([topics["a.x"], topics["b.y"]], 0)]
        assert result == left
        for topic in topics.values():
            assert all(last >= left[0] for _, last in view.runs(topic, 0))


def test_an_image_goes_with_its_entry(store: Store) -> None:
    collection = make(store, "a.x", with_images=True)
    other = make(store, "a.y", with_images=True)
    insert(store, collection, 1, 2, 3)
    insert(store, other, 1)
    changed = change_all(store, collection)
    changed_later = change_all(store, other)
    prune_through(store, changed[1])
    with store.reading() as view:
        assert collection.uuid is not None and other.uuid is not None
        there = [pre_images.get(view, collection.uuid, position, 0) is not None for position in changed]
        assert there == [False, True, True]
        assert pre_images.get(view, other.uuid, changed_later[0], 0) is not None


def test_images_expire_by_their_expiry_time_in_pieces(store: Store, clock: FakeClock) -> None:
    collection, other = make(store, "a.x", with_images=True), make(store, "a.y", with_images=True)
    insert(store, collection, *range(5))
    insert(store, other, *range(3))
    change_all(store, collection)
    clock.advance(10_000)
    change_all(store, other)
    change_all(store, collection)
    entries = len(positions(store))

    def expire(seconds: int, count_max: int) -> int:
        with store.reading() as view:
            keys = expired_images(view, seconds, clock.now_ms(), count_max)
        txn = store.begin()
        remove(txn, "images", keys)
        store.commit(txn)
        return len(keys)

    assert expire(10, 100) == 0
    assert [expire(5, 3), expire(5, 3), expire(5, 3)] == [3, 2, 0]
    clock.advance(6000)
    assert expire(5, 100) == 8
    assert len(positions(store)) == entries


def test_what_was_pruned_in_a_transaction_given_up_is_still_there(store: Store) -> None:
    insert(store, make(store, "a.x"), 1, 2, 3)
    before = positions(store)
    txn = store.begin()
    assert prune(txn, before[-1], PAST_ALL) == len(before) - 1
    store.abandon(txn)
    assert positions(store) == before and store.pruned_through == -1


def test_rows_of_pruned_entries_are_listed_some_topics_at_a_time(store: Store, clock: FakeClock) -> None:
    for name in range(20):
        insert(store, make(store, f"a.c{name}"), 1, 2)
    last = make(store, "a.last")
    insert(store, last, 1)
    txn = store.begin()
    prune_entries(txn, positions(store)[-1], PAST_ALL)
    store.commit(txn)
    listed, following, looks = [], b"", 0
    while following or not looks:
        with store.reading() as view:
            keys, following = outlived(view, "runs", following, 7)
        listed += keys
        looks += 1
    assert len(listed) >= 20 and looks >= 4
    txn = store.begin()
    remove(txn, "runs", listed)
    store.commit(txn)
    with store.reading() as view:
        assert outlived(view, "runs", b"", PAST_ALL) == ([], b"")


def test_more_entries_are_removed_than_come() -> None:
    assert [prune_count(added) for added in (0, 10, 1000, 1500, 1_000_000)] == [2000, 2000, 2000, 3000, 4000]
