"""Group commit among threads: writes that wait share one transaction and one synced commit.

A thread queues its write and enters the gate. Whoever is in it runs all that are queued, in one transaction, commits
it and leaves; the others enter behind it and see that theirs are done. A write that may take long runs in turns and
commits what each has done: its own thread runs it, alone. While the store is served, the server's writer enters the
same gate.

Rule: no call returns before its write is on disk. The gate is entered before the engine's lock is taken, which is free
during the sync, so that others read meanwhile.
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
from headrace.dispatch.wait import Wait
from headrace.embedded.errors_raised import raise_closed, raise_failure
from headrace.errors import Interrupted
from headrace.server.failures import log_failure, write_error
from headrace.store.write_transaction import WriteTransaction
from headrace.turns import Turn

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.embedded.local_engine import Caller, LocalEngine

Job = Callable[[WriteTransaction], object]


class QueuedWrite:
    """A write, and what became of it."""

    __slots__ = ("answer", "command", "interruptions", "request")

    def __init__(self, command: Command, request: Request, interruptions: list[Interrupted]) -> None:
        """`interruptions`: what ends it instead of its run, once there is something."""
        self.command = command
        self.request = request
        self.interruptions = interruptions
        self.answer: Any = None

    def run(self, engine: Engine, txn: WriteTransaction) -> bytes | Wait:
        """Its answer, which counts once `txn` is committed."""
        if self.interruptions:
            return engine.failure(self.interruptions[0], self.request)
        return engine.run_write(self.command, self.request, txn)

    def failed(self, local: LocalEngine, error: Exception) -> bytes:
        """The answer to one that has failed inside the engine."""
        return local.writes.failure(self.request, error)


class QueuedInsert:
    """One document to insert, without a command. The answer is whether it was: else the command has to be run."""

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
        """The command that it stands for."""
        database, _, name = self.namespace.partition(".")
        return Request("insert", database, b"", {}, self.client, {"insert": name, "$db": database})

    def run(self, engine: Engine, txn: WriteTransaction) -> bool:
        """Insert it, if nothing about that is special."""
        if self.interruption is not None:
            return False
        return insert_plain(engine, txn, self.namespace, self.document, is_sound=self.is_sound)

    def failed(self, local: LocalEngine, error: Exception) -> bool:
        """The command fails alike, and says so."""
        return False


class WriteGate:
    """Who may open the write transaction: a thread, or while the store is served the server's writer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server_waits: Callable[[], object] | None = None

    def enter(self) -> bool:
        """Wait for it; False if it does not come in `WRITER_STALL_SECONDS_MAX`."""
        return self._lock.acquire(timeout=limits.WRITER_STALL_SECONDS_MAX)

    def enter_or_call(self, entered: Callable[[], object]) -> bool:
        """Whether the server's writer has it now. If not, `entered` is called when it has, by who had it before."""
        if self._lock.acquire(blocking=False):
            return True
        self._server_waits = entered
        if self._lock.acquire(blocking=False):  # it was left between these two lines
            if self._server_waits is not None:
                self._server_waits = None
                return True
            self._lock.release()
        return False

    def leave(self) -> None:
        """Let the next have it: the server's writer, if that waits."""
        entered, self._server_waits = self._server_waits, None
        if entered is None:
            self._lock.release()
        else:
            entered()


