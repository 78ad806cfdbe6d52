"""A command as a document of `system.profile`: the request, counts from its answer, and counts from its scans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.dispatch.request import Request, shown_body
from headrace.errors import AnsweredError
from headrace.running_command import running_command
from headrace.values.bson import decode, encode, find_element, iter_elements

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

_KINDS: Final = {
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
    """Return the document of a command for `system.profile`. `answer`: the reply (a dict or elements) or the error."""
    client = request.client
    document: dict[str, Any] = {
        "op": _KINDS.get(request.name, "command"), "ns": _namespace(request), "command": _command(request),
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
    from headrace.values.bson.to_string import to_string

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
