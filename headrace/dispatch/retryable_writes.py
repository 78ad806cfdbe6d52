"""Retryable writes: a write with a transaction number is executed once, however often it is sent.

    sessions   session (16 bytes)   → {txnNumber, reply, usedAt}   (BSON; `reply` as raw elements)
                                      {txnNumber, progress, usedAt}   of a paused write: the finished part
               session + number (4)   → {progress, usedAt}   the additions of one turn to the lists of `progress`

The key of a session is its `lsid.id`. If the session has a user, the key is a digest of both, and the record has the
`lsid`. The record is written in the same KV transaction as the write itself. So a client that lost the answer in a
crash gets it after the restart, and an interrupted write continues after its last finished statement.
Source: the drivers' retryable writes and sessions specifications.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from bson import Int64
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError

from headrace import limits
from headrace.dispatch import reply
from headrace.dispatch.command import Command, Reply
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.sessions import lsid_of, session_id, until_returned
from headrace.dispatch.wait import Wait
from headrace.errors import AnsweredError, CommandError
from headrace.query.expressions.numbers import truthy
from headrace.running_command import running_command
from headrace.store.write_transaction import RetryableWrite
from headrace.values.bson import decode, encode

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.store.write_transaction import WriteTransaction

RETRYABLE: Final = frozenset({"bulkWrite", "delete", "findAndModify", "insert", "update"})
RETRYABLE_NAMES: Final = RETRYABLE | {"findandmodify"}
NETWORK_CODES: Final = frozenset({
    6, 7, 89, 91, 134, 189, 262, 317, 358, 384, 402, 406, 407, 412, 453, 462, 9001, 10107, 11600, 11602, 13435, 13436,
    50915,
})  # fmt: skip
"""Temporary errors of the network or of a server that stops. A retryable write may be sent again."""
RESUMABLE_CODES: Final = NETWORK_CODES | {133, 150, 175, 234, 401}
"""Errors after which a driver resumes its change stream."""
TRANSIENT_CODES: Final = (NETWORK_CODES - {358}) | {24, 112, 150, 239, 246, 250, 251, 267, 272}
"""Errors after which a driver may begin its transaction again."""
HISTORY_CODES: Final = frozenset({280, 286})
"""Errors after which no change stream can be resumed."""
OVERLOAD_CODES: Final = frozenset({433, 449, 450, 462})
"""Errors of a server that has too much to do."""


def is_retryable(command: Command, request: Request) -> bool:
    """Whether this is a retryable write, which is executed once however often it is sent."""
    body = request.body
    return "txnNumber" in body and "autocommit" not in body and command.name in RETRYABLE


def run_once(context: CommandContext, command: Command, request: Request) -> Reply:
    """Run a write that has a `txnNumber`. If it was executed before, return the stored reply."""
    body = request.body
    if not is_retryable(command, request):
        return command.run(context, request)
    session = session_id(request)
    number = body["txnNumber"]
    if session is None or type(number) is not Int64:
        raise CommandError(72, "Transaction number requires a session ID to also be specified")
    if number < 0:
        raise CommandError(72, "Transaction number cannot be negative")
    engine, txn = context.engine, context.txn
    waits = until_returned(engine, session)
    if waits is not None:
        return waits
    context.session = session
    if engine.store.transactions.latest:
        _leave_transaction(context, session, number)
    stored = txn.kv.get(session, db=txn.tables["sessions"])
    if stored is None:
        _check_session_count(txn)
    elif not stored.startswith(_TXN_NUMBER, 4) or _READ_INT64(stored, 4 + len(_TXN_NUMBER))[0] >= number:
        record = decode(stored)
        if record["txnNumber"] == number and "committed" in record:
            raise _is_a_transactions(number)
        if record["txnNumber"] == number and "reply" in record:
            if command.name == "findAndModify":
                _check_repeated(body, record["reply"])
            return bytes(record["reply"])
        if record["txnNumber"] == number:
            context.progress = _load_progress(txn, session, record["progress"])
        if record["txnNumber"] > number:
            raise CommandError(225, f"Cannot start transaction {number} on session: a newer one was started")
    if engine.fail_points.active:
        engine.fail_points.before_retryable_write(request)
    named = {} if request.client.uid is None else {"lsid": lsid_of(request)}
    saver = None
    if context.progress is not None or running_command() is not None or command.name == "bulkWrite":
        saver = _ProgressSaver(context, session, number, named)
        context.save_progress = saver.save
    answer = command.run(context, request)
    if type(answer) is Wait:
        return answer
    elements = answer if type(answer) is bytes else reply.answer_elements(answer)  # type: ignore[arg-type]
    if context.outlives_command and saver is not None:  # a repetition opens another cursor over the same results
        saver.save()
        return elements
    put_reply(context.txn, session, number, elements, encode(named)[4:-1] if named else b"")
    if saver is not None:
        saver.forget()
    return elements


def _check_repeated(body: dict[str, Any], stored: bytes) -> None:
    """Raise 40606 or 40608 for a findAndModify that cannot have removed or inserted what the stored reply says."""
    last = decode(reply.document(stored, b"\0")).get("lastErrorObject")
    if last is None or not last["n"]:
        return
    removed, inserted = "updatedExisting" not in last, "upserted" in last
    if (removed and not truthy(body.get("remove"))) or (inserted and not truthy(body.get("upsert"))):
        code, kind = (40606, "d") if removed else (40608, "i")
        raise CommandError(
            code,
            "findAndModify retry request is not compatible with previous write in the transaction of type: " + kind,
        )


def begin_plain(engine: Engine, request: Request, txn: WriteTransaction) -> tuple[bytes, int] | None:
    """Return (session, number) of a retryable write that repeats a command's body and is executed for the first time.

    None: `run_once` must run the write, which may be special or invalid. This never pauses.
    """
    repeated, raw = request.repeated, request.raw
    if (
        repeated is None
        or not repeated.session_at
        or request.client.uid is not None
        or engine.store.transactions.latest
    ):
        return None
    session = raw[repeated.session_at : repeated.session_at + 16]
    if session in engine.checked_out:
        return None
    stored = txn.kv.get(session, db=txn.tables["sessions"])
    if stored is None or not stored.startswith(_TXN_NUMBER, 4):
        return None
    number: int = _READ_INT64(raw, repeated.number_at)[0]
    return (session, number) if _READ_INT64(stored, 4 + len(_TXN_NUMBER))[0] < number else None


def _check_session_count(txn: WriteTransaction) -> None:
    """Raise 261 if the table has no room for the record of another session."""
    if txn.kv.stat(txn.tables["sessions"])["entries"] >= limits.SESSION_COUNT_MAX:
        raise CommandError(
            261, "Unable to add session into the cache because the number of active sessions is too high"
        )


def _leave_transaction(context: CommandContext, session: bytes, number: int) -> None:
    """Abort the session's transaction before a write of a later number. Raise 225 for an earlier number, 72 for the
    transaction's own."""
    transactions = context.store.transactions
    latest = transactions.latest.get(session)
    if latest is None:
        return
    if latest.number == number:
        raise _is_a_transactions(number)
    if latest.number > number:
        raise CommandError(225, f"Cannot start transaction {number} on session: a newer one was started")
    if latest.committing is not context.txn:
        transactions.abort(latest, context.clock.monotonic_ms())
        del transactions.latest[session]


