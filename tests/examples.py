"""How many random examples a property is tried on: all in `make soak`, half in `make test`, a quarter in `make check`.

The examples of a test are the same on every machine; the half and the quarter are where the whole begins.
"""

from __future__ import annotations

import os

from hypothesis import settings

FEWEST = 20


def examples(count: int) -> settings:
    """The decorator of a property that is tried `count` times, or an n-th of that if HEADRACE_EXAMPLES_DIVISOR is n."""
    divisor = int(os.environ.get("HEADRACE_EXAMPLES_DIVISOR", "1"))
    count = max(count // divisor, min(count, FEWEST))
    return settings(max_examples=count, deadline=None, derandomize=True, database=None)
