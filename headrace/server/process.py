"""What `headrace serve` does for its process, so that no client waits for Python itself.

    imports    modules that commands import when they are first needed are imported behind the start, one at a time
    garbage    what is there by then is left out of the collector's passes (`gc.freeze`); a pass over all other objects,
               50 ms for a million of them, runs when no command has paused, or many objects are new, or once a minute

A server inside another program (`headrace.Server`) changes nothing there: the collector is the program's.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import pkgutil
from typing import TYPE_CHECKING, Final

import headrace.changes
import headrace.commands
import headrace.cursors
import headrace.execution
import headrace.query
from headrace import limits
from headrace.clock import monotonic

if TYPE_CHECKING:
    from headrace.server.core import Core

_PACKAGES: Final = (headrace.changes, headrace.commands, headrace.cursors, headrace.execution, headrace.query)
_NEVER: Final = 2**31 - 1


async def tend(core: Core) -> None:
    """Import what is left, then collect garbage from time to time; until it is cancelled."""
    for package in _PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
            await asyncio.sleep(0)
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    collected = monotonic()
    while True:
        await asyncio.sleep(limits.COLLECTION_SECONDS)
        is_quiet = not core.scheduler.requests()
        passes = gc.get_count()[2]  # of the collector over younger objects, each some thousands
        is_due = passes > limits.COLLECTION_PASS_COUNT_MAX or monotonic() - collected > limits.COLLECTION_SECONDS_MAX
        if passes and (is_quiet or is_due):
            gc.collect()
            collected = monotonic()
