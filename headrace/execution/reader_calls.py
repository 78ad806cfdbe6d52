"""Reads that a reader process runs: which these are, what waits for their answers, and their cursors.

    raise HandedOver(ReaderCall(request))     ends the command here; its turn waits until the reader has answered

The registry has a `ReaderCursor` for each cursor that is open in a reader, so that whatever lists, kills or expires
cursors does so to them as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.errors import AnsweredError, CommandError
from headrace.execution.batches import register
from headrace.memory_budget import Account
from headrace.query.stages.other_collections import joined_collections
from headrace.running_command import Work, running_command

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

COMMANDS: Final = frozenset({"aggregate", "count", "distinct", "find"})
_STAYING_STAGES: Final = frozenset({
    "$changeStream", "$collStats", "$currentOp", "$indexStats", "$listLocalSessions", "$listSessions", "$merge",
    "$out", "$planCacheStats", "$querySettings", "$queryStats",
})  # fmt: skip
"""Stages that write, wait, or describe this process."""
_STAYING_DATABASES: Final = frozenset({"admin", "config"})
"""Databases that have collections which are not stored."""


class CursorHost(Protocol):
    """The reader process that has a cursor."""

    def close_cursor(self, cursor_id: int) -> None: ...


class ReaderCursor:
    """A cursor that is open in a reader process."""

    __slots__ = (
        "account", "host", "id", "key", "namespace", "no_timeout", "read_ahead_bytes", "record", "session", "used_ms",
    )  # fmt: skip

    is_change_stream = tails = awaits = False
    left_ms = None

    def __init__(self, host: CursorHost, cursor_id: int, namespace: str, *, no_timeout: bool) -> None:
        self.host: CursorHost | None = host
        """None once it is closed there."""
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
        """Close it in the reader, if it is open there."""
        host, self.host = self.host, None
        if host is not None:
            host.close_cursor(self.id)


class ReaderAnswer(NamedTuple):
    """The answer of a reader."""

    reply: bytes
    cursor: ReaderCursor | None = None
    """The cursor that the command has opened, or has read and not exhausted."""
    document_count: int = 0
    """Documents that the cursor has returned."""
    work: Work | None = None
    """The documents and keys that were examined."""


class ReaderCall:
    """A command that a reader runs, from its beginning, or a getMore of a cursor there. A turn waits for it."""

    __slots__ = ("cursor", "failure", "outcome", "request", "try_count")

    def __init__(self, request: Request, cursor: ReaderCursor | None = None) -> None:
        self.request = request
        self.cursor = cursor
        self.outcome: ReaderAnswer | None = None
        self.failure: AnsweredError | None = None
        """The error that the command ends with, where no reader has answered."""
        self.try_count = 0
        """How many readers have begun it."""

    def answer(self, context: CommandContext, request: Request) -> bytes:
        """Wait for the reply, and register the cursor that was opened. Raises what interrupts the command."""
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
        if context.cursors.peek(cursor.id) is not cursor:
            raise CommandError(237, f"cursor id {cursor.id} was killed while its next batch was read")
        cursor.record.batch_count += 1
        cursor.record.document_count = outcome.document_count
        if outcome.cursor is None:
            cursor.host = None
            context.cursors.remove(cursor.id)


def may_move(engine: Engine, command: Command, request: Request) -> bool:
    """Whether a reader may run a command that has begun here: it reads what is stored, at the last commit, and nothing
    else."""
    body = request.body
    if command.name not in COMMANDS or "autocommit" in body or request.db in _STAYING_DATABASES or body.get("tailable"):
        return False
    concern = body.get("readConcern")
    if concern is not None and concern.get("level") == "snapshot":
        return False
    if engine.fail_points.active or engine.store.index_filters or engine.profiler.of(request.db).level:
        return False
    if command.name == "count" and not body.get("query"):
        return False
    pipeline = body.get("pipeline")
    if body.get("explain") or not _STAYING_STAGES.isdisjoint(_stages(pipeline)):
        return False
    namespaces = [f"{request.db}.{body.get(request.name)}"]
    for namespace, inner in joined_collections(pipeline, request.db):
        if not _STAYING_STAGES.isdisjoint(_stages(inner)):
            return False
        namespaces.append(namespace)
    return not any(_is_shown(namespace) for namespace in namespaces)


def _is_shown(namespace: str) -> bool:
    """Whether a collection may be one that is not stored."""
    database, _, name = namespace.partition(".")
    return database in _STAYING_DATABASES or name.startswith("system.")


def _stages(pipeline: Any) -> Iterator[str]:
    """The names of the stages of a pipeline, and of those of its facets."""
    for stage in pipeline if type(pipeline) is list else ():
        for name, spec in stage.items() if type(stage) is dict else ():
            yield name
            if name == "$facet" and type(spec) is dict:
                for inner in spec.values():
                    yield from _stages(inner)
