"""Wait in a test for what another thread or process does: with pauses, which leave it the interpreter, and a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

SECONDS_MAX = 120.0
Found = TypeVar("Found")


def until(look: Callable[[], Found], seconds: float = SECONDS_MAX) -> Found:
    """Return what `look` returns once that is true. Raises TimeoutError when it has not become so in time."""
    pause, ends = threading.Event(), time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > ends:
            raise TimeoutError(f"not so after {seconds:.0f} s: {look}")
        pause.wait(0.002)
    return found