def _is_a_transactions(number: int) -> CommandError:
    return CommandError(
        72, f"Must specify autocommit=false on all operations of a multi-statement transaction: {number} is one"
    )


_RETRYABLE: Final = "RetryableWriteError"


class _ProgressSaver:
    """Stores a command's progress before each pause, which commits it. Of lists, each turn stores its additions."""

    __slots__ = ("_context", "_lengths", "_named", "_next", "_number", "_pieces", "_session")

    def __init__(self, context: CommandContext, session: bytes, number: Int64, named: dict[str, Any]) -> None:
        """`named`: the session's `lsid`, if its key is not its id; otherwise empty."""
        self._named = named
        progress = context.progress or {}
        self._context = context
        self._session = session
        self._number = number
        self._next = 0
        self._pieces: int = progress.get("pieces", 0)
        self._lengths = {name: len(value) for name, value in progress.items() if type(value) is list}

    def save(self) -> None:
        """Store the progress of this turn, if it has finished a statement."""
        progress, txn = self._context.progress, self._context.txn
        if progress is None or progress["next"] <= self._next:
            return
        self._next = progress["next"]
        lists = {name: value for name, value in progress.items() if type(value) is list}
        added = {name: value[self._lengths.get(name, 0) :] for name, value in lists.items()}
        if any(added.values()):
            piece = {"progress": added, "usedAt": DatetimeMS(txn.wall_ms)}
            txn.kv.put(_piece_key(self._session, self._pieces), encode(piece), db=txn.tables["sessions"])
            self._pieces += 1
            self._lengths = {name: len(value) for name, value in lists.items()}
        rest = {name: [] if name in lists else value for name, value in progress.items()}
        _put(txn, self._session, self._number, {"progress": rest | {"pieces": self._pieces}, **self._named})

    def forget(self) -> None:
        """Delete the stored pieces, because the command has ended and its reply is stored instead."""
        txn = self._context.txn
        for piece in range(self._pieces):
            txn.kv.delete(_piece_key(self._session, piece), db=txn.tables["sessions"])


def _load_progress(txn: WriteTransaction, session: bytes, progress: dict[str, Any]) -> dict[str, Any]:
    """Return the progress of an interrupted command, with complete lists. Raise 217 if a piece has expired."""
    for piece in range(progress.get("pieces", 0)):
        stored = txn.kv.get(_piece_key(session, piece), db=txn.tables["sessions"])
        if stored is None:
            raise CommandError(217, "the progress of this write has expired: it was interrupted too long ago")
        for name, added in decode(stored)["progress"].items():
            progress[name] += added
    return progress


