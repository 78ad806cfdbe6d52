"""The point where a background job lets others run. It needs no asyncio, so that a loop's task or a thread can run
it."""

from __future__ import annotations

from collections.abc import Generator
from types import coroutine


@coroutine
def let_others_run() -> Generator[None, None, None]:
    """End a step of a job. In a task it does the same as `asyncio.sleep(0)`."""
    yield
