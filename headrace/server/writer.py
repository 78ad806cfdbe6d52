"""Group commit: all writes that wait share one transaction and one synced commit.

Writes are gathered while the loop hands out what the sockets brought, then run together, committed and
answered. A commit that is quick (an SSD) is awaited on the spot, which costs least. Where commits have proved slow, or
the messages are long, a thread begins the transaction and commits it, so that reads and pings are answered meanwhile.

A write that takes long pauses (`turns.py`), and what it has done is committed with its group. It goes on in a later
group, as the last of it, behind the writes that came meanwhile; one paused write in each group. Where a single change
takes long, as that of a document with a million keys of an index, the write pauses in the middle of it with the
transaction open, for those who read; other writes wait. Behind a long commit,
the writes that came meanwhile have a group of their own: they have waited for megabytes to be written once already.

Rules: no client is answered before its write is on disk. A write that fails inside costs every other write of its
group at most one more run. A write in its first turn can be run anew. One that has paused before cannot: if its group
fails it ends with that error, and what it did in earlier turns stays done.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace import limits
from headrace.clock import monotonic
from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import Interrupted
from headrace.server.failures import log_failure, write_error
from headrace.server.measured_memory import oldest
from headrace.store.kv import Transaction
from headrace.store.write_transaction import CatalogChange, WriteTransaction
from headrace.turns import Turn

if TYPE_CHECKING:
    from headrace.server.core import Core
    from headrace.server.peer import Peer

SLOW_COMMIT_MS: Final = 3.0  # from here on a commit is worth a thread
LONG_COMMIT_BYTES: Final = 2 * 1024 * 1024  # of messages, and one of them: to write that much takes as long

Write = tuple["Peer", Command, Request]
Job = tuple[Callable[[WriteTransaction], object], "asyncio.Future[None]"]
Answer = bytes | Wait | Turn


class PausedWrite(NamedTuple):
    """A write that has paused, and goes on in a later group."""

    write: Write
    turn: Turn

    @property
    def since(self) -> float:
        """When it has first paused, in seconds of the monotonic clock."""
        return self.turn.paused_at or 0.0


@dataclass(slots=True)
class WriteGroup:
    """Writes that share a transaction, and how far they have come."""

    writes: list[Write]
    jobs: list[Job]
    resumed: PausedWrite | None = None
    """One that goes on in this group, behind all others."""
    answers: list[Answer] = field(default_factory=list)
    """One for each write that has run, `resumed` behind them."""
    jobs_run: int = 0
    has_resumed: bool = False
    """Whether `resumed` has had its turn, or has begun it."""
    in_change: PausedWrite | None = None
    """The write that has paused in the middle of a change,"""
    change_pauses: int = 0
    """and how often one has."""
    catalog_changes: list[tuple[Request | None, list[CatalogChange]]] = field(default_factory=list)
    """What each request has done to the catalog; None: a job of the server's own."""
    txn: WriteTransaction = field(init=False)

    def take_changes(self, request: Request | None) -> None:
        """The changes of the catalog since the last call are this request's; None: the server's own."""
        self.catalog_changes.append((request, self.txn.catalog_changes))
        self.txn.catalog_changes = []

    def all_writes(self) -> list[Write]:
        """Those to which `answers` belong, in order."""
        return self.writes if self.resumed is None else [*self.writes, self.resumed.write]

    def paused(self) -> list[PausedWrite]:
        """The writes that have paused in this group, or wait in it for their turn."""
        pairs = zip(self.all_writes(), self.answers)
        paused = [PausedWrite(write, answer) for write, answer in pairs if type(answer) is Turn]
        if self.in_change is not None:
            paused.append(self.in_change)
        return paused if self.resumed is None or self.has_resumed else [*paused, self.resumed]


def _message_bytes(group: WriteGroup) -> int:
    """Bytes of the messages of a group, which its entries will have, too."""
    size = 0
    for _, _, request in group.all_writes():
        size += len(request.raw)
        for documents in request.sequences.values():
            size += sum(map(len, documents))
    return size


