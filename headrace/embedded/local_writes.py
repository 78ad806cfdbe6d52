"""Group commit among threads. `server/group_commit.py` has the rules of groups.

A thread queues its write and enters the gate. The thread in the gate runs all queued writes in one transaction, commits
it and leaves. The other threads then enter and see that their writes are done. A write that may take long is run alone
by its own thread, in turns, with a commit after each turn. While the store is served, the server's writer enters the
same gate.

Rule: no call returns before its write is on disk. A thread enters the gate before it takes the engine's lock. The lock
is free during the sync, so that other threads can read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.commands.writing.insert import insert_plain
from headrace.dispatch.command import Command
from headrace.dispatch.request import ClientInfo, Request
from headrace.dispatch.retryable_writes import interrupted_labels
from headrace.dispatch.wait import Wait
from headrace.embedded.errors_raised import raise_closed, raise_failure
from headrace.embedded.parked_threads import retake
from headrace.errors import Interrupted
from headrace.server.failures import log_failure, write_error
from headrace.server.group_commit import GroupCommitter, WriteGroup
from headrace.store.write_transaction import WriteTransaction
from headrace.thread_calls import ThreadCall
from headrace.turns import Turn

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.embedded.local_engine import Caller, LocalEngine

Job = Callable[[WriteTransaction], object]


class QueuedWrite:
    """A queued write, or a long one that its own thread runs turn by turn; and its answer."""

    __slots__ = ("answer", "caller", "command", "has_paused", "interruptions", "request", "turn")

    def __init__(self, caller: Caller, command: Command, request: Request, interruptions: list[Interrupted]) -> None:
        """Make a queued write. An error in `interruptions` ends the write instead of its run or its next turn."""
        self.caller = caller
        self.command = command
        self.request = request
        self.interruptions = interruptions
        self.answer: Any = None
        """The answer; None if it is not committed yet, or the write has paused."""
        self.turn: Turn | None = None
        """The turn in which the write has paused."""
        self.has_paused = False

    def run(self, engine: Engine, txn: WriteTransaction) -> bytes | Wait:
        """Run the write and return its answer, which is valid once `txn` is committed."""
        if self.interruptions:
            return engine.failure(self.interruptions[0], self.request)
        return engine.run_write(self.command, self.request, txn)

    def end(self, error: Interrupted) -> None:
        """End the write with an error instead of its run."""
        self.interruptions.append(error)

    def failed(self, engine: Engine, error: BaseException) -> bytes:
        """Log a failure inside the engine and return the answer. Turns that are committed stay so."""
        log_failure(f"the write {self.request.name} failed inside the engine", error)
        labels = interrupted_labels(self.request) if self.has_paused else None
        return engine.failure(write_error(error), self.request, labels)


class QueuedInsert:
    """One document to insert without a command. The answer is whether it was inserted; if not, the command must run."""

    __slots__ = ("answer", "client", "document", "interruption", "is_sound", "namespace")

    def __init__(self, namespace: str, document: bytes, is_sound: bool, client: ClientInfo) -> None:
        self.namespace = namespace
        self.document = document
        self.is_sound = is_sound
        self.client = client
        self.answer: Any = None
        self.interruption: Interrupted | None = None

    @property
    def request(self) -> Request:
        """The command that the insert stands for."""
        database, _, name = self.namespace.partition(".")
        return Request("insert", database, b"", {}, self.client, {"insert": name, "$db": database})

    def run(self, engine: Engine, txn: WriteTransaction) -> bool:
        """Insert the document if this needs no special treatment; return whether it was inserted."""
        if self.interruption is not None:
            return False
        return insert_plain(engine, txn, self.namespace, self.document, is_sound=self.is_sound)

    def end(self, error: Interrupted) -> None:
        """End the insert with an error instead of its run."""
        self.interruption = error

    def failed(self, engine: Engine, error: BaseException) -> bool:
        """Return False, so that the command runs and reports the failure."""
        return False


class QueuedJob:
    """A write of a background job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.answer: Any = None
        self.error: BaseException | None = None

    def run(self, engine: Engine, txn: WriteTransaction) -> bool:
        """Run the job's write."""
        self._job(txn)
        return True

    def failed(self, engine: Engine, error: BaseException) -> bool:
        """Keep the error for the thread that runs the job."""
        self.error = error
        return False


Queued = QueuedWrite | QueuedInsert | QueuedJob
Group = WriteGroup[Queued, QueuedWrite]


