"""The user's own filters that run beside commands: for the audit log and the profiler.

Rule: such a filter never affects a command. If it raises or takes too long, one line is logged, and `otherwise` decides
about the event. The audit log then records the event, because a missing event is worse than an extra one. The profiler
does not, as on MongoDB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import AnsweredError
from headrace.log_lines import RepeatedLine


class UserFilter:
    """A parsed filter that never raises and ends in time."""

    __slots__ = ("_line", "_otherwise", "_result", "_test", "_what")

    def __init__(self, test: Callable[[dict[str, Any]], bool], what: str, *, otherwise: bool, result: str) -> None:
        """`test`: raises `CommandError`s. `otherwise`: the result if it fails. For the log: `what` is the filter's
        name, and `result` the meaning of `otherwise`."""
        self._test = test
        self._what = what
        self._otherwise = otherwise
        self._result = result
        self._line = RepeatedLine()

    def __call__(self, event: dict[str, Any]) -> bool:
        """Return whether the event matches."""
        try:
            return self._test(event)
        except Exception as error:
            # The error's message may have values of the event.
            reason = (
                f"error {error.code} ({error.code_name})" if isinstance(error, AnsweredError) else type(error).__name__
            )
            self._line.log(f"{self._what} failed with {reason}; {self._result}")
            return self._otherwise
