"""A process that ends in the middle of something, as far as a test in the same process can see it.

`crashing` ends it at one step. `states_at` keeps what it has written at every step of one run: each of these states is
what a process that ended there would have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

State = TypeVar("State")


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

    with _called_at(steps, crash_here):
        yield names


@contextmanager
def states_at(steps: Sequence[tuple[Any, str]], state: Callable[[], State]) -> Iterator[tuple[list[str], list[State]]]:
    """Inside, the state is taken at once, and before and after each step.

    Gives the names of the steps so far as `crashing` does, and the states: those that follow each other differ. A
    process that ends between two equal states leaves the same in both cases, so one of them is enough to try.
    """
    names: list[str] = []
    states = [state()]

    def keep(name: str) -> None:
        names.append(name)
        now = state()
        if now != states[-1]:
            states.append(now)

    with _called_at(steps, keep):
        yield names, states


@contextmanager
def _called_at(steps: Sequence[tuple[Any, str]], call: Callable[[str], None]) -> Iterator[None]:
    """Inside, `call` is called before and after each step, with its name."""

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            call(name)
            answer = original(*arguments, **named)
            call(name)
            return answer

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in steps:
            patch.setattr(owner, name, wrapped(name, getattr(owner, name)))
        yield


def folder_state(folder: Path) -> dict[str, bytes | None]:
    """The files of a folder with their bytes, and its folders with None, by their path in it; empty without it."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def write_folder(state: Mapping[str, bytes | None], folder: Path) -> None:
    """Make the folder as it was in the state; without a state there is none."""
    for name, data in state.items():
        path = folder / name
        if data is None:
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
