"""explain: the plan of a command, and with `executionStats` the documents and keys that it examines.

    {explain: {find: "c", filter: {...}}, verbosity: "queryPlanner" | "executionStats" | "allPlansExecution"}

The command is run to get its counts; a write only finds the documents that it would change. As in MongoDB, plans are
made without the plan cache, so that `allPlansExecution` can show the trial that chose the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from sys import maxsize
from typing import Any, Final

from bson import Int64, Timestamp

from headrace import limits
from headrace.commands.reading import count, find
from headrace.commands.reading.aggregate import PIPELINE
from headrace.commands.requirements import pipelines
from headrace.commands.writing import delete, find_and_modify, update
from headrace.dispatch.api_version import is_strict
from headrace.dispatch.arguments import Fields, document, raw_documents, string
from headrace.dispatch.cluster_wide import applied, settings_of
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import MULTI, READ_CONCERN, UPSERT
from headrace.dispatch.namespaces import check_collection_uuid, target
from headrace.dispatch.request import Request
from headrace.dispatch.server_info import MONGODB_VERSION_TEXT, host_of
from headrace.errors import CommandError
from headrace.execution.explain_plan import (
    Counts,
    Examined,
    StageCounts,
    cache_keys,
    counting_stage,
    distinct_stage,
    parsed_query,
    read_stage,
    rejected_stages,
    tried,
)
from headrace.execution.let import FilterVariables, variables_of
from headrace.execution.near_documents import geo_near_documents, geo_near_filter
from headrace.execution.pipelines import first_of_each, is_scored, pipeline_context_of, with_view
from headrace.execution.plan import Finder, check_hint, collation_of, text_query
from headrace.execution.planner.choice import NO_INDEX
from headrace.execution.planner.query import ANY_ORDER, Order
from headrace.execution.read_plan import ReadPlan, plan_read
from headrace.execution.sources import in_order, resolve
from headrace.execution.time_series import source_of
from headrace.execution.writes.matches import MatchedDocument, matches
from headrace.execution.writes.updates import parsed
from headrace.query.command_shape import SHAPED, command_shape, hash_of_shape
from headrace.query.match import parse_filter
from headrace.query.operation_memory import encoded
from headrace.query.pipeline import PipelineContext, parse_pipeline
from headrace.query.projection import included_fields
from headrace.query.sort import parse_sort
from headrace.query.stages.carried_metadata import HIDDEN
from headrace.query.stages.geo_near import GeoNear
from headrace.query.stages.server_stage import ServerStage
from headrace.query.stages.sort_stage import Sort
from headrace.query.stages.stage import Stage as PipelineStage
from headrace.query.update.update import UpdateContext
from headrace.store.catalog import Collection
from headrace.values.bson import decode, encode

VERBOSITIES: Final = ("queryPlanner", "executionStats", "allPlansExecution")

EXPLAIN: Final = document("explain", required=True)
_INNER_DATABASE: Final = string("$db")
FIELDS: Final = Fields(EXPLAIN, string("verbosity", choices=VERBOSITIES))


@dataclass(slots=True)
class Plan:
    """The plan of a command. `run` executes it, and returns the number of results and its other counts."""

    namespace: str
    spec: dict[str, Any]
    stage: dict[str, Any]
    read: ReadPlan | None
    run: Callable[[StageCounts], tuple[int, dict[str, int]]]


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """explain: answer the plan of the inner command, at the requested `verbosity`.

    Raise 2, 14, 20, 59, 72 for a `writeConcern`, or 73 if the inner command has another database as `$db`.
    """
    if "writeConcern" in request.body:
        raise CommandError(72, "Command does not support writeConcern")
    inner = EXPLAIN.of(request.body)
    _INNER_DATABASE.examine("explain.$db", inner.get("$db"))
    if inner.get("$db", request.db) != request.db:
        raise CommandError(73, f"Mismatched $db in explain command. Expected {request.db} but got {inner['$db']}")
    name = next(iter(inner), "")
    if is_strict(request.body):
        inner = {**inner, "apiVersion": "1", "apiStrict": True}
    asked = Request(name, request.db, encode(inner), {}, request.client, inner)
    if name == "aggregate":
        check_level(request.body)
    return explain(context, asked, request.body.get("verbosity", "allPlansExecution"))


def check_level(body: dict[str, Any]) -> None:
    """Raise 72 if the `readConcern` allows no explain of an aggregation, 263 in a transaction."""
    if "autocommit" in body:
        raise CommandError(
            263, "Explain for the aggregate command cannot run within a multi-document transaction",
        )  # fmt: skip
    level = READ_CONCERN.of(body).get("level") or "local"
    if level != "local":
        raise CommandError(
            72,
            "Explain for the aggregate command cannot run with a readConcern other than 'local'. Current readConcern: "
            f'{{ readConcern: {{ level: "{level}", provenance: "clientSupplied" }} }}',
        )


def explain(context: CommandContext, request: Request, verbosity: str) -> dict[str, Any]:
    """Return the explanation of a request. Raise 59 for an unknown command, 20 for one without a plan, 40415."""
    plans = _PLANS.get(request.name)
    if plans is None and request.name != "aggregate":
        if request.name in context.engine.commands:
            raise CommandError(20, f"Cannot explain the command '{request.name}'")
        raise CommandError(59, f"Explain failed due to unknown command: {request.name}")
    command = context.engine.commands[request.name]
    command.arguments.check(command.name, request.body)
    if (uuid := request.body.get("collectionUUID")) is not None:
        check_collection_uuid(context, f"{request.db}.{request.body[request.name]}", uuid)
    examined = Examined()
    context.wrap(examined.counting)
    reply: dict[str, Any] = {"explainVersion": "1"}
    with applied(settings_of(context.store, request.name, request.db, request.body)):
        if request.name == "aggregate" or _is_view(context, request):
            reply |= _pipeline(context, request, examined, verbosity)
        else:
            assert plans is not None
            reply |= _explained(context, plans(context, request), examined, verbosity)
    if request.name in SHAPED:
        reply["queryShapeHash"] = hash_of_shape(command_shape(request.name, request.db, request.body))
    reply["command"] = {**request.body, "$db": request.db}
    host, _, port = host_of(context.engine, request.client).rpartition(":")
    reply["serverInfo"] = {
        "host": host, "port": int(port) if port.isdigit() else 0, "version": MONGODB_VERSION_TEXT,
        "gitVersion": "unknown",
    }  # fmt: skip
    return reply


def _explained(context: CommandContext, plan: Plan, examined: Examined, verbosity: str) -> dict[str, Any]:
    choice = NO_INDEX if plan.read is None else plan.read.choice
    reply: dict[str, Any] = {
        "queryPlanner": {
            "namespace": plan.namespace, "parsedQuery": parsed_query(plan.spec), "indexFilterSet": choice.is_filtered,
            **cache_keys(plan.read), "winningPlan": plan.stage,
            "rejectedPlans": rejected_stages(plan.read, plan.spec),
        },
    }  # fmt: skip
    if verbosity == "queryPlanner":
        return reply
    began_ms = context.clock.monotonic_ms()
    stats: dict[str, Any] = {"executionSuccess": True, "nReturned": 0}
    counted: dict[str, int] = {}
    counts = StageCounts(examined)
    try:
        stats["nReturned"], counted = plan.run(counts)
    except CommandError as error:
        stats |= {"executionSuccess": False, "errorMessage": error.message, "errorCode": error.code}
    if plan.stage["stage"] == "SORT":
        counted |= spills_of(context, "$sort")
    stats |= {
        "executionTimeMillis": int(context.clock.monotonic_ms() - began_ms),
        "totalKeysExamined": examined.of_source.keys, "totalDocsExamined": examined.of_source.documents,
        "executionStages": counts.executed(plan.stage, plan.read) | counted,
    }  # fmt: skip
    if verbosity == "allPlansExecution":
        stats["allPlansExecution"] = [tried(trial, plan.spec) for trial in choice.trials]
    reply["executionStats"] = stats
    return reply


# One function for each command.


def _find(context: CommandContext, request: Request) -> Plan:
    body, namespace = request.body, target(request)
    find.check(body)
    spec, sort = find.FILTER.of(body), find.SORT.of(body)
    collection = context.view.collection(namespace)
    check_hint(collection, body.get("hint"))
    skip, limit = find.SKIP.of(body) or 0, find.LIMIT.of(body) or None
    counts: list[StageCounts] = []

    def count_stage(name: str, items: Iterator[bytes]) -> Iterator[bytes]:
        for item in items:
            counts[0].add(name, 1)
            yield item

    documents, read = find.selected(context, request, namespace, spec, collection, skip, limit, count_stage)
    stage = read_stage(read, spec)
    sorts = bool(sort) and "$natural" not in sort and (read is None or not read.is_sorted)
    if sorts:
        limited = {} if limit is None else {"limitAmount": Int64(min(skip + limit, maxsize))}
        stage = {
            "stage": "SORT", "sortPattern": sort, "memLimit": limits.STAGE_BYTES_MAX, **limited, "type": "simple",
            "inputStage": stage,
        }  # fmt: skip
    if find.RETURN_KEY.of(body):
        stage = {"stage": "RETURN_KEY", "inputStage": stage}
    if skip:
        stage = {"stage": "SKIP", "skipAmount": Int64(skip), "inputStage": stage}
    if limit is not None and not sorts:
        stage = {"stage": "LIMIT", "limitAmount": Int64(limit), "inputStage": stage}
    if body.get("projection") and (read is None or read.covered is None):
        kind = "DEFAULT" if included_fields(body["projection"]) is None else "SIMPLE"
        stage = {"stage": f"PROJECTION_{kind}", "transformBy": body["projection"], "inputStage": stage}

    def run_plan(stage_counts: StageCounts) -> tuple[int, dict[str, int]]:
        counts.append(stage_counts)
        for name in ("FETCH", "LIMIT", "SORT", "SKIP"):
            stage_counts.add(name, 0)
        returned = _length(documents)
        stage_counts.add("LIMIT", returned)
        return returned, {}

    return Plan(namespace, spec, stage, read, run_plan)


def _read(
    context: CommandContext, collection: Collection | None, spec: dict[str, Any], body: dict[str, Any],
    variables: Mapping[str, Any] | None = None, order: Order = ANY_ORDER,
) -> ReadPlan | None:  # fmt: skip
    """Return the plan that reads the matches, or None without a collection. `body` has the collation and the hint."""
    collation = collation_of(collection, body.get("collation"))
    if collection is None:
        if spec:
            parse_filter(spec, collation=collation, variables=variables, text=text_query(None))
        return None
    finder = Finder(collection, spec, collation, variables, body.get("hint"))
    finder.uses_cache = False
    return plan_read(context.current_view, collection, finder, order)


def _count(context: CommandContext, request: Request) -> Plan:
    namespace, spec = target(request), count.QUERY.of(request.body)
    variables = FilterVariables(context, request.client)
    read = _read(context, context.view.collection(namespace), spec, request.body, variables)

    def run_plan(counts: StageCounts) -> tuple[int, dict[str, int]]:
        counted = count.count(context, request)["n"]
        if not count.SKIP.of(request.body) and not count.LIMIT.of(request.body):
            counts.add("FETCH", counted)
        return 0, {"nCounted": counted, "nSkipped": count.SKIP.of(request.body) or 0}

    return Plan(namespace, spec, counting_stage(read, spec), read, run_plan)


def _distinct(context: CommandContext, request: Request) -> Plan:
    namespace, spec = target(request), count.QUERY.of(request.body)
    collection = context.view.collection(namespace)
    read = _read(context, collection, spec, request.body, FilterVariables(context, request.client))
    path = count.KEY.of(request.body)
    access = None if read is None else read.finder.distinct(context.view, path, with_missing=False)
    stage = read_stage(read, spec) if access is None else distinct_stage(access, path)

    def run_plan(counts: StageCounts) -> tuple[int, dict[str, int]]:
        returned = len(count.distinct(context, request)["values"])
        if access is not None:
            counts.add("FETCH", returned)
        return returned, {}

    return Plan(namespace, spec, stage, read, run_plan)


def _writes(context: CommandContext, request: Request, statement: dict[str, Any], one: bool, sort: Any) -> Plan:
    """Return the plan of one statement of a write. The statement has `u` if it is an update."""
    namespace = target(request)
    collection = context.view.collection(namespace)
    check_hint(collection, statement.get("hint"))
    collation, spec = collation_of(collection, statement.get("collation")), statement["q"]
    let = variables_of(context, request)
    order = Order(parse_sort(sort, collation), 1) if sort else ANY_ORDER
    read = _read(context, collection, spec, statement, let, order)
    below = read_stage(read, spec)
    updates = "u" in statement
    change = parsed(statement, collection, let) if updates else None
    is_sorted = False
    if sort and read is not None:
        is_sorted = read.finder.take_order(context.current_view, order)
        if not is_sorted:
            below = {"stage": "SORT", "sortPattern": sort, "inputStage": below}

    def run_plan(counts: StageCounts) -> tuple[int, dict[str, int]]:
        selected: Iterator[MatchedDocument] = iter(())
        if read is not None:
            selected = matches(context, read.finder, 1 if one and (is_sorted or not sort) else None)
        matched = modified = 0
        for match in selected:
            matched += 1
            if change is not None and read is not None:
                positional = read.finder.positional(match.document) if change.needs_position else None
                update_context = UpdateContext(context.clock.now_ms(), Timestamp(0, 0), positional)
                modified += change.apply(match.document, update_context).change is not None
            if one and (is_sorted or not sort):
                break
        counts.add("FETCH", matched)
        if not updates:
            return 0, {"nWouldDelete": min(matched, 1) if one else matched}
        upserted = int(not matched and UPSERT.of(statement))
        if one:
            matched, modified = min(matched, 1), min(modified, 1)
        return 0, {"nMatched": matched, "nWouldModify": modified, "nWouldUpsert": upserted}

    stage = {"stage": "UPDATE" if updates else "DELETE", "inputStage": below}
    return Plan(namespace, spec, stage, read, run_plan)


def _statement(request: Request, field: str) -> dict[str, Any]:
    statements = raw_documents(request, field)
    if len(statements) != 1:
        raise CommandError(16, "explained write batches must be of size 1")
    return decode(statements[0])


def _update(context: CommandContext, request: Request) -> Plan:
    statement = _statement(request, "updates")
    update.check(statement)
    return _writes(context, request, statement, not MULTI.of(statement), statement.get("sort"))


def _delete(context: CommandContext, request: Request) -> Plan:
    statement = _statement(request, "deletes")
    delete.check(statement)
    return _writes(context, request, statement, bool(delete.LIMIT.of(statement)), None)


def _find_and_modify(context: CommandContext, request: Request) -> Plan:
    body = request.body
    statement = {"q": find_and_modify.QUERY.of(body), "upsert": UPSERT.of(body)}
    statement |= {name: body[name] for name in ("arrayFilters", "collation", "hint") if name in body}
    if not find_and_modify.REMOVE.of(body):
        statement["u"] = body.get("update")
        update.check(statement)
    return _writes(context, request, statement, True, body.get("sort"))


_PLANS: Final[dict[str, Callable[[CommandContext, Request], Plan]]] = {
    "count": _count,
    "delete": _delete,
    "distinct": _distinct,
    "find": _find,
    "findAndModify": _find_and_modify,
    "findandmodify": _find_and_modify,
    "update": _update,
}


def _length(items: Iterator[Any]) -> int:
    return sum(1 for _ in items)


# Pipelines.


def _is_view(context: CommandContext, request: Request) -> bool:
    collection = context.view.collection(target(request))
    if collection is None or not collection.is_view:
        return False
    if request.name != "find":
        raise CommandError(166, f"Cannot explain {request.name} on the view {collection.namespace}")
    return True


def _pipeline(context: CommandContext, request: Request, examined: Examined, verbosity: str) -> dict[str, Any]:
    """Return the explanation of a pipeline: the plan of its first filter, and the stages that follow."""
    body = find.on_view(request.body) if request.name == "find" else request.body
    name = body[request.name]
    namespace = f"{request.db}.{name if type(name) is str else '$cmd.aggregate'}"
    base, of_views = resolve(context, namespace)
    asked = find.as_pipeline(body) if request.name == "find" else PIPELINE.of(body)
    pipeline = with_view(of_views, asked)
    pipeline_context = pipeline_context_of(context, namespace, body, request)
    stages = parse_pipeline(pipeline, context=pipeline_context)
    if any(stage.name == "$changeStream" for stage in stages):
        raise CommandError(115, "explain of a change stream is not supported")
    if stages and isinstance(stages[0], ServerStage) and not isinstance(stages[0], GeoNear):
        return {"stages": [{stage.name: stage.spec} for stage in stages]}
    beginning = source_of(pipeline, stages, body.get("hint"))
    spec, stages, unpack = beginning.spec, beginning.stages, beginning.unpack
    if unpack is not None:  # shown as a stage; the buckets are read in no order
        stages = (unpack, *stages)
    cursor = "$cursor"
    if stages and isinstance(stages[0], GeoNear):
        cursor = "$geoNearCursor"
        plan, documents, left = _near_source(context, base, stages[0], stages[1:], body.get("hint"))
    else:
        plan, documents, left = _source(context, base, spec, pipeline_context, stages, beginning.hint)
    counts = [0] * (len(left) + 1)
    of_stages = [examined.of_source, *(Counts() for _ in left)]

    def run_plan(stage_counts: StageCounts) -> tuple[int, dict[str, int]]:
        source = examined.by(examined.of_source, stage_counts.count("FETCH", documents))
        flow: Iterator[Any] = map(decode, context.paced(_counted(source, counts, 0)))
        for index, stage in enumerate(left, 1):
            if stage.name not in ("$merge", "$out"):
                flow = context.paced(_counted(examined.by(of_stages[index], stage.apply(flow)), counts, index))
        _length(flow)
        return counts[0], {}

    plan.run = run_plan
    explained = _explained(context, plan, examined, verbosity)
    if cursor == "$cursor" and all(stage.name == HIDDEN for stage in left):
        return explained
    shown: list[dict[str, Any]] = [{cursor: explained}, *({stage.name: stage.spec} for stage in left)]
    if verbosity != "queryPlanner":
        for index, item in enumerate(shown):
            name = next(iter(item))
            if index and (name == "$lookup" or of_stages[index].keys or of_stages[index].documents):
                item |= _examined_shown(of_stages[index])
            item["nReturned"] = Int64(counts[index])
            item |= spills_of(context, name)
    return {"stages": [item for item in shown if HIDDEN not in item]}


def _source(
    context: CommandContext, base: str, spec: dict[str, Any], pipeline_context: PipelineContext,
    stages: Sequence[PipelineStage], hint: Any,
) -> tuple[Plan, Iterator[bytes], Sequence[PipelineStage]]:  # fmt: skip
    """Return the plan for the input of a pipeline, the documents, and the remaining stages."""
    never: Callable[[StageCounts], tuple[int, dict[str, int]]] = lambda counts: (0, {})  # noqa: E731
    firsts = first_of_each(context, base, spec, pipeline_context, stages, hint)
    if firsts is not None:
        stage = distinct_stage(firsts.access, firsts.path) | {"stage": "FETCH"}
        del stage["transformBy"]
        return Plan(base, spec, stage, None, never), firsts.documents, firsts.stages
    order = Order(stages[0].order, stages[0].count_max) if stages and isinstance(stages[0], Sort) else ANY_ORDER
    documents, read = in_order(
        context, base, spec, pipeline_context.collation, order, variables=pipeline_context.variables, hint=hint,
        explained=True, scored=is_scored(pipeline_context),
    )  # fmt: skip
    if read is not None and read.is_sorted and order.is_asked:
        stages, documents = stages[1:], islice(documents, order.limit)
    return Plan(base, spec, read_stage(read, spec), read, never), documents, stages


def _near_source(
    context: CommandContext, base: str, stage: GeoNear, stages: Sequence[PipelineStage], hint: Any
) -> tuple[Plan, Iterator[bytes], Sequence[PipelineStage]]:
    """Return the same as `_source` for a pipeline that begins with `$geoNear`."""
    collection = context.view.collection(base)
    spec = geo_near_filter(collection, base, stage)
    documents = map(encoded, geo_near_documents(context, base, stage, hint))
    _, read = in_order(context, base, spec, stage.context.collation, ANY_ORDER, hint=hint, explained=True)
    return Plan(base, spec, read_stage(read, spec), read, lambda counts: (0, {})), documents, stages


def _examined_shown(counts: Counts) -> dict[str, Any]:
    """Return the counts of a stage's reads in other collections, as MongoDB shows them for `$lookup`."""
    return {
        "totalDocsExamined": Int64(counts.documents), "totalKeysExamined": Int64(counts.keys),
        "collectionScans": Int64(counts.collection_scans), "indexesUsed": list(counts.indexes),
    }  # fmt: skip


def spills_of(context: CommandContext, stage: str) -> dict[str, Any]:
    """Return the spills to disk of all stages with this name; empty for stages that never spill."""
    if stage not in _SPILLING:
        return {}
    spills = {} if context.memory is None else context.memory.spills.get(stage, {})
    counters = {name: Int64(spills.get(name, 0)) for name in ("spills", "spilledBytes", "spilledRecords")}
    return {"usedDisk": bool(spills), **counters}


_SPILLING: Final = frozenset({"$bucketAuto", "$group", "$setWindowFields", "$sort"})


def _counted(items: Iterator[Any], counts: list[int], index: int) -> Iterator[Any]:
    for item in items:
        counts[index] += 1
        yield item


COMMAND: Final = Command("explain", run, FIELDS, pauses=True, requires=pipelines.EXPLAIN)
