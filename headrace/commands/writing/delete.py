"""delete: delete one or all documents that match a filter."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from headrace.commands.writing.write_again import again, found, one_id
from headrace.dispatch.arguments import Fields, array, document, number, raw_documents, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.duplicate_names import with_every_name
from headrace.dispatch.generic_arguments import (
    COLLATION,
    CONSTANTS,
    ENCRYPTION,
    HINT,
    LET,
    ORDERED,
    SAMPLE,
    TIME_SERIES,
)
from headrace.dispatch.lock_waits import wait_until_unlocked
from headrace.dispatch.namespaces import COLLECTION_UUID, check_writable, refused
from headrace.dispatch.namespaces import target as target_of
from headrace.dispatch.profiling.usage import REMOVE
from headrace.dispatch.reply import write_errors
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection
from headrace.dispatch.retryable_writes import progress_of, retryable_of, statement_done
from headrace.errors import CommandError
from headrace.execution.let import variables_of
from headrace.execution.plan import Finder, check_hint, collation_of
from headrace.execution.time_series import bucket_hint, buckets_of
from headrace.execution.writes.matches import (
    MatchedDocument,
    Target,
    are_unchanged,
    current,
    matches,
    raw_matches,
    while_running,
)
from headrace.execution.writes.measurements import check_no_transaction, delete_measurements
from headrace.query.expressions.numbers import to_long
from headrace.store.catalog import Collection
from headrace.store.write_transaction import RetryableWrite, WriteTransaction
from headrace.values.bson import decode, encode

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine


def _one_or_all(path: str, value: Any) -> None:
    if to_long(value) not in (0, 1):
        raise CommandError(9, f"The limit field in delete objects must be 0 or 1. Got {value}")


LIMIT: Final = number("limit", 0, required=True, check=_one_or_all)
FIELDS: Final = Fields(
    LET, ORDERED, array("deletes"), COLLECTION_UUID, *CONSTANTS, *ENCRYPTION, *TIME_SERIES,
    *without_effect("bool", "bypassDocumentValidation", "bypassEmptyTsReplacement"),
)  # fmt: skip
STATEMENT: Final = Fields(COLLATION, HINT, LIMIT, document("q", required=True), *SAMPLE)


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """delete: answer `n`, and `writeErrors` by index of the statement."""
    namespace = target_of(request)
    statements = [with_every_name(raw, decode(raw)) for raw in context.paced(raw_documents(request, "deletes"))]
    for statement in statements:
        check(statement)
    check_writable(namespace)
    retryable = retryable_of(context, request)
    ordered = ORDERED.of(request.body)
    errors = refused(context.txn.collection(namespace), len(statements), ordered=ordered)
    if errors is not None:
        return {"n": 0, "writeErrors": errors}
    let = variables_of(context, request)
    progress = progress_of(context, n=0, writeErrors=[])
    for index in range(progress["next"], len(statements)):
        if retryable is not None:
            retryable.statement = index
        try:
            removed = run_statement(context, namespace, statements[index], let, retryable)
        except CommandError as error:
            progress["writeErrors"] += write_errors([(index, error)])
        else:
            progress["n"] += removed
        statement_done(progress, index, retryable)
        if ordered and progress["writeErrors"]:
            break
    reply: dict[str, Any] = {"n": progress["n"]}
    if progress["writeErrors"]:
        reply["writeErrors"] = progress["writeErrors"]
    return reply


def check(statement: dict[str, Any]) -> None:
    """Raise 9, 14, 40414 or 40415 for an invalid statement, before any statement runs."""
    STATEMENT.check("delete.deletes", statement)


def run_statement(
    context: CommandContext, namespace: str, statement: dict[str, Any], let: Any, retryable: RetryableWrite | None
) -> int:
    """Run one statement of a delete command. Return the number of deleted documents."""
    collection = context.txn.collection(namespace)
    context.metrics["operations.delete"] += 1
    if collection is not None and collection.is_time_series:
        return _measurements(context, collection, statement, let, retryable)
    one = LIMIT.of(statement)
    if retryable is not None and not one:
        raise CommandError(72, "Cannot use (or request) retryable writes with limit=0")
    if collection is None:
        return 0
    check_hint(collection, statement.get("hint"))
    finder = Finder(
        collection, statement["q"], collation_of(collection, statement.get("collation")), let, statement.get("hint")
    )
    target = Target(context, collection)
    try:
        if not one and finder.near is None:
            return _remove_all(context, target, finder)
        return _remove_each(context, target, finder, retryable, 1 if one else None)
    except CommandError as error:
        raise while_running("delete", error) from None


def _remove_each(
    context: CommandContext, target: Target, finder: Finder, retryable: RetryableWrite | None, count_max: int | None
) -> int:
    """Delete the matches one by one, at most `count_max`. Return their number."""
    removed = 0
    for match in matches(context, finder, count_max):
        if remove(context, target, finder, match, retryable) is not None:
            context.metrics["document.deleted"] += 1
            removed += 1
            if removed == count_max:
                break
    return removed


def _remove_all(context: CommandContext, target: Target, finder: Finder) -> int:
    """Delete all matches. Return their number."""
    removed = 0
    for matched, pause_count in raw_matches(context, finder):
        if not context.has_locks and are_unchanged(context, target, matched, pause_count):
            context.txn.delete_many(target.collection, matched)
            gone = len(matched)
        else:
            each = (MatchedDocument(record, raw, decode(raw), pause_count) for record, raw in context.paced(matched))
            gone = sum(remove(context, target, finder, match, None) is not None for match in each)
        context.metrics["document.deleted"] += gone
        removed += gone
    return removed


def _measurements(
    context: CommandContext, collection: Collection, statement: dict[str, Any], let: Any,
    retryable: RetryableWrite | None,
) -> int:  # fmt: skip
    """Delete measurements of a time series. Return their number."""
    check_no_transaction(context, "delete from", collection.namespace)
    buckets = buckets_of(context.txn, collection)
    assert buckets is not None
    gone: list[None] = []
    delete_measurements(
        context, buckets, statement["q"], collation_of(collection, statement.get("collation")), let, retryable,
        bucket_hint(buckets.series, statement.get("hint")), one=bool(LIMIT.of(statement)),
        removed=lambda _: gone.append(None),
    )  # fmt: skip
    context.metrics["document.deleted"] += len(gone)
    return len(gone)


def remove(
    context: CommandContext, target: Target, finder: Finder, match: MatchedDocument, retryable: RetryableWrite | None
) -> MatchedDocument | None:
    """Delete a match. Return the document as it was, or None if it no longer matches."""
    while True:
        latest = current(context, target, finder, match)
        if latest is None:
            return None
        match = latest
        write = target.collection, match.record, match.raw
        if not context.has_locks or wait_until_unlocked(context, methodcaller("delete", *write)):
            context.txn.delete(*write, retryable)
            return match


_LIMIT_ONE: Final = b"\x10limit\x00\x01\x00\x00\x00\x00"
_ONE_DELETED: Final = encode({"n": 1})[4:-1]


def _delete_one(
    engine: Engine, txn: WriteTransaction, collection: Collection, statement: bytes, retryable: RetryableWrite | None
) -> bytes | None:
    """Delete the document with an `_id`: see `write_again.py`."""
    located = one_id(statement)
    if located is None or statement[located[1] :] != _LIMIT_ONE:
        return None
    match = found(txn, collection, located[0])
    if match is None:
        return None
    txn.delete(collection, *match, retryable)
    engine.metrics["operations.delete"] += 1
    engine.metrics["document.deleted"] += 1
    engine.store.uses.ids[collection.number] += 1
    return _ONE_DELETED


COMMAND: Final = Command(
    "delete", run, FIELDS, pauses=True, writes=True, requires=on_collection("remove"),
    again=again("delete", REMOVE, "deletes", _delete_one),
)  # fmt: skip
