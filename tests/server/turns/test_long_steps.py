"""Short writes beside a long one: they wait for one of its long steps only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace import limits
from headrace.server import writer as writer_module
from headrace.server.writer import LONG_COMMIT_BYTES
from headrace.store.store import Store
from headrace.values.bson import encode
from tests.waiting import until

from ..raw import RawClient


@pytest.fixture
def pausing() -> Iterator[headrace.Server]:
    """A server whose commands pause at every tick."""
    with headrace.Server() as running:
        running._running.scheduler.turns.seconds = 0.0
        yield running


@pytest.mark.parametrize("why", ["bytes", "time", "turn"])
def test_a_short_write_does_not_share_a_second_long_commit(
    pausing: headrace.Server, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    shared: list[bool] = []
    long_began, short_came = threading.Event(), threading.Event()
    original = Store.sync

    def sync(self: Store, txn: Any) -> None:
        group = pausing._running.writer._group
        if group is not None and group.writes and group.writes[0][2].body.get("insert") == "short":
            shared.append(group.resumed is not None)
        is_resumed = group is not None and group.resumed is not None
        if is_resumed if why != "bytes" else txn.staged.entry_bytes > LONG_COMMIT_BYTES:  # in the thread
            long_began.set()
            short_came.wait(30)
        original(self, txn)

    with RawClient(pausing.address) as long, RawClient(pausing.address) as other:
        other.ask({"create": "short"})
        monkeypatch.setattr(Store, "sync", sync)
        if why == "time":
            monkeypatch.setattr(writer_module, "SLOW_COMMIT_MS", -1.0)
        elif why == "turn":
            monkeypatch.setattr(limits, "MOVED_DOCUMENT_SECONDS", -1.0)
        text = bytes(3_000_000 if why == "bytes" else 1_000_000)
        long.send({"insert": "c"}, documents=[encode({"_id": key, "x": text}) for key in range(3)])
        assert long_began.wait(30)
        other.send({"insert": "short"}, documents=[encode({"_id": 1})])
        until(lambda: pausing._running.writer._queue)
        short_came.set()
        assert other.receive()[1]["n"] == 1 and long.receive()[1]["n"] == 3
    assert shared == [False]
