"""Filters of the user's own that run beside commands: of the audit log and of the profiler.

Rule: such a filter costs no command anything. What it raises, and that it takes too long, is one line of the log, and
`otherwise` says what becomes of the event: the audit log records it, since losing an event is worse than one too many;
the profiler does not, as on MongoDB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import AnsweredError
from headrace.log_lines import RepeatedLine


class UserFilter:
    """A parsed filter that raises nothing and ends in time."""

    __slots__ = ("_line", "_otherwise", "_result", "_test", "_what")

    def __init__(self, test: Callable[[dict[str, Any]], bool], what: str, *, otherwise: bool, result: str) -> None:
        """`test`: raises `CommandError`s. `otherwise`: the answer where it fails. `what`, `result`: its name, and what
        `otherwise` means, for the log."""
        self._test = test
        self._what = what
        self._otherwise = otherwise
        self._result = result
        self._line = RepeatedLine()

    def __call__(self, event: dict[str, Any]) -> bool:
        """Whether the event matches."""
        try:
            return self._test(event)
        except Exception as error:
            # The message of the error may have values of the event in it.
            reason = (
                f"error {error.code} ({error.code_name})" if isinstance(error, AnsweredError) else type(error).__name__
            )
            self._line.log(f"{self._what} failed with {reason}; {self._result}")
            return self._otherwise
