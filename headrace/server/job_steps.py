"""Where a background job lets others run, without asyncio: a task of a loop and a thread that drives it both can."""

from __future__ import annotations

from collections.abc import Generator
from types import coroutine


@coroutine
def let_others_run() -> Generator[None, None, None]:
    """End a step of a job. In a task: as `asyncio.sleep(0)`."""
    yield
