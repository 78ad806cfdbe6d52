"""`headrace serve`: the server in the foreground of a process, until a signal ends it; and `--backup`.

The continuous backup is a process that lives as long as the server.

    server ──stdin──▶ backup     open as long as the server lives, however it ends
    server ◀─stdout── backup     `@ POSITION` of the shipped oplog; other lines are for the log
    server ◀─stderr── backup     warnings for the log

Rules:
- It costs the server no time and no memory: it reads the data file beside the server, as `headrace backup` does.
- When it ends for any reason, it is started again, and continues at the end of its archive.
- When the server ends, it ships the rest and ends as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from headrace import limits
from headrace.clock import monotonic
from headrace.dispatch.options import ServerOptions
from headrace.errors import CommandError
from headrace.log_lines import printable
from headrace.server.child_process import child_environment, python_command
from headrace.server.core import Core
from headrace.server.process import tend
from headrace.server.server import new_loop

LOG = logging.getLogger("headrace.backup")
SHIPPED: Final = "@ "
"""The prefix of a line with the archive's position, as 16 hexadecimal digits."""


class BackupProcess:
    """Starts the backup again and again, until `stop`. Runs on the loop's thread."""

    def __init__(self, words: Sequence[str]) -> None:
        """`words`: a command line of `headrace`. The command ends when its standard input does."""
        self._words = words
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self.position: int | None = None
        """The position that the archive has reached; None: the process has not reported one yet."""

    @property
    def is_running(self) -> bool:
        """Whether the process has reported the archive's position and is running."""
        return self._process is not None and self.position is not None

    def start(self) -> None:
        """Start the backup."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Let the process ship the rest and end. It is killed after `BACKUP_STOP_SECONDS`."""
        self._ending = True
        process = self._process
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), limits.BACKUP_STOP_SECONDS)
            except TimeoutError:
                LOG.warning("the backup has not ended within %d s; it goes on at the next start",
                            limits.BACKUP_STOP_SECONDS)  # fmt: skip
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if self._task is not None:
            if process is None:
                self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause = 1.0
        while not self._ending:
            began = monotonic()
            try:
                reason = await self._run_once()
            except OSError as error:  # the process cannot be started
                reason = str(error)
            if self._ending:
                return
            pause = 1.0 if monotonic() - began > limits.BACKUP_PAUSE_SECONDS_MAX else pause
            LOG.warning("the backup has ended (%s); it is started again in %d s", reason, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, limits.BACKUP_PAUSE_SECONDS_MAX)

    async def _run_once(self) -> str:
        """Run the process to its end; return its exit status as text."""
        # The process gets a session of its own, so that Ctrl-C in the terminal reaches only the server.
        self._process = process = await asyncio.create_subprocess_exec(
            *python_command("headrace", *self._words), env=child_environment(), start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        if self._ending:
            process.stdin.close()
        try:
            await asyncio.gather(self._read(process.stdout, logging.INFO), self._read(process.stderr, logging.WARNING))
            return f"status {await process.wait()}"
        finally:
            self._process = self.position = None

    async def _read(self, stream: asyncio.StreamReader, level: int) -> None:
        while line := await stream.readline():
            text = line.decode(errors="replace").rstrip()
            if text.startswith(SHIPPED):
                self.position = int(text.removeprefix(SHIPPED), 16)
            else:
                LOG.log(level, "%s", printable(text.removeprefix("headrace: ")))


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
        from headrace.server.daemon import BackupProcess

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
