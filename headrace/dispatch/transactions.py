"""Multi-document transactions: how each begins, continues, commits and aborts.

    {insert: ..., lsid, txnNumber: 1, autocommit: false, startTransaction: true}      begins
    {update: ..., lsid, txnNumber: 1, autocommit: false}                              continues
    {commitTransaction: 1, lsid, txnNumber: 1, autocommit: false}                     is a write of the group commit

Statements run like reads, on a `TransactionView`. A statement that fails aborts its transaction. A commit stores its
number in the `sessions` table, in the KV transaction of its writes, so that a client may send it again after a crash.

Source: MongoDB's transactions and the drivers' specification; codes and labels as recorded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.dispatch.command import Command, Reply, Run
from headrace.dispatch.context import CommandContext
from headrace.dispatch.reply import document
from headrace.dispatch.request import Request
from headrace.dispatch.sessions import lsid_of, session_id, until_returned
from headrace.dispatch.transaction_statements import ENDS, check_options, check_read_concern, check_statement
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.store.client_transaction import ClientTransaction, TransactionState, TransactionView
from headrace.store.locks import Conflict
from headrace.store.transaction_registry import SETTLED
from headrace.values.bson import decode

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.store.view import View

NO_NUMBER: Final = -1


def in_transaction(engine: Engine, command: Command, request: Request) -> Command:
    """Return the command as it runs for a request with `autocommit` or `startTransaction`. Raise 72, 263 or 20."""
    check_options(command, request)
    if not engine.store.oplog_enabled:
        raise CommandError(20, "Transaction numbers are only allowed on a replica set member or mongos")
    if command.name in ENDS:
        return command
    return replace(command, run=_statement(command), writes=False)


def _statement(command: Command) -> Run:
    def run(context: CommandContext, request: Request) -> Reply:
        engine = context.engine
        transaction = _begin_or_continue(context, request)
        if isinstance(transaction, Wait):
            return transaction
        context.session = transaction.session
        try:
            context.enter(TransactionView(context.store, transaction), transaction)
            check_statement(context, command, request)
            answer = command.run(context, request)
        except Conflict as conflict:
            abort(engine, transaction)
            raise CommandError(conflict.code, conflict.message) from None
        except BaseException:
            abort(engine, transaction)
            raise
        if _has_errors(command, answer):
            abort(engine, transaction)
        return answer

    return run


def _has_errors(command: Command, answer: Reply) -> bool:
    """Whether a part of a statement failed, which also aborts its transaction."""
    if command.name == "bulkWrite":
        assert isinstance(answer, bytes)
        return bool(decode(document(answer, b"\x00"))["nErrors"])
    return type(answer) is dict and "writeErrors" in answer


# The transaction of a request.


def identity(request: Request) -> tuple[bytes, int]:
    """Return (session, number) of a request. `check_options` has checked that both are present."""
    session = session_id(request)
    assert session is not None
    return session, int(request.body["txnNumber"])


def written_bytes(engine: Engine, request: Request) -> int:
    """Return the bytes that the request's transaction has written; 0 without a transaction."""
    try:
        session = session_id(request)
    except CommandError:
        return 0
    transaction = None if session is None else engine.store.transactions.open.get(session)
    return 0 if transaction is None else transaction.bytes


def _begin_or_continue(context: CommandContext, request: Request) -> ClientTransaction | Wait:
    session, number = identity(request)
    waits = until_returned(context.engine, session)
    if waits is not None:
        return waits
    if request.body.get("startTransaction"):
        return _begin(context, request)
    transaction = current(context.engine, context.view, session, number)
    if transaction is None or transaction.state is TransactionState.COMMITTED:
        raise committed(number)
    if "readConcern" in request.body:
        raise CommandError(72, "Only the first command in a transaction may specify a readConcern")
    transactions = context.store.transactions
    return until_ended(transaction) if transactions.is_committing(transaction) else transaction


