"""The documents of a namespace: a collection, the oplog, the pre-images, or a view on one of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace import limits
from headrace.cursors.document_cursor import IdScan, Scan
from headrace.cursors.oplog_scan import OplogScan, pre_images, time_bounds
from headrace.cursors.tailable_scan import Matching
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import OPLOG, PRE_IMAGES
from headrace.errors import CommandError
from headrace.execution.plan import Finder
from headrace.query.collation import Collation
from headrace.query.match import parse_filter
from headrace.store.catalog import Collection
from headrace.store.view import View, id_bounds


def resolve(context: CommandContext, namespace: str) -> tuple[str, list[dict[str, Any]]]:
    """The collection under a view, and the stages of all views on the way; `[]` for a collection."""
    pipeline: list[dict[str, Any]] = []
    for _ in range(limits.VIEW_DEPTH_MAX):
        collection = context.view.collection(namespace)
        if collection is None or not collection.is_view:
            return namespace, pipeline
        pipeline = [*collection.options.get("pipeline", []), *pipeline]
        namespace = f"{collection.database}.{collection.options['viewOn']}"
    raise CommandError(165, f"View depth limit exceeded; maximum depth is {limits.VIEW_DEPTH_MAX}")


def is_virtual(context: CommandContext, namespace: str) -> bool:
    """Whether a namespace is shown as a collection without being one."""
    if namespace == OPLOG:
        return context.store.oplog_enabled
    return namespace == PRE_IMAGES or namespace.endswith(".system.views")


def virtual(
    context: CommandContext, namespace: str, spec: dict[str, Any], collation: Collation | None, backward: bool,
    variables: dict[str, Any] | None = None,
) -> Iterator[bytes]:  # fmt: skip
    """Matching raw documents of the oplog or another shown table."""
    current: Callable[[], View] = lambda: context.view  # noqa: E731
    documents: Iterator[bytes]
    if namespace == OPLOG:
        first, last = time_bounds(spec)
        documents = OplogScan(current, first=first, last=last, backward=backward)
    elif namespace == PRE_IMAGES:
        documents = iter(list(pre_images(context.view)))
    else:
        documents = iter(_views_of(context, namespace.partition(".")[0]))
    if not spec:
        return documents
    predicate = parse_filter(spec, collation=collation, variables=variables)
    return Matching(documents, predicate)


def _views_of(context: CommandContext, database: str) -> list[bytes]:
    from headrace.values.bson import encode

    views = [item for item in context.view.catalog.in_database(database) if item.is_view]
    return [encode({"_id": item.namespace, **item.options}) for item in views]


def stored(
    context: CommandContext, collection: Collection, spec: dict[str, Any], collation: Collation | None,
    backward: bool = False, variables: dict[str, Any] | None = None,
) -> Iterator[bytes]:  # fmt: skip
    """Matching raw documents of a collection in natural order."""
    finder = Finder(collection, spec, collation, variables)
    if finder.is_by_id:
        match = finder.by_id(context.view)
        return iter(() if match is None else (match[1],))
    if finder.has_id_keys:
        candidates = [raw for _, _, raw in finder.candidates(context.view)]
        return finder.narrowed(lambda: iter(candidates))
    if finder.id_range is not None and not backward:
        bounds = finder.id_range
        return finder.narrowed(lambda: IdScan(lambda: context.view, collection, bounds))
    return finder.narrowed(lambda: Scan(lambda: context.view, collection, backward=backward))


def in_id_order(
    context: CommandContext, collection: Collection, spec: dict[str, Any], collation: Collation | None, *,
    backward: bool, variables: dict[str, Any] | None = None,
) -> Iterator[bytes] | None:  # fmt: skip
    """Matching raw documents sorted by `_id`, read in that order; None where that cannot be had."""
    if collation is not None or collection.long_ids:
        return None
    finder = Finder(collection, spec, collation, variables)
    if finder.is_by_id or finder.has_id_keys:
        return None
    bounds = finder.id_range or id_bounds(None, None)
    return finder.narrowed(lambda: IdScan(lambda: context.view, collection, bounds, backward=backward))


def documents(
    context: CommandContext, namespace: str, spec: dict[str, Any], collation: Collation | None, *,
    backward: bool = False, variables: dict[str, Any] | None = None,
) -> Iterator[bytes]:  # fmt: skip
    """Matching raw documents of a namespace that is no view; none where there is nothing of that name."""
    if is_virtual(context, namespace):
        return virtual(context, namespace, spec, collation, backward, variables)
    collection = context.view.collection(namespace)
    if collection is None:
        if spec:
            parse_filter(spec, collation=collation, variables=variables)
        return iter(())
    return stored(context, collection, spec, collation, backward, variables)
