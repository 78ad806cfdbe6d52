"""Seeded lives of a server with ten watchers: no gap, no duplicate, and 286 where history is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import limits
from headrace.changes.builder import EventBuilder
from headrace.cursors.feed import Feeds
from headrace.store.retention import prune
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.testing.simulator import Simulation
from headrace.testing.watcher import SimulationError

pytestmark = pytest.mark.long


@pytest.fixture
def tiny_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds and scans overflow all the time."""
    monkeypatch.setattr(limits, "UNREAD_ENTRY_COUNT_MAX", 3)
    monkeypatch.setattr(limits, "FEED_EVENT_COUNT_MAX", 4)
    monkeypatch.setattr(limits, "SCAN_ENTRY_COUNT_MAX", 5)


@pytest.mark.parametrize("seed", range(12))
def test_watchers_receive_what_happened(seed: int) -> None:
    with DrivenServer(clock=FakeClock()) as server:
        simulation = Simulation(server, seed)
        simulation.run(400)
        assert sum(len(watcher.events) for watcher in simulation.watchers) > 200


@pytest.mark.usefixtures("tiny_limits")
@pytest.mark.parametrize("seed", range(12))
def test_watchers_that_fall_behind_all_the_time_receive_what_happened(seed: int) -> None:
    with DrivenServer(clock=FakeClock()) as server:
        Simulation(server, seed).run(400)


@pytest.mark.usefixtures("tiny_limits")
@pytest.mark.parametrize("seed", [*range(8), 74])
def test_what_was_pruned_is_286_at_open_and_later_and_never_skipped(seed: int) -> None:
    """74 began a stream at a time yet to come."""
    with DrivenServer(clock=FakeClock()) as server:
        simulation = Simulation(server, seed, prunes=True)
        simulation.run(400)
        assert sum(watcher.history_lost_count for watcher in simulation.watchers) > 0


@pytest.mark.usefixtures("tiny_limits")
@pytest.mark.parametrize("seed", [0, 1, 157])
def test_watchers_go_on_where_they_were_when_the_server_is_started_again(seed: int, tmp_path: Path) -> None:
    """157 resumed from the mark of a stream whose start was yet to come."""
    with DrivenServer(tmp_path, clock=FakeClock()) as server:
        Simulation(server, seed, prunes=True, restarts=True).run(300)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_stream_goes_on_from_each_of_its_events(seed: int) -> None:
    with DrivenServer(clock=FakeClock()) as server:
        simulation = Simulation(server, seed, watcher_count=6)
        simulation.run(250)
        assert sum(simulation.resume_everywhere(watcher) for watcher in simulation.watchers) > 100


def test_the_simulation_notices_an_event_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    build, count = EventBuilder.build, 0

    def forgetful(*arguments: object) -> object:
        nonlocal count
        count += 1
        made = build(*arguments)  # type: ignore[arg-type]
        return [] if count % 50 == 0 else made

    monkeypatch.setattr(EventBuilder, "build", forgetful)
    with DrivenServer(clock=FakeClock()) as server, pytest.raises(SimulationError):
        Simulation(server, 0).run(400)


def test_the_simulation_notices_a_commit_that_is_reported_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    publish, count = Feeds.publish, 0

    def twice(self: Feeds, committed: object) -> None:
        nonlocal count
        count += 1
        for _ in range(2 if count % 20 == 0 else 1):
            publish(self, committed)  # type: ignore[arg-type]

    monkeypatch.setattr(Feeds, "publish", twice)
    with DrivenServer(clock=FakeClock()) as server, pytest.raises(SimulationError):
        Simulation(server, 0).run(400)


def test_the_simulation_notices_history_that_went_without_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def silently(txn: object, keep: int, count_max: int) -> int:
        removed = prune(txn, keep, count_max)  # type: ignore[arg-type]
        txn.pruned_through = -1  # type: ignore[attr-defined]
        return removed

    monkeypatch.setattr("headrace.testing.simulator.prune", silently)
    monkeypatch.setattr(limits, "UNREAD_ENTRY_COUNT_MAX", 3)
    with DrivenServer(clock=FakeClock()) as server, pytest.raises(SimulationError):
        Simulation(server, 0, prunes=True).run(400)
