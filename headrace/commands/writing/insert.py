"""insert: documents into a collection, which is made if it is not there.

The hot path: one document or a thousand go from the socket to the store as bytes. They are decoded only to see that
they can be: a malformed one in the store would be in the way of whoever reads it, and of every stream.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from headrace.dispatch.arguments import Fields, array, raw_documents
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import BYPASS, COLLECTION_UUID, ENCRYPTION, ORDERED
from headrace.dispatch.namespaces import for_writing, refused, target
from headrace.dispatch.reply import write_errors
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import retryable_of
from headrace.errors import CommandError
from headrace.execution.validation import checker
from headrace.store import capped, catalog_changes
from headrace.store.catalog import Collection
from headrace.store.write_transaction import RetryableWrite
from headrace.values.bson import check_all

_INT32 = Struct("<i").pack
_N: Final = b"\x10n\x00"

FIELDS: Final = Fields(BYPASS, ORDERED, array("documents"), *COLLECTION_UUID, *ENCRYPTION)


def run(context: CommandContext, request: Request) -> bytes | dict[str, Any]:
    """insert: `n` documents inserted, and `writeErrors` by index of the document."""
    namespace = target(request)
    documents = raw_documents(request, "documents")
    check_all(documents)
    for_writing(context, namespace)
    txn = context.txn
    collection = txn.collection(namespace)
    ordered = ORDERED.of(request.body)
    errors = refused(collection, len(documents), ordered=ordered)
    if errors is not None:
        return {"n": 0, "writeErrors": errors}
    if collection is None:
        collection = catalog_changes.create(txn, namespace, {})
    failures = insert_documents(context, request, collection, documents, retryable_of(request), ordered=ordered)
    if not failures:
        return _N + _INT32(len(documents))
    done = failures[-1][0] - len(failures) + 1 if ordered else len(documents) - len(failures)
    return {"n": done, "writeErrors": write_errors(failures)}


def insert_documents(
    context: CommandContext, request: Request, collection: Collection, documents: list[bytes],
    retryable: RetryableWrite | None, *, ordered: bool, first: int = 0,
) -> list[tuple[int, CommandError]]:  # fmt: skip
    """Insert raw documents; returns (index, what went wrong) of each that failed, where `ordered` of the one.

    `first` is the first document's number among the statements of its command.
    """
    txn = context.txn
    if retryable is not None:
        retryable.statement = first
    options = collection.options
    plain = "validator" not in options and "capped" not in options
    context.count("operations.insert", len(documents))
    if len(documents) > 1 and plain and txn.insert_many(collection, documents, retryable) is not None:
        context.count("document.inserted", len(documents))
        return []
    check = checker(collection, request.body)
    inserted = 0
    failures: list[tuple[int, CommandError]] = []
    for index, document in enumerate(documents):
        if retryable is not None:
            retryable.statement = first + index
        try:
            check(document)
            txn.insert(collection, document, retryable)
            inserted += 1
        except CommandError as error:
            failures.append((index, error))
            if ordered:
                break
    context.count("document.inserted", inserted)
    if not plain:
        capped.enforce(txn, collection)
    return failures


COMMAND: Final = Command("insert", run, FIELDS, writes=True)
