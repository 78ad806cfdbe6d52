"""The care of `headrace serve` for its process, so that no client waits for Python itself.

    imports    modules that commands import when they are first needed are imported after the start, one at a time
    garbage    what is there by then, and what has survived a pass, is left out of the collector's passes (`gc.freeze`),
               so that a pass costs what is new: some 10 ms for 100,000 objects. One runs when nothing has paused, or
               that many objects are new, or once a minute; where far more are, of commands that run, they are left out
               without a pass, which would take too long. Cycles of old objects go with a pass over everything, which
               runs when the server has been quiet, ten minutes after the last at the earliest, or after an hour
    memory     what is freed stays with the process until nothing has run for some seconds: new pages from the
               system are faulted in one by one, which takes 9 ms for 16 MB; to copy 16 MB takes 1 ms
    idle       once clients send next to nothing, what is freed is returned however little it is, and the pages of the
               data file that the process has looked at are forgotten: they stay in the system's cache, and no longer
               count as the memory of the process

A server inside another program (`headrace.Server`) changes nothing there: the collector is the program's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import headrace.changes
import headrace.commands
import headrace.cursors
import headrace.execution
import headrace.query
from headrace import limits
from headrace.clock import monotonic
from headrace.server.measured_memory import c_library, resident_bytes, resident_bytes_of_all, return_freed_memory
from headrace.store.data_file import DATA_FILE
from headrace.time_limit import watch
from headrace.values import collator

if TYPE_CHECKING:
    from headrace.server.core import Core

_PACKAGES: Final = (headrace.changes, headrace.commands, headrace.cursors, headrace.execution, headrace.query)
_YOUNG_COUNT: Final = 2800
"""The collector passes over young objects after this number of new ones: it looks at none of a thousand getMores that
wait and are answered;"""
_YOUNG_PASS_COUNT: Final = 1
"""and after more such passes over those that have survived them: as seldom as by Python's 700 and 10."""
_NEVER: Final = 2**31 - 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MADV_DONTNEED: Final = 4  # mman.h
_MAPPED_BYTES: Final = 32 * 1024 * 1024
"""From here on the C library maps a block by itself and unmaps it when it is freed: the most that it accepts."""


async def tend(core: Core) -> None:
    """Measure memory, import what is left, then collect garbage from time to time; until it is cancelled."""
    measured = core.scheduler.measured
    measured.resident, measured.return_freed = resident_bytes, return_freed_memory
    watch.memory_is_exceeded = lambda: measured.excess() > 0
    gc.set_threshold(_YOUNG_COUNT, _YOUNG_PASS_COUNT, _NEVER)
    for name in ("hashlib", "hmac"):  # see `hashing`
        importlib.import_module(name)
    for package in _PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
            await asyncio.sleep(0)
    collator.read_ahead()
    retain_freed_memory()
    activity, garbage = Activity(lambda: core.scheduler.turns.pause_count), Garbage()
    idleness, was_quiet = Idleness(core.engine.metrics), False
    while True:
        await asyncio.sleep(limits.COLLECTION_SECONDS)
        activity.look()
        garbage.look(is_quiet=activity.is_quiet, has_been_quiet=activity.has_been_quiet)
        await asyncio.sleep(0)  # clients have their turn: each of the two may take long
        if activity.has_been_quiet and not was_quiet:
            return_freed_memory()
        was_quiet = activity.has_been_quiet
        core.scheduler.look_at_memory()
        if idleness.is_due(monotonic(), resident_bytes_of_all()):
            return_freed_memory()
            forget_pages(core.store.environment.path / DATA_FILE)
            idleness.left_bytes = resident_bytes_of_all()


class Idleness:
    """When clients send next to nothing, as drivers do that only monitor the server, and memory is to be returned."""

    def __init__(self, metrics: Mapping[str, int]) -> None:
        """`metrics`: the engine's counters."""
        self._metrics = metrics
        self.left_bytes: int | None = None
        """The memory of the process after the last return in this idle time; None: nothing has been returned."""
        self._bytes = 0
        self._since = 0.0

    def is_due(self, now: float, size: int) -> bool:
        """Whether the server has become idle, or its memory, `size` bytes, has grown since, as by what it does itself.

        `now`: in seconds of the monotonic clock.
        """
        if now - self._since < limits.IDLE_SECONDS:
            return False
        came = self._metrics["network.bytesIn"] - self._bytes
        self._since, self._bytes = now, self._bytes + came
        if came >= limits.IDLE_BYTES:
            self.left_bytes = None
            return False
        return self.left_bytes is None or size > self.left_bytes + limits.IDLE_GROWTH_BYTES


class Activity:
    """Whether anything takes so long that it pauses: a command, or the reading, freeing or writing of what one has."""

    def __init__(self, pause_count: Callable[[], int]) -> None:
        """`pause_count`: returns how often anything has paused."""
        self._count = pause_count
        self._pause_count = pause_count()
        self._busy_at = monotonic()
        self.is_quiet = True
        """Nothing has paused between the last two looks."""

    @property
    def has_been_quiet(self) -> bool:
        """Nor for a while."""
        return monotonic() - self._busy_at > limits.QUIET_SECONDS

    def look(self) -> None:
        """See what there was since the last look."""
        self.is_quiet = self._count() == self._pause_count
        if not self.is_quiet:
            self._pause_count, self._busy_at = self._count(), monotonic()


class Garbage:
    """When Python's collector goes over the objects that have survived its passes over young ones.

    It looks at all that were made since its last time, 0.2 to 0.6 µs each, and no client is served meanwhile. So where
    there are many, as of a command of megabytes, they are frozen (it does not look at them again), until some time
    later all objects are looked at. Most are freed without it, as their last reference goes.
    """

    def __init__(self) -> None:
        gc.freeze()  # without a pass, which would take 40 ms and find nothing
        self._collected = self._thawed = monotonic()

    def look(self, *, is_quiet: bool, has_been_quiet: bool) -> None:
        """Collect if it is time. Both arguments: see `Activity`."""
        passes = gc.get_count()[2]  # over younger objects, each some thousands
        if passes > limits.COLLECTION_PASS_COUNT_LONG and not has_been_quiet:
            gc.freeze()
            return
        now = monotonic()
        is_due = passes > limits.COLLECTION_PASS_COUNT_MAX or now - self._collected > limits.COLLECTION_SECONDS_MAX
        if passes and (is_quiet or is_due):
            if now - self._thawed > (limits.THAW_SECONDS if has_been_quiet else limits.THAW_SECONDS_MAX):
                gc.unfreeze()
                self._thawed = now
            gc.collect()
            gc.freeze()
            self._collected = now


def retain_freed_memory() -> None:
    """Let the C library use freed blocks again rather than return them to the system at once. Elsewhere than on glibc
    nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        library = c_library()
        library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, limits.FREED_BYTES_MAX)


def forget_pages(path: Path) -> None:
    """Take the pages of a mapped file out of the memory of the process: 5 ms for 500 MB. They are mapped again at the
    next look, from the system's cache. Elsewhere than on Linux nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, rest = line.partition(" ")
            if rest.endswith(f" {path.resolve()}"):
                start, end = (int(word, 16) for word in span.split("-"))
                c_library().madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
