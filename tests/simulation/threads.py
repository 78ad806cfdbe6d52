"""Threads that run one at a time: each is a greenlet, and their driver decides at each statement which one goes on.

    threads = Threads()
    names = threads.instrumented("headrace.embedded.local_writes", threading=threads.module)
    thread = threads.start(3, function)          it has a number
    threads.go(thread, 5)                        it goes on for five statements, or until it waits for a lock

`instrumented` runs a module's source anew, with a point before each statement of its functions at which the thread may
stop. Its locks are `Lock`s of this file, so that no real thread and no time is needed.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, Final

from greenlet import getcurrent, greenlet

from tests.simulation.model import Finding

FAR: Final = 1_000_000
POINT: Final = "_simulated_point"
BODIES: Final = ("body", "orelse", "finalbody")


class Crashed(BaseException):
    """Unwinds a thread whose process has ended."""


class Thread:
    """One thread, and the lock that it waits for."""

    def __init__(self, number: int, run: Callable[[], Any]) -> None:
        self.number = number
        self.top: greenlet = greenlet(run)
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_begun = self.has_ended = False
        self.waits_for: Lock | None = None
        self.time_is_up = False
        self.can_be_interrupted = self.is_interrupted = False
        """By Ctrl-C: where it waits for a lock, or sleeps."""

    @property
    def can_go(self) -> bool:
        """Whether it has not ended, and waits for nothing that is held."""
        if self.has_ended:
            return False
        return self.waits_for is None or self.time_is_up or self.is_interrupted or not self.waits_for.is_held


class Threads:
    """The threads of one process."""

    def __init__(self) -> None:
        self.current: Thread | None = None
        self.is_dying = False
        self._left = 0
        self._until_release = False
        self._driver: greenlet | None = None
        self.module = SimpleNamespace(
            Lock=lambda: Lock(self), RLock=lambda: Lock(self), TIMEOUT_MAX=1e9, get_ident=self.identity,
            local=lambda: Local(self),
        )  # fmt: skip
        """In place of `threading`."""

    def start(self, number: int, function: Callable[[], Any]) -> Thread:
        """A thread that has not run yet."""

        def run() -> None:
            try:
                thread.result = function()
            except BaseException as error:
                thread.error = error
            thread.has_ended = True

        thread = Thread(number, run)
        return thread

    def go(self, thread: Thread, count: int) -> None:
        """Let a thread go on for so many points, or until it waits; 0: until it has released a lock."""
        self._left, self._until_release = count - 1 if count else FAR, not count
        self.current, self._driver, thread.has_begun = thread, getcurrent(), True
        try:
            thread.top.switch()
        finally:
            self.current = None

    def kill(self, thread: Thread) -> None:
        """Unwind a thread, which waits for nothing any more and does not stop. The process ends."""
        self.is_dying, self.current = True, thread
        try:
            if thread.has_begun and not thread.has_ended:
                thread.top.throw(Crashed())
        finally:
            self.is_dying, self.current = False, None

    def point(self) -> None:
        """The thread that runs may stop here."""
        if self.current is not None and not self.is_dying:
            if self._left > 0:
                self._left -= 1
            else:
                self.stop()

    def has_released(self) -> None:
        """A lock is free: another thread may have it before this one goes on."""
        if self._until_release:
            self._left = 0

    def stop(self) -> None:
        """The thread that runs stops here, until it is let go on."""
        thread = self.current
        if thread is None or self.is_dying:
            return
        assert self._driver is not None
        thread.top = getcurrent()
        self._driver.switch()

    def wait(self) -> None:
        """As `stop`, where Ctrl-C may come. Raises KeyboardInterrupt."""
        thread = self.current
        if thread is None or self.is_dying:
            return
        thread.can_be_interrupted = True
        try:
            self.stop()
        finally:
            thread.can_be_interrupted = False
        if thread.is_interrupted:
            thread.is_interrupted = False
            raise KeyboardInterrupt

    def identity(self) -> int:
        """The number of the thread that runs, -1: the driver."""
        return -1 if self.current is None else self.current.number

    def instrumented(self, name: str, **names: Any) -> dict[str, Any]:
        """The names of a module whose functions stop at each statement; `names` stand in for those it imports."""
        made: dict[str, Any] = {"__name__": name, POINT: self.point}
        exec(_compiled(name), made)
        made.update(names)
        return made


class Lock:
    """As `threading.Lock`."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self.is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait until it is free; False if the driver says that the time is up."""
        threads, thread = self._threads, self._threads.current
        if self.is_held and not blocking:
            return False
        if self.is_held and thread is None:
            raise Finding("deadlock", "a lock is held that should be free")
        while self.is_held and not threads.is_dying:
            assert thread is not None
            thread.waits_for = self
            try:
                threads.wait()
            finally:
                thread.waits_for = None
            if thread.time_is_up and timeout >= 0:
                thread.time_is_up = False
                return False
        self.is_held = True
        return True

    def release(self) -> None:
        """Let the next have it. Raises RuntimeError if it is not held."""
        if not self.is_held and not self._threads.is_dying:
            raise RuntimeError("release unlocked lock")
        self.is_held = False
        self._threads.has_released()

    def locked(self) -> bool:
        """Whether it is held."""
        return self.is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Local:
    """As `threading.local`, by the thread's number."""

    def __init__(self, threads: Threads) -> None:
        self.__dict__["_of"] = (threads, {})

    def of(self, number: int) -> dict[str, Any]:
        """What a thread has."""
        _, by_number = self.__dict__["_of"]
        mine: dict[str, Any] = by_number.setdefault(number, {})
        return mine

    def __getattr__(self, name: str) -> Any:
        try:
            return self.of(self.__dict__["_of"][0].identity())[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.of(self.__dict__["_of"][0].identity())[name] = value


@cache
def _compiled(name: str) -> CodeType:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    tree.body = [node for node in tree.body if not _registers(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            _add_points(node)
    return compile(ast.fix_missing_locations(tree), spec.origin, "exec")


def _registers(node: ast.stmt) -> bool:
    """Whether a statement of the module registers something with the process, which has the module's own already."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def _add_points(node: ast.AST) -> None:
    """Put a point before each statement, at any depth, but not into functions inside."""
    for field in BODIES:
        statements = getattr(node, field, None)
        if not isinstance(statements, list):
            continue
        made: list[ast.stmt] = []
        for statement in statements:
            if not isinstance(statement, ast.FunctionDef):
                _add_points(statement)
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_text:
                call = ast.Call(ast.Name(POINT, ast.Load()), [], [])
                made.append(ast.copy_location(ast.Expr(call), statement))
            made.append(statement)
        setattr(node, field, made)
    for handler in getattr(node, "handlers", ()):
        _add_points(handler)
