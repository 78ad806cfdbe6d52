"""update: documents that match a filter are changed by operators, replaced, or changed by a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace import limits
from headrace.dispatch.arguments import Field, Fields, array, document, raw_documents, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import (
    ARRAY_FILTERS,
    BYPASS,
    COLLATION,
    COLLECTION_UUID,
    ENCRYPTION,
    HINT,
    LET,
    MULTI,
    NOT_AN_UPDATE,
    ORDERED,
    UPDATE,
    UPSERT,
)
from headrace.dispatch.namespaces import for_writing, refused, target
from headrace.dispatch.reply import write_errors
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import retryable_of
from headrace.errors import CommandError
from headrace.execution.let import variables_of
from headrace.execution.plan import Finder, check_hint, collation_of
from headrace.execution.updates import Applier, first_by, matches, parsed
from headrace.query.sort import parse_sort
from headrace.query.update import Update, check_upsert_filter, parse_update
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.store.write_transaction import RetryableWrite, WriteTransaction
from headrace.values.bson import decode, encode, find_element

FIELDS: Final = Fields(
    BYPASS, LET, ORDERED, array("updates"), *COLLECTION_UUID, *ENCRYPTION, *without_effect("object", "runtimeConstants")
)
SORT: Final = document("sort")
STATEMENT: Final = Fields(
    ARRAY_FILTERS, COLLATION, HINT, MULTI, SORT, UPSERT, document("c"), document("q", required=True),
    Field("u", UPDATE, None, required=True, error=NOT_AN_UPDATE), *without_effect("binData", "sampleId"),
    *without_effect("bool", "upsertSupplied"),
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """What one statement did."""

    matched: int = 0
    modified: int = 0
    upserted: Any = None  # {_id} of the inserted document, if there was one


def run(context: CommandContext, request: Request) -> bytes | dict[str, Any]:
    """update: `n` matched, `nModified`, `upserted`, and `writeErrors` by index of the statement."""
    namespace = target(request)
    raw = raw_documents(request, "updates")
    statements = [decode(item) for item in raw]
    for_writing(context, namespace)
    retryable = retryable_of(request)
    if len(statements) == 1:
        answer = _by_id(context, request, namespace, raw[0], statements[0], retryable)
        if answer is not None:
            return answer
    for statement in statements:
        check(statement)
    ordered = ORDERED.of(request.body)
    errors = refused(context.txn.collection(namespace), len(statements), ordered=ordered)
    if errors is not None:
        return {"n": 0, "nModified": 0, "writeErrors": errors}
    matched = modified = 0
    upserted: list[dict[str, Any]] = []
    failures: list[tuple[int, CommandError]] = []
    for index, statement in enumerate(statements):
        if retryable is not None:
            retryable.statement = index
        try:
            outcome = run_statement(context, request, namespace, statement, retryable)
        except CommandError as error:
            failures.append((index, error))
            if ordered:
                break
            continue
        matched, modified = matched + outcome.matched, modified + outcome.modified
        if outcome.upserted is not None:
            matched += 1
            upserted.append({"index": index, "_id": outcome.upserted["_id"]})
    context.count("document.updated", modified)
    reply: dict[str, Any] = {"n": matched, "nModified": modified}
    if upserted:
        reply["upserted"] = upserted
    if failures:
        reply["writeErrors"] = write_errors(failures)
    return reply


_PLAIN_FIELDS: Final = frozenset({"multi", "q", "u", "upsert"})
_parsed: dict[bytes, Update] = {}
"""Memo of all servers of the process: parsed updates by their raw bytes. Bounded by `PARSED_UPDATE_COUNT_MAX`."""


def _by_id(
    context: CommandContext, request: Request, namespace: str, raw: bytes, statement: dict[str, Any],
    retryable: RetryableWrite | None,
) -> bytes | None:  # fmt: skip
    """Fast path of the commonest update: operators on one plain `_id`. None where it is not that, or not there."""
    spec, change = statement.get("q"), statement.get("u")
    if type(spec) is not dict or "_id" not in spec or len(spec) != 1 or type(change) is not dict or not change:
        return None
    if statement.get("multi") or statement.keys() - _PLAIN_FIELDS or "let" in request.body:
        return None
    collection = context.txn.collection(namespace)
    if collection is None or collection.options.keys() - _HARMLESS:
        return None
    finder = Finder(collection, spec, None)
    try:
        match = finder.by_id(context.txn) if finder.is_by_id else None
        if match is None:
            return None
        update = _cached(raw, change)
        applier = Applier(context.txn, collection, statement, update, finder, request.body, retryable)
        modified = applier.change(match[0], match[1], decode(match[1])) is not None
    except CommandError:
        return None  # raised again, with its index, by the general path
    context.count("document.updated", modified)
    context.count("operations.update")
    return _ONE_CHANGED if modified else _ONE_MATCHED


_HARMLESS: Final = frozenset({"changeStreamPreAndPostImages"})
_ONE_CHANGED: Final = encode({"n": 1, "nModified": 1})[4:-1]
_ONE_MATCHED: Final = encode({"n": 1, "nModified": 0})[4:-1]


def _cached(raw: bytes, change: dict[str, Any]) -> Update:
    """The update parsed, or as it was parsed before."""
    element = find_element(raw, b"u")
    assert element is not None
    key = raw[element[1] : element[2]]
    update = _parsed.get(key)
    if update is None:
        update = parse_update(change)
        if len(key) <= limits.PARSED_UPDATE_BYTES_MAX:
            if len(_parsed) >= limits.PARSED_UPDATE_COUNT_MAX:
                _parsed.clear()
            _parsed[key] = update
    return update


def check(statement: dict[str, Any]) -> None:
    """Raise what is wrong with a statement before any is run: 9, 14, 40414, 40415."""
    STATEMENT.check("update.updates", statement)
    if SORT.of(statement) and MULTI.of(statement):
        raise CommandError(9, "Cannot specify sort with multi=true")


def run_statement(
    context: CommandContext,
    request: Request,
    namespace: str,
    statement: dict[str, Any],
    retryable: RetryableWrite | None,
) -> Outcome:
    """One of the statements of an update command."""
    txn = context.txn
    context.count("operations.update")
    collection = txn.collection(namespace)
    let = variables_of(request.body) or None
    update = parsed(statement, collection, let)
    upsert = UPSERT.of(statement)
    if upsert:
        check_upsert_filter(statement["q"])
    check_hint(collection, statement.get("hint"))
    if collection is None:
        if upsert:
            collection = catalog_changes.create(txn, namespace, {})
        else:
            Finder(_nowhere(namespace), statement["q"], collation_of(None, statement.get("collation")), let)
            return Outcome()
    finder = Finder(collection, statement["q"], collation_of(collection, statement.get("collation")), let)
    outcome = Outcome()
    applier = Applier(txn, collection, statement, update, finder, request.body, retryable)
    for record, raw, decoded in _chosen(finder, txn, collection, statement):
        outcome.matched += 1
        outcome.modified += applier.change(record, raw, decoded) is not None
    if not outcome.matched and upsert:
        outcome.upserted = applier.insert(statement["q"])
    return outcome


def _chosen(
    finder: Finder, txn: WriteTransaction, collection: Collection, statement: dict[str, Any]
) -> list[tuple[bytes, bytes, dict[str, Any]]]:
    """The matches that a statement changes: all, the first, or the first by its sort."""
    sort = statement.get("sort")
    if sort:
        first = first_by(finder, txn, parse_sort(sort, collation_of(collection, statement.get("collation"))))
        return [] if first is None else [first]
    return matches(finder, txn, multi=MULTI.of(statement))


def _nowhere(namespace: str) -> Collection:
    """A collection that is not there, for checking a filter against nothing."""
    return Collection(namespace, 0, None, "collection", {}, [])


COMMAND: Final = Command("update", run, FIELDS, writes=True)
