"""Writes outside transactions wait for the locks of open transactions.

    documents   A short write first runs on a view that discards its writes. If this trial meets a lock, the write
                waits. A write that runs in a turn tries each change before it makes it, and may wait in the middle:
                its finished part is committed, as on MongoDB.
    catalog     A command that changes a collection waits for every transaction that has used the collection.

A transaction that holds a lock ends within transactionLifetimeLimitSeconds and then wakes the waiting writes.
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
from headrace.store.overlay import Locked, TrialView
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
    """Return the `Wait` of a write that a transaction blocks; None: the write may run now. Raise 50 after its time."""
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
    """Return the collections whose catalog entry the command changes. A name with a final dot is a whole database."""
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
    """Return the collection that `$out` replaces, in a list; empty if there is no `$out`."""
    out = body["pipeline"][-1].get("$out")
    if type(out) is dict:
        return [f"{out.get('db')}.{out.get('coll')}"]
    return [] if out is None else [f"{database}.{out}"]


def _try(
    engine: Engine, command: Command, request: Request, txn: WriteTransaction
) -> ClientTransaction | None:  # fmt: skip
    """Run the write as a trial, without effect on data or counters. Return the transaction whose lock it meets."""
    if command.name == "aggregate" and _output(request.body, request.db):
        return None
    try:
        command.run(TrialContext(engine, request.deadline_ms, TrialView(txn)), request)
    except Locked as locked:
        return locked.holder
    except (CommandError, BSONError, UnicodeDecodeError):  # the real run raises and answers it again
        return None
    return None


def wait_until_unlocked(context: CommandContext, change: Change) -> bool:
    """Try a change before it is made. If it meets a lock, pause until the lock is gone and return False.

    After False the caller must read again, because data may have changed. Call this only if `context.has_locks`. Any
    other error of the change is left to the change itself, or raised here if the trial has paused.
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
    """Wait until no client's transaction has used any of these collections, which the command will change.

    All are checked after each wait: while the command waits for one, a transaction may use another."""
    transactions = context.store.transactions
    while context.pause_count:
        holders = (transactions.holder_of(namespace, context.txn) for namespace in namespaces)
        holder = next((holder for holder in holders if holder is not None), None)
        if holder is None:
            return
        context.wait_for(holder)
