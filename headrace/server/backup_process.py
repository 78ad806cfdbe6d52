"""`headrace serve --backup`: the continuous backup as a process of its own, which lives as long as the server.

    server ──stdin──▶ backup     open as long as the server lives, however it ends
    server ◀─stdout── backup     `@ POSITION` for what is shipped; other lines are for the log
    server ◀─stderr── backup     warnings for the log

Rules:
- The server gives it no time and no memory: it reads the data file beside the server, as `headrace backup` does.
- When it ends, whatever the reason, it is started again, and goes on where its archive ends.
- When the server ends, it ships what is left and ends as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from headrace import limits
from headrace.clock import monotonic
from headrace.log_lines import printable
from headrace.server.child_process import child_environment, python_command

LOG = logging.getLogger("headrace.backup")
SHIPPED: Final = "@ "
"""Begins a line with the position that the archive has reached, as 16 hexadecimal digits."""


class BackupProcess:
    """Starts the backup again and again, until `stop`. On the loop's thread."""

    def __init__(self, words: Sequence[str]) -> None:
        """`words`: a command line of `headrace`, which ends when its standard input does."""
        self._words = words
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self.position: int | None = None
        """The position that the archive has reached; None: the process has not said so yet."""

    @property
    def is_running(self) -> bool:
        """Whether the process has said where the archive ends, and goes on."""
        return self._process is not None and self.position is not None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Let it ship what is left, and end; after `BACKUP_STOP_SECONDS` it is killed."""
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
            except OSError as error:  # no process can be started
                reason = str(error)
            if self._ending:
                return
            pause = 1.0 if monotonic() - began > limits.BACKUP_PAUSE_SECONDS_MAX else pause
            LOG.warning("the backup has ended (%s); it is started again in %d s", reason, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, limits.BACKUP_PAUSE_SECONDS_MAX)

    async def _run_once(self) -> str:
        """Run the process to its end; return what its end was."""
        # A session of its own: Ctrl-C in the terminal is the server's.
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
