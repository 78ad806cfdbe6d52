"""Retryable writes: a write that carries a transaction number is done once, however often it is sent.

    sessions   lsid.id (16 bytes)   → {txnNumber, reply, usedAt}   (BSON; `reply` as raw elements)

The record is written in the same KV transaction as the write itself, so that a client which lost the answer
to a crash gets it after the restart. Source: the drivers' retryable writes and sessions specifications.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from bson import Binary, Int64
from bson.datetime_ms import DatetimeMS

from headrace.commands.command import Command, Reply
from headrace.commands.request import Request
from headrace.commands.wait import Wait
from headrace.errors import CommandError
from headrace.values.bson import decode, encode

if TYPE_CHECKING:
    from headrace.commands.engine import Engine
    from headrace.store.writes import WriteTransaction

NO_USER: Final = hashlib.sha256(b"").digest()
"""`lsid.uid` of a server without users: the digest of an empty name."""
RETRYABLE: Final = frozenset({"bulkWrite", "delete", "findAndModify", "insert", "update"})


class Sessions:
    """The sessions this process has heard of, by id, with when they were last used (ms)."""

    def __init__(self) -> None:
        self.used_ms: dict[bytes, int] = {}

    def touch(self, session_id: bytes, now_ms: int) -> None:
        self.used_ms[session_id] = now_ms

    def end(self, session_id: bytes) -> None:
        self.used_ms.pop(session_id, None)


def session_id(request: Request) -> bytes | None:
    """The 16 bytes of the request's `lsid.id`; raises 14 if there is one that is no UUID."""
    lsid = request.body.get("lsid")
    if lsid is None:
        return None
    found = lsid.get("id") if type(lsid) is dict else None
    if type(found) is not Binary or found.subtype != 4 or len(found) != 16:
        raise CommandError(14, "BSON field 'lsid.id' is the wrong type, expected a UUID")
    return bytes(found)


def lsid_document(session: bytes) -> bytes:
    """The `lsid` of an oplog entry: the session's id and its user."""
    return encode({"id": Binary(session, 4), "uid": NO_USER})


def run_once(engine: Engine, command: Command, request: Request) -> Reply:
    """Run a write; one that carries a transaction number and was done before answers what it answered then."""
    body = request.body
    if "txnNumber" not in body or "autocommit" in body or command.name not in RETRYABLE:
        return command.run(engine, request)
    session = session_id(request)
    number = body["txnNumber"]
    if session is None or type(number) is not Int64:
        raise CommandError(72, "Transaction number requires a session ID to also be specified")
    txn = engine.txn
    found = txn.kv.get(session, db=txn.tables["sessions"])
    if found is not None:
        record = decode(found)
        if record["txnNumber"] == number:
            return bytes(record["reply"])
        if record["txnNumber"] > number:
            raise CommandError(225, f"Cannot start transaction {number} on session: a newer one was started")
    answer = command.run(engine, request)
    if type(answer) is Wait:
        return answer
    elements = answer if type(answer) is bytes else encode(answer)[4:-1]  # type: ignore[arg-type]
    _keep(txn, session, number, elements)
    return elements


def _keep(txn: WriteTransaction, session: bytes, number: int, elements: bytes) -> None:
    record: dict[str, Any] = {"txnNumber": number, "reply": elements, "usedAt": DatetimeMS(txn.wall_ms)}
    txn.kv.put(session, encode(record), db=txn.tables["sessions"])


def forget_old(txn: WriteTransaction, before_ms: int, count_max: int) -> int:
    """Delete up to `count_max` records of sessions last used before `before_ms`; returns how many."""
    removed = 0
    with txn.kv.cursor(txn.tables["sessions"]) as cursor:
        found = cursor.first()
        while found and removed < count_max:
            if int(decode(cursor.value())["usedAt"]) < before_ms:
                cursor.delete()
                removed += 1
                found = bool(cursor.key())
            else:
                found = cursor.next()
    return removed


def labels_of(engine: Engine, request: Request, error: CommandError) -> list[str]:
    """The error labels that tell a driver it may try again."""
    try:
        body = request.body
    except Exception:  # a body that does not decode has no session either
        return []
    if "txnNumber" in body and "autocommit" in body:
        return ["TransientTransactionError"] if "commitTransaction" not in body else ["RetryableWriteError"]
    if "txnNumber" in body:
        return ["RetryableWriteError"]
    return ["ResumableChangeStreamError"] if _reads_a_change_stream(engine, request) else []


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
