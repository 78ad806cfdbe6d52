"""Deadlines of waiting commands: met in order, never early, and not at all after a wake-up."""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import weakref
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from headrace.dispatch.request import ClientInfo, Request
from headrace.dispatch.wait import Wait
from headrace.server.notifier import NEVER_MS, Notifier, Parked

COMMAND: Any = None


class Peer:
    """A peer that notes when its command runs again, in ms."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.client = ClientInfo(1, "here:1", ("here", 2))
        self.waiting: Parked | None = None
        self.wait_timer: asyncio.TimerHandle | None = None
        self.timer_ms = NEVER_MS
        self.woken: list[tuple[float, bool]] = []
        self._loop = loop

    def wake(self, command: Any, request: Request) -> None:
        self.woken.append((self._loop.time() * 1000.0, request.time_is_up))


def notifier_of(loop: asyncio.AbstractEventLoop) -> Notifier:
    core: Any = SimpleNamespace(loop=loop, store=SimpleNamespace(listeners=[]))
    return Notifier(core)


def parked(notifier: Notifier, loop: asyncio.AbstractEventLoop, wait_ms: float) -> Any:
    peer: Any = Peer(loop)
    request = Request("getMore", "shop", b"", {}, peer.client, {"getMore": 1})
    notifier.park(peer, COMMAND, request, Wait(wait_ms, "shop.orders"))
    return peer


def test_deadlines_are_met_in_order_and_never_early() -> None:
    for loop in (asyncio.new_event_loop(), uvloop.new_event_loop()):
        notifier, peers = notifier_of(loop), {}
        for wait_ms in (100.0, 20.0, 80.0, 40.0, 60.0):
            # Each deadline counts from its own beginning: a busy machine stops this loop for milliseconds.
            deadline = loop.time() * 1000.0 + wait_ms
            peers[deadline] = parked(notifier, loop, wait_ms)
        loop.run_until_complete(asyncio.sleep(0.3))
        loop.close()
        assert all(peer.woken == [(peer.woken[0][0], True)] and peer.waiting is None for peer in peers.values())
        times = [peers[deadline].woken[0][0] for deadline in sorted(peers)]
        assert times == sorted(times)
        early = [deadline - time for deadline, time in zip(sorted(peers), times, strict=True) if time <= deadline - 1.0]
        assert not early, "uvloop's clock counts milliseconds"


def test_a_command_that_was_woken_is_not_woken_again_at_its_deadline() -> None:
    loop = uvloop.new_event_loop()
    notifier = notifier_of(loop)
    peers = [parked(notifier, loop, 20.0) for _ in range(3)]
    notifier.wake_key("shop.orders")
    notifier.leave(peers[0])
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    assert [[is_up for _, is_up in peer.woken] for peer in peers] == [[False]] * 3


@pytest.mark.parametrize("last_ms", [40.0, 20.3, 0.2])
def test_a_timer_that_an_earlier_command_has_left_wakes_a_later_one_at_its_own_deadline(last_ms: float) -> None:
    for loop in (asyncio.new_event_loop(), uvloop.new_event_loop()):
        notifier = notifier_of(loop)
        peer = parked(notifier, loop, 20.0)
        for wait_ms in (60.0, last_ms):
            notifier.wake_key("shop.orders")
            deadline = loop.time() * 1000.0 + wait_ms
            request = Request("getMore", "shop", b"", {}, peer.client, {"getMore": 1})
            notifier.park(peer, COMMAND, request, Wait(wait_ms, "shop.orders"))
        loop.run_until_complete(asyncio.sleep(0.08))
        loop.close()
        assert [is_up for _, is_up in peer.woken] == [False, False, True]
        assert peer.woken[-1][0] > deadline - 1.0
        assert peer.timer_ms == NEVER_MS


def leave(notifier: Notifier, wait: weakref.ref[Any]) -> None:
    if (peer := wait()) is not None:
        notifier.leave(peer)


def test_neither_a_deadline_that_was_met_nor_one_that_was_not_leaves_garbage() -> None:
    for loop in (asyncio.new_event_loop(), uvloop.new_event_loop()):
        notifier = notifier_of(loop)
        waits = [weakref.ref(parked(notifier, loop, wait_ms)) for wait_ms in (1.0, 10_000.0)]
        gc.disable()
        try:
            loop.call_later(0.02, notifier.wake_key, "shop.orders")
            for number, wait in enumerate(waits):
                loop.call_later(0.03 + number / 1000, leave, notifier, wait)
            loop.run_until_complete(asyncio.sleep(0.05))
            assert [wait() for wait in waits] == [None, None]
        finally:
            gc.enable()
            loop.close()


class VirtualLoop:
    """A loop whose time passes only from one call to the next."""

    def __init__(self) -> None:
        self._now, self._order, self._calls = 0.0, count(), list[Any]()

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[..., object], *arguments: Any) -> Any:
        handle = SimpleNamespace(is_cancelled=False)
        handle.cancel = lambda: setattr(handle, "is_cancelled", True)
        heapq.heappush(self._calls, (when, next(self._order), handle, callback, arguments))
        return handle

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> Any:
        return self.call_at(self._now, callback, *arguments)

    def run_until(self, end: float) -> None:
        while self._calls and self._calls[0][0] <= end:
            when, _, handle, callback, arguments = heapq.heappop(self._calls)
            self._now = max(self._now, when)
            if not handle.is_cancelled:
                callback(*arguments)
        self._now = end


@pytest.mark.parametrize("seed", range(20))
def test_each_of_many_commands_of_a_connection_ends_at_its_event_or_at_its_deadline(seed: int) -> None:
    choose, loop = random.Random(seed), VirtualLoop()
    notifier = notifier_of(loop)  # type: ignore[arg-type]
    peer: Any = Peer(loop)  # type: ignore[arg-type]
    for number in range(300):
        began_ms, wait_ms = (
            loop.time() * 1000.0,
            choose.choice([1.0, 20.0, 1000.0, 30_000.0]) * choose.uniform(0.5, 1.0),
        )
        request = Request("getMore", "shop", b"", {}, peer.client, {"getMore": 1})
        notifier.park(peer, COMMAND, request, Wait(wait_ms, "shop.orders"))
        event_ms = wait_ms * choose.choice([0.1, 0.9, 2.0])
        loop.run_until((began_ms + min(event_ms, wait_ms)) / 1000.0 - 1e-6)
        assert len(peer.woken) == number
        loop.run_until((began_ms + event_ms) / 1000.0 + 1e-6)
        if event_ms < wait_ms:
            notifier.wake_key("shop.orders")
        loop.run_until(loop.time() + choose.choice([1e-6, 0.5]))
        assert len(peer.woken) == number + 1 and peer.woken[-1][1] == (event_ms > wait_ms)
        assert peer.waiting is None
    notifier.leave(peer)
    loop.run_until(loop.time() + 60.0)
    assert len(peer.woken) == 300
