"""How much a command does between two of its ticks, counted in pieces and in bytes that it allocates, not in time."""

from __future__ import annotations

import tracemalloc
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


def longest_stretch(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """What the function returns, and the most that it has allocated at once between two ticks."""
    turns = Turns(seconds=0.0)
    longest = 0
    tracemalloc.start()
    try:
        answer: Any = None
        while True:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            answer = turns.resume(answer) if type(answer) is Turn else turns.run(function, *arguments)
            longest = max(longest, tracemalloc.get_traced_memory()[1] - before)
            if type(answer) is not Turn:
                return answer, longest
    finally:
        tracemalloc.stop()
