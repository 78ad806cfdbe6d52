"""Background jobs: each comes to its end, and none waits for another, whatever clients write meanwhile. And Python's
collector, which stops everybody while it runs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace import limits
from headrace.server import background, process
from headrace.server.ttl import TimeToLive
from headrace.store.write_transaction import WriteTransaction

from .raw import RawClient


def test_pruning_ends_while_a_client_writes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.Server(oplog_entries_max=10) as server:
        core = server._running
        committed = core.writer.add_job

        def add_job_and_write(run: Callable[[WriteTransaction], object]) -> asyncio.Future[None]:
            def run_and_write(txn: WriteTransaction) -> None:
                run(txn)
                for _ in range(5):
                    core.store.log_noop(txn, "a client's write")

            return committed(run_and_write)

        monkeypatch.setattr(core.writer, "add_job", add_job_and_write)

        async def pruned() -> int:
            core.background.stop()
            for _ in range(20):
                await committed(lambda txn: core.store.log_noop(txn, "a client's write"))
            return await asyncio.wait_for(core.background.prune(), 20)

        assert asyncio.run_coroutine_threadsafe(pruned(), core.loop).result() >= 10


def test_a_job_that_does_not_end_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "TICK_MS", 1)
    ticked = asyncio.Event()

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    async def tick(_: object) -> None:
        ticked.set()

    monkeypatch.setattr(background.Background, "prune", never)
    monkeypatch.setattr(TimeToLive, "tick", tick)
    with headrace.Server() as server:
        asyncio.run_coroutine_threadsafe(asyncio.wait_for(ticked.wait(), 20), server._running.loop).result()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the collector; its passes are `passes`, the time `now`."""
    made: list[str] = []
    for name in ("collect", "freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: made.append(name))
    return made


def looks(
    monkeypatch: pytest.MonkeyPatch, garbage: process.Garbage, passes: int, seconds: float, *, quiet: bool = False
) -> None:
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, passes))
    monkeypatch.setattr(process, "monotonic", lambda: seconds)
    garbage.look(is_quiet=quiet, has_been_quiet=quiet)


@pytest.mark.parametrize(
    ("passes", "seconds", "quiet", "expected"),
    [
        (0, 1.0, True, []),
        (1, 1.0, False, []),
        (1, 1.0, True, ["collect", "freeze"]),
        (1, limits.COLLECTION_SECONDS_MAX + 1.0, False, ["collect", "freeze"]),
        (limits.COLLECTION_PASS_COUNT_MAX + 1, 1.0, False, ["collect", "freeze"]),
        (limits.COLLECTION_PASS_COUNT_LONG + 1, 1.0, False, ["freeze"]),
        (limits.COLLECTION_PASS_COUNT_LONG + 1, 1.0, True, ["collect", "freeze"]),
        (1, limits.THAW_SECONDS + 1.0, True, ["unfreeze", "collect", "freeze"]),
        (1, limits.THAW_SECONDS + 1.0, False, ["collect", "freeze"]),
        (1, limits.THAW_SECONDS_MAX + 1.0, False, ["unfreeze", "collect", "freeze"]),
    ],
)
def test_it_runs_where_it_takes_little_or_nobody_waits(
    monkeypatch: pytest.MonkeyPatch, calls: list[str], passes: int, seconds: float, quiet: bool, expected: list[str]
) -> None:
    monkeypatch.setattr(process, "monotonic", lambda: 0.0)
    garbage = process.Garbage()
    calls.clear()
    looks(monkeypatch, garbage, passes, seconds, quiet=quiet)
    assert calls == expected


def test_a_server_whose_commands_pause_is_not_quiet() -> None:
    with headrace.Server() as server, RawClient(server.address) as client:
        turns = server._running.scheduler.turns
        activity = process.Activity(lambda: turns.pause_count)
        client.ask({"insert": "c", "documents": [{"_id": number} for number in range(100)]})
        activity.look()
        client.ask({"ping": 1})
        activity.look()
        assert activity.is_quiet
        turns.seconds = 0.0
        assert client.ask({"count": "c", "query": {"n": None}})["n"] == 100
        activity.look()
        assert not activity.is_quiet and not activity.has_been_quiet
        activity.look()
        assert activity.is_quiet
