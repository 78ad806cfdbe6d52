"""Background jobs: each comes to its end, and none waits for another, whatever clients write meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.server import background
from headrace.server.ttl import TimeToLive
from headrace.store.write_transaction import WriteTransaction


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
