"""Find a finding, and shrink its steps: leave out chunks of them, ever smaller, as long as the finding stays.

found = find(seed=7, count=2000)      → None, or a `Found` whose steps show it
shrink(found, seconds=60)             → the same with as few steps as can be
"""

from __future__ import annotations

import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from bson import ObjectId

from headrace import limits, turns
from headrace.changes import entry, plain_events, split
from headrace.clock import monotonic
from headrace.commands.maintenance import sizes
from headrace.commands.writing import update
from headrace.cursors import change_cursor, index_scan, row_cursor
from headrace.dispatch import arguments
from headrace.execution import near_documents, plan
from headrace.execution.planner import choice
from headrace.execution.writes import changed_documents, matches, output
from headrace.query import operation_memory
from headrace.query import sort as sorting
from headrace.query.accumulators import states
from headrace.query.stages import group
from headrace.query.update import raw_updates
from headrace.store import compaction
from headrace.store.indexes import index_entries
from headrace.thread_calls import OwnThread
from headrace.timeseries import bucket as time_series_bucket
from headrace.values.bson import codec, columns
from tests.simulation.embedded import EmbeddedSimulation
from tests.simulation.model import Finding
from tests.simulation.simulation import Simulation, Step

CLIENT_STEPS: Final = ("ask", "go", "interrupt", "kill", "resume", "run", "start", "up")
TINY: Final = {
    "BUILD_ENTRY_COUNT": 2, "UNREAD_ENTRY_COUNT_MAX": 3, "COMMIT_COMMAND_COUNT_MAX": 2, "COMPACTION_KEY_COUNT": 10,
    "FEED_EVENT_COUNT_MAX": 4, "SCAN_ENTRY_COUNT_MAX": 5, "TRANSACTION_ENTRY_BYTES": 300, "TTL_COUNT_MAX": 2,
    "VIEW_CHUNK_COUNT": 2,
}  # fmt: skip
"""Limits that are so low that what else takes thousands of documents happens all the time."""

PARTS: Final = {
    "BATCH_BYTES_MAX": 250, "BATCH_ENTRY_COUNT_MAX": 4, "BUCKET_BYTES_MAX": 300, "BUCKET_MEASUREMENT_COUNT_MAX": 3,
    "BUILD_BYTES": 200, "BUILD_COUNT": 2, "CAPPED_PIECE_COUNT": 2, "UNREAD_BYTES_MAX": 3000, "COLUMN_BYTES": 300,
    "COUNT_COUNT": 2, "COUNTED_STEP_BYTES": 100, "DECODED_COUNT": 2, "DISTINCT_VALUE_COUNT": 2,
    "FEED_BATCH_BYTES_MAX": 300, "FEED_BATCH_COUNT_MAX": 1, "FEED_BYTES_MAX": 3000, "FIRST_BATCH_COUNT": 2,
    "HEAD_COUNT_MAX": 2, "ID_LOOKUP_COUNT_MAX": 2, "INDEXED_INSERT_BYTES": 200, "INSERT_BYTES": 300, "INSERT_COUNT": 2,
    "KEYS_BYTES": 50, "NAMESPACE_MEMO_COUNT_MAX": 2, "PARSED_UPDATE_COUNT_MAX": 3, "PLAN_CACHE_COUNT_MAX": 1,
    "PRUNE_COUNT_MAX": 3, "PRUNE_ROUND_COUNT_MAX": 5, "RECENT_ROW_COUNT_MAX": 3, "SPILL_BLOCK_BYTES": 100,
    "STAGE_BYTES_MAX": 4000, "TRANSACTION_COUNT_COUNT": 2, "VIEW_CHUNK_BYTES": 300, "WILDCARD_ARRAYS_MAX": 1,
}  # fmt: skip
"""Limits of parts, memos and buckets: a low one changes no answer. A seed with low limits has half of them."""

PIECE_COUNT: Final = 3
"""The number of keys that a compaction copies in one step."""
ROUND_COUNT_MAX: Final = 10
"""The rounds in which a copy may pause: it does in each where all that can pause does."""
SPLIT_BYTES: Final = 450
"""The size of an event from which on it is sent in fragments."""
MODULE_PARTS: Final[tuple[tuple[Any, str, Any], ...]] = (
    (codec, "_LEVEL_COUNT_MAX", 1), (entry, "PIECE_COUNT", 2), (change_cursor, "_CHUNK_COUNT", 2),
    (change_cursor, "_LARGE_BYTES", 100), (change_cursor, "_LOOK", 1), (choice, "RANGE_COUNT", 2),
    (codec, "ALIKE_COUNT_MIN", 2), (columns, "BATCH_COUNT", 2), (columns, "_SAMPLE_COUNT", 2),
    (sorting, "CHUNK_COUNT", 256), (group, "WATCH_COUNT", 2),
    (group, "_KNOWN_COUNT_MAX", 1), (index_entries, "_FEW_COUNT", 1), (index_scan, "RANGE_COUNT", 2),
    (index_scan, "_REPORTED_COUNT", 2), (matches, "BATCH_COUNT", 2), (near_documents, "_KEY_COUNT", 2),
    (near_documents, "_FIRST_COUNT", 2), (operation_memory, "_STEP_BYTES", 100), (plain_events, "LONG_BYTES", 150),
    (plan, "RANGE_COUNT", 2), (row_cursor, "_LOOK", 1), (raw_updates, "_KNOWN_COUNT_MAX", 2),
    (split.fragments, "__defaults__", (SPLIT_BYTES,)), (split.must_split, "__defaults__", (SPLIT_BYTES,)),
    (states, "_FEW_COUNT", 1), (index_scan, "_KEY_COUNT", 2), (index_scan, "_KNOWN_COUNT_MAX", 2),
    (time_series_bucket, "_ROWS_LEAST", 2),
)  # fmt: skip
"""The same for limits that only one module has: the module that uses it, its name there, a low value."""
TIMELESS: Final = {"FEED_MS_MAX": 1e6, "LAG_MS": -1.0, "SCAN_MS_MAX": 1e6}


