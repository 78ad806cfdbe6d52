"""How many random examples a property is tried on: all in `make test`, a quarter in `make check`.

The examples of a test are the same on every machine; the quarter is where the whole begins.
"""

from __future__ import annotations

import os

from hypothesis import settings

FEWEST = 20


def examples(count: int) -> settings:
    """The decorator of a property that is tried `count` times, or a quarter of that if HEADRACE_FEW_EXAMPLES is set."""
    few = "HEADRACE_FEW_EXAMPLES" in os.environ
    count = max(count // 4, min(count, FEWEST)) if few else count
    return settings(max_examples=count, deadline=None, derandomize=True, database=None)