class SharedGate(Protocol):
    """Who may open the write transaction of a store that other threads write to as well."""

    def enter_or_call(self, entered: Callable[[], object]) -> bool:
        """Whether the caller may now. If not, `entered` is called when it may, from any thread."""

    def leave(self) -> None:
        """Let the next."""


class Writer:
    """The queue of writes, and the callback that empties it.

    Whatever an exception escapes from, the next group is scheduled: `_flush` and `_synced` end in `_next`, a client is
    answered behind its own guard (`Peer.finish`), and what leaves the store in doubt ends the server (`Core.fail`).
    """

    def __init__(self, core: Core, gate: SharedGate | None = None) -> None:
        """`gate`: entered for each group; None: nobody else writes."""
        self._core = core
        self._gate = gate
        self._in_gate = gate is None
        self._queue: list[Write] = []
        self._jobs: list[Job] = []
        self._paused: deque[PausedWrite] = deque()
        self._blocked: dict[str, list[PausedWrite]] = {}  # by the key of the transaction that they wait for
        self._group: WriteGroup | None = None  # that is being run or committed
        self._steps: Iterator[None] = iter(())  # those of running it
        self._retries: deque[WriteGroup] = deque()  # of failed transactions, run before what is queued
        self._scheduled = False
        self._is_due = False  # `_flush` is among what the loop calls next
        self._commit_ms = 0.0
        self._commit_was_long = False
        self._idle: list[asyncio.Future[None]] = []
        self.busy_since: float | None = None
        """When the group that is being run or committed took its last step, in seconds of the monotonic clock, which
        goes on while the loop is held up; None: there is none."""

    def add(self, peer: Peer, command: Command, request: Request) -> None:
        """Queue a client's write; the peer is answered through `finish`, or parked if the command must wait."""
        self._queue.append((peer, command, request))
        self._schedule()

    def add_job(self, run: Callable[[WriteTransaction], object]) -> asyncio.Future[None]:
        """Queue a write of the server's own; the future is done when it is committed, or failed."""
        future: asyncio.Future[None] = self._core.loop.create_future()
        self._jobs.append((run, future))
        self._schedule()
        return future

    async def drained(self) -> None:
        """Return once nothing is queued or being committed."""
        while self._scheduled:
            future: asyncio.Future[None] = self._core.loop.create_future()
            self._idle.append(future)
            await future

    def requests(self) -> list[Request]:
        """The writes that are queued or have begun, and have not ended: also those whose commit has begun."""
        group = [] if self._group is None else self._group.all_writes()
        writes = [*self._queue, *(write for retry in self._retries for write in retry.writes), *group]
        return list(dict.fromkeys([*(write[2] for write in writes), *(each.write[2] for each in self._all_paused())]))

    def interrupt(self, connection_id: int, error: Interrupted) -> None:
        """End the paused write of a connection, by its number, at its next turn."""
        for paused in self._all_paused():
            if paused.write[0].client.connection_id == connection_id:
                self._interrupt(paused, error)

    def interrupt_queued(self, connection_id: int, error: Interrupted) -> None:
        """Answer the write of a connection that has not begun, instead of running it."""
        queues = [(self._queue, 0), *((retry.writes, 0) for retry in self._retries)]
        if self._group is not None:  # which has paused in the middle of a change, or is being committed
            queues.append((self._group.writes, len(self._group.answers) + 1))
        for writes, begun in queues:
            for write in [item for item in writes[begun:] if item[0].client.connection_id == connection_id]:
                writes.remove(write)
                self._core.loop.call_soon(write[0].finish, self._core.engine.failure(error, write[2]))
        if self._group is not None:  # one that is to wait for a lock is parked when the others are on disk
            for index, (write, answer) in enumerate(zip(self._group.writes, self._group.answers)):
                if type(answer) is Wait and write[0].client.connection_id == connection_id:
                    self._group.answers[index] = self._core.engine.failure(error, write[2])

    def interrupt_all(self, error: Interrupted) -> None:
        """End all paused writes, each at its next turn."""
        for paused in self._all_paused():
            self._interrupt(paused, error)

    def wake(self, key: str) -> None:
        """What the writes blocked on this key have waited for is there: they go on."""
        for paused in self._blocked.pop(key, ()):
            self._paused.append(paused)
            self._schedule()

    def waiting(self) -> Iterable[PausedWrite]:
        """The paused writes that wait for nothing but their turn."""
        return self._paused

    def _all_paused(self) -> list[PausedWrite]:
        """Also those whose turn is being committed."""
        blocked = [paused for waiting in self._blocked.values() for paused in waiting]
        return [*self._paused, *blocked, *([] if self._group is None else self._group.paused())]

    def _interrupt(self, paused: PausedWrite, error: Interrupted) -> None:
        paused.turn.interruption = error
        self._unblock(paused)

    def _unblock(self, paused: PausedWrite) -> None:
        """Let a write that waits for a transaction go on, to find out why."""
        for key, blocked in self._blocked.items():
            if paused in blocked:
                blocked.remove(paused)
                if not blocked:
                    del self._blocked[key]
                self._paused.append(paused)
                self._schedule()
                return

    def _pause(self, paused: PausedWrite) -> None:
        """A write has paused, and what it did is committed."""
        request, holder = paused.write[2], paused.turn.waits_for
        self._core.scheduler.count_memory(paused.turn, request)
        if self._core.ending:
            paused.turn.interruption = Interrupted(11600, "interrupted at shutdown")
        elif holder is not None and not holder.over() and paused.turn.interruption is None:
            self._blocked.setdefault(holder.key, []).append(paused)
            if request.deadline_ms is not None:
                left_ms = request.deadline_ms - self._core.engine.clock.monotonic_ms()
                self._core.loop.call_later(max(0.0, left_ms + 1.0) / 1000, self._unblock, paused)
            return
        self._paused.append(paused)
        self._core.scheduler.look_at_memory()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._is_due = True
        self._core.loop.call_soon(self._flush)

    def call_behind(self, callback: Callable[[], object]) -> None:
        """Call in the next iteration of the loop what takes a turn, behind the writes that wait then: otherwise a write
        would wait for two turns, for one until it is read and for another until it is run."""
        self._core.loop.call_soon(self._call_behind, callback)

    def _call_behind(self, callback: Callable[[], object]) -> None:
        if self._is_due:
            self._core.loop.call_soon(callback)
        else:
            callback()

    def _next(self) -> None:
        """A group has ended: begin the next, or rest."""
        self.busy_since = None
        if self._gate is not None:
            self._in_gate = False
            self._gate.leave()
        if self._retries or self._queue or self._jobs or self._paused:
            self._flush_soon()
            return
        self._scheduled = False
        idle, self._idle = self._idle, []
        for future in idle:
            if not future.done():
                future.set_result(None)

    def _gate_entered(self) -> None:
        """Called from any thread."""
        self._in_gate = True
        self._core.loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        if not self._in_gate:
            assert self._gate is not None
            if not self._gate.enter_or_call(self._gate_entered):
                return
            self._in_gate = True
        self.busy_since = monotonic()
        if self._retries:
            group = self._retries.popleft()
        else:
            group = WriteGroup(self._queue[: limits.COMMIT_COMMAND_COUNT_MAX], self._jobs)
            self._queue, self._jobs = self._queue[limits.COMMIT_COMMAND_COUNT_MAX :], []
            if self._paused and not (self._commit_was_long and group.writes):
                group.resumed = self._take_paused()
        self._group = group
        if self._commit_ms > SLOW_COMMIT_MS or _message_bytes(group) > LONG_COMMIT_BYTES:
            begin = self._core.store.environment.begin_write_in
            task = self._core.loop.run_in_executor(self._core.commit_thread, begin, self._call_in_thread)
            task.add_done_callback(lambda begun: self._begin(group, begun))
            return
        self._steps = self._run(group, None)
        self._go_on()

    def _call_in_thread(self, function: Callable[[], None]) -> None:
        """Call a function in the thread that commits, and wait for it."""
        self._core.commit_thread.submit(function).result()

    def _begin(self, group: WriteGroup, begun: asyncio.Future[Transaction]) -> None:
        """The thread has begun the transaction of a group, or has failed to."""
        try:
            kv = begun.result()
        except Exception as error:
            self._core.fail("a group of writes could not begin", error)
            return
        self.busy_since = monotonic()
        self._steps = self._run(group, kv)
        self._go_on()

    def _take_paused(self) -> PausedWrite:
        """Remove from the queue the write that goes on: the first, or the oldest while memory is short."""
        if len(self._paused) == 1 or not self._core.scheduler.measured.is_short():
            return self._paused.popleft()
        taken = oldest(self._paused)
        self._paused.remove(taken)
        return taken

    def _go_on(self) -> None:
        """Run the group up to its end, or to the next pause in the middle of a change."""
        try:
            for _ in self._steps:
                self.busy_since = monotonic()
                self._core.loop.call_soon(self._go_on)
                return
        except Exception as error:
            self._core.fail("a group of writes could neither be committed nor given up", error)

    def _run(self, group: WriteGroup, kv: Transaction | None) -> Iterator[None]:
        """Run a group in one transaction, and commit it here, or in the thread that has begun `kv`. Yields where others
        are to read."""
        store = self._core.store
        txn = group.txn = store.begin(kv)
        try:
            yield from self._run_writes(group, txn)
            for run, _ in group.jobs:
                run(txn)
                group.jobs_run += 1
                if txn.catalog_changes:
                    group.take_changes(None)
            if group.resumed is not None:
                group.has_resumed = True
                answer = self._core.scheduler.resume(group.resumed.turn, txn)
                if type(answer) is Turn and answer.keeps_transaction:
                    answer = yield from self._changed(group, group.resumed.write, answer)
                group.answers.append(answer)
                group.take_changes(group.resumed.write[2])
            if txn.staged.entry_bytes > LONG_COMMIT_BYTES:
                yield  # to put them takes as long as what has been done
            store.prepare(txn)
        except Exception as error:
            self._failed(group, error)
            return
        is_long = self._commit_was_long = txn.staged.entry_bytes > LONG_COMMIT_BYTES or group.change_pauses > 0
        if kv is not None:
            self.busy_since = monotonic()  # what the commands took is not the disk's fault
            task = self._core.loop.run_in_executor(self._core.commit_thread, self._timed_sync, txn, is_long)
            task.add_done_callback(lambda done: self._synced(group, done.exception()))
            return
        failure = None
        try:
            self._timed_sync(txn, is_long)
        except Exception as error:
            failure = error
        try:
            self._synced(group, failure)
        finally:
            del failure  # whose traceback has this frame: a cycle would keep the group

    def _changed(self, group: WriteGroup, write: Write, turn: Turn) -> Generator[None, None, Answer]:
        """Go on with a write until the change is made, in the middle of which it has paused; what it answers then."""
        group.in_change = PausedWrite(write, turn)
        answer: Answer = turn
        while type(answer) is Turn and answer.keeps_transaction:
            group.change_pauses += 1
            yield
            answer = self._core.scheduler.turns.resume(turn)
        group.in_change = None
        return answer

    def _run_writes(self, group: WriteGroup, txn: WriteTransaction) -> Iterator[None]:
        """Run the writes; those for which no time is left go back into the queue. Behind one that has used up its first
        turn the others have short ones: many long writes that come at once must not hold up the short ones behind them.
        """
        engine, scheduler = self._core.engine, self._core.scheduler
        run_in_turn = scheduler.turns.run
        ends = monotonic() + limits.GROUP_SECONDS
        for write in group.writes:
            _, command, request = write
            pauses = command.pauses
            if pauses and (pauses is True or pauses(engine, request)):
                answer = run_in_turn(engine.run_write, command, request, txn)
                if type(answer) is Turn and answer.keeps_transaction:
                    answer = yield from self._changed(group, write, answer)
                group.answers.append(answer)
                if type(answer) is Turn:
                    run_in_turn = scheduler.run_shortly
            else:
                group.answers.append(engine.run_write(command, request, txn))
            if txn.catalog_changes:
                group.take_changes(request)
            if monotonic() > ends:
                break
        run = len(group.answers)
        if run < len(group.writes):
            self._queue = group.writes[run:] + self._queue
            group.writes = group.writes[:run]

    def _timed_sync(self, txn: WriteTransaction, is_long: bool) -> None:
        started = time.perf_counter()
        self._core.store.sync(txn)
        if not is_long:
            self._commit_ms += 0.1 * ((time.perf_counter() - started) * 1000 - self._commit_ms)

    def _synced(self, group: WriteGroup, failure: BaseException | None) -> None:
        """The commit has ended: publish it and answer."""
        try:
            if failure is not None:
                self._failed(group, failure)
                return
            self._core.store.publish(group.txn)
        except Exception as error:
            self._core.fail("what is committed could not be published", error)
            return
        self._group = None
        metrics = self._core.engine.metrics
        metrics["commits.total"] += 1
        metrics["commits.writes"] += len(group.writes)
        audit = self._core.audit
        if audit is not None:
            for request, changes in group.catalog_changes:
                audit.changed(request, changes)
        for write, answer in zip(group.all_writes(), group.answers):
            if type(answer) is bytes:
                if audit is not None and audit.wants(write[2]):
                    audit.wrote(write[2], answer)
                write[0].finish(answer)
            elif type(answer) is Turn:
                self._pause(PausedWrite(write, answer))
            else:
                write[0].wait(*write[1:], answer)  # type: ignore[arg-type]
        for _, future in group.jobs:
            if not future.done():
                future.set_result(None)
        self._next()

    def _failed(self, group: WriteGroup, error: BaseException) -> None:
        """Nothing of the transaction has happened. Whoever raised is answered; the others run once more, as two groups:
        those before it, which are known to work, and those behind it, which have not been run."""
        self._core.store.abandon(group.txn)
        self._group = None
        writes, jobs = group.writes, group.jobs
        for answer in group.answers[: len(writes)]:
            if type(answer) is Turn:
                self._core.scheduler.turns.abandon(answer)
        failed = self._failed_resumed(group, error)
        if failed:
            retries = [WriteGroup(writes, jobs)]
        elif (index := len(group.answers)) < len(writes):
            retries = [WriteGroup(writes[:index], []), WriteGroup(writes[index + 1 :], jobs)]
            self._answer_failure(writes[index], error)
        elif (index := group.jobs_run) < len(jobs):
            retries = [WriteGroup(writes, jobs[:index]), WriteGroup([], jobs[index + 1 :])]
            self._fail_job(jobs[index], error)
        elif len(writes) + len(jobs) > 1:  # the commit itself failed: each alone, to find out whose
            retries = [WriteGroup([write], []) for write in writes] + [WriteGroup([], [job]) for job in jobs]
        else:
            retries = []
            for write in writes:
                self._answer_failure(write, error)
            for job in jobs:
                self._fail_job(job, error)
        self._retries.extendleft(reversed([retry for retry in retries if retry.writes or retry.jobs]))
        self._next()

    def _failed_resumed(self, group: WriteGroup, error: BaseException) -> bool:
        """End the paused write of a group that failed, if it had its turn in it: that is lost, and with it where the
        write stood. One that has not had its turn goes on in the next group. Whether it has failed."""
        resumed = group.resumed
        if resumed is None:
            return False
        if not group.has_resumed:
            self._paused.appendleft(resumed)
            return False
        if len(group.answers) > len(group.writes) and type(group.answers[-1]) is Turn:
            self._core.scheduler.turns.abandon(resumed.turn)
        self._answer_failure(resumed.write, error)
        return True

    def _answer_failure(self, write: Write, error: BaseException) -> None:
        peer, _, request = write
        log_failure(f"the write {request.name} of {peer.client.address} failed inside the server", error)
        peer.finish(self._core.engine.failure(write_error(error), request))

    def _fail_job(self, job: Job, error: BaseException) -> None:
        future = job[1]
        if not future.done():
            future.set_exception(error)
