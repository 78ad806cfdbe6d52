"""Draw who goes on next, and what begins: the one place that decides the order of everything."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.draw import CLUSTERED, IMAGES, Draw
from tests.simulation.language import Document
from tests.simulation.measurements import SERIES
from tests.simulation.model import collection_of
from tests.simulation.reads import CAPPED

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation
    from tests.simulation.watching import Client

Step = tuple[Any, ...]
"""A name, and what the step is given."""
JOBS: Final = ("_noop", "_release", "_collect", "_expire", "_forget_aged", "build", "prune", "ttl")


class Schedule:
    """Draws the steps of one simulation."""

    def __init__(self, simulation: Simulation, random: Random) -> None:
        self._simulation = simulation
        self._random = random
        self._draw = Draw(random)

    def first_steps(self) -> list[Step]:
        """Some documents and indexes to begin with."""
        commit: list[Step] = [("prepare",), ("sync",), ("publish",)]
        writers = [client.number for client in self._simulation.clients if client.role == "write"]
        builder = next(client.number for client in self._simulation.clients if client.role == "catalog")
        steps: list[Step] = []
        for number, namespace in zip(writers, ("a.x", "a.y", "b.x")):
            if self._draw.chance(0.6):
                options = self._random.choice((CLUSTERED, IMAGES, IMAGES))
                create = {"do": "create", "ns": namespace, "options": options, "calm": True}
                steps += [("start", builder, create), ("begin",), ("run", builder), *commit]
            steps.append(("start", number, {**self._draw.inserts(8), "ns": namespace}))
            steps += [("begin",), ("run", number), *commit]
        capped = {**self._draw.capped_create(), "calm": True}
        series = {**self._draw.series_create(), "calm": True}
        for create in (capped, series):
            steps += [("start", builder, create), ("begin",), ("run", builder), *commit]
        filled = {
            "do": "insert",
            "ns": SERIES,
            "documents": [self._draw.measurement() for _ in range(12)],
            "calm": True,
        }
        steps += [("start", writers[0], filled), ("begin",), ("run", writers[0]), *commit]
        for _ in range(2):
            steps.append(("start", builder, {**self._draw.builds(), "calm": True}))
            steps += [("begin",), ("run", builder), *commit]
        return steps

    def next(self) -> Step:
        """Draw the next step: who goes on, or what begins."""
        world = self._simulation.world
        weighted: list[tuple[float, Step]] = []
        runnable = 0
        for client in self._simulation.clients:
            number = client.number
            pending = world.pending.get(number)
            if pending is None:
                weighted.append((0.8, ("start", number)))
            elif pending.phase in ("reading", "woken"):
                weighted += [(3.0, ("resume", number)), (0.01, ("kill", number))]
            elif pending.phase == "asking":
                weighted += [(3.0, ("ask", number)), (0.1, ("kill", number))]
            elif pending.phase == "parked":
                weighted.append((0.05, ("up", number)))
            elif pending.phase in ("queued", "writing"):
                runnable += 1
                weighted += [(3.0, ("run", number)), (0.01, ("kill", number))]
        if runnable or (world.job is not None and world.job.is_queued):
            weighted.append((4.0, ("begin",)))
        weighted += [
            (2.0, ("prepare",)), (2.0, ("sync",)), (2.0, ("publish",)), (0.05, ("fail",)),
            (0.3, ("job",)), (1.0, ("step_job",)), (1.5, ("run_job",)), (0.15, ("clock",)), (0.01, ("crash",)),
        ]  # fmt: skip
        possible = [(weight, step) for weight, step in weighted if self._simulation.is_possible(step)]
        (step,) = self._random.choices([step for _, step in possible], [weight for weight, _ in possible])
        return self._filled(step)

    def _filled(self, step: Step) -> Step:
        """The step with what it does."""
        random = self._random
        if step[0] == "start":
            return (*step, self._op(self._simulation.clients[step[1]]))
        if step[0] == "resume":
            return (*step, random.choice((1, 1, 2, 5, 20)))
        if step[0] == "ask":
            return (*step, random.random() < 0.1)
        if step[0] == "clock":
            return ("clock", random.choice((1, 300, 2000, 10_000, 65_000)))
        if step[0] == "job":
            return ("job", random.choice(JOBS), random.randrange(5, 60))
        return step

    def _op(self, client: Client) -> Document:
        """What a client does next."""
        draw, random = self._draw, self._random
        if client.role == "read":
            if client.cursor is not None:
                return {"do": "getMore", "batch": random.choice((None, 1, 2, 3)), "calm": draw.chance(0.4)}
            return draw.read()
        if client.role == "write":
            if client.sent is not None and draw.chance(0.5):
                return {"do": "resend"}
            return draw.write()
        if client.role == "catalog":
            return draw.catalog()
        if client.role == "compact":
            return draw.compact()
        if client.role == "transaction":
            if client.transactions and draw.chance(0.3):
                return {"do": "commit" if draw.chance(0.75) else "abort", "calm": draw.chance(0.6)}
            return {"do": "statement", "op": draw.statement()}
        if client.role == "tail":
            there = collection_of(self._simulation.world.state, CAPPED)
            if there is None and draw.chance(0.8):
                return draw.capped_create()
            if there is not None and there.count_max is None and draw.chance(0.8):
                return {"do": "drop", "ns": CAPPED, "calm": draw.chance(0.5)}
            if draw.chance(0.3):
                return draw.capped_insert()
            if client.tail is None or not client.tail.cursor or draw.chance(0.05):
                return draw.tail()
            return {"do": "tailNext", "batch": random.choice((None, None, 1, 2)), "calm": draw.chance(0.4)}
        if client.stream is None or draw.chance(0.01):
            return {"do": "watch", "spec": draw.stream(), "size": draw.size()}
        if not client.stream.cursor or draw.chance(0.08):
            return draw.resume()
        return {"do": "next", "size": draw.size()}