def _begin(context: CommandContext, request: Request) -> ClientTransaction | Wait:
    engine = context.engine
    session, number = identity(request)
    transactions = engine.store.transactions
    active = _active_number(context.view, transactions.latest.get(session), session)
    if number < active:
        raise _too_old(number, active)
    if number == active:
        raise CommandError(
            117, "Only servers in a sharded cluster can start a new transaction at the active transaction number"
        )
    check_read_concern(request.body, engine.store.last_position)
    if engine.store.writing is not None:  # until it is on disk, a read cannot tell this commit from later ones
        transactions.awaited = True
        return Wait(limits.AWAIT_MS_MAX, SETTLED)
    before = transactions.open.get(session)
    if before is not None and not abort(engine, before):
        return until_ended(before)  # its commit is being written
    transaction = transactions.start(session, number, engine.clock.monotonic_ms())
    if request.client.uid is not None:
        transaction.lsid = lsid_of(request)
    return transaction


def current(engine: Engine, view: View, session: bytes, number: int) -> ClientTransaction | None:
    """Return the session's transaction of this number; None if only the record of its commit is left. Raise 225 or
    251."""
    transactions = engine.store.transactions
    transaction = transactions.latest.get(session)
    if transaction is None or transaction.number != number:
        active = _active_number(view, transaction, session)
        if number < active:
            raise _too_old(number, active)
        if number == active and "committed" in _record(view, session):
            return None
        raise CommandError(
            251,
            f"Given transaction number {number} does not match any in-progress transactions. The active transaction "
            f"number is {active}",
        )
    lifetime_ms = engine.parameters["transactionLifetimeLimitSeconds"] * 1000
    if engine.clock.monotonic_ms() - transaction.started_ms >= lifetime_ms:
        abort(engine, transaction)
    if transaction.state is TransactionState.ABORTED:
        raise CommandError(251, f"Transaction {number} has been aborted.")
    return transaction


def _active_number(view: View, latest: ClientTransaction | None, session: bytes) -> int:
    """Return the highest number that the session has used for a transaction or a retryable write."""
    used = _record(view, session).get("txnNumber", NO_NUMBER)
    return max(int(used), NO_NUMBER if latest is None else latest.number)


def _record(view: View, session: bytes) -> dict[str, Any]:
    statement = view.kv.get(session, db=view.tables["sessions"])
    return {} if statement is None else decode(statement)


def _too_old(number: int, active: int) -> CommandError:
    return CommandError(
        225, f"Cannot start transaction {number} on session because a newer transaction {active} has already started."
    )


def committed(number: int) -> CommandError:
    """Return the error for a statement after its transaction's commit: 256."""
    return CommandError(256, f"Transaction {number} has been committed.")


def until_ended(transaction: ClientTransaction) -> Wait:
    """Return the `Wait` for the end of a transaction whose commit is being written."""
    return Wait(limits.AWAIT_MS_MAX, transaction.key, over=transaction.over)


def abort(engine: Engine, transaction: ClientTransaction) -> bool:
    """Abort a transaction. Return False if its commit is being written or it has ended."""
    return engine.store.transactions.abort(transaction, engine.clock.monotonic_ms())


def abort_of_sessions(engine: Engine, sessions: list[bytes] | None) -> None:
    """Abort the open transactions of ended sessions; None: of all sessions."""
    transactions = engine.store.transactions
    for session in list(transactions.open) if sessions is None else sessions:
        if session in transactions.open:
            abort(engine, transactions.open[session])


def retire(engine: Engine, now_ms: float) -> None:
    """Abort transactions and release snapshots older than transactionLifetimeLimitSeconds. Forget idle sessions."""
    transactions = engine.store.transactions
    lifetime_ms = engine.parameters["transactionLifetimeLimitSeconds"] * 1000
    if transactions.open:
        transactions.abort_older(now_ms - lifetime_ms, now_ms)
    engine.snapshots.end_older(now_ms - lifetime_ms)
    if transactions.latest:
        transactions.forget(now_ms - limits.SESSION_MINUTES * 60_000)
