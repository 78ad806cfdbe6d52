"""Reads that a reader process runs: the rules for moving a read, the calls that wait for answers, and the cursors.

    raise HandedOver(ReaderCall(request))     ends the command here; its turn waits until the reader has answered
    ask(context, request)                     lets a reader read for a command, which goes on with the answer

The registry has a `ReaderCursor` for each cursor that is open in a reader, so that these cursors are listed, killed and
expired like all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from bson import Int64

from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.reply import has_failed
from headrace.dispatch.request import ClientInfo, Request
from headrace.errors import AnsweredError, CommandError, HandedOver
from headrace.execution.batches import register
from headrace.memory_budget import Account
from headrace.query.stages.other_collections import joined_collections
from headrace.running_command import Work, examined, running_command
from headrace.values.bson import encode_in_order, find_element, iter_elements

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

READS: Final = frozenset({"aggregate", "count", "distinct", "find"})
_EXAMINING: Final = frozenset({"collStats", "dataSize", "dbHash", "dbStats", "headraceChanges"})
"""Commands that examine stored documents, and not the state of this process."""
LARGE_COUNT: Final = 10_000
"""In a collection with more documents, a find that reads a range of `_id`s opens its cursor in a reader at once."""
_STAYING_STAGES: Final = frozenset({
    "$changeStream", "$collStats", "$currentOp", "$indexStats", "$listLocalSessions", "$listSessions", "$merge",
    "$out", "$planCacheStats", "$querySettings", "$queryStats",
})  # fmt: skip
"""Stages that write, wait, or describe this process."""
_STAYING_DATABASES: Final = frozenset({"admin", "config"})
"""Databases with virtual collections."""


class CursorHost(Protocol):
    """The reader process that has a cursor."""

    def close_cursor(self, cursor_id: int) -> None: ...


class ReaderCursor:
    """A cursor that is open in a reader process."""

    __slots__ = (
        "account", "host", "id", "is_lost", "key", "namespace", "no_timeout", "read_ahead_bytes", "record", "session",
        "used_ms",
    )  # fmt: skip

    is_change_stream = tails = awaits = False
    left_ms = None

    def __init__(self, host: CursorHost, cursor_id: int, namespace: str, *, no_timeout: bool) -> None:
        self.host: CursorHost | None = host
        """The reader process; None once the cursor is closed there."""
        self.is_lost = False
        """Whether the reader process has ended. A batch that it has read before is returned."""
        self.id = cursor_id
        self.namespace = namespace
        self.no_timeout = no_timeout
        self.key = ""
        self.session: bytes | None = None
        self.used_ms = 0.0
        self.account: Account | None = None
        self.read_ahead_bytes = 0
        self.record: Any = None

    def close(self) -> None:
        """Close the cursor in the reader, if it is open there."""
        host, self.host = self.host, None
        if host is not None:
            host.close_cursor(self.id)


class ReaderAnswer(NamedTuple):
    """The answer of a reader."""

    reply: bytes
    cursor: ReaderCursor | None = None
    """The cursor that the command has opened, or that a getMore has not exhausted."""
    document_count: int = 0
    """The number of documents that the cursor has returned."""
    work: Work | None = None
    """The documents and keys that were examined."""


class ReaderCall:
    """A whole command, or a getMore of a reader's cursor, that a reader runs while a turn waits for the answer."""

    __slots__ = ("cursor", "failure", "outcome", "request", "try_count")

    def __init__(self, request: Request, cursor: ReaderCursor | None = None) -> None:
        self.request = request
        self.cursor = cursor
        self.outcome: ReaderAnswer | None = None
        self.failure: AnsweredError | None = None
        """The error of the command, if no reader has answered."""
        self.try_count = 0
        """How many readers have begun the call."""

    @property
    def key(self) -> str:
        """The name of the call for the writer, whose paused write waits for it."""
        return f"reader call {id(self):x}"

    @property
    def is_unread(self) -> bool:
        """Whether it has failed before a reader began it."""
        return self.failure is not None and not self.try_count

    def over(self) -> bool:
        """Whether the call has ended with an outcome or a failure."""
        return self.outcome is not None or self.failure is not None

    def answer(self, context: CommandContext, request: Request) -> bytes:
        """Wait for the reply, register an opened cursor and return the reply. Raise the error of an interruption."""
        turn = running_command()
        assert turn is not None
        turn.before_pause = turn.after_pause = None
        turn.pause(self)
        if self.failure is not None:
            raise self.failure
        outcome = self.outcome
        assert outcome is not None
        turn.work = outcome.work
        turn.answer = outcome.reply[4:-1]
        if self.cursor is not None:
            self._read_on(context, self.cursor, outcome)
        elif outcome.cursor is not None:
            register(context, request, outcome.cursor, ())
            outcome.cursor.record.document_count = outcome.document_count
        return outcome.reply

    def _read_on(self, context: CommandContext, cursor: ReaderCursor, outcome: ReaderAnswer) -> None:
        if context.cursors.peek(cursor.id) is not cursor and not cursor.is_lost:
            raise CommandError(237, f"cursor id {cursor.id} was killed while its next batch was read")
        cursor.record.batch_count += 1
        cursor.record.document_count = outcome.document_count
        if outcome.cursor is None:
            cursor.host = None
            context.cursors.remove(cursor.id)


