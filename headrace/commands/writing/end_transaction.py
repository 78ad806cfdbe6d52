"""commitTransaction and abortTransaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace.dispatch.arguments import Fields, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import LOGGED_IN
from headrace.dispatch.sessions import lsid_of, until_returned
from headrace.dispatch.transactions import abort as abort_transaction
from headrace.dispatch.transactions import committed, current, identity, until_ended
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.store.client_transaction import TransactionState
from headrace.store.transaction_commit import commit as write_commit
from headrace.values.bson import encode

if TYPE_CHECKING:
    pass


def commit(context: CommandContext, request: Request) -> dict[str, Any] | Wait:
    """commitTransaction: commit, as a write. If it is sent again, answer the same."""
    _check_inside(request)
    session, number = identity(request)
    waits = until_returned(context.engine, session)
    if waits is not None:
        return waits
    txn = context.txn
    transaction = current(context.engine, txn, session, number)
    if transaction is None or transaction.state is TransactionState.COMMITTED or transaction.committing is txn:
        return {}
    write_commit(txn, transaction, encode(lsid_of(request)))
    if transaction.operations:
        record = {"txnNumber": Int64(number), "committed": True, "usedAt": DatetimeMS(txn.wall_ms)}
        if request.client.uid is not None:
            record["lsid"] = lsid_of(request)
        txn.kv.put(session, encode(record), db=txn.tables["sessions"])
    return {}


def abort(context: CommandContext, request: Request) -> dict[str, Any] | Wait:
    """abortTransaction: discard all changes of the transaction."""
    _check_inside(request)
    session, number = identity(request)
    waits = until_returned(context.engine, session)
    if waits is not None:
        return waits
    transaction = current(context.engine, context.view, session, number)
    if transaction is None or transaction.state is TransactionState.COMMITTED:
        raise committed(number)
    return {} if abort_transaction(context.engine, transaction) else until_ended(transaction)


def _check_inside(request: Request) -> None:
    if "autocommit" not in request.body:
        raise CommandError(125, f"{request.name} must be run within a transaction")


_FIELDS: Final = Fields(*without_effect("object", "recoveryToken"))
COMMANDS: Final = (
    Command("abortTransaction", abort, _FIELDS, admin_only=True, requires=LOGGED_IN),
    Command(
        "commitTransaction",
        commit,
        Fields(*_FIELDS.by_name.values(), *without_effect("timestamp", "commitTimestamp")),
        admin_only=True,
        writes=True,
        requires=LOGGED_IN,
    ),
)
