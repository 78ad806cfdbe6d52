"""A process that ends in the middle of something, as far as a test in the same process can see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


class Crash(BaseException):
    """The process ends here."""


@contextmanager
def crashing(steps: Sequence[tuple[Any, str]], at_step: int = -1) -> Iterator[list[str]]:
    """Inside, the step number `at_step` crashes (even: before it is done, odd: behind it), and so does each
    that another thread comes to later; -1 is none of them.

    `steps` are the functions that count, each by what it is an attribute of and its name. Gives the names of the
    steps so far, each twice if it was done.
    """
    names: list[str] = []

    def crash_here(name: str) -> None:
        names.append(name)
        if 0 <= at_step < len(names):
            raise Crash

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            crash_here(name)
            answer = original(*arguments, **named)
            crash_here(name)
            return answer

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in steps:
            patch.setattr(owner, name, wrapped(name, getattr(owner, name)))
        yield names
