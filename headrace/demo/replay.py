"""Write the flights to a server at a given pace, one acknowledged write at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from pymongo.collection import Collection

from headrace.clock import SystemClock
from headrace.demo.flights import Write


def replay(
    collection: Collection[dict[str, Any]],
    writes: Iterable[Write],
    *,
    a_second: float,
    after_write: Callable[[], object],
) -> float:
    """Make at most `a_second` writes per second and call `after_write` after each; return the seconds taken."""
    clock = SystemClock()
    start_ms = clock.monotonic_ms()
    for number, write in enumerate(writes):
        ahead_ms = start_ms + number * 1000 / a_second - clock.monotonic_ms()
        if ahead_ms > 1:
            time.sleep(ahead_ms / 1000)
        _make(collection, write)
        after_write()
    return (clock.monotonic_ms() - start_ms) / 1000


def _make(collection: Collection[dict[str, Any]], write: Write) -> None:
    if write.kind == "insert":
        collection.insert_one(write.body)
    elif write.kind == "update":
        collection.update_one({"_id": write.key}, {"$set": write.body})
    else:
        collection.delete_one({"_id": write.key})
