"""The simulation of a program with `headrace.open`: the steps of its threads, drawn and taken.

The clients, the draws and the checks are those of `Simulation`. A thread goes on for some statements at a time, so that
others run between any two of them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, Final

from tests.simulation.embedded_world import CLOSER, FAILING, JOB, EmbeddedWorld
from tests.simulation.language import Document
from tests.simulation.model import Finding
from tests.simulation.schedule import Schedule, Step
from tests.simulation.simulation import Simulation
from tests.simulation.watching import Client
from tests.simulation.world import Pending, World

COUNTS: Final = (0, 0, 0, 0, 1, 1, 2, 3, 5, 10, 20, 50, 200, 1000)
"""For how many statements a thread goes on; 0: until it has released a lock."""
CLIENT_STEPS: Final = ("kill", "resume", "run", "start", "up")
LOOP_STEPS: Final = ("begin", "fail_group", "prepare", "publish", "sync")
SERVED: Final = frozenset({0, 3, 4, 9, 11, 13, 14})
"""The clients that are a server's, where the store is served: of each role, another one is a thread."""


class EmbeddedSimulation(Simulation):
    """Threads instead of a server's clients."""

    world: EmbeddedWorld

    def __init__(self, path: Path, seed: int | None, *, is_served: bool = False) -> None:
        """`is_served`: half of the clients are a server's."""
        self._served = SERVED if is_served else frozenset()
        super().__init__(path, seed)

    def _made(self, path: Path) -> World:
        return EmbeddedWorld(path, self._served)

    def _scheduled(self, random: Random) -> Schedule:
        return EmbeddedSchedule(self, random)

    def take(self, step: Step) -> None:
        """Take a step, if it is possible now."""
        super().take(step)
        world = self.world
        if not world.local.lock.is_held:
            for client in self.clients:
                if world.is_parked(client.number):
                    self._require_nothing(client)
        if world.is_closing and not world.running:
            self._has_reopened(world.reopen())

    def is_possible(self, step: Step) -> bool:
        """Whether a step can be taken now."""
        world, name = self.world, step[0]
        is_free = not world.local.lock.is_held
        if name in LOOP_STEPS or (name in CLIENT_STEPS and step[1] in world.served):
            return is_free and self._is_possible_on_loop(step)
        number = step[1] if name in ("go", "interrupt", "kill", "start", "up") else -1
        thread = world.running.get(number)
        if name == "go":
            return thread is not None and thread.can_go
        if name == "up":
            return world.is_parked(step[1]) and world.pending[step[1]].op["do"] in ("next", "tailNext")
        if name == "kill":
            return thread is not None and is_free
        if name == "close" and world.served:
            return False
        if name == "interrupt":  # not where it is served: an interrupted commit would end the server, too
            return not world.served and number in world.pending and thread is not None and thread.can_be_interrupted
        if world.is_closing:
            return name in ("clock", "crash", "fail")
        if name == "start":
            return thread is None
        return world.job is None if name == "job" else True

    def _is_possible_on_loop(self, step: Step) -> bool:
        """Whether a step of the server's can be taken while the engine's lock is free."""
        world, name = self.world, step[0]
        if not world.served:
            return False
        if name == "begin":
            return not world.has_group and not world.waits_for_gate
        if name == "fail_group":
            return world.has_group and super().is_possible(("fail",))
        return ((name in CLIENT_STEPS and name != "run") or world.has_group) and super().is_possible(step)

    def _do_start(self, number: int, op: Document) -> None:
        getattr(self, f"_start_{op['do']}", self._start_plain)(self.clients[number], op)

    def _do_go(self, number: int, count: int) -> None:
        self.world.go(number, count)
        interrupted, self.world.interrupted = self.world.interrupted, []
        for number, pending in interrupted:
            self._has_lost(self.clients[number], pending)

    def _has_lost(self, client: Client, pending: Pending) -> None:
        """A thread was interrupted by Ctrl-C: what its command did is not known."""
        if pending.op.get("retry"):
            pending.turns = pending.earlier + pending.turns
            client.sent = (pending.op, client.transaction_number, pending, None)
        self.failed_commits += client.transactions[:1]
        client.cursor, client.transactions, client.tail = None, [], None
        if client.stream is not None:
            client.stream.cursor = 0
            if not client.stream.token:
                client.stream = None

    def _do_interrupt(self, number: int) -> None:
        self.world.interrupt(number)

    def _do_kill(self, number: int) -> None:
        if number not in self.world.served or self.world.pending[number].turn is not None:
            self.world.kill(number)

    def _do_fail(self, where: str) -> None:  # type: ignore[override]
        self.world.fails_at = where

    def _do_fail_group(self) -> None:
        self.world.fail()

    def _do_close(self) -> None:
        self.world.begin_close()

    def _settle(self) -> None:
        order, world = Random(0), self.world
        for _ in range(20_000):
            steps: list[Step] = [("go", number, 1000) for number, thread in world.running.items() if thread.can_go]
            for number in world.served & world.pending.keys():
                steps += [(name, number, 1)[: 3 if name == "resume" else 2] for name in ("resume", "run")]
            steps += [("prepare",), ("sync",), ("publish",)]
            queued = [pending.op for pending in world.pending.values() if pending.phase in ("queued", "writing")]
            if queued or world.in_gate:
                steps.append(("begin",))
            steps = list(filter(self.is_possible, steps))
            if steps:
                self.take(order.choice(steps))
            elif waiting := [*queued, *(number for number in world.running if not world.is_parked(number))]:
                raise Finding("deadlock", f"they wait for each other: {waiting}")
            else:
                return
        raise Finding("end", f"it does not end: {[pending.op for pending in world.pending.values()]}")


