"""Group commit: all writes that wait share one transaction and one synced commit.

Writes are gathered while the loop hands out what the sockets brought, then run together, committed and
answered. A commit that is quick (an SSD) is awaited on the spot, which costs least; where commits have
proved slow they go to a thread, so that reads and pings are answered meanwhile.

Rule: no client is answered before its write is on disk, and a write whose transaction failed is run again
alone, so that one client's failure is not another's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.store.store import MapFull
from headrace.store.writes import WriteTransaction

if TYPE_CHECKING:
    from headrace.server.core import Core
    from headrace.server.peer import Peer

LOG = logging.getLogger("headrace.server")
SLOW_COMMIT_MS: Final = 3.0  # from here on a commit is worth a thread

Job = Callable[[WriteTransaction], object]


class Writer:
    """The queue of writes, and the task that empties it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._queue: list[tuple[Peer, Command, Request]] = []
        self._jobs: list[tuple[Job, asyncio.Future[None]]] = []
        self._alone: list[tuple[Any, Any]] = []  # (batch, jobs) of one write each, to find whose fault a failure was
        self._scheduled = False
        self._commit_ms = 0.0
        self._idle: list[asyncio.Future[None]] = []

    def add(self, peer: Peer, command: Command, request: Request) -> None:
        """Queue a client's write; the peer is answered through `finish`, or parked if the command must wait."""
        self._queue.append((peer, command, request))
        self._schedule()

    def add_job(self, job: Job) -> asyncio.Future[None]:
        """Queue a write of the server's own; the future is done when it is committed, or failed."""
        future: asyncio.Future[None] = self._core.loop.create_future()
        self._jobs.append((job, future))
        self._schedule()
        return future

    async def drained(self) -> None:
        """Return once nothing is queued or being committed."""
        while self._scheduled:
            future: asyncio.Future[None] = self._core.loop.create_future()
            self._idle.append(future)
            await future

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._core.loop.call_soon(self._flush)

    def _done(self) -> None:
        """A batch is through: begin the next, or rest."""
        if self._alone or self._queue or self._jobs:
            self._core.loop.call_soon(self._flush)
            return
        self._scheduled = False
        idle, self._idle = self._idle, []
        for future in idle:
            future.set_result(None)

    def _flush(self) -> None:
        if self._alone:
            self._commit(*self._alone.pop(0))
            return
        batch, self._queue = (
            self._queue[: limits.COMMIT_COMMAND_COUNT_MAX],
            self._queue[limits.COMMIT_COMMAND_COUNT_MAX :],
        )
        jobs, self._jobs = self._jobs, []
        self._commit(batch, jobs)

    def _commit(self, batch: list[tuple[Peer, Command, Request]], jobs: list[tuple[Job, asyncio.Future[None]]]) -> None:
        store = self._core.store
        txn = store.begin()
        try:
            answers = [self._core.engine.run_write(command, request, txn) for _, command, request in batch]
            for job, _ in jobs:
                job(txn)
            store.prepare(txn)
        except Exception as error:
            self._failed(txn, batch, jobs, error)
            return
        if self._commit_ms > SLOW_COMMIT_MS:
            task = self._core.loop.run_in_executor(self._core.commit_thread, self._timed_sync, txn)
            task.add_done_callback(lambda done: self._synced(txn, batch, jobs, answers, done.exception()))
            return
        failure = None
        try:
            self._timed_sync(txn)
        except Exception as error:
            failure = error
        self._synced(txn, batch, jobs, answers, failure)

    def _timed_sync(self, txn: WriteTransaction) -> None:
        started = time.perf_counter()
        self._core.store.sync(txn)
        self._commit_ms += 0.1 * ((time.perf_counter() - started) * 1000 - self._commit_ms)

    def _synced(
        self, txn: WriteTransaction, batch: list[tuple[Peer, Command, Request]],
        jobs: list[tuple[Job, asyncio.Future[None]]], answers: list[bytes | Wait], failure: BaseException | None,
    ) -> None:  # fmt: skip
        if failure is not None:
            self._failed(txn, batch, jobs, failure)
            return
        self._core.store.publish(txn)
        for (peer, command, request), answer in zip(batch, answers):
            if type(answer) is bytes:
                peer.finish(answer)
            else:
                self._core.notifier.park(peer, command, request, answer)  # type: ignore[arg-type]
        for _, future in jobs:
            if not future.done():
                future.set_result(None)
        self._done()

    def _failed(
        self, txn: WriteTransaction, batch: list[tuple[Peer, Command, Request]],
        jobs: list[tuple[Job, asyncio.Future[None]]], error: BaseException,
    ) -> None:  # fmt: skip
        """Nothing of the transaction happened: make room and go again, or find whose fault it was."""
        self._core.store.abandon(txn)
        if isinstance(error, MapFull):
            try:
                self._core.store.grow()
            except Exception as no_room:  # no memory to map: the clients are told, one by one
                error = no_room
            else:
                self._commit(batch, jobs)
                return
        if len(batch) + len(jobs) > 1:
            self._alone += [([item], []) for item in batch] + [([], [job]) for job in jobs]
            self._done()
        elif batch:
            peer, _, request = batch[0]
            LOG.error("the write %s of %s failed inside the server", request.name, peer.client.address, exc_info=error)
            message = f"an error inside the server, and nothing was written; see its log: {error}"
            code = 14031 if isinstance(error, OSError) else 1
            peer.finish(self._core.engine.failure(CommandError(code, message), request))
            self._done()
        else:
            jobs[0][1].set_exception(error)
            self._done()
