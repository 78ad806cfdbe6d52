"""The documents of a `$geoNear`, read like a find with `$near` on the indexed field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.execution.near_documents import near_documents
from headrace.execution.plan import Finder
from headrace.execution.planner.near_access import field_of_only_index
from headrace.query.expressions import with_more
from headrace.query.stages.geo_near import GeoNear
from headrace.store.catalog import Collection
from headrace.values.bson import decode


def geo_near_filter(collection: Collection | None, namespace: str, stage: GeoNear) -> dict[str, Any]:
    """Return the filter of the find. Raise 26 without a collection, 27 if the index to use is ambiguous or missing."""
    if collection is None:
        raise CommandError(26, f"$geoNear requires a geo index to run, but {namespace} does not exist")
    return stage.filter_on(stage.key or field_of_only_index(collection))


def geo_near_documents(
    context: CommandContext, namespace: str, stage: GeoNear, hint: Any = None
) -> Iterator[dict[str, Any]]:
    """Return the documents, the nearest first. Raise the errors of the stage at once, not at the first document."""
    collection = context.view.collection(namespace)
    spec = geo_near_filter(collection, namespace, stage)
    assert collection is not None
    variables = with_more(stage.context.variables, stage.context.bound)
    finder = Finder(collection, spec, stage.context.collation, variables, hint)
    finder.near_access(context.current_view)
    return _placed(context, finder, stage)


def _placed(context: CommandContext, finder: Finder, stage: GeoNear) -> Iterator[dict[str, Any]]:
    assert finder.near is not None
    path = finder.near.path
    for near in near_documents(context, finder):
        document = decode(near.raw)
        yield stage.placed(document, near.distance, document[path] if near.point is None else near.point)