class NotAnswered(Exception):
    """No reader has answered a call of `ask`, or a reader has answered with an error."""


def may_ask(context: CommandContext, database: str) -> bool:
    """Whether a reader may read for the running command, and a reader is available."""
    engine = context.engine
    if context.transaction is not None or running_command() is None or _is_observed(engine, database):
        return False
    return engine.shell.has_reader()


def ask(context: CommandContext, request: Request, cursor: ReaderCursor | None = None) -> ReaderAnswer:
    """Return a reader's answer to a read. The command pauses meanwhile, and a write commits its finished part.

    `cursor`: the cursor of a getMore. The caller closes the answer's cursor. Raise `NotAnswered` if the caller must
    read by itself, or the error that interrupts the command."""
    turn = running_command()
    assert turn is not None
    request.deadline_ms = context.deadline_ms
    call = ReaderCall(request, cursor)
    try:
        turn.pause(call)
    except BaseException:
        if call.outcome is not None and call.outcome.cursor is not None:
            call.outcome.cursor.close()
        raise
    outcome = call.outcome
    if outcome is None or has_failed(outcome.reply):
        raise NotAnswered
    if outcome.work is not None:
        examined(outcome.work.plan, outcome.work.documents, outcome.work.keys)
    return outcome


def made_request(client: ClientInfo, body: dict[str, Any]) -> Request:
    """Return a request for a command that the server makes in a client's name."""
    return Request(next(iter(body)), body["$db"], encode_in_order(body), {}, client, body)


def reading_part(engine: Engine, request: Request) -> Request | None:
    """Return the reading part of a pipeline with `$out` or `$merge` as a command; None if no reader may run it."""
    body = {name: value for name, value in request.body.items() if name not in ("lsid", "writeConcern")}
    body |= {"pipeline": body["pipeline"][:-1], "cursor": {"batchSize": _BATCH_COUNT}, "$db": request.db}
    part = made_request(request.client, body)
    return part if may_move(engine, engine.commands["aggregate"], part) else None


_BATCH_COUNT: Final = 1000


def asked_documents(context: CommandContext, request: Request) -> Iterator[bytes]:
    """Yield the raw results of an aggregation in a reader. Raise `NotAnswered`."""
    batch, cursor = b"firstBatch", None
    try:
        while True:
            answer = ask(context, request, cursor)
            cursor = answer.cursor
            yield from batch_of(answer.reply, batch)
            if cursor is None:
                return
            batch = b"nextBatch"
            more = {"getMore": Int64(cursor.id), "collection": cursor.namespace.partition(".")[2], "$db": request.db}
            request = made_request(request.client, {**more, "batchSize": _BATCH_COUNT})
    finally:
        if cursor is not None:
            cursor.close()