@dataclass(frozen=True, slots=True)
class Found:
    """Steps that end in a finding."""

    seed: int
    steps: list[Step]
    kind: str
    """By which it is known again: the kind of a `Finding`, or the exception and where it was raised."""
    message: str
    steps_taken: int = 0


class EndedThread(OwnThread):
    """A thread whose call ends at once, so that a compaction copies the same in each run."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        super().__init__(function, *args)
        self.wait()


@contextmanager
def conditions(seed: int) -> Iterator[None]:
    """Run under the limits of a seed, without what differs from run to run: ids, limits in milliseconds, how long a
    step takes, parsed updates. A compaction is never too small to be worth it."""
    wanted = [(limits, name, value) for name, value in {**TIMELESS, **low_limits(seed)}.items()]
    wanted += low_module_limits(seed)
    wanted += [(compaction, "PIECE_COUNT", PIECE_COUNT), (compaction, "OwnThread", EndedThread)]
    wanted += [(changed_documents, "_ROUND_COUNT_MAX", ROUND_COUNT_MAX)]
    wanted += [(sizes, "TARGET", arguments.number("freeSpaceTargetMB", default=0))]
    uuid4, random, seconds = uuid.uuid4, Random(seed), turns.monotonic
    wanted += [(output, "ObjectId", lambda: ObjectId(random.randbytes(12)))]
    before = [(module, name, getattr(module, name)) for module, name, _ in wanted]
    for module, name, value in wanted:
        setattr(module, name, value)
    update._parsed.clear()  # what is parsed already ticks less often
    turns.monotonic = lambda: 1.0
    uuid.uuid4 = lambda: uuid.UUID(bytes=random.randbytes(16), version=4)
    try:
        yield
    finally:
        uuid.uuid4, turns.monotonic = uuid4, seconds
        for module, name, value in before:
            setattr(module, name, value)


def low_limits(seed: int) -> dict[str, int]:
    """The limits that a seed makes low."""
    if not is_tiny(seed):
        return {}
    chosen = Random(seed)
    return TINY | {name: value for name, value in PARTS.items() if chosen.random() < 0.5}


def low_module_limits(seed: int) -> list[tuple[Any, str, Any]]:
    """The limits of single modules that a seed makes low: half of them."""
    if not is_tiny(seed):
        return []
    chosen = Random(-seed - 1)
    return [limit for limit in MODULE_PARTS if chosen.random() < 0.5]


def is_tiny(seed: int) -> bool:
    """Whether a seed is run with low limits: three of four are."""
    return seed % 4 != 3


def is_embedded(seed: int) -> bool:
    """Whether a seed is of a program with `headrace.open`, not of a server: each third is."""
    return seed % 3 == 2


def is_served(seed: int) -> bool:
    """Whether the store of an embedded seed is served at the same time: each other is."""
    return is_embedded(seed) and seed % 2 == 1


def made(path: Path, seed: int) -> Simulation:
    """The simulation of a seed."""
    return EmbeddedSimulation(path, seed, is_served=is_served(seed)) if is_embedded(seed) else Simulation(path, seed)


def folder() -> str | None:
    """Where stores are made: in memory, where the system has a place for that."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def attempt(seed: int, *, count: int | None = None, steps: list[Step] | None = None) -> Found | int:
    """Draw `count` steps, or take those given; returns the finding, or how many steps were taken."""
    with tempfile.TemporaryDirectory(dir=folder()) as path, conditions(seed):
        simulation = made(Path(path), seed)
        try:
            if steps is not None:
                simulation.replay(steps)
            else:
                simulation.run(count or 0)
        except Exception as error:
            return Found(seed, simulation.steps, _kind(error), str(error), len(simulation.steps))
        finally:
            with suppress(Exception):
                simulation.close()
        return len(simulation.steps)


def _kind(error: Exception) -> str:
    if isinstance(error, Finding):
        return error.kind
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}"


def shrink(found: Found, *, seconds: float = 60.0) -> Found:
    """The same finding with fewer steps: first without whole clients, then without chunks."""
    ends = monotonic() + seconds
    for number in sorted({step[1] for step in found.steps if step[0] == "start"}):
        mine = [step for step in found.steps if step[0] not in CLIENT_STEPS or step[1] != number]
        found = _tried(found, mine)
    size = max(len(found.steps) // 2, 1)
    while monotonic() < ends:
        found, smaller = _without_chunks(found, size, ends)
        if size > 1:
            size = max(size // 2, 1)
        elif not smaller:
            break
    return found


def _tried(found: Found, steps: list[Step]) -> Found:
    """The finding with these steps, where they still show it."""
    tried = attempt(found.seed, steps=steps)
    return tried if isinstance(tried, Found) and tried.kind == found.kind else found


def _without_chunks(found: Found, size: int, ends: float) -> tuple[Found, bool]:
    """Try to leave out each chunk of so many steps, the last one first."""
    start, smaller = len(found.steps), False
    while start > 0 and monotonic() < ends:
        start = min(start, len(found.steps)) - size
        tried = _tried(found, found.steps[: max(start, 0)] + found.steps[start + size :])
        smaller |= tried is not found
        found = tried
    return found, smaller