class LocalWrites:
    """The queue of writes, and the one writer at a time."""

    def __init__(self, local: LocalEngine) -> None:
        self._local = local
        self._queue: deque[QueuedWrite | QueuedInsert] = deque()
        self._group: list[QueuedWrite | QueuedInsert] = []  # that is being run or committed
        self.gate = WriteGate()

    def execute(self, caller: Caller, command: Command, request: Request, *, pauses: bool) -> bytes:
        """The reply to a write, which is on disk; of one that must wait, when it has."""
        local, interruptions = self._local, list[Interrupted]()
        local.held[request] = interruptions
        try:
            while True:
                if pauses:
                    answer = self._in_turns(caller, command, request, interruptions)
                else:
                    answer = self._in_group(QueuedWrite(command, request, interruptions))
                if type(answer) is bytes:
                    return answer
                local.enter()
                try:
                    if interruptions:  # while the others of its group were committed
                        return local.engine.failure(interruptions[0], request)
                    local.parked.wait(caller, request, answer)  # type: ignore[arg-type]
                except Interrupted as error:
                    return local.engine.failure(error, request)
                finally:
                    local.lock.release()
        finally:
            del local.held[request]

    def insert(self, namespace: str, document: bytes, is_sound: bool) -> bool:
        """Whether a document was inserted, and is on disk; if not, nothing has happened, and the command says why.

        `is_sound`: it is known to decode. Raises the `OperationFailure` of one that was killed."""
        write = QueuedInsert(namespace, document, is_sound, self._local.caller().client)
        inserted: bool = self._in_group(write)
        if write.interruption is not None and not inserted:
            error = write.interruption
            raise_failure({"ok": 0.0, "errmsg": error.message, "code": error.code, "codeName": error.code_name})
        return inserted

    def requests(self) -> list[Request]:
        """The plain inserts that wait for the gate, or are being committed."""
        writes = (*self._queue.copy(), *self._group)
        return [write.request for write in writes if type(write) is QueuedInsert]

    def interrupt(self, connection_id: int, error: Interrupted) -> None:
        """End the plain insert of a thread, by its number, instead of its run: when it has come through the gate."""
        for write in self._queue.copy():
            if type(write) is QueuedInsert and write.client.connection_id == connection_id:
                write.interruption = error

    def run_job(self, job: Job) -> None:
        """Commit a write of the store's own. Raises what it raises."""
        self._enter()
        try:
            self._commit(job)
        finally:
            self.gate.leave()

    def _enter(self) -> None:
        """Enter the gate. Raises `Closed`: also where the write before has not ended, and never will."""
        if not self.gate.enter():
            self._local.fail(f"no write has ended for {limits.WRITER_STALL_SECONDS_MAX} s")
            raise_closed(self._local.unusable)
        if self._local.unusable is not None:
            self.gate.leave()
            raise_closed(self._local.unusable)

    # Short writes.

    def _in_group(self, write: QueuedWrite | QueuedInsert) -> Any:
        """What became of a write, which may have been done together with others."""
        queue = self._queue
        queue.append(write)
        self._enter()
        try:
            while write.answer is None:
                count = min(len(queue), limits.COMMIT_COMMAND_COUNT_MAX)
                self._run([queue.popleft()] if count == 1 else [queue.popleft() for _ in range(count)])
        finally:
            self.gate.leave()
        return write.answer

    def _run(self, group: list[QueuedWrite | QueuedInsert]) -> None:
        """Run and commit a group; if a write fails inside, each alone, to find out whose fault it is."""
        engine = self._local.engine
        self._group = group

        def run(txn: WriteTransaction) -> list[Any]:
            return [write.run(engine, txn) for write in group]

        try:
            answers = self._commit(run)
        except Exception as error:
            if self._local.unusable is not None:
                raise
            if len(group) > 1:
                for write in group:
                    self._run([write])
                return
            answers = [group[0].failed(self._local, error)]
        except BaseException:
            self._queue.extendleft(reversed(group))  # of which other threads wait for theirs
            raise
        else:
            self._count(len(group))
        self._group = []
        for write, answer in zip(group, answers):
            write.answer = answer

    def _count(self, writes: int) -> None:
        """Another commit, of so many writes."""
        metrics = self._local.engine.metrics
        metrics["commits.total"] += 1
        metrics["commits.writes"] += writes

    def failure(self, request: Request, error: Exception) -> bytes:
        """The answer to a write that has failed inside the engine."""
        log_failure(f"the write {request.name} failed inside the engine", error)
        self._local.enter()
        try:
            return self._local.engine.failure(write_error(error), request)
        finally:
            self._local.lock.release()

    def _commit(self, run: Callable[[WriteTransaction], Any]) -> Any:
        """What `run` returns, in a transaction that is on disk and published. The caller is in the gate.

        Raises what `run` or the commit raises: then nothing has happened. An exception between sync and publish
        (Ctrl-C) leaves memory behind the disk, and the store unusable.
        """
        local, store = self._local, self._local.store
        local.enter()
        try:
            txn, answer = self._run_in_transaction(run)
            try:
                local.lock.release()
                try:
                    store.sync(txn)
                finally:
                    local.lock.acquire()
            except Exception:
                self._abandon(txn, answer)
                if not store.environment.is_usable():
                    local.fail("the disk has failed in the middle of a commit: open the store again")
                    raise_closed(local.unusable)
                raise
            except BaseException:
                local.fail("a commit was interrupted: open the store again")
                raise
            try:
                store.publish(txn)
            except BaseException:
                local.fail("what is committed could not be published: open the store again")
                raise
            return answer
        finally:
            local.lock.release()

    def _run_in_transaction(self, run: Callable[[WriteTransaction], Any]) -> tuple[WriteTransaction, Any]:
        """The transaction, ready for its sync, and what `run` returns."""
        store = self._local.store
        txn, answer = store.begin(), None
        try:
            answer = run(txn)
            store.prepare(txn)
        except BaseException:
            self._abandon(txn, answer)
            raise
        return txn, answer

    def _abandon(self, txn: WriteTransaction, answer: Any) -> None:
        """Nothing of the transaction has happened."""
        if type(answer) is Turn:
            self._local.caller().turns.abandon(answer)
        self._local.store.abandon(txn)

    # Writes that may take long.

    def _in_turns(
        self, caller: Caller, command: Command, request: Request, interruptions: list[Interrupted]
    ) -> bytes | Wait:
        """Run a write turn by turn; others have theirs between."""
        local = self._local
        turn: Turn | None = None
        try:
            while True:
                self._enter()
                try:
                    answer = self._one_turn(caller, command, request, turn, interruptions)
                except Exception as error:
                    turn = None
                    if local.unusable is not None:
                        raise
                    return self.failure(request, error)
                finally:
                    self.gate.leave()
                self._count(int(type(answer) is not Turn))
                if type(answer) is not Turn:
                    turn = None
                    return answer  # type: ignore[no-any-return]
                turn = answer
                self._between(caller, request, turn)
        finally:
            if turn is not None or request in local.paused:
                self._give_up(caller, request, turn)

    def _give_up(self, caller: Caller, request: Request, turn: Turn | None) -> None:
        """End a write that has failed, if it has paused; what its earlier turns did stays done."""
        with self._local.lock:
            self._local.paused.pop(request, None)
            if turn is not None:
                caller.turns.abandon(turn)

    def _one_turn(
        self, caller: Caller, command: Command, request: Request, turn: Turn | None, interruptions: list[Interrupted]
    ) -> Any:
        """Run and commit a turn. From its first pause on the write is among those that have paused: also while it is
        committed, others see it and may end it."""
        local = self._local

        def run(txn: WriteTransaction) -> Any:
            if turn is None:
                if interruptions:
                    return local.engine.failure(interruptions[0], request)
                answer = caller.turns.run(local.engine.run_write, command, request, txn)
            else:
                answer = caller.turns.resume(turn, txn)
            if type(answer) is Turn:
                local.paused[request] = answer
            else:
                local.paused.pop(request, None)
            return answer

        return self._commit(run)

    def _between(self, caller: Caller, request: Request, turn: Turn) -> None:
        """A write has paused, and what it did is committed. It goes on when it is its turn, or what it waits for is
        there."""
        local, holder = self._local, turn.waits_for
        if holder is None:
            local.give_way()
        else:
            local.enter()
            try:
                if not holder.over() and turn.interruption is None:
                    left_ms = float(limits.AWAIT_MS_MAX)
                    if request.deadline_ms is not None:
                        left_ms = max(0.0, request.deadline_ms - local.engine.clock.monotonic_ms() + 1.0)
                    self._wait_for(caller, request, turn, Wait(left_ms, holder.key, over=holder.over))
            finally:
                local.lock.release()
        if local.unusable is not None:
            turn.interruption = Interrupted(11600, "interrupted at shutdown")

    def _wait_for(self, caller: Caller, request: Request, turn: Turn, wait: Wait) -> None:
        request.wait_until_ms = None
        try:
            self._local.parked.wait(caller, request, wait)
        except Interrupted as error:
            turn.interruption = error
        request.time_is_up = False
