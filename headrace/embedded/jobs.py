"""The background jobs of an open store. They are the server's jobs (`server/background.py`), on their own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import TYPE_CHECKING, Any

from headrace.clock import monotonic
from headrace.embedded.errors_raised import raise_closed

if TYPE_CHECKING:
    from headrace.embedded.local_engine import LocalEngine
    from headrace.server.background import Background
    from headrace.store.write_transaction import WriteTransaction


class _Host:
    """The store in the form that the jobs use (`server.background.JobHost`)."""

    def __init__(self, local: LocalEngine) -> None:
        self._local = local
        self.store = local.store
        self.engine = local.engine
        self.writer = self

    @coroutine
    def add_job(self, run: Callable[[WriteTransaction], object]) -> Generator[Any, None, None]:
        """Pass a write to the thread that runs the job."""
        yield run

    async def store_profiles(self) -> None:
        """Store the documents of the profiler. Drop those that cannot be stored, so that no command fails."""
        if not self._local.profiles:
            return
        from headrace.store.profiles import store_profiles

        waiting, self._local.profiles = self._local.profiles, []
        await self.add_job(lambda txn: store_profiles(txn, waiting))


class _Job:
    """A running job."""

    def __init__(self, local: LocalEngine, job: Coroutine[Any, Any, Any]) -> None:
        self._local = local
        self._job = job
        self._failure: Exception | None = None
        self.result: Any = None

    def step(self) -> bool:
        """Run the job's next step under the engine's lock, then its write without the lock; return whether it ended."""
        local, failure = self._local, self._failure
        local.enter()
        try:
            write = self._job.send(None) if failure is None else self._job.throw(failure)
        except StopIteration as done:
            self.result = done.value
            return True
        finally:
            local.lock.release()
        self._failure = None
        try:
            if write is None:
                local.give_way()
            else:
                local.writes.run_job(write)
        except Exception as error:
            self._failure = error
        return False


class Jobs:
    """A thread that starts all jobs each second and runs a step of each in turn."""

    def __init__(self, local: LocalEngine) -> None:
        self._local = local
        self._host = _Host(local)
        self._background: Background | None = None
        self._preparing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-jobs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait until no job runs."""
        self._ended.set()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join()

    def prune(self, now_ms: int | None) -> int:
        """Prune the oplog to its limits; return the number of removed entries. Raises `Closed`."""
        if self._local.unusable is not None:
            raise_closed(self._local.unusable)
        job = _Job(self._local, self._jobs().prune(self._local.engine.clock.now_ms() if now_ms is None else now_ms))
        while not job.step():
            pass
        return int(job.result)

    def _run(self) -> None:
        running: dict[Any, _Job] = {}
        due = monotonic() + 1
        lock = self._local.engine.write_lock
        while not self._ended.wait(0 if running and not lock.count else max(0.0, due - monotonic())):
            if self._local.unusable is not None:
                return
            if monotonic() >= due:
                due = monotonic() + 1
                self._local.close_forgotten()
                for job in (*self._jobs().jobs(), self._host.store_profiles):
                    if job not in running:
                        running[job] = _Job(self._local, job())
            for job in () if lock.count else list(running):
                if self._has_ended(running[job]):
                    del running[job]

    def _has_ended(self, job: _Job) -> bool:
        """Run a job's next step and return whether the job ended. A failed job ends and starts again a second later."""
        try:
            return job.step()
        except Exception as error:
            if self._local.unusable is None:
                from headrace.server.failures import log_failure

                log_failure("a background job failed; it is tried again", error)
            return True

    def _jobs(self) -> Background:
        """Return the jobs. They are imported at the first run, because the import takes longer than opening a store."""
        with self._preparing:
            if self._background is None:
                from headrace.server.background import Background

                background = Background(self._host)
                self._local.enter()
                try:
                    background.prepare()
                finally:
                    self._local.lock.release()
                self._background = background
            return self._background
