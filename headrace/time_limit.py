"""A limit of the CPU time that a filter, a stage or an update may take for one document. No command pauses meanwhile.

    each = limited(function)     returns the function; a call that takes too long raises 50, at whatever instruction

The limited functions do not check the time. A thread, the watch, checks the limited calls of all threads every
hundredth of a second. If a call has taken too long, Python raises the error in its thread at the end of the present
instruction. The watch sleeps while there are no limited calls. A call of a command that another process can run is left
much sooner, with `HandedOver`: other commands of this process need not wait for it.

Rule: only pure functions are limited, because they may be left at any instruction. They read no store and change
nothing that other commands see.

Source: CPython's `PyThreadState_SetAsyncExc`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from ctypes import c_ulong, py_object, pythonapi
from functools import partial, wraps
from threading import Event, Thread, current_thread, local
from time import sleep
from typing import Any, Final, ParamSpec, TypeVar, TypeVarTuple

from headrace import limits
from headrace.errors import CommandError, HandedOver

LOOK_SECONDS: Final = 0.01
"""The time between two checks of the watch."""
_IDLE_COUNT: Final = 90
"""The number of checks without a limited call after which the watch sleeps."""

Arguments = TypeVarTuple("Arguments")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class TookTooLong(CommandError):
    """Ends a limited call that took too long."""

    def __init__(self) -> None:
        super().__init__(50, "operation exceeded time limit: one document took too much CPU time")


class OutOfMemory(CommandError):
    """Ends a limited call while the process has too much memory."""

    def __init__(self) -> None:
        super().__init__(146, "operation exceeded the server's memory limit")


class _Calls:
    """The limited calls of one thread, one after the other."""

    __slots__ = ("count", "cpu_time", "fires", "runs", "seen", "seen_at", "thread")

    def __init__(self) -> None:
        self.thread = current_thread()
        self.cpu_time = _cpu_time_of(self.thread.ident or 0)
        self.count = 0
        """The number of the last call."""
        self.runs = False
        self.seen = 0
        """The number of the call that the watch saw last."""
        self.seen_at = 0.0
        """The thread's CPU time when the watch first saw that call."""
        self.fires = False
        """Whether the watch is about to raise an error in this thread, if the call still runs."""

    def look(self) -> None:
        """Raise an error in the thread if its call has taken too long. The watch calls this."""
        count = self.count
        if not self.runs:
            return
        now = self.cpu_time()
        if count != self.seen:
            self.seen, self.seen_at = count, now
        if watch.memory_is_exceeded():
            error: type[BaseException] = OutOfMemory
        elif now - self.seen_at >= limits.DOCUMENT_SECONDS_MAX:
            error = TookTooLong
        elif now - self.seen_at >= limits.MOVED_DOCUMENT_SECONDS and watch.may_move(self.thread):
            error = HandedOver
        else:
            return
        self.seen_at = now
        if _is_importing(self.thread.ident):
            return  # the first call imports modules: its time does not count, and an import must not be interrupted
        self.fires = True
        if self.runs and self.count == count:
            _raise_in(self.thread.ident, error)
        self.fires = False

    def settle(self) -> None:
        """Handle the end of a call that the watch has seen: absorb a pending error, so that none comes later.

        `PyThreadState_SetAsyncExc(thread, NULL)` is not used to cancel it: Python would check for an error ever after.
        """
        try:
            while self.fires:
                sleep(LOOK_SECONDS / 100)
            for _ in range(2):
                sleep(0)  # a pending error is raised here at the latest
        except (HandedOver, OutOfMemory, TookTooLong):
            pass


def _is_importing(thread: int | None) -> bool:
    """Return whether a thread is importing a module."""
    frame = None if thread is None else sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _cpu_time_of(thread: int) -> Callable[[], float]:
    """Return a function for a thread's CPU time in seconds. On macOS, which hides it from other threads: the
    process's."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    return partial(time.clock_gettime, time.pthread_getcpuclockid(thread))


class _OfThread(local):
    """The limited calls of the accessing thread."""

    def __init__(self) -> None:
        self.calls = _Calls()
        watch.threads.append(self.calls)


class Watch:
    """The thread that checks the limited calls."""

    may_move: Callable[[Thread], bool] = staticmethod(lambda _: False)
    """Returns whether another process can run the command that runs in a thread. `turns` sets it."""

    def __init__(self) -> None:
        self.threads: list[_Calls] = []
        self.memory_is_exceeded: Callable[[], bool] = lambda: False
        """Returns whether the process has too much memory for running commands to continue."""
        self.sleeps = True
        self._wakes = Event()
        self._thread: Thread | None = None

    def wake(self) -> None:
        """Wake the watch when a limited call begins."""
        self.sleeps = False
        if self._thread is None:
            self._thread = Thread(target=self._run, name="headrace-watch", daemon=True)
            self._thread.start()
        self._wakes.set()

    def forget(self) -> None:
        """Reset the watch after a fork, in which only the caller's thread exists."""
        self.__init__()  # type: ignore[misc]

    def _run(self) -> None:
        idle = 0
        counts: Any = None
        while True:
            sleep(LOOK_SECONDS)
            for calls in self.threads:
                calls.look()
            before, counts = counts, [calls.count for calls in self.threads]
            idle = idle + 1 if counts == before and not any(calls.runs for calls in self.threads) else 0
            if idle == _IDLE_COUNT:
                for calls in [calls for calls in self.threads if not calls.thread.is_alive()]:
                    self.threads.remove(calls)
                self._wakes.clear()
                self.sleeps = True
                self._wakes.wait()
                idle = 0


watch: Final = Watch()
_of_thread: Final = _OfThread()
_raise_in: Final = pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (c_ulong, py_object)


def limited(function: Callable[[*Arguments], Result]) -> Callable[[*Arguments], Result]:
    """Return the function with a limit on each call. A call within another limited call is part of that call."""

    def within(*arguments: *Arguments) -> Result:
        calls = _of_thread.calls
        if calls.runs:
            return function(*arguments)
        if watch.sleeps:
            watch.wake()
        calls.count += 1
        calls.runs = True
        try:
            return function(*arguments)
        finally:
            calls.runs = False
            if calls.seen == calls.count:
                calls.settle()

    return within


def limited_call(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Limit a function with keyword arguments, as `limited` does without; it takes twice as long."""

    @wraps(function)
    def within(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        return limited(partial(function, *args, **options))()

    return within


def check_step(length: int) -> None:
    """Check that an array of `length` elements may be made in one step, which the watch cannot end. Takes 4 µs.

    Raise 146 while the process has too much memory. Leave a long array to another process, if one can run the read."""
    if watch.memory_is_exceeded():
        raise OutOfMemory
    if length > limits.MOVED_ARRAY_LENGTH:
        hand_over()


def hand_over() -> None:
    """Leave the running read if another process can run it: its next step takes long and cannot be cut."""
    if watch.may_move(current_thread()):
        raise HandedOver


def is_limited() -> bool:
    """Return whether the caller is part of a limited call."""
    return _of_thread.calls.runs


def _forget_threads() -> None:
    global _of_thread  # noqa: PLW0603
    watch.forget()
    _of_thread = _OfThread()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget_threads)
