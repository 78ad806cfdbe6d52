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
from headrace.changes.stream import INTERNAL_DATABASES
from headrace.dispatch.command import Command, Reply, Run
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import READ_CONCERN
from headrace.dispatch.namespaces import namespaces_of
from headrace.dispatch.reply import document
from headrace.dispatch.request import Request
from headrace.dispatch.sessions import lsid_of, session_id, until_returned
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.store.catalog import Collection
from headrace.store.client_transaction import ClientTransaction, TransactionState, TransactionView
from headrace.store.overlay import Conflict
from headrace.store.transaction_registry import SETTLED
from headrace.timeseries.series import is_buckets
from headrace.values.bson import decode
from headrace.values.position import from_timestamp

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


# The statements that MongoDB allows in a transaction: their commands, options, stages and databases. Other statements
# are error 263, or 72 for options that do not go together. Source: MongoDB's list of operations in transactions; the
# order of the checks is the server's.


ALLOWED: Final = frozenset({
    "abortTransaction", "aggregate", "bulkWrite", "commitTransaction", "create", "createIndexes", "delete", "distinct",
    "find", "findAndModify", "getMore", "insert", "killCursors", "update",
})  # fmt: skip
ENDS: Final = frozenset({"abortTransaction", "commitTransaction"})
OF_ADMIN: Final = ENDS | {"bulkWrite", "getMore", "killCursors"}
"""The commands that may run on an internal database; getMore, for the results of a bulkWrite."""
WRITES: Final = frozenset({"delete", "findAndModify", "insert", "update"})
NOT_FIRST: Final = frozenset({"abortTransaction", "commitTransaction", "getMore", "killCursors"})
READ_CONCERNS: Final = frozenset({"local", "majority", "snapshot"})
REFUSED_STAGES: Final = frozenset({
    "$changeStream", "$collStats", "$currentOp", "$indexStats", "$listLocalSessions", "$listSessions", "$merge", "$out",
    "$planCacheStats",
})  # fmt: skip
_COUNT: Final = (
    "Cannot run 'count' in a multi-document transaction. Please see http://dochub.mongodb.org/core/transaction-count "
    "for a recommended alternative."
)


def check_options(command: Command, request: Request) -> None:
    """Check the parts of a request with `autocommit` that do not depend on its session. Raise 72 or 263."""
    _check_session(request.body)
    name = command.name
    if name not in ALLOWED:
        raise CommandError(263, _COUNT if name == "count" else f"Cannot run '{name}' in a multi-document transaction.")
    if name not in OF_ADMIN and request.db in INTERNAL_DATABASES:
        raise CommandError(263, f"Cannot run command against the '{request.db}' database in a transaction.")
    if request.body.get("startTransaction") and name in NOT_FIRST:
        raise CommandError(263, f"Cannot run '{name}' at the start of a transaction.")
    if name not in ENDS and "writeConcern" in request.body:
        raise CommandError(72, "writeConcern is not allowed within a multi-statement transaction")


def _check_session(body: dict[str, Any]) -> None:
    if body.get("autocommit") is None:
        raise CommandError(72, "'startTransaction' field requires 'autocommit' field to also be specified")
    if body["autocommit"] is not False:
        raise CommandError(72, "Specifying autocommit=true is not allowed.")
    if body.get("txnNumber") is None:
        raise CommandError(72, "'autocommit' field requires a transaction number to also be specified")
    if body.get("lsid") is None:
        raise CommandError(72, "Transaction number requires a session ID to also be specified")
    if body["txnNumber"] < 0:
        raise CommandError(72, "Transaction number cannot be negative")
    if body.get("startTransaction") is False:
        raise CommandError(72, "Specifying startTransaction=false is not allowed.")


def check_read_concern(body: dict[str, Any], last_position: int) -> None:
    """Check the `readConcern` of a transaction's first statement. The snapshot must be at the last commit."""
    concern = READ_CONCERN.of(body)
    level = concern.get("level")
    if level is not None and level not in READ_CONCERNS:
        raise CommandError(
            72,
            "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a "
            "transaction",
        )
    at = concern.get("atClusterTime")
    if at is None:
        return
    if level != "snapshot":
        raise CommandError(72, "readConcern.atClusterTime is allowed only with level 'snapshot'")
    if from_timestamp(at) != last_position:
        raise CommandError(246, "a snapshot at another cluster time than that of the last write is not kept")


def check_statement(context: CommandContext, command: Command, request: Request) -> None:
    """Check the command and its collections. Raise 263 or 51071, which abort the transaction."""
    body = request.body
    if command.name == "aggregate":
        _check_stages(body.get("pipeline"))
    if command.name == "create" and "viewOn" in body:
        raise CommandError(263, "Cannot create a view in a multi-document transaction.")
    for namespace in _target_namespaces(command, request):
        if is_buckets(namespace.partition(".")[2]):
            raise CommandError(51071, f"Cannot write to system collection {namespace} within a transaction")
        collection = context.view.collection(namespace)
        if collection is not None and collection.options.get("capped"):
            raise CommandError(
                263,
                f"Collection '{collection.namespace}' is a capped collection. Writes in transactions are not allowed "
                "on capped collections.",
            )


def _target_namespaces(command: Command, request: Request) -> list[str]:
    """Return the collections that a statement writes to."""
    if command.name == "bulkWrite":
        namespaces = namespaces_of(request)
        for database in {namespace.partition(".")[0] for namespace in namespaces} & INTERNAL_DATABASES:
            raise CommandError(263, f"Cannot run command against the '{database}' database in a transaction.")
        return namespaces
    name = request.body.get(request.name)
    return [f"{request.db}.{name}"] if command.name in WRITES and type(name) is str else []


def _check_stages(pipeline: Any) -> None:
    for stage in pipeline if type(pipeline) is list else ():
        name = next(iter(stage), "") if type(stage) is dict else ""
        if name in REFUSED_STAGES:
            raise CommandError(
                263,
                f"Operation not permitted in transaction :: caused by :: Aggregation stage {name} cannot run within a "
                "multi-document transaction.",
            )


def check_cursor(context: CommandContext, cursor_id: int) -> None:
    """Check that a getMore runs in the transaction that opened its cursor, if any. Raise 50739, 50740 or 50741."""
    inside = context.transaction
    owner = next((item for item in context.store.transactions.open.values() if cursor_id in item.cursors), None)
    if owner is inside:
        return
    what = f"Cannot run getMore on cursor {cursor_id}, which was"
    if owner is None:
        raise CommandError(50739, f"{what} not created in a transaction, in a transaction")
    if inside is None:
        raise CommandError(50740, f"{what} created in transaction {owner.number}, without a txnNumber")
    raise CommandError(50741, f"{what} created in another transaction, in transaction {inside.number}")


def check_new_indexes(context: CommandContext, collection: Collection) -> None:
    """Raise 263 inside a transaction, unless it has created the collection itself and the collection is empty."""
    transaction = context.transaction
    if transaction is None:
        return
    if collection.namespace not in transaction.created:
        raise CommandError(
            263,
            f"Cannot create new indexes on existing collection {collection.namespace} in a multi-document transaction.",
        )
    if next(context.view.records(collection), None) is not None:
        raise CommandError(
            263,
            f"Cannot create new indexes on non-empty collection {collection.namespace} in a multi-document "
            "transaction.",
        )
