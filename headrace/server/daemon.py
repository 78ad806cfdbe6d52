"""`headrace serve`: the server in the foreground of a process, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from headrace.dispatch.options import ServerOptions
from headrace.errors import CommandError
from headrace.server.core import Core
from headrace.server.process import tend
from headrace.server.server import new_loop

EXIT_ABRUPT: Final = 14
"""mongod's exit status for a server that aborts because it cannot continue."""


def run(
    options: ServerOptions, announce: Callable[[str], None] = print, *, rotate_log: Callable[[], object] | None = None,
    backup: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Serve until SIGINT, SIGTERM or the command shutdown. SIGUSR1 rotates the logs. SIGHUP rotates the logs and, with
    TLS, reads the certificates again.

    `rotate_log` begins a new log file; None if no file is written. `backup`: the command line of a backup that lives as
    long as the server (`BackupProcess`).

    `announce` is called once, with a line that says where the server listens.

    Raises `DirectoryInUse`, `TlsError`, `UnprotectedAddress` and OSError before `announce` is called.
    """
    loop = new_loop()
    try:
        loop.run_until_complete(_serve(options, announce, rotate_log, backup))
    finally:
        loop.close()


async def _serve(
    options: ServerOptions, announce: Callable[[str], None], rotate_log: Callable[[], object] | None,
    backup: Sequence[str] | None,
) -> None:  # fmt: skip
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    core = Core(options, shut_down=ended.set, failed=_abort, rotate_log=rotate_log)
    await core.start()
    loop.add_signal_handler(signal.SIGUSR1, partial(_rotate_logs, core))
    if options.tls is not None or options.logpath is not None:
        loop.add_signal_handler(signal.SIGHUP, partial(_hang_up, core))
    announce(f"headrace listens on {', '.join(core.addresses)}, data in {options.dbpath}")
    tending = loop.create_task(tend(core))
    if backup is not None:
        from headrace.server.backup_process import BackupProcess

        core.backup = BackupProcess(backup)
        core.backup.start()
    await ended.wait()
    tending.cancel()
    await core.stop()
    if core.backup is not None:
        await core.backup.stop()


def _hang_up(core: Core) -> None:
    _rotate_logs(core)
    if core.options.tls is not None:
        with contextlib.suppress(CommandError):  # the error is logged already
            core.rotate_certificates("SIGHUP")


def _rotate_logs(core: Core) -> None:
    with contextlib.suppress(CommandError):  # the error is logged already
        core.rotate_logs()


def _abort(reason: str) -> None:
    """End the process at once, because it can no longer write. A restart has all acknowledged writes."""
    print(f"headrace: aborted: {reason}", file=sys.stderr, flush=True)
    os._exit(EXIT_ABRUPT)
