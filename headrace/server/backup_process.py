"""`headrace serve --backup`: the continuous backup, a process that lives as long as the server.

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
from collections.abc import Sequence
from typing import Final

from headrace import limits
from headrace.clock import monotonic
from headrace.log_lines import printable
from headrace.server.child_process import child_environment, python_command

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
