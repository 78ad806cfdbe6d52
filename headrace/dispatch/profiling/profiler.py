"""The profiler: commands and how long they took, as documents of `DATABASE.system.profile`.

    engine.profiler.active        whether any database is profiled; if not, a command checks only this
    engine.profiler.profiled(...) the command, wrapped to measure it

The level of a database is 0 (nothing), 1 (a share `sample_rate` of the commands slower than `slow_ms`, or those that
match its filter) or 2 (all). The shell stores the documents after the command, without oplog entries. A read or a drop
of `system.profile` waits until all documents recorded before it are stored. One command is one document. If it has one
statement, the document's `command` is that statement, as in MongoDB.

Source: MongoDB's manual, "Database Profiler Output". Fields that are not counted here (locks, storage, plan cache keys)
are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request, shown_body
from headrace.dispatch.wait import Wait
from headrace.errors import AnsweredError
from headrace.log_lines import RepeatedLine
from headrace.running_command import TURN_SECONDS, running_command
from headrace.values.bson import decode, encode, find_element, iter_elements

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

COLLECTION: Final = "system.profile"
STORED: Final = "stored profiles"
"""The wake-up key of reads of `system.profile`."""
STORED_MS: Final = 1000.0
"""The maximum wait of such a read."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The profiler settings of a database."""

    level: int
    filter: dict[str, Any] | None = None
    matches: Callable[[dict[str, Any]], bool] | None = None
    """The parsed filter, a `UserFilter`. It replaces `slow_ms` and `sample_rate`."""


OFF: Final = Profile(0)


class Profiler:
    """The profiler settings of all databases of one server, and the threshold for slow commands."""

    def __init__(self, slow_ms: int | None, sample_rate: float = 1.0, level: int = 0) -> None:
        """`slow_ms` None: no command is slow. `level`: the level of a database without its own."""
        self.slow_ms = slow_ms
        self.sample_rate = sample_rate
        self.profiles: dict[str, Profile] = {}
        self.default = Profile(level) if level else OFF
        self._unrecorded = RepeatedLine()
        self.recorded_count = 0  # documents that the shell has accepted to store
        self.stored_count = 0  # accepted documents that the shell has stored or given up
        self._share = 0.0  # sum of `sample_rate` over slow commands; at 1 the next is recorded
        self.active = False
        self._look()

    def set(self, database: str, profile: Profile) -> None:
        """Set the profiler settings of a database."""
        self.profiles[database] = profile
        self._look()

    def set_slow(self, slow_ms: int | None, sample_rate: float) -> None:
        """Set the duration from which a command is slow, in all databases, and the share of slow commands to record."""
        self.slow_ms, self.sample_rate = slow_ms, sample_rate
        self._look()

    def of(self, database: str) -> Profile:
        """Return the profiler settings of a database."""
        return self.profiles.get(database, self.default)

    def _look(self) -> None:
        measures_all = self.slow_ms is not None and self.slow_ms < TURN_SECONDS * 1000
        levels = [profile.level for profile in self.profiles.values()]
        self.active = bool(measures_all or self.default.level or any(levels))

    def is_slow(self, duration_ms: float) -> bool:
        """Whether a command is slow and is in the recorded share. This counts the command."""
        if self.slow_ms is None or duration_ms < self.slow_ms:
            return False
        self._share += self.sample_rate
        if self._share < 1.0:
            return False
        self._share -= 1.0
        return True

    def profiled(self, command: Command, request: Request) -> Command:
        """Return the command wrapped to measure it, if its database is profiled. It runs in a turn, which counts
        examined documents."""
        measures_all = self.slow_ms is not None and self.slow_ms < TURN_SECONDS * 1000
        if not self.of(request.db).level and not measures_all:
            return command
        return replace(command, run=self._measured(command), pauses=bool(command.pauses))

    def reading(self, command: Command, request: Request) -> Command:
        """Return the command as it runs while documents wait to be stored: a read or drop of the profile waits first.

        A getMore does not wait: a tailing one would always wait for the document that the getMore before it recorded.
        """
        if request.body.get(request.name) != COLLECTION:
            return command
        recorded = self.recorded_count

        def is_stored() -> bool:
            return self.stored_count >= recorded

        def run(context: CommandContext, request: Request) -> Any:
            if is_stored() or request.time_is_up:
                return command.run(context, request)
            return Wait(STORED_MS, STORED, is_stored)

        return replace(command, run=run)

    def _measured(self, command: Command) -> Any:
        def run(context: CommandContext, request: Request) -> Any:
            now_ms = context.clock.monotonic_ms()
            began_ms = min(now_ms, getattr(request, "since_ms", now_ms))  # earlier if the command has waited
            try:
                answer = command.run(context, request)
            except AnsweredError as error:
                self._record(context, request, began_ms, error)
                raise
            if type(answer) is not Wait:
                self._record(context, request, began_ms, answer)
            return answer

        return run

    def _record(self, context: CommandContext, request: Request, began_ms: float, answer: Any) -> None:
        """Record a command that ended with an answer or an error. If recording fails, log it and keep the answer."""
        try:
            self._note(context, request, began_ms, answer)
        except Exception as error:
            self._unrecorded.log(f"a command is not profiled, since that failed with {type(error).__name__}")

    def _note(self, context: CommandContext, request: Request, began_ms: float, answer: Any) -> None:
        profile = self.of(request.db)
        duration_ms = context.clock.monotonic_ms() - began_ms
        turn = running_command()
        if profile.matches is None:
            is_slow = self.is_slow(duration_ms)
            if is_slow and (turn is None or not turn.pause_count):  # otherwise the shell logs it
                context.engine.shell.slow(request, duration_ms, None if turn is None else turn.work, answer)
            if not profile.level or (profile.level == 1 and not is_slow):
                return
        elif not profile.level:
            return
        document = profile_document(context.engine, request, duration_ms, answer, context.pause_count)
        if profile.level == 2 or profile.matches is None or profile.matches(document):
            context.engine.shell.profiled(f"{request.db}.{COLLECTION}", encode(document))


