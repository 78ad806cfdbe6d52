"""Python's garbage collector, left aside while many rows are folded, which make no cycles.

It would go through all of them, and through what Spark and pandas have loaded, again and again: a fifth of the time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class _Pauses:
    """How many threads are in the context, and whether the collector was enabled before the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._was_enabled:
                gc.enable()


_PAUSES: Final = _Pauses()


@contextmanager
def paused_collector() -> Iterator[None]:
    """Within the context nothing is collected; several threads may be in it."""
    _PAUSES.begin()
    try:
        yield
    finally:
        _PAUSES.end()
