"""A program with `headrace.open` and many threads, which stop at each statement: a world for the same simulation.

The threads run the product's own `local_engine`, `local_writes`, `parked_threads` and `jobs`. The store and the engine
are watched: a state is added for each commit, and what a write changes is noted, as in `World`.

Where the store is served, some clients are a server's: the loop's callbacks are calls of `World`, each of which holds
the engine's lock, and the group of writes enters the gate.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import bson
from pymongo.errors import OperationFailure

from headrace.commands.reading.get_more import COMMAND as GET_MORE
from headrace.commands.writing.insert import insert_plain
from headrace.dispatch.engine import Engine
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.embedded.error_types import Closed
from headrace.running_command import running_command
from headrace.server.background import Background
from headrace.store.store import Store
from headrace.turns import Turn, Turns
from headrace.values.bson import decode
from tests.simulation.language import Document
from tests.simulation.model import Finding
from tests.simulation.threads import Lock, Thread, Threads
from tests.simulation.world import LONG_SECONDS, READER, Group, Job, JobHost, Pending, Reply, Shell, World, _Step

JOB: Final = 1001
CLOSER: Final = 1002
FAILING: Final = ("begin", "prepare", "run", "sync")
"""Where a commit may fail."""


class DiskFailure(OSError):
    """A failure that the simulation has asked for."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, "the disk is full, as the simulation wants it")


class WatchedStore(Store):
    """A store that tells the world of its commits."""

    world: EmbeddedWorld | None = None

    def begin(self, *arguments: Any) -> Any:
        """As the store's."""
        if self.world is not None:
            self.world.fail_at("begin")
        txn = super().begin(*arguments)
        if self.world is not None:
            if self.world.group is not None:
                raise Finding("gate", "two write transactions at a time")
            self.world.group = Group(txn, self.world.state)
        return txn

    def prepare(self, txn: Any, *, is_read_meanwhile: bool = True) -> None:
        """As the store's."""
        super().prepare(txn, is_read_meanwhile=is_read_meanwhile)
        if self.world is not None:
            self.world.fail_at("prepare")
            assert self.world.group is not None
            self.world.group.phase = "prepared"

    def sync(self, txn: Any) -> None:
        """As the store's; other threads run before the commit and after it."""
        if self.world is None:
            super().sync(txn)
            return
        self.world.threads.point()
        self.world.fail_at("sync")
        super().sync(txn)
        self.world.has_synced()
        self.world.threads.point()

    def publish(self, txn: Any) -> None:
        """As the store's."""
        if self.world is not None:
            self.world.has_published()
        super().publish(txn)

    def abandon(self, txn: Any) -> None:
        """As the store's."""
        super().abandon(txn)
        if self.world is not None:
            self.world.has_abandoned()


class ThreadRequest(Request):
    """A request of a thread, which knows what the simulation knows of it."""

    pending: Pending | None


class WatchedTurns(Turns):
    """The turns of a thread's command."""

    def __init__(self, world: EmbeddedWorld, pending: Pending | None) -> None:
        is_calm = pending is None or pending.op.get("calm")
        super().__init__(LONG_SECONDS if is_calm else 0.0)
        self._world = world
        self._pending = pending

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """As the turns'."""
        if getattr(function, "__name__", "") != "run_write":
            return super().run(function, *arguments)
        return self._world.writes(self._pending, super().run, function, *arguments)

    def resume(self, turn: Turn, given: Any = None) -> Any:
        """As the turns'."""
        if given is None:
            return super().resume(turn)
        return self._world.writes(self._pending, super().resume, turn, given)


class WatchedEngine(Engine):
    """An engine that tells the world which write runs."""

    world: EmbeddedWorld

    def run_write(self, command: Any, request: Any, txn: Any) -> Any:
        """As the engine's."""
        if self.world.is_server or running_command() is not None:
            return super().run_write(command, request, txn)
        return self.world.writes(request.pending, super().run_write, command, request, txn)


class EmbeddedJobHost(JobHost):
    """The host of the background jobs, as in `embedded/jobs.py`."""

    def add_job(self, run: Callable[[Any], object]) -> _Step:
        """Yield the write, which is then watched."""
        return _Step(lambda txn: self.world.writes(None, run, txn))

    def __init__(self, world: EmbeddedWorld) -> None:
        super().__init__(world)
        self.world = world

    def free_large(self) -> None:
        """Nothing."""


