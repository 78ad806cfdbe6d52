"""aggregate: run a pipeline over a collection, a view or no collection, or open a change stream."""

from __future__ import annotations

from typing import Any, Final

from headrace.commands.requirements import pipelines
from headrace.dispatch.arguments import Field, Fields, array, document, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import (
    BATCH_SIZE,
    BYPASS,
    COLLATION,
    CONSTANTS,
    ENCRYPTION,
    HINT,
    KEEPS_EMPTY_TIMESTAMPS,
    LET,
    QUERY_SETTINGS,
    QUERY_STATS,
    SAMPLE,
)
from headrace.dispatch.namespaces import COLLECTION_UUID, check_database, check_namespace, check_without_collection
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.execution import change_streams
from headrace.execution.batches import open_cursor
from headrace.execution.command_memory import ALLOW_DISK_USE
from headrace.execution.pipelines import run_pipeline_on, with_view
from headrace.execution.plan import check_hint
from headrace.execution.sources import resolve
from headrace.execution.time_series import is_of_buckets

_WITHOUT_COLLECTION: Final = frozenset(
    {
        "$changeStream",
        "$currentOp",
        "$documents",
        "$listClusterCatalog",
        "$listLocalSessions",
        "$listSampledQueries",
        "$querySettings",
        "$queryStats",
    }
)

_CURSOR: Final = document("cursor", Fields(BATCH_SIZE), error=(14, "cursor field must be missing or an object"))
EXPLAIN: Final = Field("explain", "strictBool", False, error=(14, "explain must be a boolean"))
PIPELINE: Final = array(
    "pipeline", "object", required=True, error=(14, "'pipeline' option must be specified as an array"),
    items_error=(14, "Each element of the 'pipeline' array must be an object"),
)  # fmt: skip
FIELDS: Final = Fields(
    ALLOW_DISK_USE, COLLATION, COLLECTION_UUID, _CURSOR, EXPLAIN, HINT, KEEPS_EMPTY_TIMESTAMPS, LET, PIPELINE,
    *CONSTANTS, *ENCRYPTION, *QUERY_SETTINGS, *QUERY_STATS, *SAMPLE,
    BYPASS, *without_effect("bool", "fromMongos", "fromRouter", "isMapReduceCommand", "needsMerge"),
    *without_effect("object", "exchange"),
)  # fmt: skip


def run(context: CommandContext, request: Request) -> Any:
    """aggregate: answer the first batch of the pipeline's results, or of a change stream."""
    body = request.body
    pipeline = PIPELINE.of(body)
    name = body[request.name]
    if name == "$cmd.aggregate":  # the internal name for no collection
        raise CommandError(73, f"Invalid namespace specified '{request.db}.{name}'")
    if "explain" not in body and change_streams.opens_a_stream(pipeline):
        return change_streams.open_stream(context, request, pipeline)
    if EXPLAIN.of(body):
        if "writeConcern" in body:
            raise CommandError(9, "Aggregation explain does not support the'writeConcern' option")
        from headrace.commands.reading.explain import check_level, explain  # late: imports all of find

        check_level(body)
        return explain(context, request, "queryPlanner")
    if body.get("writeConcern") is not None and not writes(request):
        raise CommandError(72, "Command does not support writeConcern")
    if body.get("cursor") is None:
        raise CommandError(9, "The 'cursor' option is required, except for aggregate with the explain argument")
    size = BATCH_SIZE.of(body["cursor"])
    context.keeps_empty_timestamps = KEEPS_EMPTY_TIMESTAMPS.of(body)
    if type(name) is not str:
        namespace = f"{check_database(request.db)}.$cmd.aggregate"
        _check_agnostic(name, pipeline)
    else:
        namespace = check_namespace(f"{request.db}.{name}")
        check_hint(context.view.collection(namespace), body.get("hint"))
        _, of_views = resolve(context, namespace, api_strict=bool(body.get("apiStrict")))
        if not is_of_buckets(context, namespace, pipeline):
            pipeline = with_view(of_views, pipeline)
    results = run_pipeline_on(context, namespace, pipeline, body, request)
    return open_cursor(context, request, namespace, results, size)


def _check_agnostic(name: Any, pipeline: list[dict[str, Any]]) -> None:
    check_without_collection(name)
    first = next(iter(pipeline[0]), "") if pipeline else ""
    if first not in _WITHOUT_COLLECTION:
        if not first:
            raise CommandError(73, "{aggregate: 1} is not valid for an empty pipeline.")
        raise CommandError(73, f"{{aggregate: 1}} is not valid for '{first}'; a collection is required.")


def writes(request: Request) -> bool:
    """Whether this aggregation writes: its last stage is `$out` or `$merge`."""
    pipeline = PIPELINE.of(request.body)
    if EXPLAIN.of(request.body) or not pipeline:
        return False
    return "$out" in pipeline[-1] or "$merge" in pipeline[-1]


COMMAND: Final = Command("aggregate", run, FIELDS, pauses=True, writes=writes, requires=pipelines.AGGREGATE)
