"""The server's writes: their queue, and the callback of the loop that empties it. `group_commit.py` has the rules.

Writes are gathered while the loop handles the sockets, then run together, are committed and answered. A quick commit
(an SSD) runs on the loop, which costs least. If commits have proved slow, or the messages are long, a thread begins the
transaction and commits it, so that reads and pings are answered meanwhile.

A long write pauses (`turns.py`), and the changes of its turn are committed with its group. It continues at the end of a
later group, after the writes that came meanwhile. Each group has at most one paused write. After a long commit, or a
slow one or a long turn of a paused write, the writes that came meanwhile get a group without one: they have waited
already.
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
from headrace.dispatch.cluster_wide import WriteLock
from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import interrupted_labels
from headrace.dispatch.transactions import written_bytes
from headrace.dispatch.wait import Wait
from headrace.errors import HandedOver, Interrupted
from headrace.execution.reader_calls import ReaderCall
from headrace.server.failures import log_failure, write_error
from headrace.server.group_commit import GroupCommitter, WriteGroup
from headrace.server.metrics.commit_times import CommitTimes
from headrace.store.kv import Transaction
from headrace.store.write_transaction import CatalogChange, WriteTransaction
from headrace.thread_calls import ThreadCall
from headrace.turns import Turn

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.server.core import Core
    from headrace.server.peer import Peer

SLOW_COMMIT_MS: Final = 3.0  # a slower commit runs in a thread
SLOW_SECONDS: Final = 1.0  # how long a slow client's next write is expected
LONG_COMMIT_BYTES: Final = 2 * 1024 * 1024  # writing more bytes of messages takes about as long


class ClientWrite(NamedTuple):
    """A client's write."""

    peer: Peer
    command: Command
    request: Request


_new: Final = tuple.__new__
"""Makes a named tuple without a call of its class, for objects made per write."""


class ServerJob(NamedTuple):
    """A write of the server itself."""

    run: Callable[[WriteTransaction], object]
    future: asyncio.Future[None]


Answer = bytes | Wait | Turn | None
"""The answer of a write; None for a job."""


class PausedWrite(NamedTuple):
    """A paused write, which continues in a later group."""

    write: ClientWrite
    turn: Turn

    @property
    def since(self) -> float:
        """The time of its first pause, in seconds of the monotonic clock."""
        return self.turn.paused_at or 0.0


@dataclass(slots=True)
class SharedGroup(WriteGroup["ClientWrite | ServerJob", PausedWrite]):
    """Writes of the server that share a transaction."""

    catalog_changes: list[tuple[Request | None, list[CatalogChange]]] = field(default_factory=list)
    """Each request's changes of the catalog; None: a job of the server."""
    has_paused: bool = False
    """Whether a write has used up its first turn. Other writes of the group then get short turns, so that many long
    writes at once do not hold up short ones after them."""

    def take_changes(self, request: Request | None) -> None:
        """Attribute the catalog's changes since the last call to a request; None: to the server."""
        self.catalog_changes.append((request, self.txn.catalog_changes))
        self.txn.catalog_changes = []

    def answered(self) -> Iterable[tuple[ClientWrite | ServerJob, Answer]]:
        """Return the writes that have run, with their answers."""
        writes = self.writes if self.resumed is None else [*self.writes, self.resumed.write]
        return zip(writes, self.answers)

    def clients(self) -> list[ClientWrite]:
        """Return the clients' writes."""
        made = [write for write in self.writes if type(write) is ClientWrite]
        return made if self.resumed is None else [*made, self.resumed.write]

    def paused(self) -> list[PausedWrite]:
        """Return the writes that have paused in this group or still wait in it for their turn."""
        paused = [
            PausedWrite(write, answer)
            for write, answer in self.answered()
            if type(answer) is Turn and type(write) is ClientWrite
        ]
        return paused if self.resumed is None or self.has_resumed else [*paused, self.resumed]


def _message_bytes(group: SharedGroup, engine: Engine) -> int:
    """Return the bytes of a group's messages and of the transactions that it commits. Its oplog entries are as
    large."""
    size = 0
    for write in group.writes if group.resumed is None else (*group.writes, group.resumed.write):
        if type(write) is not ClientWrite:
            continue
        _, command, request = write
        if request.message_bytes:
            size += request.message_bytes
            continue
        if command.name == "commitTransaction":
            size += written_bytes(engine, request)
        size += len(request.raw)
        for documents in request.sequences.values():
            size += sum(map(len, documents))
    return size


