"""A server whose every step is a call of a function: begin, run, prepare, sync, publish, a turn, a wake, a crash.

It stands in for the server's shell (writer, scheduler, notifier, background jobs), on one thread, without a loop. Who
goes next is decided by whoever calls it. Each commit adds a state to `states`, made from the oplog's entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import bson

from headrace.commands.reading.get_more import COMMAND as GET_MORE
from headrace.commands.server_info.parameters import first_parameters
from headrace.commands.table import commands_for
from headrace.cursors.feed import scope_keys
from headrace.dispatch import repeated_getmore, shell
from headrace.dispatch.command import Command
from headrace.dispatch.engine import Engine
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import ClientInfo, Request, parse_message, remember
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError, Interrupted
from headrace.execution.reader_calls import ReaderAnswer, ReaderCall, ReaderCursor
from headrace.server.background import Background
from headrace.server.readers.matching import COMMAND as MATCHING
from headrace.store.store import Committed, Store
from headrace.testing.clock import FakeClock
from headrace.turns import Turn, Turns
from tests.simulation.language import Document
from tests.simulation.model import Event, Finding, State, apply, collection_of, require_sound, with_room

Reply = dict[str, Any]
LONG_SECONDS = 1e9
READER = 1003
"""The number of the client that compares what is stored."""
COMMIT_FAILED = 14031
TEMPORARY = re.compile(r"\.convertToCapped\.|\.tmp\.agg_out\.|\.tmp[0-9a-f]{5}\.renameCollection$")
"""The names of the collections in which commands copy."""
ENDED = (50, 11600, 11601, COMMIT_FAILED)
"""The errors of commands that the simulator has ended: their time was up, they were killed, their commit failed."""
EPOCH = datetime(1970, 1, 1)


def milliseconds(moment: datetime) -> int:
    """Milliseconds since the epoch of a date as bson decodes it, in UTC."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def stored(view: Any, namespace: str) -> list[Document]:
    """The documents of a collection that a view of the store has, in natural order."""
    collection = view.collection(namespace)
    return [bson.decode(view.by_record(collection, record)) for record in view.records(collection)]


@dataclass(slots=True)
class WriteTurn:
    """The work of one turn of a write, which counts when its group is published."""

    before: State
    after: State
    events: list[Event]
    since: int
    """The number of the last published state when its group began."""


@dataclass(slots=True, eq=False)
class Pending:
    """A command that is on its way."""

    op: Document
    request: Request
    command: Command
    since: int
    """The number of the last published state when it was sent."""
    finish: Callable[[Reply, Pending], None]
    pauses: bool = False
    phase: str = "new"
    """`new`, `reading` (paused), `queued`, `writing` (paused), `in group`, `parked`, `woken`, `asking` (a reader)."""
    turn: Turn | None = None
    wait: Wait | None = None
    turns: list[WriteTurn] = field(default_factory=list)
    earlier: list[WriteTurn] = field(default_factory=list)
    """The turns of the same retryable write when it was sent before."""

    @property
    def tried(self) -> list[Event]:
        """The attempt to write to its collections, which conflicts with transactions."""
        return [Event("tried", namespace) for namespace in self.op.get("namespaces") or [self.op.get("ns", "")]]

    @property
    def events(self) -> list[Event]:
        """What it has changed."""
        return [event for turn in self.turns for event in turn.events]


@dataclass(slots=True)
class Group:
    """The open write transaction, and what has run in it."""

    txn: Any
    draft: State
    events: list[Event] = field(default_factory=list)
    answers: list[tuple[Pending | None, Any]] = field(default_factory=list)
    is_full: bool = False
    """A write that had paused has gone on in it, which is the last of its group, as others may not see what it does."""
    phase: str = "open"
    """`open`, `prepared`, `synced`."""

    @property
    def takes_more(self) -> bool:
        """Whether another write may run in it."""
        return self.phase == "open" and not self.is_full


