"""bulkWrite: inserts, updates and deletes on several collections in one command, each run like its own command.

    ops      {insert: 0, document} · {update: 0, filter, updateMods, ...} · {delete: 0, filter, multi, ...}
    nsInfo   [{ns: "db.coll"}, ...]      the number in an operation is an index into this array

The result of each operation is a document of a cursor, `{ok, idx, n, ...}`. The reply has the totals. Consecutive
inserts into one collection are one batch. Source: MongoDB's `bulkWrite`, since 8.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.commands.requirements import writes
from headrace.commands.writing import delete, insert, update
from headrace.dispatch.arguments import Field, Fields, array, boolean, document, number, raw_documents, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.duplicate_names import with_every_name
from headrace.dispatch.generic_arguments import (
    ARRAY_FILTERS,
    BATCH_SIZE,
    BYPASS,
    COLLATION,
    CURSOR,
    HINT,
    KEEPS_EMPTY_TIMESTAMPS,
    LET,
    MULTI,
    NOT_AN_UPDATE,
    ORDERED,
    SAMPLE,
    UPDATE,
    UPSERT,
)
from headrace.dispatch.namespaces import check_collection_uuid, expected_namespaces_of, operation_target, taking_writes
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import progress_of, retryable_of, statement_done
from headrace.errors import CommandError
from headrace.execution.batches import open_cursor
from headrace.execution.let import variables_of
from headrace.store.write_transaction import RetryableWrite
from headrace.values.bson import decode, encode, find_element, to_string

NAMESPACE: Final = "admin.$cmd.bulkWrite"
UNBOUNDED: Final = 1 << 30
ERRORS_ONLY: Final = boolean("errorsOnly", strict=True)
FIELDS: Final = Fields(BYPASS, CURSOR, ERRORS_ONLY, KEEPS_EMPTY_TIMESTAMPS, LET, ORDERED, array("nsInfo"), array("ops"))
_CONSTANTS: Final = document("constants")
_FILTER: Final = document("filter", required=True)
OPERATIONS: Final = {
    "delete": Fields(COLLATION, HINT, MULTI, _FILTER, number("delete", required=True), *SAMPLE),
    "insert": Fields(document("document", required=True), number("insert", required=True)),
    "update": Fields(
        ARRAY_FILTERS, COLLATION, HINT, MULTI, UPSERT, _CONSTANTS, _FILTER, document("sort"),
        number("update", required=True), Field("updateMods", UPDATE, None, required=True, error=NOT_AN_UPDATE),
        *SAMPLE, *without_effect("bool", "upsertSupplied"),
    ),
}  # fmt: skip
"""The operations and the fields of each."""


@dataclass(frozen=True, slots=True)
class BulkOperation:
    """One of `ops`: for an insert the raw document, otherwise the statement of the update or delete command."""

    kind: str
    namespace: str
    document: bytes = b""
    statement: dict[str, Any] = field(default_factory=dict)
    uuid: bytes | None = None
    """The UUID that the client expects the collection to have."""

    def check_collection(self, context: CommandContext) -> None:
        """Raise 13, 73, 166 or 361 if the collection cannot be written to."""
        check_collection_uuid(context, self.namespace, self.uuid)
        taking_writes(context, self.namespace)


class BulkTotals:
    """The counts of the reply, and the documents of its cursor: all in the command's progress."""

    def __init__(self, context: CommandContext, request: Request) -> None:
        self.errors_only = ERRORS_ONLY.of(request.body)
        self.ordered = ORDERED.of(request.body)
        self.retryable = retryable_of(context, request)
        """The session fields for the oplog entries of all operations."""
        self.progress = progress_of(context, results=[], counts=dict.fromkeys(_COUNTS, 0))

    @property
    def has_ended(self) -> bool:
        """Whether an error ends the command before its last operation."""
        return bool(self.ordered and self.progress["counts"]["nErrors"])

    def retryable_at(self, index: int) -> RetryableWrite | None:
        """Return `retryable`, set to the operation with this index."""
        if self.retryable is not None:
            self.retryable.statement = index
        return self.retryable

    def done(self, index: int, result: dict[str, Any], **counts: int) -> None:
        """Add the result of a successful operation."""
        for name, count in counts.items():
            self.progress["counts"][name] += count
        if not self.errors_only:
            self.progress["results"].append({"ok": 1.0, "idx": index, **result})
        statement_done(self.progress, index, self.retryable)

    def failed(self, index: int, kind: str, error: CommandError) -> None:
        """Add the error of a failed operation."""
        self.progress["counts"]["nErrors"] += 1
        result: dict[str, Any] = {"ok": 0.0, "idx": index, "code": error.code, **error.extra}
        result |= {"errmsg": error.message, "n": 0}
        self.progress["results"].append(result | ({"nModified": 0} if kind == "update" else {}))
        statement_done(self.progress, index, self.retryable)


_COUNTS: Final = ("nErrors", "nInserted", "nMatched", "nModified", "nUpserted", "nDeleted")


def run(context: CommandContext, request: Request) -> bytes:
    """bulkWrite: answer the totals, and a cursor over the results of the operations."""
    body = request.body
    operations = _operations(context, request)
    context.keeps_empty_timestamps = KEEPS_EMPTY_TIMESTAMPS.of(body)
    size = BATCH_SIZE.of(CURSOR.of(body))
    totals = BulkTotals(context, request)
    for first, group in _groups(operations, totals.progress["next"]):
        if totals.has_ended:
            break
        if group[0].kind == "insert":
            _insert(context, request, first, group, totals)
            continue
        try:
            group[0].check_collection(context)
            (_update if group[0].kind == "update" else _delete)(context, request, first, group[0], totals)
        except CommandError as error:
            totals.failed(first, group[0].kind, error)
    made = totals.progress["results"]
    results = (encode(result) for result in made)
    cursor = open_cursor(context, request, NAMESPACE, results, UNBOUNDED if size is None else size)
    return cursor + encode(totals.progress["counts"])[4:-1]


