"""count and distinct: the number of matches, and the distinct values of a field in the matches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from sys import maxsize
from typing import Any, Final

from headrace import limits
from headrace.commands.reading.find import negative
from headrace.dispatch.arguments import Field, Fields, document, number, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import COLLATION, ENCRYPTION, HINT, QUERY_SETTINGS, QUERY_STATS, SAMPLED_READ
from headrace.dispatch.namespaces import COLLECTION_UUID, target
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection
from headrace.errors import CommandError
from headrace.execution.counts import quick_count
from headrace.execution.let import FilterVariables
from headrace.execution.pipelines import run_pipeline_on
from headrace.execution.plan import Finder, check_hint, collation_of
from headrace.execution.planner.distinct_scan import distinct_values
from headrace.execution.sources import documents, is_virtual, resolve, stored
from headrace.query.collation import Collation
from headrace.query.expressions.numbers import INT64_MIN, int64_of, no_long
from headrace.store.catalog import Collection
from headrace.values.bson import MISSING, encode
from headrace.values.bson.columns import Columns, batches
from headrace.values.order import hash_key
from headrace.values.paths import spread_values


def _check_key(path: str, value: str) -> None:
    if "\0" in value:
        raise CommandError(31032, "The 'key' of distinct must not have an embedded null byte")


KEY: Final = Field("key", "string", "", required=True, check=_check_key)


def _check_limit(path: str, value: Any) -> None:
    limit = int64_of(value)
    if limit is None:
        raise CommandError(9, no_long("limit", value))
    if limit == INT64_MIN:
        raise CommandError(2, "limit value for count cannot be min long")


LIMIT: Final = Field(
    "limit", "number", None, check=_check_limit, error=(2, "limit value is not a valid number")
)  # a negative limit is like a positive one
QUERY: Final = document("query")
SKIP: Final = number("skip", least=0, check=negative)


def count(context: CommandContext, request: Request) -> dict[str, Any]:
    """count: answer the number of matches after `skip`, at most `limit`."""
    namespace = target(request)
    body = request.body
    spec = QUERY.of(body)
    skip, limit = SKIP.of(body) or 0, abs(LIMIT.of(body) or 0)
    collection = stored(context, namespace)
    check_hint(collection, body.get("hint"))
    matched, wanted = None, min(skip + limit, maxsize) if limit else None
    collation = collation_of(collection, body.get("collation"))
    if collection is not None and not collection.is_view:
        finder = Finder(collection, spec, collation, FilterVariables(context, request.client), body.get("hint"))
        matched = quick_count(context, collection, finder, spec, wanted)
    if matched is None:
        matched = sum(1 for _ in islice(_matches(context, request, namespace, spec, collation), wanted))
    matched = max(0, matched - skip)
    reply: dict[str, Any] = {"n": min(matched, limit) if limit else matched}
    if collection is not None and collection.is_view:
        reply["ok"] = 1  # MongoDB answers an int for a view
    return reply


def _matches(
    context: CommandContext, request: Request, namespace: str, spec: dict[str, Any], collation: Collation | None
) -> Iterator[bytes]:
    """Return the raw matches in a collection, a view or a virtual collection."""
    body = request.body
    _, pipeline = resolve(context, namespace, api_strict=bool(body.get("apiStrict")))
    if pipeline and not is_virtual(context, namespace):
        return run_pipeline_on(context, namespace, [*pipeline, {"$match": spec}], body, request)
    collection = context.view.collection(namespace)
    if collection is not None and collection.is_view:
        return run_pipeline_on(context, namespace, [{"$match": spec}], body, request)
    variables = FilterVariables(context, request.client)
    return documents(context, namespace, spec, collation, variables=variables, hint=body.get("hint"))


def distinct(context: CommandContext, request: Request) -> dict[str, Any]:
    """distinct: answer the values of `key` in the matches, each once. Raise 17217 if they exceed a document's size."""
    namespace = target(request)
    body = request.body
    spec = QUERY.of(body)
    collection = stored(context, namespace)
    collation = collation_of(collection, body.get("collation"))
    seen: set[Any] = set()
    values: list[Any] = []
    size = 0
    for value in _all_values(context, request, namespace, collection, spec, collation):
        key = hash_key(value, collation)
        if key not in seen:
            seen.add(key)
            values.append(value)
            size += len(encode({"": value}))
            if size > limits.DOCUMENT_BYTES_MAX:
                raise CommandError(17217, "distinct too big, 16mb cap")
    return {"values": values}


def _all_values(
    context: CommandContext, request: Request, namespace: str, collection: Collection | None, spec: dict[str, Any],
    collation: Collation | None,
) -> Iterator[Any]:  # fmt: skip
    """Yield the values of the matches, from an index if possible."""
    body = request.body
    path = KEY.of(body)
    check_hint(collection, body.get("hint"))
    if collection is not None and not collection.is_view:
        finder = Finder(collection, spec, collation, FilterVariables(context, request.client), body.get("hint"))
        access = finder.distinct(context.view, path, with_missing=False)
        if access is not None:
            yield from distinct_values(context, collection, access, path)
            return
    name, *rest = path.split(".")
    columns = Columns((name,))
    for batch in batches(_matches(context, request, namespace, spec, collation)):
        for value in context.paced(columns.values(batch)[name]):
            if rest or type(value) is list:
                yield from context.paced(spread_values({} if value is MISSING else {name: value}, [name, *rest]))
            elif value is not MISSING:
                yield value


_COUNT: Final = Fields(
    COLLATION, HINT, LIMIT, QUERY, SKIP, COLLECTION_UUID, *ENCRYPTION, *QUERY_STATS, *SAMPLED_READ,
    *without_effect("object", "fields"),
)  # fmt: skip
_DISTINCT: Final = Fields(COLLATION, HINT, KEY, QUERY, COLLECTION_UUID, *QUERY_SETTINGS, *QUERY_STATS, *SAMPLED_READ)

COMMANDS: Final = (
    Command("count", count, _COUNT, pauses=True, requires=on_collection("find")),
    Command("distinct", distinct, _DISTINCT, pauses=True, requires=on_collection("find")),
)
