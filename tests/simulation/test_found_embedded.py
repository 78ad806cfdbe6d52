"""Findings of the simulation in a program with `headrace.open` and many threads; it stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.embedded_world import EmbeddedWorld
from tests.simulation.model import documents_of


class Program:
    """Threads that go on by some statements at a time."""

    def __init__(self, path: Path) -> None:
        self.world = EmbeddedWorld(path, frozenset())
        self.replies: dict[int, Any] = {}

    def call(self, number: int, body: dict[str, Any], **sequences: Any) -> None:
        """A thread calls a command on the database t."""
        op = {"ns": "t.c", "do": "call", "calm": body.pop("calm", True), "plain": body.pop("plain", None)}

        def finish(reply: Any, _: Any) -> None:
            self.replies[number] = reply

        self.world.send(number, "t", body, op, finish, sequences)

    def insert(self, number: int, key: int) -> None:
        """A thread inserts a document, as `insert_one` does."""
        self.call(number, {"insert": "c", "plain": "sound"}, documents=[{"_id": key}])

    def go_until(self, number: int, is_there: Callable[[], bool]) -> None:
        """A thread goes on until it is somewhere."""
        for _ in range(2000):
            if is_there():
                return
            self.world.go(number, 1)
        raise AssertionError("it never comes there")

    def interrupt(self, number: int) -> None:
        """Ctrl-C in a thread that waits."""
        assert self.world.running[number].can_be_interrupted
        self.world.interrupt(number)

    @property
    def lock_is_held(self) -> bool:
        """Whether a thread has the engine's lock."""
        return bool(self.world.local.lock.is_held)

    @property
    def gate_is_held(self) -> bool:
        """Whether a thread is in the gate."""
        return bool(self.world.local.writes.gate._lock.is_held)

    def stored(self) -> list[int]:
        """The documents that are there."""
        return [document["_id"] for document in documents_of(self.world.state, "t.c")]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """One with a collection."""
    program = Program(tmp_path)
    program.insert(0, 0)
    program.world.finish(0)
    yield program
    program.world.close()


def test_threads_that_call_for_the_first_time_at_once_have_numbers_of_their_own(program: Program) -> None:
    """Each goes on by one statement at a time, after the other."""
    world = program.world
    for number in (1, 2):
        program.call(number, {"ping": 1})
    while world.running:
        for number in list(world.running):
            if world.running[number].can_go:
                world.go(number, 1)
    assert sorted(world.numbers.values()) == [0, 1, 2]


def test_ctrl_c_in_a_read_that_waits_for_the_lock_takes_it_from_no_other_thread(program: Program) -> None:
    """The read releases the lock as it ends, so that it must have it."""
    world = program.world
    program.call(1, {"count": "c", "query": {"a": None}, "calm": False})
    program.go_until(1, lambda: bool(world.local.held) and not program.lock_is_held)
    program.call(2, {"ping": 1})
    program.go_until(2, lambda: program.lock_is_held)
    world.go(1, 1000)
    program.interrupt(1)
    world.go(1, 1000)
    assert program.lock_is_held and 1 in world.running
    world.finish(2)
    world.finish(1)
    assert program.replies[2]["ok"] == 1.0 and 1 not in program.replies and not program.lock_is_held


def test_ctrl_c_in_the_thread_that_commits_for_others_loses_no_write_of_theirs(program: Program) -> None:
    """The commit of a group has failed, and each of its writes runs alone."""
    world = program.world
    program.insert(1, 1)
    program.go_until(1, lambda: program.gate_is_held)
    program.insert(2, 2)
    world.go(2, 1000)
    world.fails_at = "prepare"
    program.go_until(1, lambda: world.fails_at is None and not program.lock_is_held)
    program.call(3, {"ping": 1})
    program.go_until(3, lambda: program.lock_is_held)
    world.go(1, 1000)
    program.interrupt(1)
    world.finish(1)
    world.finish(3)
    for _ in range(5):
        if 2 in world.running:
            world.go(2, 1000)
    assert program.replies[2]["n"] == 1 and 2 in program.stored()


def test_a_write_that_ctrl_c_ends_at_the_gate_is_not_done_later(program: Program) -> None:
    world = program.world
    program.call(2, {"ping": 1})
    world.finish(2)
    program.call(1, {"insert": "c", "calm": False}, documents=[{"_id": 1}, {"_id": 3}])
    program.go_until(1, lambda: program.gate_is_held and world.group is not None)
    program.insert(2, 2)
    world.go(2, 1000)
    assert world.running[2].waits_for is world.local.writes.gate._lock
    program.interrupt(2)
    world.finish(2)
    world.finish(1)
    program.insert(4, 4)
    world.finish(4)
    assert program.stored() == [0, 1, 3, 4]


def test_the_server_enters_the_gate_that_a_thread_leaves_at_that_moment(program: Program) -> None:
    """It comes between any two statements of the thread."""
    world, gate = program.world, program.world.local.writes.gate
    entered: list[int] = []

    def pass_through() -> None:
        assert gate.enter()
        gate.leave()

    for count in range(1, 12):
        thread = world.threads.start(7, pass_through)
        world.threads.go(thread, count)
        if gate.enter_or_call(lambda count=count: entered.append(count)):  # type: ignore[misc]
            entered.append(count)
        while not thread.has_ended and thread.can_go:
            world.threads.go(thread, 1000)
        assert entered[-1] == count
        gate.leave()
        if not thread.has_ended:
            world.threads.go(thread, 1000)