class Shell(shell.Shell):
    """The shell that the engine calls."""

    def __init__(self, world: World) -> None:
        self._world = world

    def has_reader(self) -> bool:
        return self._world.has_reader

    def wake(self, key: str) -> None:
        self._world.wake_key(key)

    def cursor_killed(self, cursor: Any) -> None:
        for pending in self._world.parked():
            request = pending.request
            if request.cursor is cursor or (
                request.cursor is None and request.name == "getMore" and request.body.get("getMore") == cursor.id
            ):
                pending.phase = "woken"


class Job:
    """A background job: its steps, and the write that it waits for."""

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, Any], began_ms: int, since: int) -> None:
        self.name = name
        self.began_ms = began_ms
        self.since = since
        self.coroutine = coroutine
        self.write: Callable[[Any], object] | None = None
        self.is_queued = False


class _Step:
    """Hands a job's write to who drives the job."""

    def __init__(self, run: Callable[[Any], object]) -> None:
        self.run = run

    def __await__(self) -> Any:
        yield self.run


class JobHost:
    """The world as the background jobs see it."""

    def __init__(self, world: World) -> None:
        self.store = world.store
        self.engine = world.engine
        self.writer = self.scheduler = self

    def add_job(self, run: Callable[[Any], object]) -> _Step:
        """Yield the write to `World.step_job`."""
        return _Step(run)

    def free_large(self) -> None:
        """Nothing is freed in pieces."""


