"""Long calls of C code that release the GIL. A command runs them in a thread, while other commands have their turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from headrace.running_command import running_command


class ThreadCall:
    """A long call of C code that releases the GIL. The shell may run it in a thread; the command continues after the
    call. Without a shell the command runs it itself."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = partial(function, *args)
        self._outcome: Future[Any] = Future()

    def run(self) -> None:
        """Run the call, once, in any thread."""
        try:
            self._outcome.set_result(self._call())
        except Exception as error:
            self._outcome.set_exception(error)

    def over(self) -> bool:
        """Run the call if it has not run yet; return True."""
        if not self._outcome.done():
            self.run()
        return True

    def result(self) -> Any:
        """Return the call's result, or raise its error."""
        self.over()
        return self._outcome.result()


class OwnThread:
    """A call of C code that may take minutes. It has its own thread, so that it delays no other call."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = ThreadCall(function, *args)
        self._thread = threading.Thread(target=self._call.run, name="headrace-own-call", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the call has ended."""
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the call has ended, or for `seconds`."""
        self._thread.join(seconds)

    def result(self) -> Any:
        """Return the call's result, or raise its error. Called once."""
        self.wait()
        return self._call.result()


def call_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of `function`, which must use only its arguments. Other commands run meanwhile."""
    call = ThreadCall(function, *args)
    command = running_command()
    if command is not None:
        command.pause(call)
    return call.result()
