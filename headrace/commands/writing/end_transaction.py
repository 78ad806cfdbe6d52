"""commitTransaction and abortTransaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace.dispatch.arguments import Fields
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import LOGGED_IN
from headrace.dispatch.sessions import lsid_document, lsid_of, session_id, until_returned
from headrace.dispatch.transactions import abort as abort_transaction
from headrace.dispatch.transactions import committed, current, identity, until_ended
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.store.client_transaction import TransactionState
from headrace.store.commit.commit_in_pieces import commit as commit_in_pieces
from headrace.store.commit.commit_in_pieces import is_large
from headrace.store.commit.transaction_commit import commit as write_commit
from headrace.store.commit.transaction_commit import commit_last_piece
from headrace.turns import current_turn
from headrace.values.bson import encode

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine


def commit(context: CommandContext, request: Request) -> dict[str, Any] | Wait:
    """commitTransaction: a write. Sent again it answers the same. A large one pauses, and nothing interrupts it."""
    _check_inside(request)
    session, number = identity(request)
    waits = until_returned(context.engine, session)
    if waits is not None:
        return waits
    txn = context.txn
    transaction = current(context.engine, txn, session, number)
    if transaction is None or transaction.state is TransactionState.COMMITTED or transaction.committing is txn:
        return {}
    if current_turn() is not None and is_large(transaction):
        context.session = session
        context.deadline_ms = None
        pieces = commit_in_pieces(lambda: context.txn, transaction, lsid_document(request))
        txn = context.txn
        commit_last_piece(txn, pieces, lsid_document(request))
    else:
        write_commit(txn, transaction, lsid_document(request))
    if transaction.operations:
        record = {"txnNumber": Int64(number), "committed": True, "usedAt": DatetimeMS(txn.wall_ms)}
        if request.client.uid is not None:
            record["lsid"] = lsid_of(request)
        txn.kv.put(session, encode(record), db=txn.tables["sessions"])
    return {}


def abort(context: CommandContext, request: Request) -> dict[str, Any] | Wait:
    """abortTransaction: everything the transaction did is forgotten."""
    _check_inside(request)
    session, number = identity(request)
    waits = until_returned(context.engine, session)
    if waits is not None:
        return waits
    transaction = current(context.engine, context.view, session, number)
    if transaction is None or transaction.state is TransactionState.COMMITTED:
        raise committed(number)
    return {} if abort_transaction(context.engine, transaction) else until_ended(transaction)


def _pauses(engine: Engine, request: Request) -> bool:
    """Whether the commit may be a large one: which transaction it is of is not checked yet."""
    try:
        session = session_id(request)
    except CommandError:
        return False
    transaction = None if session is None else engine.store.transactions.open.get(session)
    return transaction is not None and is_large(transaction)


def _check_inside(request: Request) -> None:
    if "autocommit" not in request.body:
        raise CommandError(125, f"{request.name} must be run within a transaction")


COMMANDS: Final = (
    Command("abortTransaction", abort, Fields(strict=False), admin_only=True, requires=LOGGED_IN),
    Command(
        "commitTransaction",
        commit,
        Fields(strict=False),
        admin_only=True,
        writes=True,
        pauses=_pauses,
        requires=LOGGED_IN,
    ),
)
