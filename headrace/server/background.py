"""Background jobs: prune the oplog, expire images and sessions, collect garbage, write periodic no-ops.

Each job is a write of its own through the `Writer`, in bounded pieces, so that no client's write waits long. Each job
is also a task of its own, so that no job waits for a longer one. The jobs are coroutines that only await such writes
and `let_others_run`, so that a store without an event loop can run them.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace import limits
from headrace.dispatch import transactions
from headrace.execution.writes import output
from headrace.server.clocks import RetentionClock
from headrace.server.failures import log_failure
from headrace.server.job_steps import let_others_run
from headrace.server.ttl import TimeToLive
from headrace.store import catalog_changes, session_records
from headrace.store.indexes import index_builds
from headrace.store.retention import (
    AgedScan,
    Retention,
    default_bytes_max,
    expired_images,
    first_to_keep,
    outlived,
    prune_entries,
    remove,
)

if TYPE_CHECKING:
    import asyncio

    from headrace.dispatch.engine import Engine
    from headrace.store.store import Store
    from headrace.store.view import View
    from headrace.store.write_transaction import WriteTransaction

TICK_MS: Final = 1000


def prune_count(added: int) -> int:
    """Return how many entries to remove in one transaction. `added`: entries added since the previous transaction."""
    return min(max(limits.PRUNE_COUNT_MAX, 2 * added), 2 * limits.PRUNE_COUNT_MAX)


class JobHost(Protocol):
    """The owner of the jobs: a server, or a store that a program has opened."""

    @property
    def store(self) -> Store: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def writer(self) -> JobWriter: ...


class JobWriter(Protocol):
    """The writer that commits."""

    def add_job(self, run: Callable[[WriteTransaction], object]) -> Awaitable[None]: ...


def retention_of(core: JobHost, reusable_bytes: int) -> Retention:
    """Return the bounds in force: parameters set at run time, then the options, then MongoDB-like defaults.

    `reusable_bytes`: the oplog's size and the free space in the data file, which count as free disk space.
    """
    parameters = core.engine.parameters
    size_mb = parameters["oplogSizeMB"]
    if size_mb is not None:
        bytes_max = int(size_mb * 1024 * 1024)
    else:
        free = shutil.disk_usage(core.store.environment.path).free + reusable_bytes
        bytes_max = default_bytes_max(free)
    return Retention(parameters["oplogMinRetentionHours"], bytes_max, parameters["oplogEntriesMax"])


class Background:
    """The tasks of the jobs. Each job runs once a second."""

    def __init__(self, core: JobHost) -> None:
        self._core = core
        self._tasks: list[asyncio.Task[None]] = []
        self.ttl = TimeToLive(core)
        self._retention_clock = RetentionClock(core.engine.clock, core.store.last_wall_ms)
        self._aged = AgedScan()
        self._noop_due_ms = 0.0
        self._aged_due_ms = 0.0
        self._session_at = b""  # where the scan of the sessions continues

    def prepare(self) -> None:
        """Compute the bounds in force, before the first tick."""
        with self._core.store.reading() as view:
            self.retention(view)
        self._noop_due_ms = self._core.engine.clock.monotonic_ms() + limits.NOOP_INTERVAL_MS

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run each job once a second from now on."""
        self.prepare()
        self._tasks = [loop.create_task(self._run(job)) for job in self.jobs()]

    def stop(self) -> None:
        """Cancel the tasks. A running commit of a job is completed."""
        for task in self._tasks:
            task.cancel()

    def jobs(self) -> list[Callable[[], Coroutine[Any, Any, object]]]:
        """Return the jobs to run once a second."""
        return [
            self._release, self._forget_aged, self._noop, self.prune, self._expire, self._collect,
            self.build, self.ttl.tick,
        ]  # fmt: skip

    async def _run(self, job: Callable[[], Coroutine[Any, Any, object]]) -> None:
        import asyncio

        while True:
            await asyncio.sleep(TICK_MS / 1000)
            try:
                await job()
            except Exception as error:
                log_failure("a background job failed; it is tried again", error)

    async def tick(self) -> None:
        """Run all jobs once, one after the other."""
        for job in self.jobs():
            await job()

    async def _release(self) -> None:
        """End unused cursors and copies, and transactions past their time limit."""
        engine = self._core.engine
        engine.cursors.remove_idle(engine.clock.monotonic_ms())
        engine.store.snapshot_copies.remove_idle(engine.clock.monotonic_ms())
        transactions.retire(engine, engine.clock.monotonic_ms())

    async def _forget_aged(self) -> None:
        """Drop old entries and events, which watchers have had time to read."""
        engine = self._core.engine
        now_ms = engine.clock.monotonic_ms()
        if now_ms >= self._aged_due_ms:
            self._aged_due_ms = now_ms + limits.FEED_MS
            for _ in engine.feeds.forget_aged():
                await let_others_run()

    async def _noop(self) -> None:
        """Add an entry to an oplog that was quiet for ten seconds, so that the tokens of quiet streams advance."""
        store = self._core.store
        if not store.oplog_enabled:
            return
        clock = self._core.engine.clock
        quiet_ms, monotonic_ms = clock.now_ms() - store.last_wall_ms, clock.monotonic_ms()
        if quiet_ms >= limits.NOOP_INTERVAL_MS and monotonic_ms >= self._noop_due_ms:
            self._noop_due_ms = monotonic_ms + limits.NOOP_INTERVAL_MS
            await self._core.writer.add_job(lambda txn: store.log_noop(txn, "periodic noop"))

    async def prune(self, now_ms: int | None = None) -> int:
        """Prune the oplog to its bounds as of `now_ms` (default: now); return the number of removed entries.

        A writer that adds entries meanwhile does not prolong a round: the last entries are left to the next round.
        """
        store = self._core.store
        store.environment.forget_dead_readers()
        if now_ms is None:
            now_ms = self._retention_clock.now_ms()
        removed, piece = 0, limits.PRUNE_ROUND_COUNT_MAX
        while store.oplog_enabled and piece >= limits.PRUNE_ROUND_COUNT_MAX:
            with store.reading() as view:
                first_retained = first_to_keep(view, self.retention(view), now_ms, self._aged)
                oldest = view.oldest_position()
            piece = 0 if oldest is None or first_retained <= oldest else await self._prune_through(first_retained)
            removed += piece
        if removed:
            await self._remove_outlived()
        return removed

    async def _prune_through(self, first_retained: int) -> int:
        """Remove all entries before a position; return their number. More entries are removed than a growing log
        gains."""
        removed, entries = 0, 0
        while True:
            counts: list[int] = []

            def run(txn: WriteTransaction, counts: list[int] = counts, before: int = entries) -> None:
                there = txn.kv.stat(txn.tables["oplog"])["entries"]
                most = prune_count(there - before if before else 0)
                counts[:] = most, prune_entries(txn, first_retained, most), there

            await self._core.writer.add_job(run)
            most, count, there = counts
            removed, entries = removed + count, there - count
            if count < most:
                return removed

    async def _remove_outlived(self) -> None:
        """Remove the runs and images of removed entries, some topics at a time."""
        store = self._core.store
        for table in ("runs", "images"):
            following, begun = b"", False
            while following or not begun:
                with store.reading() as view:
                    keys, following = outlived(view, table, following, limits.PRUNE_COUNT_MAX)
                begun = True
                if keys:
                    await self._core.writer.add_job(lambda txn, table=table, keys=keys: remove(txn, table, keys))  # type: ignore[misc]
                else:
                    await let_others_run()

    def retention(self, view: View) -> Retention:
        """Return the bounds in force, and note the size limit for commands that show it."""
        retention = retention_of(self._core, view.table_bytes("oplog") + view.free_bytes)
        self._core.engine.oplog_bytes_max = retention.bytes_max
        return retention

    async def _expire(self) -> None:
        """Expire images by `expireAfterSeconds`, and the records of ended sessions. Write only if there is something to
        remove."""
        core, now_ms = self._core, self._retention_clock.now_ms()
        before_ms = now_ms - limits.SESSION_MINUTES * 60_000
        with core.store.reading() as view:
            records = view.kv.stat(view.tables["sessions"])["entries"]
        for _ in range(records // (limits.PRUNE_COUNT_MAX * limits.SESSIONS_SECONDS) + 1):
            with core.store.reading() as view:
                start, count_max = self._session_at, limits.PRUNE_COUNT_MAX
                unused, self._session_at = session_records.unused(view, start, before_ms, count_max)
            if unused:
                await core.writer.add_job(lambda txn, unused=unused: session_records.forget(txn, unused, before_ms))  # type: ignore[misc]
            else:
                await let_others_run()
        seconds = _image_seconds(core.store.cluster_parameters)
        while seconds is not None:
            with core.store.reading() as view:
                images = expired_images(view, seconds, now_ms, limits.PRUNE_COUNT_MAX)
            if images:
                await core.writer.add_job(lambda txn, images=images: remove(txn, "images", images))  # type: ignore[misc]
            if len(images) < limits.PRUNE_COUNT_MAX:
                return

    async def build(self) -> None:
        """Continue index builds without a running command: the client has left, or the server was restarted."""
        store, busy = self._core.store, self._core.engine.builds_of_commands
        for uuid in [uuid for uuid in store.catalog.builds if uuid not in busy]:
            more = True
            while more:
                left: list[bool] = []
                await self._core.writer.add_job(
                    lambda txn, uuid=uuid, left=left: left.append(index_builds.resume(txn, uuid))  # type: ignore[misc]
                )
                more = left[-1]

    async def _collect(self) -> None:
        """Remove the documents of dropped collections, in pieces, and the temporary collections of failed `$out`
        stages."""
        store = self._core.store
        left_behind = output.left_behind(self._core.engine)
        if left_behind:
            await self._core.writer.add_job(lambda txn: output.drop_temporary(txn, left_behind))
        with store.reading() as view:
            there = catalog_changes.has_garbage(view)
        while there:
            left: list[bool] = []
            await self._core.writer.add_job(
                lambda txn, left=left: left.append(catalog_changes.collect_garbage(txn, limits.PRUNE_COUNT_MAX))  # type: ignore[misc]
            )
            there = left[-1]


def _image_seconds(parameters: dict[str, Any]) -> int | None:
    """Return `expireAfterSeconds` of the pre-images, or None for "off"."""
    seconds = parameters.get("changeStreamOptions", {}).get("preAndPostImages", {}).get("expireAfterSeconds", "off")
    return None if seconds == "off" else int(seconds)
