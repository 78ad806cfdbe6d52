"""The server's writes: the queue, and the callback of the loop that empties it. `group_commit.py` has the rules.

Writes are gathered while the loop hands out what the sockets brought, then run together, committed and
answered. A commit that is quick (an SSD) is awaited on the spot, which costs least. Where commits have proved slow, or
the messages are long, a thread begins the transaction and commits it, so that reads and pings are answered meanwhile.

A write that takes long pauses (`turns.py`), and what it has done is committed with its group. It goes on in a later
group, as the last of it, after the writes that came meanwhile; one paused write in each group. After a long commit, the
writes that came meanwhile have a group of their own: they have waited for megabytes to be written once already.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from headrace import limits
from headrace.clock import monotonic
from headrace.dispatch.cluster_wide.write_blocks import WriteLock
from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import interrupted_labels
from headrace.dispatch.transactions import written_bytes
from headrace.dispatch.wait import Wait
from headrace.errors import Interrupted
from headrace.execution.reader_calls import ReaderCall
from headrace.server.failures import log_failure, write_error
from headrace.server.group_commit import GroupCommitter, WriteGroup
from headrace.server.metrics.commit_times import CommitTimes
from headrace.store.kv import Transaction
from headrace.store.write_transaction import CatalogChange, WriteTransaction
from headrace.thread_calls import ThreadCall
from headrace.turns import HandedOver, Turn

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.server.core import Core
    from headrace.server.peer import Peer

SLOW_COMMIT_MS: Final = 3.0  # from here on a commit is worth a thread
LONG_COMMIT_BYTES: Final = 2 * 1024 * 1024  # of messages, and one of them: to write that much takes as long


class ClientWrite(NamedTuple):
    """A write of a client."""

    peer: Peer
    command: Command
    request: Request


_new: Final = tuple.__new__
"""Makes a named tuple without a call of its class: of what is made for each write."""


class ServerJob(NamedTuple):
    """A write of the server's own."""

    run: Callable[[WriteTransaction], object]
    future: asyncio.Future[None]


Answer = bytes | Wait | Turn | None
"""None: of a job."""


class PausedWrite(NamedTuple):
    """A write that has paused, and goes on in a later group."""

    write: ClientWrite
    turn: Turn

    @property
    def since(self) -> float:
        """When it has first paused, in seconds of the monotonic clock."""
        return self.turn.paused_at or 0.0


@dataclass(slots=True)
class SharedGroup(WriteGroup["ClientWrite | ServerJob", PausedWrite]):
    """Writes that share a transaction."""

    catalog_changes: list[tuple[Request | None, list[CatalogChange]]] = field(default_factory=list)
    """The changes of the catalog that each request has made; None: a job of the server's own."""
    has_paused: bool = False
    """A write has used up its first turn: the others of the group have short ones, so that many long writes which
    come at once do not hold up the short ones after them."""

    def take_changes(self, request: Request | None) -> None:
        """The changes of the catalog since the last call are this request's; None: the server's own."""
        self.catalog_changes.append((request, self.txn.catalog_changes))
        self.txn.catalog_changes = []

    def answered(self) -> Iterable[tuple[ClientWrite | ServerJob, Answer]]:
        """The writes that have run, and their answers."""
        writes = self.writes if self.resumed is None else [*self.writes, self.resumed.write]
        return zip(writes, self.answers)

    def clients(self) -> list[ClientWrite]:
        """The clients' writes."""
        made = [write for write in self.writes if type(write) is ClientWrite]
        return made if self.resumed is None else [*made, self.resumed.write]

    def paused(self) -> list[PausedWrite]:
        """The writes that have paused in this group, or wait in it for their turn."""
        paused = [
            PausedWrite(write, answer)
            for write, answer in self.answered()
            if type(answer) is Turn and type(write) is ClientWrite
        ]
        return paused if self.resumed is None or self.has_resumed else [*paused, self.resumed]


def _message_bytes(group: SharedGroup, engine: Engine) -> int:
    """Bytes of the messages of a group, and of the transactions that it commits, which its entries will have, too."""
    size = 0
    for write in group.writes if group.resumed is None else (*group.writes, group.resumed.write):
        if type(write) is not ClientWrite:
            continue
        request = write.request
        if request.message_bytes:
            size += request.message_bytes
            continue
        if write.command.name == "commitTransaction":
            size += written_bytes(engine, request)
        size += len(request.raw)
        for documents in request.sequences.values():
            size += sum(map(len, documents))
    return size


