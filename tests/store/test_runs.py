"""The oplog's index by namespace: runs found from any position, entries in order and each once."""

from __future__ import annotations

import random

import pytest

from headrace.store.store import Store
from headrace.store.view import View
from headrace.testing.clock import FakeClock


@pytest.fixture
def store() -> Store:
    return Store(None, clock=FakeClock())


def log(store: Store, *topics: tuple[str, ...]) -> list[int]:
    """One commit with a no-op for each tuple of topics; their positions."""
    txn = store.begin()
    made = []
    for names in topics:
        position = txn.reserve(1)
        txn.log(position, b"%d" % position, names)
        made.append(position)
    store.commit(txn)
    return made


def positions_from(view: View, names: list[str], first: int) -> list[int]:
    topics = [view.catalog.topics[name] for name in names if name in view.catalog.topics]
    return [position for position, _ in view.entries_of(topics, first)]


def test_a_run_is_read_from_each_of_its_positions_and_no_other(store: Store) -> None:
    log(store, ("a.x",))
    run = log(store, *[("a.y",)] * 4)
    log(store, ("a.x",))
    with store.reading() as view:
        assert list(view.runs(view.catalog.topics["a.y"], 0)) == [(run[0], run[3])]
        for index, position in enumerate(run):
            assert positions_from(view, ["a.y"], position) == run[index:]
        assert positions_from(view, ["a.y"], run[0] - 1) == run
        assert positions_from(view, ["a.y"], run[3] + 1) == []


def test_the_first_and_the_last_topic_of_the_table_have_no_neighbour(store: Store) -> None:
    first = log(store, ("a.x",))[0]
    last = log(store, ("a.z",))[0]
    with store.reading() as view:
        assert positions_from(view, ["a.x"], 0) == [first]
        assert positions_from(view, ["a.x"], first + 1) == []
        assert positions_from(view, ["a.z"], 0) == [last]
        assert positions_from(view, ["a.z"], last + 1) == []


def test_an_entry_of_two_topics_comes_once(store: Store) -> None:
    made = log(store, ("a.x",), ("a.x", "a.y"), ("a.y",), ("b.z",))
    with store.reading() as view:
        assert positions_from(view, ["a.x", "a.y"], 0) == made[:3]
        assert positions_from(view, ["a.y", "b.z"], made[1]) == made[1:]


def test_random_entries_are_read_from_every_position(store: Store) -> None:
    random_ = random.Random(4)
    names = ["a.x", "a.y", "b.x", "b.$cmd"]
    stored: list[tuple[int, tuple[str, ...]]] = []
    for _ in range(60):
        topics = [tuple(random_.sample(names, random_.randint(1, 2))) for _ in range(random_.randint(1, 6))]
        stored += zip(log(store, *topics), topics)
    with store.reading() as view:
        for wanted in ({"a.x"}, {"a.y", "b.x"}, {"a.x", "b.$cmd", "b.x"}):
            mine = [position for position, topics in stored if wanted & set(topics)]
            for first in [0, *(position + step for position, _ in stored[::7] for step in (0, 1))]:
                assert positions_from(view, sorted(wanted), first) == [
                    position for position in mine if position >= first
                ]


def test_entries_are_read_backward_from_any_position(store: Store) -> None:
    made = log(store, ("a.x",), ("a.x",))
    made += log(store, ("a.x",))
    with store.reading() as view:
        assert [position for position, _ in view.entries(made[0], made[1], backward=True)] == [made[1], made[0]]
        assert next(view.entries(0, made[2] + 10, backward=True))[0] == made[2]
        assert next(view.entries(0, made[1], backward=True))[0] == made[1]
        assert view.newest_position() == made[2]
