"""How often a command ticks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.turns import Turn, Turns


def tick_count(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """What the function returns, and how often it has ticked."""
    turns, count = Turns(seconds=0.0), 0
    answer = turns.run(function, *arguments)
    while type(answer) is Turn:
        count += 1
        answer = turns.resume(answer)
    return answer, count
