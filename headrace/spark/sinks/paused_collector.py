"""Pausing Python's garbage collector while many rows, which contain no cycles, are folded.

Otherwise it traverses the rows and all objects of Spark and pandas again and again: a fifth of the time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class _Pauses:
    """The number of threads in the context, and whether the collector was enabled before the first one entered."""

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
    """Pause the garbage collector within the context. Several threads may be in it."""
    _PAUSES.begin()
    try:
        yield
    finally:
        _PAUSES.end()
