"""Writes outside transactions wait for the locks of open transactions.

    documents   a short write first runs on a view that discards its writes; where that meets a lock, it waits.
                One that runs in a turn tries each document before it changes it, and waits in the middle:
                what it has done until then is committed, as on MongoDB
    catalog     a command that changes a collection waits for every transaction that has used the collection

The holder of a lock ends within transactionLifetimeLimitSeconds and then wakes those that wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from bson.errors import BSONError

from headrace import limits
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext, TrialContext
from headrace.dispatch.oplog_operations import changed_namespaces
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.store.locks import Locked, TrialView
from headrace.store.write_transaction import WriteTransaction

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.store.client_transaction import ClientTransaction

Change = Callable[[WriteTransaction], object]
DOCUMENTS: Final = frozenset({"aggregate", "bulkWrite", "delete", "findAndModify", "insert", "update"})
CATALOG: Final = frozenset({"collMod", "convertToCapped", "create", "createIndexes", "drop", "dropIndexes"})


def wait_for_locks(
    engine: Engine, command: Command, request: Request, txn: WriteTransaction, *, in_turn: bool
) -> Wait | None:
    """How long a write must wait for transactions; None: it may run now. Raises 50 when its time is up."""
    holder = _holder(engine, command, request, txn, in_turn)
    if holder is None:
        return None
    if request.time_is_up:
        raise CommandError(50, "operation exceeded time limit")
    given = request.body.get("maxTimeMS")
    wait_ms = float(given or limits.AWAIT_MS_MAX)
    return Wait(wait_ms, holder.key, over=holder.over)


def _holder(
    engine: Engine, command: Command, request: Request, txn: WriteTransaction, in_turn: bool
) -> ClientTransaction | None:  # fmt: skip
    for namespace in _changed_namespaces(command, request, txn):
        holder = engine.store.transactions.holder_of(namespace, txn)
        if holder is not None:
            return holder
    if command.name in DOCUMENTS and engine.store.transactions.locks and not in_turn:
        return _try(engine, command, request, txn)
    return None


def _changed_namespaces(command: Command, request: Request, txn: WriteTransaction) -> list[str]:
    """The collections whose catalog entry the command changes; a whole database ends with a dot."""
    body, database = request.body, request.db
    if command.name in CATALOG:
        return [f"{database}.{body[request.name]}"]
    if command.name == "dropDatabase":
        return [f"{database}."]
    if command.name == "renameCollection":
        return [str(body.get(field)) for field in (request.name, "to")]
    if command.name == "applyOps":
        return changed_namespaces(request, txn.catalog)
    return _output(body, database) if command.name == "aggregate" else []


def _output(body: dict[str, Any], database: str) -> list[str]:
    """The collection that `$out` replaces."""
    out = body["pipeline"][-1].get("$out")
    if type(out) is dict:
        return [f"{out.get('db')}.{out.get('coll')}"]
    return [] if out is None else [f"{database}.{out}"]


def _try(
    engine: Engine, command: Command, request: Request, txn: WriteTransaction
) -> ClientTransaction | None:  # fmt: skip
    """The transaction whose lock the write would meet, from a trial run without effect on data or counters."""
    if command.name == "aggregate" and _output(request.body, request.db):
        return None
    try:
        command.run(TrialContext(engine, request.deadline_ms, TrialView(txn)), request)
    except Locked as locked:
        return locked.holder
    except (CommandError, BSONError, UnicodeDecodeError):  # it will be raised again where it is answered
        return None
    return None


def wait_until_unlocked(context: CommandContext, change: Change) -> bool:
    """Try a change before it is made; where it meets a lock, pause until that is gone.

    False: it has paused, so that what was looked at may have changed. To be called where `context.has_locks`; what else
    stands against the change is raised when it is made, or here, if it has paused to tell that.
    """
    pause_count = context.pause_count
    try:
        change(TrialView(context.txn))
    except Locked as locked:
        context.wait_for(locked.holder)
        return False
    except CommandError:
        if context.pause_count != pause_count:
            raise
    return True


def wait_until_unused(context: CommandContext, *namespaces: str) -> None:
    """Wait for the clients' transactions that have used one of the collections since the command began, which changes
    all of them now: while it waits for one collection, a transaction may use another."""
    transactions = context.store.transactions
    while context.pause_count:
        holders = (transactions.holder_of(namespace, context.txn) for namespace in namespaces)
        holder = next((holder for holder in holders if holder is not None), None)
        if holder is None:
            return
        context.wait_for(holder)
