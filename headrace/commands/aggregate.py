"""aggregate: a pipeline over a collection, a view, no collection at all, or a change stream opened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.commands import fields, server_stages, watch
from headrace.commands.batches import batch_size, open_cursor
from headrace.commands.command import Command
from headrace.commands.find import check_hint
from headrace.commands.let import variables_of
from headrace.commands.namespaces import check_database, check_namespace, flag
from headrace.commands.output import write_output
from headrace.commands.plan import collation_of
from headrace.commands.request import Request
from headrace.commands.sources import documents, resolve
from headrace.errors import CommandError
from headrace.query.pipeline import PipelineContext, Stage, parse_pipeline, run_pipeline
from headrace.query.stages.server_stage import ServerStage
from headrace.values.bson import decode, encode_in_order, type_name

if TYPE_CHECKING:
    from headrace.commands.engine import Engine

_WITHOUT_COLLECTION: Final = frozenset(
    {"$documents", "$changeStream", "$currentOp", "$listLocalSessions", "$queryStats"}
)


def run(engine: Engine, request: Request) -> Any:
    body = request.body
    pipeline = _pipeline(body)
    name = body[request.name]
    if "explain" not in body and watch.opens_a_stream(pipeline):
        return watch.open_stream(engine, request, pipeline)
    cursor = body.get("cursor")
    if flag(body, "explain", False, "aggregate"):
        from headrace.commands.explain import explain  # which knows every command that finds

        return explain(engine, request, False)
    if type(cursor) is not dict:
        if cursor is not None:
            raise CommandError(14, "cursor field must be missing or an object")
        raise CommandError(9, "The 'cursor' option is required, except for aggregate with the explain argument")
    fields.check("aggregate.cursor", cursor, fields.CURSOR)
    size = batch_size(cursor, "aggregate.cursor")
    if type(name) is not str:
        namespace = f"{check_database(request.db)}.$cmd.aggregate"
        _check_without_collection(name, pipeline)
    else:
        namespace = check_namespace(f"{request.db}.{name}")
        check_hint(engine.view.collection(namespace), body.get("hint"))
        _, of_views = resolve(engine, namespace)
        pipeline = [*of_views, *pipeline]
    found = run_pipeline_on(engine, namespace, pipeline, body, request)
    return open_cursor(engine, request, namespace, found, size)


def _pipeline(body: dict[str, Any]) -> list[Any]:
    if "pipeline" not in body:
        raise CommandError(40414, "BSON field 'aggregate.pipeline' is missing but a required field")
    pipeline = body["pipeline"]
    if type(pipeline) is not list:
        raise CommandError(14, "'pipeline' option must be specified as an array")
    for stage in pipeline:
        if type(stage) is not dict:
            raise CommandError(14, "Each element of the 'pipeline' array must be an object")
    return pipeline


def _check_without_collection(name: Any, pipeline: list[dict[str, Any]]) -> None:
    if isinstance(name, bool) or not isinstance(name, int | float):
        raise CommandError(
            9,
            f"Invalid command format: the 'aggregate' field must specify a collection name or 1, not {type_name(name)}",
        )
    if name != 1:
        raise CommandError(9, "Invalid command format: the 'aggregate' field must specify a collection name or 1")
    first = next(iter(pipeline[0]), "") if pipeline else ""
    if first not in _WITHOUT_COLLECTION:
        if not first:
            raise CommandError(73, "{aggregate: 1} is not valid for an empty pipeline.")
        raise CommandError(73, f"{{aggregate: 1}} is not valid for '{first}'; a collection is required.")


def context_of(engine: Engine, namespace: str, body: dict[str, Any]) -> PipelineContext:
    """What the stages of a command may refer to."""
    database, _, name = namespace.partition(".")
    collection = engine.view.collection(namespace)
    variables: dict[str, Any] = {"NOW": DatetimeMS(engine.clock.now_ms()), "CLUSTER_TIME": engine.last_write()[0]}
    variables.update(variables_of(body, "aggregate"))

    def read_collection(other: str | None, coll: str) -> Iterator[dict[str, Any]]:
        target, pipeline = resolve(engine, f"{other or database}.{coll}")
        found = (decode(raw) for raw in documents(engine, target, {}, None))
        if not pipeline:
            return found
        return run_pipeline(parse_pipeline(pipeline, context=context_of(engine, target, {})), found)

    return PipelineContext(
        database=database, collection=None if name == "$cmd.aggregate" else name,
        collation=collation_of(collection, body.get("collation")), variables=variables,
        read_collection=read_collection,
    )  # fmt: skip


def run_pipeline_on(
    engine: Engine, namespace: str, pipeline: list[dict[str, Any]], body: dict[str, Any], request: Request | None = None
) -> Iterator[bytes]:
    """The raw documents that leave a pipeline over `namespace` (a view's own stages are in it already).

    `request`: who asks, where the pipeline may begin with a stage that the server is the source of.
    """
    context = context_of(engine, namespace, body)
    stages = parse_pipeline(pipeline, context=context)
    if request is not None and stages and isinstance(stages[0], ServerStage):
        made = run_pipeline(stages[1:], server_stages.documents(engine, request, namespace, stages[0]))
        return map(encode_in_order, made)
    base, _ = resolve(engine, namespace)
    spec: dict[str, Any] = {}
    if pipeline and "$match" in pipeline[0] and type(pipeline[0]["$match"]) is dict:
        spec, stages = pipeline[0]["$match"], stages[1:]
    found = documents(engine, base, spec, context.collation, variables=dict(context.variables))
    if stages and _writes(stages[-1]):
        return write_output(engine, namespace, stages[-1], run_pipeline(stages[:-1], map(decode, found)))
    if not stages:
        return found
    return map(encode_in_order, run_pipeline(stages, map(decode, found)))


def _writes(stage: Stage) -> bool:
    return stage.name in ("$out", "$merge")


def writes(request: Request) -> bool:
    """Whether this aggregation writes: its last stage tells."""
    pipeline = request.body.get("pipeline")
    if request.body.get("explain") or type(pipeline) is not list or not pipeline or type(pipeline[-1]) is not dict:
        return False
    return "$out" in pipeline[-1] or "$merge" in pipeline[-1]


COMMAND: Final = Command("aggregate", run, writes=writes)
