"""Storage of the profiler's documents, after the commands: one job of the writer stores all waiting documents.

A document that cannot be stored is dropped, and no command fails because of it.
"""

from __future__ import annotations

from asyncio import Future
from typing import TYPE_CHECKING

from headrace import limits
from headrace.dispatch.profiling.profiler import STORED
from headrace.store.profiles import store_profiles
from headrace.store.write_transaction import WriteTransaction

if TYPE_CHECKING:
    from headrace.server.core import Core


class ProfileWriter:
    """The profiler's documents that wait to be stored."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: list[tuple[str, bytes | None]] = []
        self._stored_count = 0  # waiting documents in the present transaction
        self._has_job = False

    def add(self, namespace: str, document: bytes | None) -> None:
        """Store a document in the collection. None: only create the collection."""
        if len(self._waiting) < limits.PROFILE_QUEUE_COUNT_MAX and not self._core.ending:
            self._waiting.append((namespace, document))
            self._core.engine.profiler.recorded_count += 1
            self._store()

    def _store(self) -> None:
        if not self._has_job:
            self._has_job = True
            self._core.writer.add_job(self._run).add_done_callback(self._done)

    def _run(self, txn: WriteTransaction) -> None:
        self._stored_count = len(self._waiting)
        store_profiles(txn, self._waiting)

    def _done(self, job: Future[None]) -> None:
        self._has_job = False
        if not job.cancelled() and job.exception() is not None:
            self._stored_count = len(self._waiting)
        del self._waiting[: self._stored_count]
        self._core.engine.profiler.stored_count += self._stored_count
        self._stored_count = 0
        self._core.wake(STORED)
        if self._waiting and not self._core.ending:
            self._store()