def _piece_key(session: bytes, piece: int) -> bytes:
    return session + piece.to_bytes(4, "big")


def _put(txn: WriteTransaction, session: bytes, number: Int64, fields: dict[str, Any]) -> None:
    record: dict[str, Any] = {"txnNumber": number, **fields, "usedAt": DatetimeMS(txn.wall_ms)}
    txn.kv.put(session, encode(record), db=txn.tables["sessions"])


def put_reply(txn: WriteTransaction, session: bytes, number: int, elements: bytes, named: bytes = b"") -> None:
    """Store the reply of a retryable write. The record equals that of `_put` with `{"reply": elements}` and the raw
    elements `named`, but is assembled from bytes for speed."""
    pieces = (
        _INT32(len(elements) + len(named) + _RECORD_BYTES), _TXN_NUMBER, _INT64(number), _REPLY,
        _INT32(len(elements)), b"\x00", elements, named, _USED_AT, _INT64(txn.wall_ms), b"\x00",
    )  # fmt: skip
    txn.kv.put(session, b"".join(pieces), db=txn.tables["sessions"])


_INT32 = Struct("<i").pack
_INT64 = Struct("<q").pack
_READ_INT64 = Struct("<q").unpack_from
_TXN_NUMBER: Final = b"\x12txnNumber\x00"
_REPLY: Final = b"\x05reply\x00"
_USED_AT: Final = b"\x09usedAt\x00"
_RECORD_BYTES: Final = 4 + len(_TXN_NUMBER) + 8 + len(_REPLY) + 4 + 1 + len(_USED_AT) + 8 + 1


def interrupted_labels(request: Request) -> list[str] | None:
    """Return the labels of a write that failed after it committed some statements; None: the error's own labels.

    If a retryable write is sent again, it continues after the committed statements.
    """
    body = request.body
    is_retryable = "txnNumber" in body and "autocommit" not in body and request.name in RETRYABLE_NAMES
    return [_RETRYABLE] if is_retryable else None


def labels_of(engine: Engine, request: Request, error: AnsweredError) -> list[str]:
    """Return the error labels that tell a driver what it may retry: the write, the transaction or the stream."""
    overload = ["SystemOverloadedError"] if error.code in OVERLOAD_CODES else []
    return _retry_labels(engine, request, error.code) + overload


def _retry_labels(engine: Engine, request: Request, code: int) -> list[str]:
    if code in HISTORY_CODES:
        return ["NonResumableChangeStreamError"]
    if code not in RESUMABLE_CODES and code not in TRANSIENT_CODES:
        return []
    try:
        body = request.body
    except BSONError:  # a body that does not decode has no session either
        return []
    if request.name in ("abortTransaction", "commitTransaction"):
        if code in NETWORK_CODES:
            return [_RETRYABLE]
        return ["TransientTransactionError"] if code in TRANSIENT_CODES else []
    if "autocommit" in body:
        return ["TransientTransactionError"] if code in TRANSIENT_CODES else []
    if "txnNumber" in body and request.name in RETRYABLE_NAMES:
        return [_RETRYABLE] if code in NETWORK_CODES else []
    if code in RESUMABLE_CODES and _reads_a_change_stream(engine, request):
        return ["ResumableChangeStreamError"]
    return []


def _reads_a_change_stream(engine: Engine, request: Request) -> bool:
    if request.name == "aggregate":
        pipeline = request.body.get("pipeline")
        return bool(
            type(pipeline) is list and pipeline and type(pipeline[0]) is dict and "$changeStream" in pipeline[0]
        )
    if request.name == "getMore":
        cursor = engine.cursors.peek(request.body.get("getMore"))
        return cursor is not None and cursor.is_change_stream
    return False


def retryable_of(context: CommandContext, request: Request) -> RetryableWrite | None:
    """Return the session fields for the oplog entries of a retryable write; None for any other write."""
    number = request.body.get("txnNumber")
    if number is None or "autocommit" in request.body:
        return None
    if session_id(request) is None:
        return None
    previous = 0 if context.progress is None else context.progress["previous"]
    return RetryableWrite(encode(lsid_of(request)), number, previous)


def progress_of(context: CommandContext, **fields: Any) -> dict[str, Any]:
    """Return the progress of a command of many statements: from the interrupted run, or new.

    The command sets `next` after each statement, and `previous` for a retryable write; `fields` are its own.
    """
    if context.progress is None:
        context.progress = {"next": 0, "previous": Int64(0), **fields}
    return context.progress


def statement_done(progress: dict[str, Any], index: int, retryable: RetryableWrite | None) -> None:
    """Note that the statement with this index is done. Its changes are in the transaction, with no pause since."""
    progress["next"] = index + 1
    if retryable is not None:
        progress["previous"] = Int64(retryable.previous)
