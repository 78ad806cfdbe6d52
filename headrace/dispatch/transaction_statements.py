"""The statements that MongoDB allows in a transaction: their commands, options, stages and databases.

Other statements are error 263, or 72 for options that do not go together. Source: MongoDB's list of operations in
transactions; the order of the checks is the server's.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.changes.scope import INTERNAL_DATABASES
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import READ_CONCERN
from headrace.dispatch.namespaces import namespaces_of
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.store.catalog import Collection
from headrace.timeseries.series import is_buckets
from headrace.values.position import from_timestamp

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