class EmbeddedWorld(World):
    """A store that a program has opened, and its threads."""

    has_reader = False

    def __init__(self, path: Path, served: frozenset[int]) -> None:
        """`served`: the clients that are a server's."""
        self.served = served
        self.is_server = False
        """Whether the server's loop runs, rather than a thread of the program."""
        self.was_interrupted = False
        self.in_gate = self.waits_for_gate = False
        """The state of the server's writer."""
        self.threads = Threads()
        self.running: dict[int, Thread] = {}
        self.fails_at: str | None = None
        self.lost: list[tuple[int, Pending]] = []
        """Commands that were refused, as the store was closed."""
        self.is_closing = False
        self.interrupted: list[tuple[int, Pending]] = []
        """Commands whose threads were interrupted by Ctrl-C: another thread may still do them."""
        self.inserting: list[tuple[bytes, Pending]] = []
        """Documents that are inserted without a command."""
        self.failure: BaseException | None = None
        """A failure that the product has logged and the simulation has not caused."""
        self._names = self._instrumented()
        super().__init__(path)

    def _instrumented(self) -> dict[str, Any]:
        threads, common = self.threads, {"threading": self.threads.module, "monotonic": self._seconds}
        logs = {"log_failure": self._log_failure}
        prefix = "headrace.embedded."
        parked = threads.instrumented(prefix + "parked_threads", **common)
        writes = threads.instrumented(
            prefix + "local_writes", threading=threads.module, insert_plain=self._insert_plain, **logs
        )
        jobs = threads.instrumented(prefix + "jobs", threading=threads.module)
        engine = threads.instrumented(
            prefix + "local_engine", **common, **logs, Store=WatchedStore, Engine=WatchedEngine,
            time=type("time", (), {"sleep": lambda _: threads.wait()}), LocalWrites=writes["LocalWrites"],
            ParkedThreads=parked["ParkedThreads"], Request=self._request,
        )  # fmt: skip
        return {"LocalEngine": engine["LocalEngine"], "Job": jobs["_Job"]}

    def _seconds(self) -> float:
        return self.clock.monotonic_ms() / 1000

    def _open(self) -> None:
        self.local = self._names["LocalEngine"](self.path, clock=self.clock)
        self.store, self.engine = self.local.store, self.local.engine
        self.store.world = self.engine.world = self
        self.engine.parameters["oplogSizeMB"] = 1000
        self.clients, self.numbers = {}, {}
        self.eager, self.calm = Turns(seconds=0.0), Turns(seconds=LONG_SECONDS)
        self.in_gate = self.waits_for_gate = self.was_interrupted = False
        self.store.file_listeners.append(self._compacted)
        if self.served:
            self.store.listeners.append(self._committed)
            self.local.core = Shell(self)
        self.background = Background(EmbeddedJobHost(self))

    def _log_failure(self, what: str, error: BaseException, **_: Any) -> None:
        if not isinstance(error, DiskFailure):
            self.failure = error

    # Threads.

    def is_parked(self, number: int) -> bool:
        """Whether a command waits for a commit, or for its time to be up."""
        if number in self.served:
            return number in self.pending and self.pending[number].phase == "parked"
        thread = self.running.get(number)
        woken = self._woken(number)
        return thread is not None and not thread.can_go and thread.waits_for is woken

    def _woken(self, number: int) -> Lock | None:
        caller = self.local._callers.of(number).get("caller")
        return None if caller is None else caller.woken

    def send(
        self, client: int, database: str, body: Document, op: Document, finish: Callable[[Reply, Pending], None],
        sequences: dict[str, list[Document]] | None = None,
    ) -> None:  # fmt: skip
        """A thread calls a command, or a client sends it; `finish` is called with the reply."""
        if client in self.served:
            with self.on_loop():
                super().send(client, database, body, op, finish, sequences)
            return
        raw = bson.encode({**body, "$db": database})
        encoded = {name: [bson.encode(item) for item in items] for name, items in (sequences or {}).items()}
        pending = Pending(op, None, GET_MORE, self.now, finish)  # type: ignore[arg-type]
        cursor: Any = self.engine.cursors.peek(int(body["getMore"])) if op.get("known") else None
        if cursor is not None and cursor.repeated_getmore is None:
            cursor = None  # as a stream of a program, which knows its cursor from its second getMore on

        def run() -> Any:
            caller = self.local.caller()
            caller.turns = WatchedTurns(self, pending)
            self.numbers[caller.client.connection_id] = client
            if op.get("plain") and self.local.writes.insert(op["ns"], encoded["documents"][0], op["plain"] == "sound"):
                return bson.encode({"ok": 1.0, "n": 1})
            return self.local.execute(
                database, next(iter(body)), decode(raw), raw, encoded, cursor=cursor, wait_ms=op.get("wait_ms")
            )

        if op.get("plain"):
            self.inserting.append((encoded["documents"][0], pending))
        self.pending[client] = pending
        self.running[client] = self.threads.start(client, run)
        if client == READER:
            self.finish(client)

    def finish(self, number: int) -> None:
        """Let a thread go on to its end, which waits for no other."""
        while number in self.running:
            if not self.running[number].can_go:
                raise Finding("deadlock", f"nothing else runs, and this waits: {self.pending.get(number)}")
            self.go(number, 1_000_000)

    def go(self, number: int, count: int) -> None:
        """Let a thread go on for so many statements."""
        thread = self.running[number]
        self.threads.go(thread, count)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        if self.was_interrupted and self.local.unusable is not None and not self.is_closing:
            self.begin_close()
        if not thread.has_ended:
            return
        del self.running[number]
        pending = self.pending.pop(number, None)
        if isinstance(thread.error, Finding):
            raise thread.error
        if number == JOB and self.job is not None:
            self.job.coroutine.close()
            self.job = None
        if isinstance(thread.error, KeyboardInterrupt):
            self.interrupted += [] if pending is None else [(number, pending)]
            return
        self.inserting = [item for item in self.inserting if item[1] is not pending]
        if thread.error is None:
            if pending is not None:
                pending.finish(bson.decode(thread.result), pending)
        elif isinstance(thread.error, OperationFailure) and pending is not None:
            pending.finish({"ok": 0.0, "code": thread.error.code, "errmsg": str(thread.error)}, pending)
        elif isinstance(thread.error, Closed) and self.is_closing:
            self.lost += [] if pending is None else [(number, pending)]
        elif not isinstance(thread.error, DiskFailure) or pending is not None:
            raise thread.error

    def time_is_up(self, client: int) -> None:
        """A command has waited for as long as it may."""
        if client in self.served:
            super().time_is_up(client)
        else:
            self.running[client].time_is_up = True

    def kill(self, client: int) -> None:
        """End a command with error 11601, as killOp does. The engine's lock is free."""
        if client in self.served:
            super().kill(client)
            return
        for connection_id, number in self.numbers.items():
            if number == client:
                self.local.parked.interrupt(connection_id)

    # The server's loop.

    @contextmanager
    def on_loop(self) -> Iterator[None]:
        """What runs in the `with` is a callback of the server's loop, which holds the engine's lock."""
        if self.is_server:
            yield
            return
        if not self.local.lock.acquire(False):
            raise Finding("lock", "the loop runs while a thread holds the engine's lock")
        self.is_server, self.store.world = True, None
        try:
            yield
        finally:
            self.is_server, self.store.world = False, self
            self.local.lock.release()

    @property
    def has_group(self) -> bool:
        """Whether the open transaction is the server's."""
        return self.in_gate and self.group is not None

    def resume(self, client: int) -> None:
        """As the world's."""
        with self.on_loop():
            super().resume(client)

    def begin(self) -> None:
        """Enter the gate, or wait until a thread leaves it, and open the write transaction."""
        if not self.in_gate and not self.local.writes.gate.enter_or_call(self._has_entered):
            self.waits_for_gate = True
            return
        self.in_gate = True
        with self.on_loop():
            super().begin()

    def _has_entered(self) -> None:
        self.in_gate, self.waits_for_gate = True, False

    def run(self, client: int) -> None:
        """As the world's."""
        with self.on_loop():
            super().run(client)

    def prepare(self) -> None:
        """As the world's."""
        with self.on_loop():
            super().prepare()

    def sync(self) -> None:
        """As the world's, on the thread that commits."""
        self.store.world = None
        super().sync()
        self.store.world = self

    def publish(self) -> None:
        """As the world's."""
        with self.on_loop():
            super().publish()
        self._leave_gate()

    def fail(self) -> None:
        """As the world's."""
        with self.on_loop():
            super().fail()
        self._leave_gate()

    def _leave_gate(self) -> None:
        self.in_gate = False
        self.local.writes.gate.leave()

    # Writes.

    def _request(self, *arguments: Any) -> ThreadRequest:
        request = ThreadRequest(*arguments)
        request.pending = self.pending.get(self.threads.identity())
        return request

    def _insert_plain(self, engine: Engine, txn: Any, namespace: str, document: bytes, *, is_sound: bool) -> bool:
        pending = next(pending for inserted, pending in self.inserting if inserted is document)
        made: bool = self.writes(
            pending, lambda txn: insert_plain(engine, txn, namespace, document, is_sound=is_sound), txn
        )
        if not made:
            pending.turns.pop()
            assert self.group is not None
            self.group.answers.pop()
        return made

    def writes(self, pending: Pending | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call what writes in the open transaction, and note what it has done."""
        group = self.group
        assert group is not None
        if pending is not None:
            self.attempted += pending.tried
        try:
            answer = self._in_group(group, pending, function, *arguments)
        except Finding as finding:
            self.failure = finding
            raise
        if pending is not None:
            if type(answer) is Wait:
                pending.turns.pop()
            else:
                group.answers.append((pending, answer))
        self.fail_at("run")
        return answer

    def fail_at(self, place: str) -> None:
        """Fail here, if the simulation wants that."""
        if self.fails_at == place:
            self.fails_at = None
            raise DiskFailure

    def has_synced(self) -> None:
        """The transaction is on the disk."""
        assert self.group is not None
        self.group.phase = "synced"
        self.history += self.group.events

    def has_published(self) -> None:
        """The transaction is being published."""
        group, self.group = self.group, None
        assert group is not None
        self.commits += 1
        self.published_count = len(self.history)
        if group.draft is not self.state:
            self.states.append(group.draft)
        self._number_history()

    def has_abandoned(self) -> None:
        """Nothing of the transaction has happened, unless it is on the disk and the store is closed."""
        group = self.group
        if group is not None and group.phase != "synced":
            self.group = None
            for pending, _ in group.answers:
                if pending is not None:
                    pending.turns.pop()

    # The rest.

    def interrupt(self, client: int) -> None:
        """Ctrl-C in a thread that waits for a lock, or sleeps."""
        self.was_interrupted = self.running[client].is_interrupted = True

    def begin_job(self, name: str, **arguments: Any) -> None:
        """Begin a background job on its thread."""
        coroutine = self._job(self.background, name, arguments)
        self.job = Job(name, coroutine, self.clock.now_ms(), self.now)
        job = self._names["Job"](self.local, coroutine)

        def run() -> None:
            while not job.step():
                self.threads.stop()

        self.running[JOB] = self.threads.start(JOB, run)

    def begin_close(self) -> None:
        """A thread closes the store while others use it."""
        self.is_closing = True
        self.running[CLOSER] = self.threads.start(CLOSER, self.local.close)

    def reopen(self) -> list[tuple[int, Pending]]:
        """Open what was closed; returns the commands that were refused meanwhile."""
        lost, self.lost, self.is_closing = self.lost, [], False
        self._lose_group()
        self.published_count = len(self.history)
        self._number_history()
        self._open()
        return lost

    def crash(self) -> list[tuple[int, Pending]]:
        """The process ends, and another one opens the directory; returns the commands that get no answer."""
        self.crashes += 1
        lost = [*self.lost, *self.pending.items()]
        self._lose_group()
        self._end_threads()
        self.published_count = len(self.history)
        self._number_history()
        self.store.close()
        self.lost, self.is_closing = [], False
        self._open()
        return lost

    def _end_threads(self) -> None:
        for pending in self.pending.values():
            if pending.turn is not None:
                self._turns(pending).abandon(pending.turn)
        running, self.running, self.pending = list(self.running.values()), {}, {}
        for thread in running:
            self.threads.kill(thread)
        if self.job is not None:
            self.job.coroutine.close()
        self.job, self.failure, self.fails_at = None, None, None

    def close(self) -> None:
        """Close the store."""
        self._end_threads()
        self.store.close()
