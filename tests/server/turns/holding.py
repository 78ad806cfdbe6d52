"""A command that stays paused while a test does what is to come in between, however late the test is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import headrace
from headrace.turns import Turn


@contextmanager
def held(server: headrace.Server, name: str, once: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Inside, commands of this name that have paused, and go on when `once` is so, stay paused until interrupted."""
    core = server._running
    turns, resume = core.scheduler.turns, core.scheduler.turns.resume
    interrupted: set[Turn] = set()

    def resume_or_hold(turn: Turn, given: Any = None) -> Any:
        if turn.interruption is not None:
            interrupted.add(turn)
        is_held = turn not in interrupted and name_of(turn) == name and once()
        return turn if is_held else resume(turn, given)

    def name_of(turn: Turn) -> str | None:
        for paused in core.scheduler._by_connection.values():
            if paused.turn is turn and paused.request is not None:
                return paused.request.name
        group = core.writer._group
        return group.resumed.write.request.name if group and group.resumed and group.resumed.turn is turn else None

    turns.resume = resume_or_hold  # type: ignore[method-assign]
    try:
        yield
    finally:
        turns.resume = resume  # type: ignore[method-assign]
