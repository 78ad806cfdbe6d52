"""The documents of a namespace: a collection, the oplog, the pre-images, open transactions, versions, or a view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bson import Binary, Int64

from headrace import limits
from headrace.cursors.collection_scan import Matching, OplogScan, pre_images, time_bounds
from headrace.cursors.index_scan import IndexScan, SeenRecords
from headrace.dispatch.access import ACCOUNTS
from headrace.dispatch.api_version import check_stages
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import OPLOG, PRE_IMAGES, TRANSACTIONS, VERSIONS
from headrace.dispatch.server_info import FEATURE_VERSION
from headrace.errors import CommandError
from headrace.execution.command_memory import memory_of
from headrace.execution.marked_documents import marked_documents
from headrace.execution.plan import Finder, text_query
from headrace.execution.planner.choice import equality_ranges, index_for_equality
from headrace.execution.planner.index_access import IndexRange
from headrace.execution.planner.query import ANY_ORDER, Order
from headrace.execution.read_plan import ReadPlan, plan_read, read
from headrace.execution.storage_stats import count_of
from headrace.query.collation import Collation
from headrace.query.match import parse_filter
from headrace.query.stages.other_collections import other_collections
from headrace.query.stages.stage import EqualDocuments
from headrace.store.catalog import Collection
from headrace.store.entries import TERM
from headrace.store.indexes.index_keys import CUT_KEY
from headrace.store.view import LEFT_OUT, View
from headrace.values.bson import decode, encode
from headrace.values.keystring.encoding import encode_value


def resolve(
    context: CommandContext, namespace: str, *, api_strict: bool = False
) -> tuple[str, list[dict[str, Any]]]:  # fmt: skip
    """Return the collection under a view and the stages of all nested views; `[]` for a collection. Raise 73 or 165.

    `api_strict`: raise 323 for a view's stage that is not in the stable API.
    """
    pipeline: list[dict[str, Any]] = []
    for _ in range(limits.VIEW_DEPTH_MAX):
        collection = context.view.collection(namespace)
        if collection is None or not collection.is_view:
            return namespace, pipeline
        own = collection.options.get("pipeline", [])
        if api_strict:
            check_stages(own)
        check_view_sources(collection.database, collection.options["viewOn"], own)
        pipeline = [*own, *pipeline]
        namespace = f"{collection.database}.{collection.options['viewOn']}"
    raise CommandError(165, f"View depth limit exceeded; maximum depth is {limits.VIEW_DEPTH_MAX}")


def check_view_sources(database: str, source: str, pipeline: list[Any]) -> None:
    """Raise 73 if a view reads users or roles, because it would show them to every reader of the view.

    This is also checked at each read: an earlier release may have stored such a view.
    """
    for namespace in (f"{database}.{source}", *other_collections(pipeline, database)):
        if namespace in ACCOUNTS:
            raise CommandError(73, f"A view may not read '{namespace}'")


def check_no_cycle(view: View, namespace: str, source: str, pipeline: list[Any]) -> None:
    """Raise 5 for the definition of a view that reads itself, also by way of other views."""
    database = namespace.partition(".")[0]
    left = [f"{database}.{source}", *other_collections(pipeline, database)]
    seen: set[str] = set()
    while left:
        name = left.pop()
        if name == namespace:
            raise CommandError(5, f"View cycle detected: {namespace} reads itself")
        there = None if name in seen else view.collection(name)
        seen.add(name)
        if there is not None and there.is_view and not there.is_time_series:
            inner = there.database
            left += [f"{inner}.{there.options['viewOn']}", *other_collections(there.options["pipeline"], inner)]


def is_virtual(context: CommandContext, namespace: str) -> bool:
    """Whether a namespace is a virtual collection, which is shown but not stored as one."""
    if namespace == OPLOG:
        return context.store.oplog_enabled
    return namespace in (PRE_IMAGES, TRANSACTIONS, VERSIONS) or namespace.endswith(".system.views")


def stored(context: CommandContext, namespace: str) -> Collection | None:
    """Return the collection or view of this name; None if the namespace shows more than the stored documents."""
    return None if namespace == VERSIONS else context.view.collection(namespace)


def virtual(
    context: CommandContext, namespace: str, spec: dict[str, Any], collation: Collation | None, backward: bool,
    variables: Mapping[str, Any] | None = None,
) -> Iterator[bytes]:  # fmt: skip
    """Return the matching raw documents of the oplog or another virtual collection."""
    current: Callable[[], View] = lambda: context.view  # noqa: E731
    documents: Iterator[bytes]
    if namespace == OPLOG:
        first, last = time_bounds(spec)
        documents = OplogScan(current, first=first, last=last, backward=backward)
    elif namespace == PRE_IMAGES:
        documents = iter(list(pre_images(context.view)))
    elif namespace == TRANSACTIONS:
        documents = iter(_transactions(context))
    elif namespace == VERSIONS:
        documents = iter(_versions(context))
    else:
        documents = iter(_views_of(context, namespace.partition(".")[0]))
    if not spec:
        return documents
    predicate = parse_filter(spec, collation=collation, variables=variables)
    return Matching(documents, predicate)


def _transactions(context: CommandContext) -> list[bytes]:
    """Return the open transactions as documents of `config.transactions`.

    All oplog entries of their commits come at `startOpTime` or later, where mongodump begins to read the oplog."""
    made = []
    last, _ = context.engine.last_write()
    for transaction in context.store.transactions.open.values():
        made.append(encode({
            "_id": transaction.lsid or {"id": Binary(transaction.session, 4)}, "txnNum": Int64(transaction.number),
            "state": "inProgress", "startOpTime": {"ts": last, "t": Int64(TERM)},
        }))  # fmt: skip
    return made


def _versions(context: CommandContext) -> list[bytes]:
    """Return the feature compatibility version, then the stored documents."""
    first = {"_id": "featureCompatibilityVersion", "version": FEATURE_VERSION}
    collection = context.view.collection(VERSIONS)
    rest = [] if collection is None else [raw for _, raw in context.view.scan(collection) if raw is not LEFT_OUT]
    return [encode(first), *(raw for raw in rest if decode(raw)["_id"] != first["_id"])]


def _views_of(context: CommandContext, database: str) -> list[bytes]:
    views = [item for item in context.view.catalog.in_database(database) if item.is_view]
    return [encode({"_id": item.namespace, **item.options}) for item in views]


class Opened(NamedTuple):
    """Raw documents and their plan; None without a stored collection."""

    documents: Iterator[bytes]
    plan: ReadPlan | None

    @property
    def is_sorted(self) -> bool:
        """Whether the documents come in the requested order."""
        return self.plan is not None and self.plan.is_sorted


def equal_documents(context: CommandContext, namespace: str, path: str) -> EqualDocuments | None:
    """Return the function that finds documents by values at a path through an index; None without such an index.

    The function may also find other documents."""
    collection = context.view.collection(namespace)
    if collection is None or collection.is_view:
        return None
    if path == "_id":
        by_id = lambda values: _by_ids(context, collection, values)  # noqa: E731
        return (
            EqualDocuments(by_id, _estimated_count(context, collection))
            if "collation" not in collection.options
            else None
        )
    index = index_for_equality(collection, path)
    if index is None:
        return None

    current = lambda: context.view  # noqa: E731

    def find(values: list[Any]) -> Iterator[dict[str, Any]]:
        context.store.uses.indexes[index.number] += 1
        seen = SeenRecords(memory_of(context, {}).add) if index.traits - {CUT_KEY} else None
        ranges = equality_ranges(index, path, values)
        return map(decode, IndexScan(current, collection, index, ranges, seen=seen))

    return EqualDocuments(find, _estimated_count(context, collection))


def _estimated_count(context: CommandContext, collection: Collection) -> int:
    count = context.view.estimated_count(collection)
    return count_of(context, collection) if count is None else count


def _by_ids(context: CommandContext, collection: Collection, values: list[Any]) -> Iterator[dict[str, Any]]:
    context.store.uses.ids[collection.number] += 1
    for key in sorted({encode_value(value) for value in values}):
        match = context.view.by_id(collection, key)
        if match is not None:
            yield decode(match[1])


def documents(
    context: CommandContext, namespace: str, spec: dict[str, Any], collation: Collation | None, *,
    backward: bool = False, variables: Mapping[str, Any] | None = None, hint: Any = None,
) -> Iterator[bytes]:  # fmt: skip
    """Return the matching raw documents of a namespace that is no view. A missing namespace has none."""
    return in_order(
        context, namespace, spec, collation, ANY_ORDER, backward=backward, variables=variables, hint=hint
    ).documents


def in_order(
    context: CommandContext, namespace: str, spec: dict[str, Any], collation: Collation | None, order: Order, *,
    backward: bool = False, variables: Mapping[str, Any] | None = None, hint: Any = None,
    between: IndexRange | None = None, marked: bool = False, explained: bool = False, scored: bool = False,
    keyed: bool = False,
) -> Opened:  # fmt: skip
    """Return the matching raw documents and their plan, in the requested order if an index provides it.

    `explained`: plan without the plan cache. `marked`: each document has its record number and its index key
    (`marked_documents.py`). `keyed`: it has the key alone, as metadata. `scored`: each has its score in a text search
    (`query/document_metadata.py`).
    """
    if is_virtual(context, namespace):
        return Opened(virtual(context, namespace, spec, collation, backward, variables), None)
    collection = context.view.collection(namespace)
    if collection is None:
        if spec:
            parse_filter(spec, collation=collation, variables=variables, nears=[], text=text_query(None, namespace))
        return Opened(iter(()), None)
    finder = Finder(collection, spec, collation, variables, hint, between)
    finder.uses_cache, finder.marks_scores = not explained, scored
    plan = plan_read(context.current_view, collection, finder, order, backward=backward)
    if marked or keyed:
        return Opened(marked_documents(context, plan, with_record=marked), plan)
    return Opened(read(context, plan), plan)
