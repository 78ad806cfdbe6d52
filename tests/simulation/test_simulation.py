"""Seeded lives of a server in which everything happens at once, and that the simulation notices what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.changes.builder import EventBuilder
from headrace.store.store import Store
from headrace.store.write_transaction import WriteTransaction
from tests.simulation.shrink import Found, attempt, conditions, shrink
from tests.simulation.simulation import Simulation

pytestmark = pytest.mark.long

SEEDS = range(24)


def passes(seed: int, count: int) -> None:
    """Fail with the finding, and as few steps of it as can be found within seconds."""
    result = attempt(seed, count=count)
    if isinstance(result, Found):
        shown = shrink(result, seconds=20)
        pytest.fail("\n".join([f"seed {seed}: {shown.message}", *[f"    {step!r}," for step in shown.steps]]))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_answer_is_explained_by_a_state(seed: int) -> None:
    passes(seed, 1500)


def test_a_seed_does_the_same_again(tmp_path: Path) -> None:
    lives: list[Any] = []
    for number in range(2):
        with conditions(3):
            simulation = Simulation(tmp_path / str(number), 3)
            simulation.run(1200)
            lives.append((simulation.steps, simulation.world.states))
            simulation.close()
    assert lives[0] == lives[1]
    assert len(lives[0][1]) > 20


def found_by(count: int = 20) -> Found:
    """What one of the first seeds finds."""
    for seed in range(count):
        result = attempt(seed, count=1500)
        if isinstance(result, Found):
            return result
    raise AssertionError("nothing is found")


def test_an_event_that_is_left_out_is_noticed_and_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    build = EventBuilder.build

    def forgetful(self: Any, entry: Any, *others: Any) -> Any:
        made = build(self, entry, *others)
        return [] if b"\x10a\x00\x02\x00\x00\x00" in entry.data else made

    monkeypatch.setattr(EventBuilder, "build", forgetful)
    found = found_by()
    assert found.kind == "stream"
    smaller = shrink(found, seconds=20)
    assert smaller.kind == "stream" and len(smaller.steps) < min(40, len(found.steps))


def test_a_commit_that_is_published_before_it_is_on_the_disk_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Store.prepare

    def at_once(self: Store, txn: WriteTransaction, **more: bool) -> None:
        prepare(self, txn, **more)
        self.state = txn.next_state(self.state)

    monkeypatch.setattr(Store, "prepare", at_once)
    assert found_by().kind in ("capped", "read", "stream", "tail", "transaction")


def test_a_count_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    add_count = WriteTransaction.add_count

    def forgetful(self: WriteTransaction, collection: Any, documents: int, *others: Any, **more: Any) -> None:
        add_count(self, collection, max(documents, 0), *others, **more)

    monkeypatch.setattr(WriteTransaction, "add_count", forgetful)
    assert found_by().kind in ("capped", "read")
