"""The return value of a command that cannot answer yet: the key that it waits for, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final


@final
class Wait(NamedTuple):
    """Run the command again after a commit in `scope`, or when the time is up.

    The first Wait of a request starts its clock. The deadline counts from there, however often the shell runs the
    command again. For the last run the shell sets `request.time_is_up`.
    """

    wait_ms: float
    """The maximum wait in milliseconds, from the first Wait of this request."""
    scope: Any = None
    """The key to wait for: a collection, a database with its dot, "" for any commit, or a key that `Transactions`
    wakes; None: only the time ends the wait."""
    over: Callable[[], bool] | None = None
    """Whether the wait has already ended. It is called when the wait begins, maybe long after the Wait was returned."""


def only_others() -> bool:
    """Return True, as a `Wait.over` for a command that waits only until others have had their turn."""
    return True