class SharedGate(Protocol):
    """Lets one thread at a time open the write transaction of a store, if several threads write to it."""

    def enter_or_call(self, entered: Callable[[], object]) -> bool:
        """Return whether the caller may enter now. Otherwise `entered` is called, from any thread, when it may."""

    def leave(self) -> None:
        """Let the next thread enter."""


class Writer(GroupCommitter[SharedGroup, "ClientWrite | ServerJob", PausedWrite]):
    """The queue of writes, and the callback that empties it.

    After any exception the next group is still scheduled: `_flush` and `_synced` end in `_next`. Each client is
    answered under its own guard (`Peer.finish`). A failure that leaves the store in doubt ends the server
    (`Core.fail`).
    """

    def __init__(self, core: Core, gate: SharedGate | None = None) -> None:
        """`gate`: entered for each group; None: there are no other writers."""
        super().__init__(core.store)
        self._core = core
        self._gate = gate
        self._in_gate = gate is None
        self._queue: list[ClientWrite | ServerJob] = []
        self._paused: deque[PausedWrite] = deque()
        self._held: list[ServerJob] = []  # jobs that are held until `fsyncUnlock`
        self._blocked: dict[Any, list[PausedWrite]] = {}  # paused writes by the key that they wait for
        self._group: SharedGroup | None = None  # the group that is running or being committed
        self._retries: deque[SharedGroup] = deque()  # groups of failed transactions; they run before the queue
        self._scheduled = False
        self._is_due = False  # the loop will call `_flush` in its next iteration
        self._commit_ms = 0.0
        self.commit_times = CommitTimes()
        self._was_long = False
        self._slow_peer: Peer | None = None
        """The client whose last write took longer than a group may take. Its next one has a group of its own, after one
        of the other writes."""
        self._slow_waited = False
        self._slow_until = 0.0  # the time up to which the slow client's next write is expected
        self._idle: list[asyncio.Future[None]] = []
        self.busy_since: float | None = None
        """The time of the last step of the present group, in seconds of the monotonic clock, which advances while the
        loop is blocked; None: there is no group."""

    def add(self, peer: Peer, command: Command, request: Request) -> None:
        """Queue a client's write. The peer is answered through `finish`, or parked if the command must wait."""
        self._queue.append(_new(ClientWrite, (peer, command, request)))
        if not self._scheduled:  # `_schedule` without the call
            self._scheduled = self._is_due = True
            self._core.loop.call_soon(self._flush)

    def add_job(self, run: Callable[[WriteTransaction], object]) -> asyncio.Future[None]:
        """Queue a write of the server. The future is done when the write is committed or has failed."""
        future: asyncio.Future[None] = self._core.loop.create_future()
        self._queue.append(ServerJob(run, future))
        self._schedule()
        return future

    async def drained(self) -> None:
        """Wait until no write is queued or being committed."""
        while self._scheduled:
            future: asyncio.Future[None] = self._core.loop.create_future()
            self._idle.append(future)
            await future

    def requests(self) -> list[Request]:
        """Return the writes that are queued or have begun and have not ended, including those being committed."""
        queued = SharedGroup([*self._queue, *(write for retry in self._retries for write in retry.writes)]).clients()
        group = [] if self._group is None else self._group.clients()
        writes = [*queued, *group, *(paused.write for paused in self._all_paused())]
        return list(dict.fromkeys([write.request for write in writes]))

    def interrupt(self, connection_id: int, error: Interrupted) -> None:
        """End the paused write of a connection, given its number, at its next turn."""
        for paused in self._all_paused():
            if paused.write.peer.client.connection_id == connection_id:
                self._interrupt(paused, error)

    def interrupt_queued(self, connection_id: int, error: Interrupted) -> None:
        """Answer a connection's write that has not begun, instead of running it."""
        queues = [(self._queue, 0), *((retry.writes, 0) for retry in self._retries)]
        if self._group is not None:  # it waits for its transaction, or is being committed
            queues.append((self._group.writes, len(self._group.answers)))
        for writes, begun in queues:
            for write in writes[begun:]:
                if type(write) is ClientWrite and write.peer.client.connection_id == connection_id:
                    writes.remove(write)
                    self._core.loop.call_soon(write.peer.finish, self._core.engine.failure(error, write.request))
        if self._group is not None:  # a write that waits for a lock is parked after the commit
            for index, (waiting, answer) in enumerate(zip(self._group.writes, self._group.answers)):
                is_its = type(waiting) is ClientWrite and waiting.peer.client.connection_id == connection_id
                if type(answer) is Wait and type(waiting) is ClientWrite and is_its:
                    self._group.answers[index] = self._core.engine.failure(error, waiting.request)

    def interrupt_all(self, error: Interrupted) -> None:
        """End each paused write at its next turn."""
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
        """Return the paused writes that wait only for their turn."""
        return self._paused

    def _all_paused(self) -> list[PausedWrite]:
        """Return all paused writes, also those whose turn is being committed."""
        blocked = [paused for waiting in self._blocked.values() for paused in waiting]
        return [*self._paused, *blocked, *([] if self._group is None else self._group.paused())]

    def _interrupt(self, paused: PausedWrite, error: Interrupted) -> None:
        paused.turn.interruption = error
        self._unblock(paused)

    def _unblock(self, paused: PausedWrite) -> None:
        """Resume a write that is blocked on a transaction or a reader, so that it sees its interruption or deadline."""
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
        """Handle a write that has paused and whose turn is committed."""
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
        """Call a callback in the next iteration of the loop, after the writes that wait then. If it came first, a write
        would wait for two turns: one before it is read and one before it runs."""
        self._core.loop.call_soon(self._call_after_writes, callback)

    def _call_after_writes(self, callback: Callable[[], object]) -> None:
        if self._is_due:
            self._core.loop.call_soon(callback)
        else:
            callback()

    @property
    def _is_locked(self) -> bool:
        """Whether `fsync` has locked the data file. Clients' writes wait by themselves."""
        return bool(self._core.engine.write_lock.count) and not self._core.ending

    def _hold_jobs(self) -> None:
        """Hold the server's own writes until the data file is unlocked."""
        self._held += [write for write in self._queue if type(write) is ServerJob]
        self._queue = [write for write in self._queue if type(write) is not ServerJob]

    def _next(self) -> None:
        """Schedule the next group after one has ended, if there are writes."""
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
        """Continue in the gate. Called from any thread."""
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
        is_locked = bool(self._core.engine.write_lock.count) and self._is_locked  # mostly without the call
        if is_locked:
            self._hold_jobs()
        if self._retries:
            group = self._retries.popleft()
        else:
            is_expected = self.busy_since < self._slow_until
            count = self._count_before_slow() if is_expected else limits.COMMIT_COMMAND_COUNT_MAX
            group = SharedGroup(self._queue[:count])
            self._queue = self._queue[count:]
            if self._paused and not is_locked and not (self._was_long and group.writes):
                group.resumed = self._paused.popleft()
        self._group = group
        if self._commit_ms > SLOW_COMMIT_MS or _message_bytes(group, self._core.engine) > LONG_COMMIT_BYTES:
            begin = self._core.store.environment.begin_write_in
            task = self._core.loop.run_in_executor(self._core.commit_thread, begin, self._call_in_thread)
            task.add_done_callback(lambda begun: self._begin(group, begun))
            return
        self._run(group, None)

    def _count_before_slow(self) -> int:
        """Return how many queued writes the next group has: all but the slow client's, or only the first of those, in
        turn."""
        own: list[ClientWrite | ServerJob] = []
        others: list[ClientWrite | ServerJob] = []
        for write in self._queue:
            (own if type(write) is ClientWrite and write.peer is self._slow_peer else others).append(write)
        if not own:
            return limits.COMMIT_COMMAND_COUNT_MAX
        self._slow_waited = bool(others) and not self._slow_waited
        self._queue = [*others, *own] if self._slow_waited else [*own, *others]
        return min(len(others), limits.COMMIT_COMMAND_COUNT_MAX) if self._slow_waited else 1

    def _note_slow(self, group: SharedGroup) -> None:
        """Note whether the last client's write took longer than a group may take."""
        last = group.writes[-1]
        if type(last) is ClientWrite and (group.ran_over or last.peer is self._slow_peer):
            self._slow_peer = last.peer if group.ran_over else None
            self._slow_until = monotonic() + SLOW_SECONDS if group.ran_over else 0.0

    def _call_in_thread(self, function: Callable[[], None]) -> None:
        """Run a function in the commit thread, and wait for it."""
        self._core.commit_thread.submit(function).result()

    def _begin(self, group: SharedGroup, begun: asyncio.Future[Transaction]) -> None:
        """Continue after the commit thread has begun the transaction of a group, or failed to."""
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
            is_alone = kv is None and self._gate is None  # no read can begin between here and `publish`
            left = self.run(group, limits.GROUP_SECONDS, is_read_meanwhile=not is_alone)
        except Exception as error:
            self._failed(group, error)
            return
        self._queue = left + self._queue
        if group.writes and (group.ran_over or self._slow_peer is not None):
            self._note_slow(group)
        txn = group.txn
        is_long = txn.staged.entry_bytes > LONG_COMMIT_BYTES
        assert self.busy_since is not None
        took = monotonic() - self.busy_since
        self._was_long = is_long or (group.resumed is not None and took > limits.MOVED_DOCUMENT_SECONDS)
        if kv is not None:
            self.busy_since = monotonic()  # the time of the commands does not count as the disk's
            task = self._core.loop.run_in_executor(self._core.commit_thread, self._timed_sync, group, is_long)
            task.add_done_callback(lambda done: self._synced(group, done.exception()))
            return
        failure = None
        try:
            self._timed_sync(group, is_long)
        except Exception as error:
            failure = error
        try:
            self._synced(group, failure)
        finally:
            del failure  # its traceback has this frame: a cycle would keep the group

    def run_write(self, group: SharedGroup, write: ClientWrite | ServerJob) -> Answer:
        """Return the answer of a write, or its turn if it has paused; None for a job."""
        answer: Answer = None
        txn, request = group.txn, None
        if type(write) is ClientWrite:
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
            write.run(txn)  # type: ignore[union-attr]
        if txn.catalog_changes:
            group.take_changes(request)
        return answer

    def resume_write(self, group: SharedGroup, paused: PausedWrite) -> Answer:
        """Resume a paused write; return the same as `run_write`."""
        answer: Answer = self._core.scheduler.turns.resume(paused.turn, group.txn)
        group.take_changes(paused.write.request)
        return answer

    def abandon_turn(self, turn: Turn) -> None:
        """End a turn whose transaction was abandoned."""
        self._core.scheduler.turns.abandon(turn)

    def _timed_sync(self, group: SharedGroup, is_long: bool) -> None:
        started = time.perf_counter()
        self._core.store.sync(group.txn)
        took = time.perf_counter() - started
        self.commit_times.add(took)
        if not is_long:
            self._commit_ms += 0.1 * (took * 1000 - self._commit_ms)
            self._was_long |= group.resumed is not None and took * 1000 > SLOW_COMMIT_MS

    def _synced(self, group: SharedGroup, failure: BaseException | None) -> None:
        """Publish a finished commit and answer the clients."""
        try:
            if failure is not None:
                if self._core.store.environment.is_usable():
                    self._failed(group, failure)
                else:  # whether the writes are done is unknown: none is answered
                    self.abandon(group)
                    self._core.fail("the disk has failed in the middle of a commit", failure)
                return
            self._core.store.publish(group.txn)
        except Exception as error:
            self._core.fail("what is committed could not be published", error)
            return
        self._group = None
        metrics = self._core.engine.metrics
        metrics["commits.total"] += 1
        metrics["commits.writes"] += list(map(type, group.writes)).count(ClientWrite)
        audit = self._core.audit
        if audit is not None:
            for request, changes in group.catalog_changes:
                audit.changed(request, changes)
        for write, answer in zip(group.writes, group.answers) if group.resumed is None else group.answered():
            if type(write) is ServerJob:
                if not write.future.done():
                    write.future.set_result(None)
                continue
            peer, command, request = write  # type: ignore[misc]
            if type(answer) is bytes:
                if audit is not None and audit.wants(request):
                    audit.wrote(request, answer)
                peer.finish(answer)
            elif type(answer) is Turn:
                self._pause(PausedWrite(write, answer))  # type: ignore[arg-type]
            else:
                peer.wait(command, request, answer)  # type: ignore[arg-type]
        self._next()

    def _failed(self, group: SharedGroup, error: BaseException) -> None:
        """Give up a group whose transaction failed, and schedule the writes to run again."""
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
        """Answer a write that failed after a pause. It cannot be resumed."""
        self._answer_failure(paused.write, error, interrupted_labels(paused.write.request))

    def fail_write(self, write: ClientWrite | ServerJob, error: BaseException) -> None:
        """Answer a write that failed inside the server."""
        if isinstance(write, ClientWrite):
            self._answer_failure(write, error)
        elif not write.future.done():
            write.future.set_exception(error)

    def _answer_failure(self, write: ClientWrite, error: BaseException, labels: list[str] | None = None) -> None:
        peer, _, request = write
        log_failure(f"the write {request.name} of {peer.client.address} failed inside the server", error)
        peer.finish(self._core.engine.failure(write_error(error), request, labels))
