"""Runs over several commits: a collection that is written alone has one, and nothing else gets into it."""

from __future__ import annotations

import random

import pytest

from headrace.store.retention import prune
from headrace.store.store import Store
from headrace.store.view import View
from headrace.testing.clock import FakeClock


@pytest.fixture
def store() -> Store:
    return Store(None, clock=FakeClock())


def log(store: Store, *topics: tuple[str, ...]) -> list[int]:
    """One commit with an entry for each tuple of topics; their positions."""
    txn = store.begin()
    made = []
    for names in topics:
        position = txn.reserve(1)
        txn.log(position, b"%d" % position, names)
        made.append(position)
    store.commit(txn)
    return made


def positions_from(view: View, name: str, first: int) -> list[int]:
    return [position for position, _ in view.entries_of([view.catalog.topics[name]], first)]


def test_commits_of_one_collection_alone_share_a_run_also_from_one_second_to_the_next(store: Store) -> None:
    made = log(store, ("a.x",), ("a.x",)) + log(store, ("a.x",))
    store.clock.advance(2000)  # type: ignore[attr-defined]
    made += log(store, ("a.x",))
    with store.reading() as view:
        assert list(view.runs(view.catalog.topics["a.x"], 0)) == [(made[0], made[-1])]
        assert positions_from(view, "a.x", 0) == made


def test_an_entry_of_another_topic_or_of_none_ends_a_run(store: Store) -> None:
    first = log(store, ("a.x",))
    log(store, ())
    second = log(store, ("a.x",))
    log(store, ("a.y",))
    third = log(store, ("a.x",), ("a.x", "a.y")) + log(store, ("a.x", "a.y"))
    with store.reading() as view:
        assert len(list(view.runs(view.catalog.topics["a.x"], 0))) == 4
        assert positions_from(view, "a.x", 0) == first + second + third
        assert len(positions_from(view, "a.y", 0)) == 3


def test_an_abandoned_commit_leaves_the_run_as_it_was(store: Store) -> None:
    made = log(store, ("a.x",))
    txn = store.begin()
    txn.log(txn.reserve(1), b"lost", ("a.y",))
    store.prepare(txn)
    store.abandon(txn)
    made += log(store, ("a.x",))
    with store.reading() as view:
        assert list(view.runs(view.catalog.topics["a.x"], 0)) == [(made[0], made[1])]


def test_a_run_goes_on_after_all_of_it_was_pruned(store: Store) -> None:
    log(store, ("a.x",), ("a.x",))
    txn = store.begin()
    prune(txn, store.last_position + 1, 100)
    store.commit(txn)
    made = log(store, ("a.x",))
    with store.reading() as view:
        assert positions_from(view, "a.x", 0) == made == positions_from(view, "a.x", made[0])


def test_random_commits_are_read_from_every_position(store: Store) -> None:
    chance = random.Random(11)
    every: list[tuple[int, tuple[str, ...]]] = []
    choices: list[tuple[str, ...]] = [("a.x",), ("a.x",), ("a.x",), ("a.y",), ("a.x", "a.y"), ()]
    for _ in range(60):
        topics = [chance.choice(choices)] * chance.randint(1, 3)
        every += zip(log(store, *topics), topics, strict=True)
        store.clock.advance(chance.choice((0, 0, 900)))  # type: ignore[attr-defined]
    with store.reading() as view:
        for name in ("a.x", "a.y"):
            of_name = [position for position, topics in every if name in topics]
            for first in (0, *(position for position, _ in every)):
                assert positions_from(view, name, first) == [position for position in of_name if position >= first]
