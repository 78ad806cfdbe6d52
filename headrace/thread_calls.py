"""Long calls of C code that let other threads run: a command has them run in one, and others their turns meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.running_command import running_command


class _Failed:
    """The error that a call has raised."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class ThreadCall:
    """A long call of C code that lets other threads run. The shell may run it in a thread, and the command continues
    when it has ended. Without a shell the command runs it itself."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = partial(function, *args)
        self._outcome: list[Any] = []

    def run(self) -> None:
        """Run it, once, in any thread."""
        try:
            self._outcome.append(self._call())
        except Exception as error:
            self._outcome.append(_Failed(error))

    def over(self) -> bool:
        """Whether it has ended, which it has when this returns."""
        if not self._outcome:
            self.run()
        return True

    def result(self) -> Any:
        """Return the call's result, or raise its error."""
        self.over()
        outcome = self._outcome.pop()
        if type(outcome) is _Failed:
            raise outcome.error
        return outcome


class OwnThread:
    """A call of C code that may take minutes, in a thread of its own: it delays no other call."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = ThreadCall(function, *args)
        self._thread = threading.Thread(target=self._call.run, name="headrace-own-call", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> None:
        """Return when it has ended, or after some seconds."""
        self._thread.join(seconds)

    def result(self) -> Any:
        """Return the call's result, or raise its error; once."""
        self.wait()
        return self._call.result()


def call_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of `function`, which uses only its arguments; other commands run meanwhile."""
    call = ThreadCall(function, *args)
    command = running_command()
    if command is not None:
        command.pause(call)
    return call.result()