class WriteGate:
    """The permit to open the write transaction, for a thread or, while the store is served, the server's writer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server_waits: Callable[[], object] | None = None

    def enter(self) -> bool:
        """Wait for the gate; return False if it is not free within `WRITER_STALL_SECONDS_MAX`."""
        return self._lock.acquire(timeout=limits.WRITER_STALL_SECONDS_MAX)

    def enter_or_call(self, entered: Callable[[], object]) -> bool:
        """Return whether the server's writer has the gate now. If not, the thread that leaves it calls `entered`."""
        if self._lock.acquire(blocking=False):
            return True
        self._server_waits = entered
        if self._lock.acquire(blocking=False):  # the gate was left between these two lines
            if self._server_waits is not None:
                self._server_waits = None
                return True
            self._lock.release()
        return False

    def leave(self) -> None:
        """Leave the gate to the server's writer if it waits, otherwise to the next thread."""
        while True:
            entered, self._server_waits = self._server_waits, None
            if entered is not None:
                entered()
                return
            self._lock.release()
            if self._server_waits is None or not self._lock.acquire(blocking=False):
                return  # otherwise the server's writer came between these lines


class LocalWrites(GroupCommitter[Group, Queued, QueuedWrite]):
    """The queue of writes, and the gate that admits one writer at a time."""

    def __init__(self, local: LocalEngine) -> None:
        super().__init__(local.store)
        self._local = local
        self._queue: deque[Queued] = deque()
        self._group: list[Queued] = []  # the group that is being run or committed
        self.gate = WriteGate()

    def execute(self, caller: Caller, command: Command, request: Request, *, pauses: bool) -> bytes:
        """Run a write, after its wait if it must wait; return its reply once it is on disk."""
        local, interruptions = self._local, list[Interrupted]()
        local.held[request] = interruptions
        try:
            while True:
                write = QueuedWrite(caller, command, request, interruptions)
                answer = self._in_turns(write) if pauses else self._in_group(write)
                if type(answer) is bytes:
                    return answer
                local.enter()
                try:
                    if interruptions:  # they came while its group was committed
                        return local.engine.failure(interruptions[0], request)
                    local.parked.wait(caller, request, answer)  # type: ignore[arg-type]
                except Interrupted as error:
                    return local.engine.failure(error, request)
                finally:
                    local.lock.release()
        finally:
            del local.held[request]

    def insert(self, namespace: str, document: bytes, is_sound: bool) -> bool:
        """Insert a document and return whether it is on disk. If not, nothing has changed, and the command says why.

        `is_sound` says that the document is known to decode. Raises `OperationFailure` if the insert was killed.
        """
        write = QueuedInsert(namespace, document, is_sound, self._local.caller().client)
        inserted: bool = self._in_group(write)
        if write.interruption is not None and not inserted:
            error = write.interruption
            raise_failure({"ok": 0.0, "errmsg": error.message, "code": error.code, "codeName": error.code_name})
        return inserted

    def requests(self) -> list[Request]:
        """Return the plain inserts that wait for the gate or are being committed."""
        writes = (*self._queue.copy(), *self._group)
        return [write.request for write in writes if type(write) is QueuedInsert]

    def interrupt(self, connection_id: int, error: Interrupted) -> None:
        """End the queued plain insert of a thread, given by its number, before it runs."""
        for write in self._queue.copy():
            if type(write) is QueuedInsert and write.client.connection_id == connection_id:
                write.end(error)

    def run_job(self, job: Job) -> None:
        """Commit a write of a background job. Raises the write's error."""
        write = QueuedJob(job)
        self._enter()
        try:
            self._commit(WriteGroup([write]))
        finally:
            self.gate.leave()
        if write.error is not None:
            raise write.error

    def _enter(self) -> None:
        """Enter the gate. Raises `Closed`, also if the previous write never ends."""
        if not self.gate.enter():
            self._local.fail(f"no write has ended for {limits.WRITER_STALL_SECONDS_MAX} s")
            raise_closed(self._local.unusable)
        if self._local.unusable is not None:
            self.gate.leave()
            raise_closed(self._local.unusable)

    # Short writes.

    def _in_group(self, write: QueuedWrite | QueuedInsert) -> Any:
        """Run a write, which may share its commit with others, and return its result."""
        queue = self._queue
        queue.append(write)
        try:
            self._enter()
        except BaseException:  # Ctrl-C: the write must not run later, unless a thread has begun it
            write.end(Interrupted(11601, "operation was interrupted"))
            raise
        try:
            while write.answer is None:
                count = min(len(queue), limits.COMMIT_COMMAND_COUNT_MAX)
                self._run([queue.popleft()] if count == 1 else [queue.popleft() for _ in range(count)])
        finally:
            self.gate.leave()
        return write.answer

    def _run(self, writes: list[Queued]) -> None:
        """Run and commit writes. If one fails inside the engine, run the others in smaller groups."""
        groups = [writes]
        self._group = writes
        try:
            while groups:
                groups[:1] = self._commit(WriteGroup(groups[0]))
        except BaseException:
            left = [write for group in groups for write in group if write.answer is None]
            self._queue.extendleft(reversed(left))  # other threads wait for these writes
            raise
        finally:
            self._group = []

    def _commit(self, group: Group) -> list[list[Queued]]:
        """Run a group and commit it; return the writes to run again, in groups. The caller is in the gate.

        The answers of all other writes are valid. An exception between sync and publish (Ctrl-C) leaves memory older
        than the disk, and makes the store unusable.
        """
        local, store = self._local, self._store
        local.enter()
        try:
            try:
                group.txn = store.begin()
            except Exception as error:
                for write in group.writes:
                    self.fail_write(write, error)
                if group.resumed is not None:
                    self.fail_paused(group.resumed, error)
                return []
            try:
                self.run(group)
            except Exception as error:
                return self.give_up(group, error)
            except BaseException:
                self.abandon(group)
                raise
            try:
                local.lock.release()
                try:
                    store.sync(group.txn)
                finally:
                    if not local.lock.acquire(False):
                        retake(local.lock)
            except Exception as error:
                if not store.environment.is_usable():  # whether the writes are done is unknown: none is answered
                    self.abandon(group)
                    local.fail("the disk has failed in the middle of a commit: open the store again")
                    raise_closed(local.unusable)
                return self.give_up(group, error)
            except BaseException:
                local.fail("a commit was interrupted: open the store again")
                raise
            try:
                store.publish(group.txn)
            except BaseException:
                local.fail("what is committed could not be published: open the store again")
                raise
            self._answer(group)
            return []
        finally:
            local.lock.release()

    def _answer(self, group: Group) -> None:
        """Set the answers of a group that is on disk."""
        for write, answer in zip(group.writes, group.answers):
            write.answer = answer
        count = sum(type(write) is not QueuedJob for write in group.writes)
        if group.resumed is not None:
            group.resumed.answer = group.answers[-1]
            count += type(group.resumed.answer) is not Turn
        if count or group.resumed is not None:
            metrics = self._local.engine.metrics
            metrics["commits.total"] += 1
            metrics["commits.writes"] += count

    # Called by `GroupCommitter` under the engine's lock.

    def run_write(self, group: Group, write: Queued) -> Any:
        """Run a short write and return its answer."""
        return write.run(self._local.engine, group.txn)

    def resume_write(self, group: Group, paused: QueuedWrite) -> Any:
        """Run a turn of a long write."""
        turn = paused.turn
        paused.turn = paused.answer = None
        if turn is None:
            if paused.interruptions:
                return self._local.engine.failure(paused.interruptions[0], paused.request)
            answer = paused.caller.turns.run(self._local.engine.run_write, paused.command, paused.request, group.txn)
        else:
            paused.has_paused = True
            if paused.interruptions:
                turn.interruption = paused.interruptions[0]
            answer = paused.caller.turns.resume(turn, group.txn)
        if type(answer) is Turn:
            paused.turn = answer
        return answer

    def abandon_turn(self, turn: Turn) -> None:
        """Abandon a turn of the calling thread."""
        self._local.caller().turns.abandon(turn)

    def fail_write(self, write: Queued, error: BaseException) -> None:
        """Answer a write that has failed inside the engine."""
        write.answer = write.failed(self._local.engine, error)

    def fail_paused(self, paused: QueuedWrite, error: BaseException) -> None:
        """Answer a long write whose turn has failed."""
        paused.turn, paused.answer = None, paused.failed(self._local.engine, error)

    # Long writes.

    def _in_turns(self, write: QueuedWrite) -> bytes | Wait:
        """Run a write turn by turn; other writes run between the turns. If it fails, the committed turns stay."""
        try:
            while True:
                self._enter()
                try:
                    self._commit(WriteGroup([], write))
                finally:
                    self.gate.leave()
                if write.turn is None:
                    return write.answer  # type: ignore[no-any-return]
                self._between(write, write.turn)
        finally:
            if write.turn is not None:
                with self._local.lock:
                    write.caller.turns.abandon(write.turn)

    def _between(self, write: QueuedWrite, turn: Turn) -> None:
        """Wait until a paused write may resume: after a pause for other threads, or when what it waits for is ready."""
        local, request, holder = self._local, write.request, turn.waits_for
        if holder is None and local.engine.write_lock.count:
            holder = local.engine.write_lock
        if holder is None:
            local.give_way()
        elif type(holder) is ThreadCall:
            holder.run()
        else:
            local.enter()
            try:
                if not holder.over() and not write.interruptions:  # otherwise it was killed during the commit
                    left_ms = float(limits.AWAIT_MS_MAX)
                    if request.deadline_ms is not None:
                        left_ms = max(0.0, request.deadline_ms - local.engine.clock.monotonic_ms() + 1.0)
                    request.wait_until_ms = None
                    try:
                        local.parked.wait(write.caller, request, Wait(left_ms, holder.key, over=holder.over))
                    except Interrupted as error:
                        write.end(error)
                    request.time_is_up = False
            finally:
                local.lock.release()
        if local.unusable is not None:
            write.end(Interrupted(11600, "interrupted at shutdown"))