class SharedGate(Protocol):
    """Lets one thread open the write transaction of a store that other threads write to as well."""

    def enter_or_call(self, entered: Callable[[], object]) -> bool:
        """Whether the caller may now. If not, `entered` is called when it may, from any thread."""

    def leave(self) -> None:
        """Let the next."""


class Writer(GroupCommitter[SharedGroup, "ClientWrite | ServerJob", PausedWrite]):
    """The queue of writes, and the callback that empties it.

    Whatever an exception escapes from, the next group is scheduled: `_flush` and `_synced` end in `_next`, a client is
    answered under its own guard (`Peer.finish`), and what leaves the store in doubt ends the server (`Core.fail`).
    """

    def __init__(self, core: Core, gate: SharedGate | None = None) -> None:
        """`gate`: entered for each group; None: there is no other writer."""
        super().__init__(core.store)
        self._core = core
        self._gate = gate
        self._in_gate = gate is None
        self._queue: list[ClientWrite | ServerJob] = []
        self._paused: deque[PausedWrite] = deque()
        self._held: list[ServerJob] = []  # until `fsyncUnlock`
        self._blocked: dict[Any, list[PausedWrite]] = {}  # by the key that they wait for
        self._group: SharedGroup | None = None  # that is being run or committed
        self._retries: deque[SharedGroup] = deque()  # of failed transactions, run before what is queued
        self._scheduled = False
        self._is_due = False  # `_flush` is among what the loop calls next
        self._commit_ms = 0.0
        self.commit_times = CommitTimes()
        self._commit_was_long = False
        self._idle: list[asyncio.Future[None]] = []
        self.busy_since: float | None = None
        """When the group that is being run or committed took its last step, in seconds of the monotonic clock, which
        goes on while the loop is held up; None: there is none."""

    def add(self, peer: Peer, command: Command, request: Request) -> None:
        """Queue a client's write; the peer is answered through `finish`, or parked if the command must wait."""
        self._queue.append(_new(ClientWrite, (peer, command, request)))
        if not self._scheduled:
            self._schedule()

    def add_job(self, run: Callable[[WriteTransaction], object]) -> asyncio.Future[None]:
        """Queue a write of the server's own; the future is done when it is committed, or failed."""
        future: asyncio.Future[None] = self._core.loop.create_future()
        self._queue.append(ServerJob(run, future))
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
        queued = SharedGroup([*self._queue, *(write for retry in self._retries for write in retry.writes)]).clients()
        group = [] if self._group is None else self._group.clients()
        writes = [*queued, *group, *(paused.write for paused in self._all_paused())]
        return list(dict.fromkeys([write.request for write in writes]))

    def interrupt(self, connection_id: int, error: Interrupted) -> None:
        """End the paused write of a connection, by its number, at its next turn."""
        for paused in self._all_paused():
            if paused.write.peer.client.connection_id == connection_id:
                self._interrupt(paused, error)

    def interrupt_queued(self, connection_id: int, error: Interrupted) -> None:
        """Answer the write of a connection that has not begun, instead of running it."""
        queues = [(self._queue, 0), *((retry.writes, 0) for retry in self._retries)]
        if self._group is not None:  # which is waiting for its transaction, or is being committed
            queues.append((self._group.writes, len(self._group.answers)))
        for writes, begun in queues:
            for write in writes[begun:]:
                if type(write) is ClientWrite and write.peer.client.connection_id == connection_id:
                    writes.remove(write)
                    self._core.loop.call_soon(write.peer.finish, self._core.engine.failure(error, write.request))
        if self._group is not None:  # one that is to wait for a lock is parked when the others are on disk
            for index, (waiting, answer) in enumerate(zip(self._group.writes, self._group.answers)):
                is_its = type(waiting) is ClientWrite and waiting.peer.client.connection_id == connection_id
                if type(answer) is Wait and type(waiting) is ClientWrite and is_its:
                    self._group.answers[index] = self._core.engine.failure(error, waiting.request)

    def interrupt_all(self, error: Interrupted) -> None:
        """End all paused writes, each at its next turn."""
        for paused in self._all_paused():
            self._interrupt(paused, error)

    def wake(self, key: Any) -> None:
        """Continue the writes that are blocked on this key."""
        for paused in self._blocked.pop(key, ()):
            self._paused.append(paused)
            self._schedule()
        if key == WriteLock.key:
            self._queue += self._held
            self._held = []
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
        """Let a write that waits for a transaction or a reader go on, to find out why."""
        for key, blocked in self._blocked.items():
            if paused in blocked:
                if type(paused.turn.waits_for) is ReaderCall and self._core.readers is not None:
                    self._core.readers.give_up(paused.turn.waits_for)
                blocked.remove(paused)
                if not blocked:
                    del self._blocked[key]
                self._paused.append(paused)
                self._schedule()
                return

    def _pause(self, paused: PausedWrite) -> None:
        """A write has paused, and what it did is committed."""
        request, holder = paused.write.request, paused.turn.waits_for
        if self._core.ending:
            paused.turn.interruption = Interrupted(11600, "interrupted at shutdown")
        elif type(holder) is ThreadCall and paused.turn.interruption is None:
            self._blocked[holder] = [paused]
            called = self._core.loop.run_in_executor(None, holder.run)
            called.add_done_callback(lambda _: self.wake(holder))
            return
        elif holder is not None and not holder.over() and paused.turn.interruption is None:
            self._blocked.setdefault(holder.key, []).append(paused)
            if type(holder) is ReaderCall and self._core.readers is not None:
                self._core.readers.send(holder, partial(self.wake, holder.key))
            if request.deadline_ms is not None:
                left_ms = request.deadline_ms - self._core.engine.clock.monotonic_ms()
                self._core.loop.call_later(max(0.0, left_ms + 1.0) / 1000, self._unblock, paused)
            return
        elif paused.turn.begins_again and paused.turn.interruption is None and self._core.has_reader():
            paused.turn.interruption = HandedOver()
        self._paused.append(paused)
        self._core.scheduler.look_at_memory()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = self._is_due = True
            self._core.loop.call_soon(self._flush)

    def call_after_writes(self, callback: Callable[[], object]) -> None:
        """Call in the next iteration of the loop what takes a turn, after the writes that wait then: otherwise a write
        would wait for two turns, for one until it is read and for another until it is run."""
        self._core.loop.call_soon(self._call_after_writes, callback)

    def _call_after_writes(self, callback: Callable[[], object]) -> None:
        if self._is_due:
            self._core.loop.call_soon(callback)
        else:
            callback()

    @property
    def _is_locked(self) -> bool:
        """Whether `fsync` has locked the data file: clients' writes wait by themselves."""
        return bool(self._core.engine.write_lock.count) and not self._core.ending

    def _hold_jobs(self) -> None:
        """Keep the server's own writes until the data file is unlocked."""
        self._held += [write for write in self._queue if type(write) is ServerJob]
        self._queue = [write for write in self._queue if type(write) is not ServerJob]

    def _next(self) -> None:
        """A group has ended: begin the next, or rest."""
        self.busy_since = None
        if self._gate is not None:
            self._in_gate = False
            self._gate.leave()
        if self._retries or self._queue or (self._paused and not self._is_locked):
            self._is_due = True
            self._core.loop.call_soon(self._flush)
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
        is_locked = bool(self._core.engine.write_lock.count) and self._is_locked  # mostly without a call
        if is_locked:
            self._hold_jobs()
        if self._retries:
            group = self._retries.popleft()
        else:
            group = SharedGroup(self._queue[: limits.COMMIT_COMMAND_COUNT_MAX])
            self._queue = self._queue[limits.COMMIT_COMMAND_COUNT_MAX :]
            if self._paused and not is_locked and not (self._commit_was_long and group.writes):
                group.resumed = self._paused.popleft()
        self._group = group
        if self._commit_ms > SLOW_COMMIT_MS or _message_bytes(group, self._core.engine) > LONG_COMMIT_BYTES:
            begin = self._core.store.environment.begin_write_in
            task = self._core.loop.run_in_executor(self._core.commit_thread, begin, self._call_in_thread)
            task.add_done_callback(lambda begun: self._begin(group, begun))
            return
        self._run(group, None)

    def _call_in_thread(self, function: Callable[[], None]) -> None:
        """Call a function in the thread that commits, and wait for it."""
        self._core.commit_thread.submit(function).result()

    def _begin(self, group: SharedGroup, begun: asyncio.Future[Transaction]) -> None:
        """The thread has begun the transaction of a group, or has failed to."""
        try:
            kv = begun.result()
        except Exception as error:
            self._core.fail("a group of writes could not begin", error)
            return
        self.busy_since = monotonic()
        self._run(group, kv)

    def _run(self, group: SharedGroup, kv: Transaction | None) -> None:
        """Run a group in one transaction, and commit it here, or in the thread that has begun `kv`."""
        try:
            group.txn = self._core.store.begin(kv)
        except Exception as error:
            self._core.fail("a group of writes could not begin", error)
            return
        try:
            is_alone = kv is None and self._gate is None  # nothing reads between here and `publish`
            left = self.run(group, limits.GROUP_SECONDS, is_read_meanwhile=not is_alone)
        except Exception as error:
            self._failed(group, error)
            return
        self._queue = left + self._queue
        txn = group.txn
        is_long = self._commit_was_long = txn.staged.entry_bytes > LONG_COMMIT_BYTES
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

    def run_write(self, group: SharedGroup, write: ClientWrite | ServerJob) -> Answer:
        """Return what a write answers, or its turn if it has paused; None for a job."""
        answer: Answer = None
        txn, request = group.txn, None
        if isinstance(write, ClientWrite):
            _, command, request = write
            engine = self._core.engine
            if request.repeated is not None and (answer := engine.run_again(command, request, txn)) is not None:
                return answer
            pauses = command.pauses
            if pauses and (pauses is True or pauses(engine, request)):
                scheduler = self._core.scheduler
                run_in_turn = scheduler.run_shortly if group.has_paused else scheduler.turns.run
                answer = run_in_turn(engine.run_write, command, request, txn)
                group.has_paused |= type(answer) is Turn
            else:
                answer = engine.run_write(command, request, txn)
        else:
            write.run(txn)
        if txn.catalog_changes:
            group.take_changes(request)
        return answer

    def resume_write(self, group: SharedGroup, paused: PausedWrite) -> Answer:
        """Let a write that has paused go on."""
        answer: Answer = self._core.scheduler.turns.resume(paused.turn, group.txn)
        group.take_changes(paused.write.request)
        return answer

    def abandon_turn(self, turn: Turn) -> None:
        """End a turn whose transaction is gone."""
        self._core.scheduler.turns.abandon(turn)

    def _timed_sync(self, txn: WriteTransaction, is_long: bool) -> None:
        started = time.perf_counter()
        self._core.store.sync(txn)
        took = time.perf_counter() - started
        self.commit_times.add(took)
        if not is_long:
            self._commit_ms += 0.1 * (took * 1000 - self._commit_ms)

    def _synced(self, group: SharedGroup, failure: BaseException | None) -> None:
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
        audit = self._core.audit
        if audit is not None:
            for request, changes in group.catalog_changes:
                audit.changed(request, changes)
        for write, answer in zip(group.writes, group.answers) if group.resumed is None else group.answered():
            if isinstance(write, ServerJob):
                if not write.future.done():
                    write.future.set_result(None)
                continue
            peer, command, request = write
            if group.resumed is None or write is not group.resumed.write:
                metrics["commits.writes"] += 1
            if type(answer) is bytes:
                if audit is not None and audit.wants(request):
                    audit.wrote(request, answer)
                peer.finish(answer)
            elif type(answer) is Turn:
                self._pause(PausedWrite(write, answer))
            else:
                peer.wait(command, request, answer)  # type: ignore[arg-type]
        self._next()

    def _failed(self, group: SharedGroup, error: BaseException) -> None:
        """Nothing of the transaction has happened."""
        try:
            retries = self.give_up(group, error)
        except Exception as failure:
            self._core.fail("a group of writes could neither be committed nor given up", failure)
            return
        self._group = None
        if group.resumed is not None and not group.has_resumed:
            self._paused.appendleft(group.resumed)
        self._retries.extendleft(map(SharedGroup, reversed(retries)))
        self._next()

    def fail_paused(self, paused: PausedWrite, error: BaseException) -> None:
        """Answer a write that has failed after a pause: where it stood is lost."""
        self._answer_failure(paused.write, error, interrupted_labels(paused.write.request))

    def fail_write(self, write: ClientWrite | ServerJob, error: BaseException) -> None:
        """Answer a write that has failed inside."""
        if isinstance(write, ClientWrite):
            self._answer_failure(write, error)
        elif not write.future.done():
            write.future.set_exception(error)

    def _answer_failure(self, write: ClientWrite, error: BaseException, labels: list[str] | None = None) -> None:
        peer, _, request = write
        log_failure(f"the write {request.name} of {peer.client.address} failed inside the server", error)
        peer.finish(self._core.engine.failure(write_error(error), request, labels))
