"""delete: documents that match a filter, one or all."""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Fields, array, document, number, raw_documents, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import COLLATION, COLLECTION_UUID, ENCRYPTION, HINT, LET, ORDERED
from headrace.dispatch.namespaces import for_writing, refused, target
from headrace.dispatch.reply import write_errors
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import retryable_of
from headrace.errors import CommandError
from headrace.execution.let import variables_of
from headrace.execution.plan import Finder, check_hint, collation_of
from headrace.query.expressions.numbers import to_long
from headrace.store.catalog import Collection
from headrace.store.write_transaction import RetryableWrite
from headrace.values.bson import decode


def _one_or_all(path: str, value: Any) -> None:
    if to_long(value) not in (0, 1):
        raise CommandError(9, f"The limit field in delete objects must be 0 or 1. Got {value}")


LIMIT: Final = number("limit", 0, required=True, check=_one_or_all)
FIELDS: Final = Fields(
    LET, ORDERED, array("deletes"), *COLLECTION_UUID, *ENCRYPTION, *without_effect("bool", "bypassDocumentValidation"),
    *without_effect("object", "runtimeConstants"),
)  # fmt: skip
STATEMENT: Final = Fields(COLLATION, HINT, LIMIT, document("q", required=True), *without_effect("binData", "sampleId"))


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """delete: `n`, and `writeErrors` by index of the statement."""
    namespace = target(request)
    statements = [decode(raw) for raw in raw_documents(request, "deletes")]
    for statement in statements:
        check(statement)
    for_writing(context, namespace)
    collection = context.txn.collection(namespace)
    retryable = retryable_of(request)
    ordered = ORDERED.of(request.body)
    errors = refused(collection, len(statements), ordered=ordered)
    if errors is not None:
        return {"n": 0, "writeErrors": errors}
    let = variables_of(request.body) or None
    removed = 0
    failures: list[tuple[int, CommandError]] = []
    for index, statement in enumerate(statements):
        if retryable is not None:
            retryable.statement = index
        try:
            if collection is not None:
                removed += run_statement(context, collection, statement, let, retryable)
        except CommandError as error:
            failures.append((index, error))
            if ordered:
                break
    context.count("document.deleted", removed)
    reply: dict[str, Any] = {"n": removed}
    if failures:
        reply["writeErrors"] = write_errors(failures)
    return reply


def check(statement: dict[str, Any]) -> None:
    """Raise what is wrong with a statement before any is run: 9, 14, 40414, 40415."""
    STATEMENT.check("delete.deletes", statement)


def run_statement(
    context: CommandContext,
    collection: Collection,
    statement: dict[str, Any],
    let: Any,
    retryable: RetryableWrite | None,
) -> int:
    """One of the statements of a delete command; returns how many documents went."""
    txn = context.txn
    context.count("operations.delete")
    check_hint(collection, statement.get("hint"))
    finder = Finder(collection, statement["q"], collation_of(collection, statement.get("collation")), let)
    if finder.is_by_id:
        match = finder.by_id(txn)
        matches = [] if match is None else [match]
    elif LIMIT.of(statement):
        matches = [(record, raw) for record, raw, _ in _first(finder, txn)]
    else:
        matches = [(record, raw) for record, raw, _ in finder.find(txn)]
    for record, raw in matches:
        txn.delete(collection, record, raw, retryable)
    return len(matches)


def _first(finder: Finder, txn: Any) -> list[Any]:
    """The first match, the walk closed before anything is written."""
    walk = finder.find(txn)
    match = next(walk, None)
    walk.close()  # type: ignore[attr-defined]
    return [] if match is None else [match]


COMMAND: Final = Command("delete", run, FIELDS, writes=True)