# A command as a document of `system.profile`.


KINDS_SHOWN: Final = {
    "delete": "remove", "find": "query", "getMore": "getmore", "insert": "insert", "update": "update",
}  # fmt: skip
"""`op` by command. For all other commands it is `command`."""
_CURSOR: Final = b"\x03cursor\x00"
_STATEMENTS: Final = {"delete": "deletes", "update": "updates"}
_IDS: Final = {"find": "filter", "findAndModify": "query"}
_SHOWN_STATEMENT: Final = {"delete": ("q", "limit"), "update": ("q", "u", "c", "multi", "upsert", "arrayFilters")}


def profile_document(
    engine: Engine, request: Request, duration_ms: float, answer: Any, pause_count: int
) -> dict[str, Any]:
    """Return the document of a command for `system.profile`: the request, counts from its answer and from its scans.

    `answer`: the reply (a dict or elements) or the error."""
    client = request.client
    document: dict[str, Any] = {
        "op": KINDS_SHOWN.get(request.name, "command"), "ns": _namespace(request), "command": _command(request),
    }  # fmt: skip
    turn = running_command()
    work = None if turn is None else turn.work
    counts = _Counts(answer)
    keys, documents, plan = 0, 0, None
    if work is not None:
        keys, documents, plan = work.keys, work.documents, work.plan
    elif _by_id(request) and not counts.error:
        plan, keys = "IDHACK", counts.touched
        documents = keys
    if plan is not None:
        document |= {"keysExamined": keys, "docsExamined": documents}
    document |= counts.fields(request.name)
    document |= {"numYield": pause_count, "locks": {}, "responseLength": counts.length, "protocol": "op_msg"}
    document["millis"] = int(duration_ms)
    if plan is not None:
        document["planSummary"] = plan
    if counts.error is not None:
        error = counts.error
        document |= {"ok": 0, "errMsg": error.message, "errName": error.code_name, "errCode": error.code}
    document |= {"ts": DatetimeMS(engine.clock.now_ms()), "client": client.address.rpartition(":")[0] or client.address}
    application = (client.metadata or {}).get("application")
    document["appName"] = str(application.get("name", "")) if isinstance(application, dict) else ""
    grants = client.grants
    document["allUsers"] = [] if grants is None else [{"user": grants.name.user, "db": grants.name.db}]
    document["user"] = "" if grants is None else f"{grants.name.user}@{grants.name.db}"
    return document


def answer_counts(name: str, answer: Any) -> dict[str, int]:
    """Return the counts of a command's answer for the log: `nreturned`, `ninserted`, `nMatched` and others."""
    fields = _Counts(answer).fields(name)
    return {field: value for field, value in fields.items() if type(value) is int and field != "cursorid"}