# Parsing.


def _operations(context: CommandContext, request: Request) -> list[BulkOperation]:
    namespaces = expected_namespaces_of(request)
    raw = raw_documents(request, "ops")
    operations = [_operation(item, namespaces) for item in context.paced(raw)]
    inserts = [at for at, operation in enumerate(operations) if operation.document]
    checked = [operations[at].document for at in inserts]
    insert.check_documents(checked, context.tick)
    for at, raw_document in list(zip(inserts, checked)):
        if raw_document is not operations[at].document:  # long: its `_id` was put first, piece by piece
            operations[at] = replace(operations[at], document=raw_document)
    if "txnNumber" in request.body and "autocommit" not in request.body:
        for operation in operations:
            if MULTI.of(operation.statement) or operation.statement.get("limit") == 0:
                raise CommandError(72, "Cannot use retryable writes with multi=true")
    return operations


def _operation(raw: bytes, namespaces: list[tuple[str, bytes | None]]) -> BulkOperation:
    kind, index = operation_target(raw)
    element = find_element(raw, b"document") if kind == "insert" else None
    if element is not None and element[0] == 3:
        document, spec = raw[element[1] : element[2]], {**_without(raw, element), "document": {}}
    else:
        document, spec = b"", with_every_name(raw, decode(raw))
    OPERATIONS[kind].check("bulkWrite.ops", spec)
    if not 0 <= index < len(namespaces):
        raise CommandError(2, f"BulkWrite ops entry {to_string(decode(raw))} has an invalid nsInfo index.")
    namespace, uuid = namespaces[index]
    if kind == "insert":
        return BulkOperation(kind, namespace, document, uuid=uuid)
    return replace(_STATEMENTS[kind](namespace, spec), uuid=uuid)


def _without(raw: bytes, element: tuple[int, int, int]) -> dict[str, Any]:
    """Return the fields of an insert without its document, which is not decoded."""
    start = element[1] - len(b"\x03document\x00")
    rest = raw[4:start] + raw[element[2] :]
    return decode((len(rest) + 4).to_bytes(4, "little") + rest)


def _update_statement(namespace: str, spec: dict[str, Any]) -> BulkOperation:
    statement: dict[str, Any] = {name: spec[name] for name in _SHARED if name in spec}
    statement |= {"q": spec["filter"], "u": spec["updateMods"]}
    statement["c"] = _CONSTANTS.of(spec)
    update.check(statement)
    return BulkOperation("update", namespace, statement=statement)


_SHARED: Final = ("arrayFilters", "collation", "hint", "multi", "sort", "upsert")


def _delete_statement(namespace: str, spec: dict[str, Any]) -> BulkOperation:
    statement: dict[str, Any] = {"q": spec["filter"], "limit": 0 if MULTI.of(spec) else 1}
    statement |= {name: spec[name] for name in ("collation", "hint") if name in spec}
    return BulkOperation("delete", namespace, statement=statement)


_STATEMENTS: Final = {"delete": _delete_statement, "update": _update_statement}


# Execution.


def _groups(operations: list[BulkOperation], first: int) -> Iterator[tuple[int, list[BulkOperation]]]:
    """Yield (index of the first, operations) for each batch: consecutive inserts into one collection, or a single
    operation."""
    while first < len(operations):
        end, begin = first + 1, operations[first]
        if begin.kind == "insert":
            while (
                end < len(operations)
                and operations[end].kind == "insert"
                and operations[end].namespace == begin.namespace
                and operations[end].uuid == begin.uuid
            ):
                end += 1
        yield first, operations[first:end]
        first = end


def _insert(
    context: CommandContext, request: Request, first: int, group: list[BulkOperation], totals: BulkTotals
) -> None:
    namespace = group[0].namespace
    try:
        group[0].check_collection(context)
    except CommandError as error:
        for index in range(1 if totals.ordered else len(group)):
            totals.failed(first + index, "insert", error)
        return

    def done(last: int, count: int) -> None:
        for index in range(last - count + 1, last + 1):
            totals.done(index, {"n": 1}, nInserted=1)

    def failed(index: int, error: CommandError) -> None:
        totals.failed(index, "insert", error)

    inserts = insert.Inserts(
        context, request, namespace, totals.retryable, ordered=totals.ordered, done=done, failed=failed
    )
    inserts.run([operation.document for operation in group], 0, offset=first)


def _update(
    context: CommandContext, request: Request, index: int, operation: BulkOperation, totals: BulkTotals
) -> None:
    outcome = update.run_statement(
        context, request, operation.namespace, operation.statement, totals.retryable_at(index)
    )
    if outcome.upserted is None:
        result = {"n": outcome.matched, "nModified": outcome.modified}
        totals.done(index, result, nMatched=outcome.matched, nModified=outcome.modified)
    else:
        totals.done(index, {"n": 1, "nModified": 0, "upserted": {"_id": outcome.upserted["_id"]}}, nUpserted=1)


def _delete(
    context: CommandContext, request: Request, index: int, operation: BulkOperation, totals: BulkTotals
) -> None:
    let, retryable = variables_of(context, request), totals.retryable_at(index)
    removed = delete.run_statement(context, operation.namespace, operation.statement, let, retryable)
    totals.done(index, {"n": removed}, nDeleted=removed)


COMMAND: Final = Command(
    "bulkWrite", run, FIELDS, pauses=True, writes=True, admin_only=True, requires=writes.BULK_WRITE
)