def batch_of(reply: bytes, name: bytes) -> Iterator[bytes]:
    """Yield the raw documents of a batch in a cursor reply. `name`: `firstBatch` or `nextBatch`."""
    cursor = find_element(reply, b"cursor")
    batch = None if cursor is None else find_element(reply, name, cursor[1])
    assert batch is not None
    for _, _, start, end in iter_elements(reply, batch[1]):
        yield reply[start:end]


def _is_observed(engine: Engine, database: str) -> bool:
    """Whether fail points, index filters or the profiler of this process affect the command."""
    return bool(engine.fail_points.active or engine.store.index_filters or engine.profiler.of(database).level)


def may_move(engine: Engine, command: Command, request: Request) -> bool:
    """Whether a reader may run a command: the command only reads stored data, at the last commit."""
    body = request.body
    if request.sequences or _is_observed(engine, request.db):
        return False
    if "autocommit" in body or (body.get("readConcern") or {}).get("level") == "snapshot":
        return False
    if command.name == "explain":
        inner = body["explain"]
        return _is_read(next(iter(inner), ""), request.db, inner)
    if command.name in _EXAMINING:
        return request.db not in ("local", *_STAYING_DATABASES) and not body.get("waitMs")
    return _is_read(command.name, request.db, body)


def _is_read(name: str, database: str, body: dict[str, Any]) -> bool:
    pipeline = body.get("pipeline")
    if name not in READS or database in _STAYING_DATABASES or body.get("tailable") or body.get("explain"):
        return False
    if (name == "count" and not body.get("query")) or not _STAYING_STAGES.isdisjoint(_stages(pipeline)):
        return False
    namespaces = [f"{database}.{body.get(name)}"]
    for namespace, inner in joined_collections(pipeline, database):
        if not _STAYING_STAGES.isdisjoint(_stages(inner)):
            return False
        namespaces.append(namespace)
    return not any(_is_shown(namespace) for namespace in namespaces)


def moves_at_once(engine: Engine, command: Command, request: Request) -> bool:
    """Whether a command is certainly long: it reads the events of a range, or a range of `_id`s in a large
    collection."""
    if command.name == "headraceChanges":
        return may_move(engine, command, request)
    if command.name != "find":
        return False
    body = request.body
    if body.get("limit") or body.get("singleBatch") or not _is_range(body.get("filter")):
        return False
    collection = engine.store.catalog.collection(f"{request.db}.{body.get('find')}")
    if collection is None or collection.is_view:
        return False
    count = engine.store.state.counts.get(collection.number)
    return count is not None and count.documents > LARGE_COUNT and may_move(engine, command, request)


def _is_range(spec: Any) -> bool:
    """Whether a filter is empty or only bounds `_id`."""
    if not spec:
        return True
    bounds = spec.get("_id") if type(spec) is dict and len(spec) == 1 else None
    return type(bounds) is dict and bounds.keys() <= {"$gt", "$gte", "$lt", "$lte"}


def hand_over(context: CommandContext, request: Request) -> bytes:
    """Hand over a whole command to a reader. This is the `run` of such a command."""
    raise HandedOver(ReaderCall(request))


def _is_shown(namespace: str) -> bool:
    """Whether a collection may be virtual, not stored."""
    database, _, name = namespace.partition(".")
    return database in _STAYING_DATABASES or name.startswith("system.")


def _stages(pipeline: Any) -> Iterator[str]:
    """Yield the names of the stages of a pipeline and of its facets."""
    for stage in pipeline if type(pipeline) is list else ():
        for name, spec in stage.items() if type(stage) is dict else ():
            yield name
            if name == "$facet" and type(spec) is dict:
                for inner in spec.values():
                    yield from _stages(inner)
