"""Reports of how far a comparison is."""

from __future__ import annotations

from collections.abc import Callable

Counted = Callable[[int, int], object]
"""Called with how many documents or events have been read, and how many rows the table has."""


def ignored(done: int, total: int) -> None:
    """The `Counted` of a caller that does not ask."""