class _Counts:
    """The counts in the answer of a command."""

    def __init__(self, answer: Any) -> None:
        self.error: AnsweredError | None = answer if isinstance(answer, AnsweredError) else None
        self._answer = answer
        self._values: dict[str, Any] = {}
        self._cursor: tuple[int, int] | None = None
        if self.error is not None:
            return
        if isinstance(answer, bytes) and answer.startswith(_CURSOR):  # maybe long: not copied
            self._cursor = _cursor_of(answer, len(_CURSOR))
            return
        if isinstance(answer, dict) and "cursor" not in answer:  # maybe with many errors: not encoded
            self._values = answer
            return
        raw = encode(answer) if isinstance(answer, dict) else (len(answer) + 5).to_bytes(4, "little") + answer + b"\0"
        element = find_element(raw, b"cursor")
        if element is not None:
            self._cursor = _cursor_of(raw, element[1])
        elif len(raw) < limits.PROFILE_READ_BYTES_MAX:
            self._values = decode(raw)

    @property
    def length(self) -> int:
        """The size of the answer in bytes."""
        if self.error is not None:
            return 0
        return len(encode(self._answer)) if isinstance(self._answer, dict) else len(self._answer) + 5

    @property
    def touched(self) -> int:
        """The number of documents that the command has returned or changed."""
        if self._cursor is not None:
            return self._cursor[1]
        if "value" in self._values:
            return int(self._values["value"] is not None)
        count = self._values.get("n", 0)
        return count if isinstance(count, int) else 0

    def fields(self, name: str) -> dict[str, Any]:
        """Return the profile fields with these counts for the command `name`."""
        values = self._values
        if self._cursor is not None:
            cursor_id, count = self._cursor
            ends = {"cursorid": Int64(cursor_id)} if cursor_id else {"cursorExhausted": True}
            return {**ends, "nreturned": count}
        n = values.get("n")
        if name == "insert":
            return {"ninserted": n}
        if name == "delete":
            return {"ndeleted": n}
        if name == "update":
            upserted = {"upsert": True} if values.get("upserted") else {}
            return {"nMatched": n, "nModified": values.get("nModified"), **upserted}
        if name == "findAndModify" and isinstance(values.get("lastErrorObject"), dict):
            return {"nMatched": values["lastErrorObject"].get("n", 0)}
        return {}


def _cursor_of(raw: bytes, at: int) -> tuple[int, int]:
    """Return the id of a reply's cursor and the number of documents in its batch. A long batch was already counted
    when it was made."""
    cursor_id, count = 0, 0
    turn = running_command()
    returned = None if turn is None else turn.returned_count
    for _, name, start, end in iter_elements(raw, at):
        if name == b"id":
            cursor_id = int.from_bytes(raw[start:end], "little", signed=True)
        elif name in (b"firstBatch", b"nextBatch"):
            count = returned if returned is not None else sum(1 for _ in iter_elements(raw, start))
    return cursor_id, count


def _namespace(request: Request) -> str:
    name = request.body.get("collection" if request.name == "getMore" else request.name)
    return f"{request.db}.{name if isinstance(name, str) else '$cmd'}"


def _command(request: Request) -> dict[str, Any]:
    """Return the command without inserted documents. If it has a single statement, return that. Cut a long command
    to the start of its text."""
    statements = _statements(request)
    if len(statements) == 1:
        shown = {name: statements[0][name] for name in _SHOWN_STATEMENT[request.name] if name in statements[0]}
    else:
        shown = {name: value for name, value in shown_body(request).items() if name != "documents"}
        if statements:
            shown[_STATEMENTS[request.name]] = statements
    size = len(encode(shown))
    if size <= limits.PROFILE_COMMAND_BYTES_MAX:
        return shown
    from headrace.values.bson import to_string

    return {"$truncated": to_string(shown)[: limits.PROFILE_COMMAND_BYTES_MAX]}


def _statements(request: Request) -> list[dict[str, Any]]:
    """Return the request's first statements. Skip those that are not documents: the command has refused them."""
    field = _STATEMENTS.get(request.name)
    if field is None:
        return []
    raw = request.sequences.get(field)
    if raw is not None:
        return [decode(item) for item in raw[: limits.PROFILE_STATEMENT_COUNT_MAX]]
    listed = request.body.get(field)
    first = listed[: limits.PROFILE_STATEMENT_COUNT_MAX] if isinstance(listed, list) else ()
    return [item for item in first if isinstance(item, dict)]


def _by_id(request: Request) -> bool:
    """Whether the command looked up one document by its `_id`, which no scan counts."""
    statements = _statements(request)
    spec = statements[0].get("q") if len(statements) == 1 else request.body.get(_IDS.get(request.name, ""))
    return isinstance(spec, dict) and "_id" in spec and not isinstance(spec["_id"], dict)
