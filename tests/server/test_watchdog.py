"""The watchdog of commits: it ends a server whose disk hangs, and none that was merely stopped or is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace import limits
from headrace.server.core import Watchdog
from headrace.store.store import Store
from tests.waiting import until

from .raw import RawClient

SECONDS = limits.WRITER_STALL_SECONDS_MAX


def test_a_step_that_lasts_longer_than_a_minute_is_stalled() -> None:
    watchdog = Watchdog()
    stalled = [watchdog.is_stalled(5.0, 5.0 + second) for second in range(SECONDS + 3)]
    assert stalled == [False] * (SECONDS + 1) + [True] * 2


def test_each_step_has_a_minute() -> None:
    watchdog = Watchdog()
    assert not any(watchdog.is_stalled(float(second // 50), float(second)) for second in range(1000))
    assert not any(watchdog.is_stalled(None, float(second)) for second in range(1000, 2000))


def test_a_process_that_was_stopped_for_hours_is_not_stalled() -> None:
    watchdog = Watchdog()
    assert not watchdog.is_stalled(5.0, 5.0)
    assert not watchdog.is_stalled(5.0, 5.0 + 3600)
    assert not watchdog.is_stalled(5.0, 5.0 + 7200)
    assert not watchdog.is_stalled(None, 5.0 + 7201)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Commits hang until the event is set; the writer takes commits for slow ones and makes them in its thread."""
    release = threading.Event()
    original = Store.sync

    def sync(self: Store, txn: Any) -> None:
        if threading.current_thread().name.startswith("headrace-commit"):
            release.wait(30)
        original(self, txn)

    monkeypatch.setattr(Store, "sync", sync)
    monkeypatch.setattr("headrace.server.writer.SLOW_COMMIT_MS", -1.0)
    yield release
    release.set()


def look_for(server: headrace.Server, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Let the watchdog look, once a second, as if so many seconds had passed."""
    core = server._running

    async def look() -> None:
        for second in range(seconds):
            monkeypatch.setattr("headrace.server.core.monotonic", lambda now=second: 1e9 + now)
            core.look_after_writer()

    asyncio.run_coroutine_threadsafe(look(), core.loop).result()


def test_a_commit_that_hangs_ends_the_server(hanging: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.Server() as server, RawClient(server.address) as client, RawClient(server.address) as other:
        client.send({"insert": "c", "documents": [{"_id": 1}]})
        until(lambda: server._running.writer.busy_since is not None)
        look_for(server, monkeypatch, SECONDS)
        assert server.failure is None and other.ask({"ping": 1})["ok"] == 1.0
        look_for(server, monkeypatch, SECONDS + 3)
        assert server.failure is not None and "no write has ended" in server.failure
        assert client.is_cut_off() and other.is_cut_off()
        hanging.set()


def test_a_commit_that_ends_within_the_minute_is_answered(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headrace.Server() as server, RawClient(server.address) as client:
        client.send({"insert": "c", "documents": [{"_id": 1}]})
        until(lambda: server._running.writer.busy_since is not None)
        look_for(server, monkeypatch, SECONDS - 1)
        hanging.set()
        assert client.receive()[1]["n"] == 1
        look_for(server, monkeypatch, 10 * SECONDS)
        assert server.failure is None and client.ask({"count": "c"})["n"] == 1
