"""Running an aggregation pipeline over a namespace: the context of its stages, its source and its output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from bson.datetime_ms import DatetimeMS

from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.execution import server_stages
from headrace.execution.let import variables_of
from headrace.execution.memory import memory_of
from headrace.execution.output import write_output
from headrace.execution.plan import collation_of
from headrace.execution.planner.choice import Order
from headrace.execution.sources import documents, in_order, resolve
from headrace.query.expansion import encoded
from headrace.query.pipeline import PipelineContext, Stage, parse_pipeline, run_pipeline
from headrace.query.stages.server_stage import ServerStage
from headrace.query.stages.sort_stage import Sort
from headrace.values.bson import decode


def pipeline_context_of(
    context: CommandContext, namespace: str, body: dict[str, Any], depth: int = 0
) -> PipelineContext:
    """What the stages of a command may refer to; `depth` counts the stages around them that read another collection."""
    database, _, name = namespace.partition(".")
    collection = context.view.collection(namespace)
    variables: dict[str, Any] = {
        "NOW": DatetimeMS(context.clock.now_ms()),
        "CLUSTER_TIME": context.engine.last_write()[0],
    }
    variables.update(variables_of(body))

    def read_collection(other: str | None, coll: str, depth: int) -> Iterator[dict[str, Any]]:
        target, pipeline = resolve(context, f"{other or database}.{coll}")
        results = (decode(raw) for raw in documents(context, target, {}, None))
        if not pipeline:
            return results
        inner = pipeline_context_of(context, target, {}, depth + 1)
        return run_pipeline(parse_pipeline(pipeline, context=inner), results)

    return PipelineContext(
        database=database, collection=None if name == "$cmd.aggregate" else name,
        collation=collation_of(collection, body.get("collation")), variables=variables,
        read_collection=read_collection, memory=memory_of(context, body), depth=depth,
    )  # fmt: skip


def run_pipeline_on(
    context: CommandContext,
    namespace: str,
    pipeline: list[dict[str, Any]],
    body: dict[str, Any],
    request: Request | None = None,
) -> Iterator[bytes]:
    """The raw documents that leave a pipeline over `namespace` (a view's own stages are in it already).

    `request`: who asks, where the pipeline may begin with a stage that the server is the source of.
    """
    pipeline_context = pipeline_context_of(context, namespace, body)
    stages = parse_pipeline(pipeline, context=pipeline_context)
    if request is not None and stages and isinstance(stages[0], ServerStage):
        made = run_pipeline(stages[1:], server_stages.documents(context, request, namespace, stages[0]))
        return map(encoded, made)
    base, _ = resolve(context, namespace)
    spec: dict[str, Any] = {}
    if pipeline and "$match" in pipeline[0] and type(pipeline[0]["$match"]) is dict:
        spec, stages = pipeline[0]["$match"], stages[1:]
    sort = stages[0] if stages and isinstance(stages[0], Sort) else None
    results, is_sorted = in_order(
        context, base, spec, pipeline_context.collation,
        Order() if sort is None else Order(sort.order, sort.count_max),
        variables=dict(pipeline_context.variables), hint=body.get("hint"),
    )  # fmt: skip
    if sort is not None and is_sorted and sort.order.paths:
        limit = sort.count_max
        results, stages = results if limit is None else islice(results, limit), stages[1:]
    if stages and _writes(stages[-1]):
        return write_output(context, namespace, stages[-1], run_pipeline(stages[:-1], map(decode, results)))
    if stages and isinstance(stages[0], Sort):
        results, stages = stages[0].apply_raw(results), stages[1:]
    if not stages:
        return results
    return map(encoded, run_pipeline(stages, map(decode, results)))


def _writes(stage: Stage) -> bool:
    return stage.name in ("$out", "$merge")