class EmbeddedSchedule(Schedule):
    """Draws which thread goes on, and for how long."""

    _simulation: EmbeddedSimulation

    def first_steps(self) -> list[Step]:
        """Some documents and indexes to begin with."""
        steps: list[Step] = []
        begun = 0
        for step in super().first_steps():
            if step[0] == "start":
                begun = step[1]
                steps.append(step)
            elif begun in self._simulation.world.served:
                steps.append(step)
            elif step[0] == "run":
                steps.append(("go", begun, 100_000))
        return steps

    def next(self) -> Step:
        """Draw the next step: which thread goes on, or what begins."""
        world = self._simulation.world
        weighted: list[tuple[float, Step]] = []
        for client in self._simulation.clients:
            number = client.number
            if number in world.served:
                weighted += self._of_server(number)
            elif number not in world.running:
                weighted.append((0.8, ("start", number)))
            else:
                weighted += [(3.0, ("go", number)), (0.05, ("up", number))]
                weighted += [(0.003, ("kill", number)), (0.01, ("interrupt", number))]
        weighted += [(2.0, ("go", JOB)), (2.0, ("go", CLOSER))]
        if world.in_gate or any(world.pending[number].phase in ("queued", "writing") for number in self._sent()):
            weighted.append((4.0, ("begin",)))
        weighted += [(2.0, ("prepare",)), (2.0, ("sync",)), (2.0, ("publish",)), (0.05, ("fail_group",))]
        weighted += [(0.1, ("fail",)), (0.1, ("job",)), (0.15, ("clock",)), (0.01, ("crash",)), (0.01, ("close",))]
        possible = [(weight, step) for weight, step in weighted if self._simulation.is_possible(step)]
        (step,) = self._random.choices([step for _, step in possible], [weight for weight, _ in possible])
        return self._filled(step)

    def _sent(self) -> list[int]:
        """The server's clients that have sent a command."""
        world = self._simulation.world
        return [number for number in sorted(world.served) if number in world.pending]

    def _of_server(self, number: int) -> list[tuple[float, Step]]:
        """What a client of the server may do next."""
        pending = self._simulation.world.pending.get(number)
        if pending is None:
            return [(0.8, ("start", number))]
        if pending.phase == "parked":
            return [(0.05, ("up", number))]
        return [(3.0, ("resume", number)), (3.0, ("run", number)), (0.01, ("kill", number))]

    def _filled(self, step: Step) -> Step:
        if step[0] == "go":
            return (*step, self._random.choice(COUNTS))
        if step[0] == "fail":
            return ("fail", self._random.choice(FAILING))
        return super()._filled(step)

    def _op(self, client: Any) -> Document:
        op = super()._op(client)
        if op["do"] == "insert" and len(op["documents"]) == 1 and not op.get("retry") and self._draw.chance(0.7):
            op["plain"] = self._random.choice(("sound", "unsure"))
        elif op["do"] == "next":
            op |= {"known": self._draw.chance(0.6), "wait_ms": self._random.choice((None, None, 0, 1000))}
        return op
