"""Turns: what pauses goes on where it was, what is interrupted ends, and greenlets are used again."""

from __future__ import annotations

import gc
from contextlib import suppress
from weakref import ref

import pytest

from headrace.running_command import running_command
from headrace.turns import Turn, Turns, tick


def test_a_call_that_never_ticks_is_just_a_call() -> None:
    turns = Turns()
    assert turns.run(lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        turns.run(lambda: 1 / 0)


def test_a_tick_outside_a_turn_does_nothing() -> None:
    tick()
    assert running_command() is None


def test_two_commands_share_the_time() -> None:
    turns, done = Turns(seconds=0.0), []

    def command(name: str) -> str:
        for step in range(3):
            done.append(f"{name}{step}")
            tick()
        return name

    first, second = turns.run(command, "a"), turns.run(command, "b")
    assert isinstance(first, Turn) and isinstance(second, Turn)
    results = []
    while len(results) < 2:
        for turn in (first, second):
            result = turns.resume(turn)
            if not isinstance(result, Turn):
                results.append(result)
    assert results == ["a", "b"] and done == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_an_interruption_is_raised_where_the_command_paused() -> None:
    turns, closed = Turns(seconds=0.0), []

    def command() -> None:
        turn = running_command()
        assert turn is not None
        turn.before_pause = lambda: closed.append("view")
        try:
            tick()
        finally:
            closed.append("command")

    turn = turns.run(command)
    turn.interruption = TimeoutError("killed")
    with pytest.raises(TimeoutError):
        turns.resume(turn)
    assert closed == ["view", "command"]
    assert turns.run(lambda: id(running_command())) == id(
        turn
    )  # which is used again, and knows nothing of what was before
    assert turn.before_pause is None and turn.interruption is None


def test_nothing_of_a_command_stays_behind_it() -> None:
    """Neither its result nor, by a cycle of an exception and its frames, what it held when it failed."""

    class Held:
        pass

    turns, seen = Turns(), []

    def command(fails: bool) -> Held:
        held = Held()
        seen.append(ref(held))
        if fails:
            raise ZeroDivisionError
        return held

    gc.disable()
    try:
        assert isinstance(turns.run(command, False), Held)
        with suppress(ZeroDivisionError):
            turns.run(command, True)
        assert [held() for held in seen] == [None, None]
    finally:
        gc.enable()