class World:
    """A store and an engine, the commands that are on their way, and the states that were published."""

    has_reader = True
    """Whether there are reader processes: simulated by this one, which reads the published state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.states: list[State] = [{}]
        self.history: list[Event] = []
        """All changes that are on the disk, in the order of the oplog."""
        self.published_count = 0
        """How many of them are published."""
        self.attempted: list[Event] = []
        """All changes that any transaction has made, also where its commit has failed."""
        self.pending: dict[int, Pending] = {}
        """By the number of the client."""
        self.group: Group | None = None
        self.job: Job | None = None
        self.commits = self.crashes = 0
        self.state_numbers: list[int] = []
        """The number of the state that has them, for the changes of `history` that are published."""
        self._open()

    def _open(self) -> None:
        options = ServerOptions(dbpath=self.path)
        self.eager, self.calm = Turns(seconds=0.0), Turns(seconds=LONG_SECONDS)
        self.store = Store(self.path, clock=self.clock)
        self.engine = Engine(
            self.store, options, commands_for(options), first_parameters(options), shell=Shell(self)
        )  # fmt: skip
        self.engine.commands = {**self.engine.commands, MATCHING.name: MATCHING}
        self.engine.parameters["oplogSizeMB"] = 1000
        self.store.listeners.append(self._committed)
        self.store.file_listeners.append(self._compacted)
        self.clients: dict[int, ClientInfo] = {}
        self.background = Background(JobHost(self))

    @property
    def now(self) -> int:
        """The number of the last published state."""
        return len(self.states) - 1

    @property
    def state(self) -> State:
        """The last published state."""
        return self.states[-1]

    def parked(self) -> list[Pending]:
        """The commands that wait for something."""
        return [pending for pending in self.pending.values() if pending.phase in ("parked", "blocked")]

    # Commands.

    def send(
        self, client: int, database: str, body: Document, op: Document, finish: Callable[[Reply, Pending], None],
        sequences: dict[str, list[Document]] | None = None,
    ) -> None:  # fmt: skip
        """A client sends a command; `finish` is called with the reply."""
        info = self.clients.setdefault(client, ClientInfo(client + 1, f"127.0.0.1:{client + 1}", ("127.0.0.1", 27017)))
        raw = bson.encode({**body, "$db": database})
        encoded = {name: [bson.encode(item) for item in items] for name, items in (sequences or {}).items()}
        again = None
        if raw.startswith(repeated_getmore.BEGIN, 4):
            again = repeated_getmore.recognised(self.engine, raw, info)
        request = again or parse_message(raw, encoded, info)
        pending = Pending(op, request, GET_MORE, self.now, finish)
        self.pending[client] = pending
        if again is None:
            try:
                pending.command = self.engine.command(request)
                if request.repeated is None:
                    remember(request)  # so that the next of its kind takes the short way
            except CommandError as error:
                self._answer(client, pending, self.engine.failure(error, request))
                return
        self._start(client, pending)

    def _start(self, client: int, pending: Pending) -> None:
        command, request = pending.command, pending.request
        is_stream = request.cursor is not None and not request.cursor.lags
        pending.pauses = not is_stream and bool(
            command.pauses and (command.pauses is True or command.pauses(self.engine, request))
        )
        if is_stream:
            self._read(client, pending, self.engine.run_stream(command, request))
        elif command.writes and (command.writes is True or command.writes(request)):
            pending.phase = "queued"
        elif (again := self.engine.run_again(command, request)) is not None:
            self._read(client, pending, again)
        elif pending.pauses:
            self._read(client, pending, self._turns(pending).run(self.engine.run_read, command, request))
        else:
            self._read(client, pending, self.engine.run_read(command, request))

    def _turns(self, pending: Pending) -> Turns:
        return self.calm if pending.op.get("calm") else self.eager

    def _read(self, client: int, pending: Pending, answer: Any) -> None:
        if type(answer) is Turn:
            pending.phase, pending.turn = "asking" if type(answer.waits_for) is ReaderCall else "reading", answer
        elif type(answer) is Wait:
            self._park(pending, answer)
        else:
            self._answer(client, pending, answer)

    def _answer(self, client: int, pending: Pending, answer: bytes) -> None:
        del self.pending[client]
        pending.turn = None
        pending.finish(bson.decode(answer), pending)

    def _park(self, pending: Pending, wait: Wait) -> None:
        request = pending.request
        now_ms = self.clock.monotonic_ms()
        if request.wait_until_ms is None:
            request.wait_until_ms = now_ms + wait.wait_ms
            request.since_ms = now_ms
        request.time_is_up = request.time_is_up or request.wait_until_ms <= now_ms
        is_over = request.time_is_up or (wait.over is not None and wait.over())
        pending.phase, pending.wait, pending.turn = "woken" if is_over else "parked", wait, None

    def resume(self, client: int) -> None:
        """Let a read that has paused go on for a turn, or run a command again that has been woken."""
        pending = self.pending[client]
        if pending.phase == "reading":
            self._read(client, pending, self._turns(pending).resume(pending.turn))
        else:
            self._start(client, pending)

    def ask(self, client: int, *, fails: bool) -> None:
        """A reader answers the call that a paused command waits for, or is lost."""
        pending = self.pending[client]
        assert pending.turn is not None
        call: ReaderCall = pending.turn.waits_for
        if fails:
            call.failure = CommandError(175, "the reader process that ran the command has ended")
        else:
            reply = self.calm.run(self.engine.run_read, self.engine.command(call.request), call.request)
            shown, cursor = bson.decode(reply).get("cursor", {}), None
            if shown.get("id"):
                cursor = ReaderCursor(self, shown["id"], "", no_timeout=False)
            call.outcome = ReaderAnswer(reply, cursor, len(shown.get("firstBatch", ())))
        self._has_asked(pending)

    def close_cursor(self, cursor_id: int) -> None:
        """Close a cursor of the reader."""
        self.engine.cursors.remove(cursor_id)

    def _has_asked(self, pending: Pending) -> None:
        command = pending.command
        writes = command.writes and (command.writes is True or command.writes(pending.request))
        pending.phase = "writing" if writes else "reading"

    def time_is_up(self, client: int) -> None:
        """A waiting command has waited for as long as it may."""
        pending = self.pending[client]
        pending.request.time_is_up = True
        pending.phase = "woken" if pending.phase == "parked" else "writing"

    def kill(self, client: int) -> None:
        """End a paused command at its next turn, with error 11601."""
        pending = self.pending[client]
        assert pending.turn is not None
        pending.turn.interruption = Interrupted(11601, "operation was interrupted")
        if pending.phase == "asking":
            self._has_asked(pending)

    def wake_key(self, key: Any) -> None:
        """Whoever waits for this key is to be run again."""
        for pending in self.parked():
            if pending.wait is not None and pending.wait.scope == key:
                pending.phase = "woken" if pending.phase == "parked" else "writing"

    def _committed(self, committed: Committed) -> None:
        waiting = {pending.wait.scope: pending for pending in self.parked() if pending.wait is not None}
        for key in scope_keys([topic for topics, _, _ in committed.runs for topic in topics], waiting):
            self.wake_key(key)

    def _compacted(self) -> None:
        """A compaction has ended the open transactions."""
        self.attempted.append(Event("compact", ""))

    # Writes.

    def begin(self) -> None:
        """Open the write transaction."""
        self.group = Group(self.store.begin(), self.state)

    def run(self, client: int) -> None:
        """Run a write in the open transaction, or let a paused one go on in it."""
        group, pending = self.group, self.pending[client]
        assert group is not None
        self.attempted += pending.tried
        if pending.phase == "writing":
            group.is_full = True
            answer = self._in_group(group, pending, self._turns(pending).resume, pending.turn, group.txn)
        else:
            answer = self._in_group(group, pending, self._run_write, pending, group.txn)
        self._has_run(group, pending, answer)

    def _run_write(self, pending: Pending, txn: Any) -> Any:
        arguments = pending.command, pending.request, txn
        again = self.engine.run_again(*arguments)
        if again is not None:
            return again
        run = self.engine.run_write
        return self._turns(pending).run(run, *arguments) if pending.pauses else run(*arguments)

    def _has_run(self, group: Group, pending: Pending, answer: Any) -> None:
        pending.turn = answer if type(answer) is Turn else None
        pending.phase = "in group"
        group.answers.append((pending, answer))

    def _in_group(self, group: Group, pending: Pending | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call what writes, and apply its entries to the draft."""
        entries = group.txn.staged.entries
        before, count = group.draft, len(entries)
        answer = function(*arguments)
        events: list[Event] = []
        for raw in entries[count:]:
            group.draft, made = apply(group.draft, raw)
            events += made
        for namespace in {event.namespace: None for event in events}:
            require_sound(group.draft, namespace)
            there = collection_of(group.draft, namespace)
            if there is not None and there.count_max is not None:
                left = [item["_id"] for item in stored(group.txn, namespace)]
                group.draft = with_room(group.draft, namespace, left, is_done=type(answer) is not Turn)
        group.events += events
        self.attempted += events
        if pending is not None:
            pending.turns.append(WriteTurn(before, group.draft, events, self.now))
        else:
            self.check_job(before, events)
        return answer

    def run_job(self) -> None:
        """Run the write that the job waits for."""
        group, job = self.group, self.job
        assert group is not None and job is not None and job.write is not None
        job.is_queued = False
        self._in_group(group, None, job.write, group.txn)
        group.answers.append((None, None))

    def prepare(self) -> None:
        """Put the entries into the tables."""
        assert self.group is not None
        self.store.prepare(self.group.txn)
        self.group.phase = "prepared"

    def sync(self) -> None:
        """The transaction is on the disk."""
        group = self.group
        assert group is not None
        self.store.sync(group.txn)
        group.phase = "synced"
        self.history += group.events

    def publish(self) -> None:
        """The transaction is published, and its clients are answered."""
        group = self.group
        assert group is not None
        self.group = None
        self.commits += 1
        self.published_count = len(self.history)
        if group.draft is not self.state:
            self.states.append(group.draft)
        self._number_history()
        self.store.publish(group.txn)
        clients = {id(pending): client for client, pending in self.pending.items()}
        for pending, answer in group.answers:
            if pending is None:
                assert self.job is not None
                self.job.write = None
            elif type(answer) is bytes:
                self._answer(clients[id(pending)], pending, answer)
            elif type(answer) is Wait:
                pending.turns.pop()
                self._park(pending, answer)
            else:
                self._pause(pending, answer)

    def _number_history(self) -> None:
        self.state_numbers += [self.now] * (len(self.history) - len(self.state_numbers))

    def _pause(self, pending: Pending, turn: Turn) -> None:
        holder = turn.waits_for
        if type(holder) is ReaderCall:
            pending.phase = "asking"
        elif holder is not None and not holder.over():
            pending.phase, pending.wait = "blocked", Wait(LONG_SECONDS, holder.key, holder.over)
        else:
            pending.phase = "writing"

    def fail(self) -> None:
        """A failed commit: writes in their first turn are run anew, those that have paused before end with an error."""
        group = self.group
        assert group is not None
        self.group = None
        ran = [(pending, answer) for pending, answer in group.answers]
        for pending, answer in ran:
            if pending is not None:
                pending.turn = None
                if type(answer) is Turn:
                    self._turns(pending).abandon(answer)
        self.store.abandon(group.txn)
        clients = {id(pending): client for client, pending in self.pending.items()}
        for pending, _ in ran:
            if pending is None:
                assert self.job is not None
                self.job.is_queued = True
                continue
            pending.turns.pop()
            if pending.turns:
                error = self.engine.failure(CommandError(COMMIT_FAILED, "the commit has failed"), pending.request)
                self._answer(clients[id(pending)], pending, error)
            else:
                pending.phase = "queued"

    # The rest.

    def begin_job(self, name: str, **arguments: Any) -> None:
        """Begin a background job of the server."""
        background = self.background
        self.job = Job(name, self._job(background, name, arguments), self.clock.now_ms(), self.now)

    def _job(self, background: Background, name: str, arguments: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        if name == "ttl":
            return background.ttl.round(self.clock.now_ms())
        if name == "prune":
            self.engine.parameters["oplogEntriesMax"] = arguments["entries"]
            return background.prune(self.clock.now_ms())
        made: Coroutine[Any, Any, Any] = getattr(background, name)()
        return made

    def step_job(self) -> None:
        """Let the job do its next step."""
        job = self.job
        assert job is not None and job.write is None
        try:
            job.write = job.coroutine.send(None)
        except StopIteration:
            self.job = None
            return
        job.is_queued = job.write is not None

    def check_job(self, before: State, events: list[Event]) -> None:
        """Raise `Finding` where a background job has changed a document that has not expired."""
        job = self.job
        assert job is not None
        for event in events:
            if event.kind == "catalog":
                continue
            if job.name == "_collect" and event.kind == "drop" and TEMPORARY.search(event.namespace):
                continue  # a crash has left it
            if job.name != "ttl" or event.kind != "delete":
                raise Finding("job", f"{job.name} has made {event}")
            collection: Any = before[event.namespace]
            assert event.before is not None
            if collection.expires_seconds is not None:
                last_ms = milliseconds(event.before["control"]["max"]["t"])
                if last_ms + 1000 * collection.expires_seconds > job.began_ms:
                    raise Finding("job", f"TTL has deleted a bucket that has not expired: {event}")
                continue
            times = [spec["expireAfterSeconds"] for spec in collection.indexes.values() if "expireAfterSeconds" in spec]
            at_ms = milliseconds(event.before["t"]) if "t" in event.before else None
            if at_ms is None or not any(at_ms + 1000 * seconds <= job.began_ms for seconds in times):
                raise Finding("job", f"TTL has deleted a document that has not expired: {event}")

    def crash(self) -> list[tuple[int, Pending]]:
        """The process ends, and another one opens the directory; returns the commands that get no answer."""
        self.crashes += 1
        lost = list(self.pending.items())
        self._lose_group()
        self.pending = {}
        for _, pending in lost:
            if pending.turn is not None:
                self._turns(pending).abandon(pending.turn)
        if self.job is not None:
            self.job.coroutine.close()
            self.job = None
        self.published_count = len(self.history)
        self._number_history()
        self.store.close()
        self._open()
        return lost

    def _lose_group(self) -> None:
        """The open transaction ends: it has happened if it is on the disk."""
        group, self.group = self.group, None
        if group is not None and group.phase == "synced":
            self.states.append(group.draft)
        elif group is not None:
            for pending, _ in group.answers:
                if pending is not None and pending.turns:
                    pending.turns.pop()

    def close(self) -> None:
        """Close the store."""
        for pending in self.pending.values():
            if pending.turn is not None:
                self._turns(pending).abandon(pending.turn)
        if self.job is not None:
            self.job.coroutine.close()
        self.store.close()
