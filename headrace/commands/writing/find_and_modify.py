"""findAndModify: change or remove one document, and answer the document before or after the change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace.commands.requirements import writes
from headrace.commands.writing.delete import remove
from headrace.dispatch.arguments import Field, Fields, boolean, document, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import (
    ARRAY_FILTERS,
    BYPASS,
    COLLATION,
    CONSTANTS,
    ENCRYPTION,
    HINT,
    KEEPS_EMPTY_TIMESTAMPS,
    LET,
    NOT_AN_UPDATE,
    SAMPLE,
    TIME_SERIES,
    UPDATE,
)
from headrace.dispatch.namespaces import COLLECTION_UUID, writable
from headrace.dispatch.namespaces import target as target_of
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import progress_of, retryable_of, statement_done
from headrace.errors import CommandError
from headrace.execution.let import variables_of
from headrace.execution.plan import Finder, check_hint, collation_of
from headrace.execution.time_series import Buckets, bucket_hint, buckets_of
from headrace.execution.writes.matches import Target, created, first_match, missing, scored, while_running
from headrace.execution.writes.measurements import check_no_transaction, delete_measurements
from headrace.execution.writes.updates import Applier, parsed
from headrace.query.document_metadata import MARK, TEXT_SCORE, search_score
from headrace.query.match.index_conditions import has_text
from headrace.query.projection import Projection, parse_projection
from headrace.query.sort import SortKey, parse_sort
from headrace.query.update.update import check_upsert_filter
from headrace.store.catalog import Collection
from headrace.store.write_transaction import RetryableWrite
from headrace.values.bson import MISSING

if TYPE_CHECKING:
    from headrace.query.expressions.expression import Evaluate

NEW: Final = boolean("new")
PROJECTION: Final = document("fields")
QUERY: Final = document("query")
REMOVE: Final = boolean("remove")
SORT: Final = document("sort")
UPSERT: Final = boolean("upsert")
FIELDS: Final = Fields(
    ARRAY_FILTERS, BYPASS, COLLATION, HINT, KEEPS_EMPTY_TIMESTAMPS, LET, NEW, PROJECTION, QUERY, REMOVE, SORT, UPSERT,
    Field("update", UPDATE, None, error=NOT_AN_UPDATE), COLLECTION_UUID, *CONSTANTS, *ENCRYPTION,
    *SAMPLE, *TIME_SERIES, *without_effect("int", "batchSize"), *without_effect("strictBool", "singleBatch"),
)  # fmt: skip


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """findAndModify: answer the document before or after the change as `value`, and `lastErrorObject`."""
    body = request.body
    namespace = target_of(request)
    _check(body)
    context.keeps_empty_timestamps = KEEPS_EMPTY_TIMESTAMPS.of(body)
    if (buckets := buckets_of(context.txn, context.txn.collection(namespace))) is not None:
        return _of_series(context, request, buckets)
    collection = writable(context, namespace)
    check_hint(collection, body.get("hint"))
    spec = QUERY.of(body)
    finder, variables = None, variables_of(context, request)
    if collection is not None:
        collation = collation_of(collection, body.get("collation"))
        finder = Finder(collection, spec, collation, variables, body.get("hint"))
    progress = progress_of(context, last={"n": 0}, document=None, sorted=None)
    if body.get("fields"):
        _projection(body, collection, finder, None, variables)  # raises before a change
    if not progress["next"]:
        if REMOVE.of(body):
            _remove(context, request, collection, finder, progress)
        else:
            _modify(context, request, namespace, collection, finder, variables, progress)
    if "upserted" in progress["last"]:
        finder = None
    return {"lastErrorObject": progress["last"], "value": _shown(body, collection, progress, finder, variables)}


def _of_series(context: CommandContext, request: Request, buckets: Buckets) -> dict[str, Any]:
    """Remove one measurement of a time series. Raise 72 for an update or a sort, which no time series allows."""
    body, namespace, variables = request.body, target_of(request), variables_of(context, request)
    check_no_transaction(context, "modify", namespace)
    if not REMOVE.of(body):
        raise CommandError(72, "Cannot perform a non-multi update on a time-series collection")
    if body.get("sort"):
        raise CommandError(72, "Cannot perform findAndModify with sort on a time-series collection.")
    if body.get("fields"):
        _projection(body, buckets.collection, None, None, variables)  # raises before a change
    progress = progress_of(context, last={"n": 0}, document=None, sorted=None)
    retryable = retryable_of(context, request)
    if not progress["next"]:
        gone: list[dict[str, Any]] = []
        collation = collation_of(buckets.collection, body.get("collation"))
        delete_measurements(
            context, buckets, QUERY.of(body), collation, variables, retryable,
            bucket_hint(buckets.series, body.get("hint")), one=True, removed=gone.append,
        )  # fmt: skip
        if gone:
            progress |= {"last": {"n": 1}, "document": gone[0]}
        statement_done(progress, 0, retryable)
    return {"lastErrorObject": progress["last"], "value": _shown(body, buckets.collection, progress, None, variables)}


def _check(body: dict[str, Any]) -> None:
    if REMOVE.of(body):
        if body.get("update") is not None:
            raise CommandError(9, "Cannot specify both an update and remove=true")
        if UPSERT.of(body):
            raise CommandError(9, "Cannot specify both upsert=true and remove=true ")
        if body.get("arrayFilters"):
            raise CommandError(9, "Cannot specify arrayFilters and remove=true")
        if NEW.of(body):
            raise CommandError(
                9, "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document"
            )
    elif body.get("update") is None:
        raise CommandError(9, "Either an update or remove=true must be specified")


def _shown(
    body: dict[str, Any],
    collection: Collection | None,
    progress: dict[str, Any],
    finder: Finder | None,
    variables: dict[str, Any],
) -> dict[str, Any] | None:
    document: dict[str, Any] | None = progress["document"]
    if document is None or not body.get("fields"):
        return document
    return _projection(body, collection, finder, progress["sorted"], variables)(document)


def _projection(
    body: dict[str, Any], collection: Collection | None, finder: Finder | None, document: dict[str, Any] | None,
    variables: dict[str, Any],
) -> Projection:  # fmt: skip
    """Return the projection of the answer. Raise the errors of an invalid projection.

    `document`: the match before the change. The projection may show its sort key and text score."""
    if document is not None and finder is not None:
        document = scored(finder, document)
    metadata: dict[str, Callable[[], Evaluate]] = {}
    if (sort := None if collection is None else _sort_key(body, collection)) is not None:
        key = MISSING if document is None else sort.values(document)
        metadata["sortKey"] = lambda: lambda env: key
    if has_text(QUERY.of(body)):
        score = MISSING if document is None else document.get(MARK, MISSING)
        metadata[TEXT_SCORE] = lambda: lambda env: score
    return parse_projection(
        body["fields"], kind="find", predicate=None if finder is None else finder.predicate, metadata=metadata,
        collation=collation_of(collection, body.get("collation")), variables=variables,
    )  # fmt: skip


def _sort_key(body: dict[str, Any], collection: Collection) -> SortKey | None:
    sort = body.get("sort")
    score = search_score() if has_text(QUERY.of(body)) else None
    return parse_sort(sort, collation_of(collection, body.get("collation")), metadata=score) if sort else None


def _remove(
    context: CommandContext, request: Request, collection: Collection | None, finder: Finder | None,
    progress: dict[str, Any],
) -> None:  # fmt: skip
    if collection is None or finder is None:
        return
    key, retryable = _sort_key(request.body, collection), retryable_of(context, request)
    target = Target(context, collection)
    while (first := first_match(context, finder, key)) is not None:
        removed = remove(context, target, finder, first, retryable)
        if removed is not None:  # otherwise changed meanwhile: find the first match again
            progress |= {"last": {"n": 1}, "document": removed.document, "sorted": removed.document}
            statement_done(progress, 0, retryable)
            return


def _modify(
    context: CommandContext, request: Request, namespace: str, collection: Collection | None, finder: Finder | None,
    variables: dict[str, Any], progress: dict[str, Any],
) -> None:  # fmt: skip
    body = request.body
    spec = QUERY.of(body)
    upsert = UPSERT.of(body)
    statement = {"q": spec, "u": body["update"], "upsert": upsert}
    statement |= {name: body[name] for name in ("arrayFilters", "collation") if name in body}
    update = parsed(statement, collection, variables)
    if upsert:
        check_upsert_filter(spec)
    progress["last"] = {"n": 0, "updatedExisting": False}
    if collection is None or finder is None:
        if not upsert:
            return
        absent = missing(namespace)
        Finder(absent, spec, collation_of(absent, body.get("collation")), variables, body.get("hint"))
        _sort_key(body, absent)
        collection = created(context, namespace)
        finder = Finder(collection, spec, collation_of(collection, body.get("collation")), variables)
    retryable = retryable_of(context, request)
    applier = Applier(context, Target(context, collection), statement, update, finder, body, retryable)
    try:
        _apply(context, body, applier, finder, _sort_key(body, collection), progress, retryable)
    except CommandError as error:
        raise while_running("findAndModify", error) from None


def _apply(
    context: CommandContext, body: dict[str, Any], applier: Applier, finder: Finder, key: SortKey | None,
    progress: dict[str, Any], retryable: RetryableWrite | None,
) -> None:  # fmt: skip
    """Change the first match, or insert a document if there is none and the command says so."""
    upsert, new, tried = UPSERT.of(body), NEW.of(body), False
    while True:
        pause_count = context.pause_count
        if (first := first_match(context, finder, key)) is not None:
            changed = applier.change(first)
            if changed is None:  # changed meanwhile: find the first match again
                continue
            shown = (changed.after or changed.before) if new else changed.before
            progress |= {"last": {"n": 1, "updatedExisting": True}, "document": shown, "sorted": changed.before}
        elif upsert:
            try:
                made = applier.insert(QUERY.of(body))
            except CommandError as error:
                if error.code != 11000 or pause_count == context.pause_count or tried:
                    raise
                tried = True  # another client may have inserted the document
                continue
            last = {"n": 1, "updatedExisting": False, "upserted": made["_id"]}
            progress |= {"last": last, "document": made if new else None}
        else:
            return
        statement_done(progress, 0, retryable)
        return


COMMAND: Final = Command(
    "findAndModify", run, FIELDS, pauses=True, writes=True, aliases=("findandmodify",), requires=writes.FIND_AND_MODIFY
)
