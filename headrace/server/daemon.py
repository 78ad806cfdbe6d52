"""`headrace serve`: the server in the foreground of a process, until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from headrace.dispatch.options import ServerOptions
from headrace.server.core import Core
from headrace.server.embedded import new_loop


def run(options: ServerOptions, announce: Callable[[str], None] = print) -> None:
    """Serve until SIGINT, SIGTERM or the command shutdown; `announce` is told once, in one line, where it listens.

    Raises `DirectoryInUse` and OSError before anything is announced.
    """
    loop = new_loop()
    try:
        loop.run_until_complete(_serve(options, announce))
    finally:
        loop.close()


async def _serve(options: ServerOptions, announce: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    core = Core(options)
    core.engine.shut_down = ended.set
    await core.start()
    announce(f"headrace listens on {', '.join(core.addresses)}, data in {options.dbpath}")
    await ended.wait()
    await core.stop()
