"""A process that ends in the middle of something, as far as a test in the same process can see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


class Crash(BaseException):
    """The process ends here."""


@contextmanager
def crashing(steps: Sequence[tuple[Any, str]], at_step: int) -> Iterator[None]:
    """Inside, the step number `at_step` crashes (even: before it is done, odd: behind it).

    `steps` are the functions that count, each by what it is an attribute of and its name.
    """
    count = 0

    def crash_here() -> None:
        nonlocal count
        count += 1
        if count - 1 == at_step:
            raise Crash

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            crash_here()
            answer = original(*arguments, **named)
            crash_here()
            return answer

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in steps:
            patch.setattr(owner, name, wrapped(getattr(owner, name)))
        yield
