"""Process-wide tuning of `headrace serve`, so that no client waits for Python itself.

    imports    modules that commands import when first needed are imported after the start, one at a time
    garbage    objects that exist by then, and survivors of a pass, are exempt from the collector's passes
               (`gc.freeze`), so that a pass only costs new objects: 10 ms for 100,000. A pass runs when nothing has
               paused, or after that many new objects, or once a minute. If running commands have made far more objects,
               these are frozen without a pass, which would take too long. Cycles of old objects need a pass over
               everything, which runs when the server is quiet, at least ten minutes after the last, or after an hour.
    memory     the process keeps freed memory until nothing has run for some seconds: new pages from the system are
               faulted in one by one, which takes 9 ms for 16 MB, but copying 16 MB takes 1 ms
    idle       when clients send next to nothing, all freed memory is returned, and the mapped pages of the data file
               are dropped: they stay in the system's cache, but no longer count as the memory of the process

A server inside another program (`headrace.Server`) changes nothing there: the program controls the collector.
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
"""The number of new objects before a pass over young objects. It exceeds the objects of a thousand getMores that wait
and are answered."""
_YOUNG_PASS_COUNT: Final = 1
"""The number of such passes before a pass over their survivors. With Python's 700 and 10 it runs as seldom."""
_NEVER: Final = 2**31 - 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MADV_DONTNEED: Final = 4  # mman.h
_MAPPED_BYTES: Final = 32 * 1024 * 1024
"""From this size on the C library maps a block separately and unmaps it when it is freed. It accepts no larger
value."""


async def tend(core: Core) -> None:
    """Measure memory, import the remaining modules, then collect garbage from time to time, until cancelled."""
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
        await asyncio.sleep(0)  # lets clients run: each of the two may take long
        if activity.has_been_quiet and not was_quiet:
            return_freed_memory()
        was_quiet = activity.has_been_quiet
        core.scheduler.look_at_memory()
        if idleness.is_due(monotonic(), resident_bytes_of_all()):
            return_freed_memory()
            forget_pages(core.store.environment.path / DATA_FILE)
            idleness.left_bytes = resident_bytes_of_all()


class Idleness:
    """Detects idle times, in which clients send no more than monitoring messages and memory can be returned."""

    def __init__(self, metrics: Mapping[str, int]) -> None:
        """`metrics`: the engine's counters."""
        self._metrics = metrics
        self.left_bytes: int | None = None
        """The memory of the process after the last return in this idle time; None: nothing has been returned."""
        self._bytes = 0
        self._since = 0.0

    def is_due(self, now: float, size: int) -> bool:
        """Return whether the server has become idle, or its own work has made its memory, `size` bytes, grow since
        then.

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
    """Detects long work that pauses: a command, or reading, freeing or writing its data."""

    def __init__(self, pause_count: Callable[[], int]) -> None:
        """`pause_count`: returns the total number of pauses."""
        self._count = pause_count
        self._pause_count = pause_count()
        self._busy_at = monotonic()
        self.is_quiet = True
        """Whether nothing has paused between the last two calls of `look`."""

    @property
    def has_been_quiet(self) -> bool:
        """Whether nothing has paused for a while."""
        return monotonic() - self._busy_at > limits.QUIET_SECONDS

    def look(self) -> None:
        """Note the pauses since the last call."""
        self.is_quiet = self._count() == self._pause_count
        if not self.is_quiet:
            self._pause_count, self._busy_at = self._count(), monotonic()


class Garbage:
    """Decides when Python's collector passes over objects that have survived its passes over young ones.

    A pass reads all objects made since the last pass, 0.2 to 0.6 µs each, and no client is served meanwhile. If there
    are many, as after a command of megabytes, they are frozen (passes skip them), until a later pass over all objects.
    Most objects are freed without the collector, with their last reference.
    """

    def __init__(self) -> None:
        gc.freeze()  # without a pass, which would take 40 ms and find nothing
        self._collected = self._thawed = monotonic()

    def look(self, *, is_quiet: bool, has_been_quiet: bool) -> None:
        """Run a pass if it is due. Both arguments: see `Activity`."""
        passes = gc.get_count()[2]  # over younger objects, some thousands each
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
    """Let the C library reuse freed blocks rather than return them to the system at once. Has no effect without
    glibc."""
    with contextlib.suppress(OSError, AttributeError):
        library = c_library()
        library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, limits.FREED_BYTES_MAX)


def forget_pages(path: Path) -> None:
    """Drop the pages of a mapped file from the memory of the process: 5 ms for 500 MB. The next read maps them again
    from the system's cache. Has no effect on systems other than Linux."""
    with contextlib.suppress(OSError, AttributeError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, rest = line.partition(" ")
            if rest.endswith(f" {path.resolve()}"):
                start, end = (int(word, 16) for word in span.split("-"))
                c_library().madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
