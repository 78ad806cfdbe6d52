"""Turns: what pauses goes on where it was, what is interrupted ends, and greenlets are used again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from weakref import ref

import pytest

from headrace import turns as module
from headrace.errors import CommandError
from headrace.turns import (
    LARGE_COUNT,
    PIECE_COUNT,
    TimeLimit,
    Turn,
    Turns,
    current_turn,
    free_held,
    freed_in_pieces,
    gathered,
    in_pieces,
    sorted_in_pieces,
    tick,
    uninterrupted,
)


def test_a_call_that_never_ticks_is_just_a_call() -> None:
    turns = Turns()
    assert turns.run(lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        turns.run(lambda: 1 / 0)


def test_a_tick_outside_a_turn_does_nothing() -> None:
    tick()
    assert current_turn() is None


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
        turn = current_turn()
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
    assert turns.run(lambda: id(current_turn())) == id(
        turn
    )  # which is used again, and knows nothing of what was before
    assert turn.before_pause is None and turn.interruption is None


def test_sorting_in_pieces_is_stable() -> None:
    items = [(n * 7919 % 1000, n) for n in range(20_000)]
    assert sorted_in_pieces(items, lambda item: item[0]) == sorted(items, key=lambda item: item[0])
    descending = sorted_in_pieces(items, lambda item: item[0], reverse=True)
    assert descending == sorted(items, key=lambda item: item[0], reverse=True)
    assert [len(piece) for piece in in_pieces(range(10_000))] == [4096, 4096, 1808]


def test_a_large_array_is_freed_in_pieces_once_nothing_refers_to_it() -> None:
    class Element:
        alive = 0

        def __init__(self) -> None:
            Element.alive += 1

        def __del__(self) -> None:
            Element.alive -= 1

    turns = Turns(seconds=0.0)

    def command() -> str:
        freed_in_pieces([Element() for _ in range(LARGE_COUNT)])
        retained = freed_in_pieces({n: Element() for n in range(LARGE_COUNT)})
        assert Element.alive == len(retained)
        return "done"

    turn, left = turns.run(command), []
    while isinstance(turn, Turn):
        left.append(Element.alive)
        turn = turns.resume(turn)
    assert turn == "done" and Element.alive == 0 and not turns.large
    assert len(set(left)) >= 16


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


def test_what_an_interrupted_command_held_is_freed_in_pieces() -> None:
    """Also what its generators hold, and what is inside of that."""

    class Element:
        alive = 0

        def __init__(self) -> None:
            Element.alive += 1

        def __del__(self) -> None:
            Element.alive -= 1

    turns = Turns(seconds=0.0)

    def groups() -> Iterator[int]:
        held = {"x": [[Element() for _ in range(100)] for _ in range(100)]}
        yield from range(10)
        tick()
        assert held

    def command() -> str:
        try:
            gathered(groups())
        except TimeoutError as error:
            free_held(error)
        return "ended"

    turn = turns.run(command)
    assert isinstance(turn, Turn) and Element.alive == 10_000
    turn.interruption = TimeoutError("killed")
    turn, left = turns.resume(turn), []
    while isinstance(turn, Turn):
        left.append(Element.alive)
        turn = turns.resume(turn)
    assert turn == "ended" and Element.alive == 0
    assert len(set(left)) >= 5 and not turns.large


@pytest.mark.parametrize("where", ["array of a document", "key of a group", "document in a group", "behind short ones"])
def test_large_containers_inside_are_freed_in_pieces_too(where: str) -> None:
    class Element:
        alive = 0

        def __init__(self) -> None:
            Element.alive += 1

        def __del__(self) -> None:
            Element.alive -= 1

    def made() -> Any:
        elements = [Element() for _ in range(LARGE_COUNT)]
        if where == "array of a document":
            return {"_id": 1, "a": {"b": elements}, "c": 2}
        if where == "key of a group":
            return {(2, tuple(elements)): (elements[0], [1])}
        if where == "document in a group":
            return {1: ({"a": elements}, [1])}
        return [elements, *([n] for n in range(5000))]

    def command() -> str:
        freed_in_pieces(made(), LARGE_COUNT)
        return "done"

    turns = Turns(seconds=0.0)
    turn, left = turns.run(command), []
    while isinstance(turn, Turn):
        left.append(Element.alive)
        turn = turns.resume(turn)
    assert turn == "done" and Element.alive == 0 and not turns.large
    assert len(set(left)) >= 8


def test_what_is_freed_in_pieces_is_freed_in_small_ones_where_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("headrace.turns.monotonic", lambda: now[0])

    class Slow:
        def __del__(self) -> None:
            now[0] += 0.001

    turns, longest = Turns(), 0.0
    turn = turns.run(lambda: freed_in_pieces([Slow() for _ in range(PIECE_COUNT)], LARGE_COUNT) and None)
    while isinstance(turn, Turn):
        begun = now[0]
        turn = turns.resume(turn)
        longest = max(longest, now[0] - begun)
    assert 4.0 < now[0] < 4.2 and longest < 0.015


def ticks_until_spent(count_max: int = 10) -> int:
    for count in range(count_max):
        try:
            tick()
        except CommandError as error:
            assert error.code == 50
            return count
    return count_max


def test_a_time_limit_is_spent_once_and_ends_what_ticks() -> None:
    limit = TimeLimit(0.0, "a step")
    for _ in range(2):
        limit.begin()
        assert ticks_until_spent() == 1
        tick()
        limit.end()
        assert ticks_until_spent() == 10


def test_a_time_limit_is_not_spent_while_the_process_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"monotonic": 0.0, "thread_time": 0.0}
    monkeypatch.setattr(module, "monotonic", lambda: now["monotonic"])
    monkeypatch.setattr(module, "thread_time", lambda: now["thread_time"])
    limit = TimeLimit(1.0, "a step")
    limit.begin()
    for _ in range(5):
        now["monotonic"] += 3600.0
        tick()
    now["thread_time"] += 1.0
    now["monotonic"] += 0.5
    tick()
    now["monotonic"] += 0.5
    assert ticks_until_spent() == 0
    limit.end()


def test_what_cannot_pause_ends_while_the_process_has_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    limit = TimeLimit(1.0, "a step")
    limit.begin()
    now[0] += module.TURN_SECONDS
    tick()
    monkeypatch.setattr(TimeLimit, "memory_is_exceeded", staticmethod(lambda: True))
    tick()
    now[0] += module.TURN_SECONDS
    with pytest.raises(CommandError) as raised:
        tick()
    assert raised.value.code == 146
    tick()
    limit.end()


def test_a_time_limit_that_two_commands_share_ends_with_each() -> None:
    turns, limit = Turns(seconds=0.0), TimeLimit(3600.0, "a step")

    def command() -> int:
        limit.begin()
        try:
            tick()
        finally:
            limit.end()
        return 1

    one, other = turns.run(command), turns.run(command)
    assert [turns.resume(one), turns.resume(other)] == [1, 1]
    assert not module._time_limits


def test_a_time_limit_holds_in_a_turn_that_does_not_pause() -> None:
    def command() -> int:
        limit = TimeLimit(0.0, "a step")
        with uninterrupted():
            limit.begin()
            try:
                return ticks_until_spent()
            finally:
                limit.end()

    assert Turns(seconds=0.0).run(command) == 1
