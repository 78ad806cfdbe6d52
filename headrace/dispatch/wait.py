"""The return value of a command that cannot answer yet: what it waits for, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final


@final
class Wait(NamedTuple):
    """Run the command again when something was committed in `scope`, or when the time is up.

    The first Wait of a request starts its clock; the shell counts the deadline from there however often
    the command is run again, and sets `request.time_is_up` for the last run.
    """

    wait_ms: float
    """How long to wait at most, in milliseconds from the first Wait of this request."""
    scope: Any = None
    """The key to wait for: a collection, a database with its dot, "" for any commit, or a key that `Transactions`
    wakes; None: only the time ends the wait."""
    over: Callable[[], bool] | None = None
    """Whether the wait has ended already; asked when it begins, which may be long after it was returned."""


def only_others() -> bool:
    """As `Wait.over`: the command waits only until others have had their turn."""
    return True
