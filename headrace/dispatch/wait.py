"""What a command returns when it cannot answer yet: wait for something relevant, then run me again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final


@final
class Wait(NamedTuple):
    """Run the command again when something after `after` was committed in `scope`, or when the time is up.

    The first Wait of a request starts its clock; the shell counts the deadline from there however often
    the command is run again, and sets `request.time_is_up` for the last run.
    """

    after: int | None
    """The position seen so far (exclusive); None: nothing committed ends the wait, only the time does."""
    wait_ms: float
    """How long to wait at most, in milliseconds from the first Wait of this request."""
    scope: Any = None
    """Which commits are relevant: a `changes` Scope; None: any."""
    over: Callable[[], bool] | None = None
    """Whether what is waited for has come already: asked when the wait begins, which may be long after it was made."""
