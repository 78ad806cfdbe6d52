"""Running an aggregation pipeline over a namespace: the context of its stages, its source and its output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.execution import server_stages
from headrace.execution.command_memory import memory_of
from headrace.execution.counts import quick_count
from headrace.execution.let import variables_of
from headrace.execution.plan import Finder, collation_of, text_query
from headrace.execution.planner.distinct_scan import distinct_documents
from headrace.execution.planner.index_access import IndexAccess
from headrace.execution.planner.query import Order
from headrace.execution.sources import documents, equal_documents, in_order, is_virtual, resolve, stored
from headrace.execution.time_series import source_of, unpacked
from headrace.execution.writes.output import write_output
from headrace.query.document_metadata import DocumentMetadata
from headrace.query.match.index_conditions import TextQuery
from headrace.query.operation_memory import encoded
from headrace.query.pipeline import PipelineContext, Stage, parse_pipeline, run_pipeline
from headrace.query.projection import included_fields
from headrace.query.stages.fusion import Fusion, is_fusion
from headrace.query.stages.group import Group, group_columns
from headrace.query.stages.reshaping import Unwind
from headrace.query.stages.server_stage import ServerStage
from headrace.query.stages.sort_stage import Limit, Skip, Sort
from headrace.query.stages.stage import DocumentStage, EqualDocuments
from headrace.time_limit import limited
from headrace.values.bson import decode, encode_in_order
from headrace.values.bson.columns import cut_documents, decoded


def pipeline_context_of(
    context: CommandContext, namespace: str, body: dict[str, Any], request: Request, depth: int = 0
) -> PipelineContext:
    """Return the context of a command's stages. `depth` counts the enclosing stages that read another collection."""
    database, _, name = namespace.partition(".")
    collection = context.view.collection(namespace)

    def read_collection(other: str | None, coll: str, depth: int) -> Iterator[dict[str, Any]]:
        target, pipeline = resolve(context, f"{other or database}.{coll}")
        if pipeline:
            return decoded(run_pipeline_on(context, target, pipeline, {}, request, depth + 1))
        return decoded(documents(context, target, {}, None))

    def find_equal(other: str | None, coll: str, path: str) -> EqualDocuments | None:
        target, pipeline = resolve(context, f"{other or database}.{coll}")
        return None if pipeline or is_virtual(context, target) else equal_documents(context, target, path)

    def describe(coll: str, stage: str, spec: Any) -> Iterator[dict[str, Any]]:
        target, pipeline = resolve(context, f"{database}.{coll}")
        if pipeline:
            raise CommandError(40602, f"{stage} is only valid as the first stage in a pipeline")
        of_server = spec if isinstance(spec, ServerStage) else ServerStage(stage, spec)
        return server_stages.documents(context, request, target, of_server)

    def search_in(coll: str) -> TextQuery | None:
        target, pipeline = resolve(context, f"{database}.{coll}")
        return None if pipeline else text_query(context.view.collection(target), target)

    if collection is not None and collection.is_view:
        searched = context.view.collection(resolve(context, namespace)[0])
    else:
        searched = collection
    return PipelineContext(
        database=database, collection=None if name == "$cmd.aggregate" else name,
        collation=collation_of(collection, body.get("collation")), variables=variables_of(context, request, body),
        read_collection=read_collection, find_equal=find_equal, describe=describe,
        memory=memory_of(context, body), depth=depth, search_in=search_in, text=text_query(searched, namespace),
        carried=None if depth else DocumentMetadata("indexKey"),
    )  # fmt: skip


def run_pipeline_on(
    context: CommandContext,
    namespace: str,
    pipeline: list[dict[str, Any]],
    body: dict[str, Any],
    request: Request,
    depth: int = 0,
) -> Iterator[bytes]:
    """Return the raw results of a pipeline over `namespace`. The pipeline already contains the stages of a view.

    `depth`: as in `pipeline_context_of`."""
    pipeline_context = pipeline_context_of(context, namespace, body, request, depth)
    stages = parse_pipeline(pipeline, context=pipeline_context)
    if stages and stages[-1].name in ("$out", "$merge"):
        read = partial(run_pipeline_on, context, namespace, pipeline[:-1], body, request)
        return write_output(context, request, stages[-1], read)
    if stages and isinstance(stages[0], Fusion):
        made = stages[0].documents(_run_of_inputs(context, namespace, body, request))
        return map(encoded, run_pipeline(stages[1:], made))
    if stages and isinstance(stages[0], ServerStage):
        made = server_stages.documents(context, request, resolve(context, namespace)[0], stages[0])
        return map(encoded, run_pipeline(stages[1:], made))
    base, _ = resolve(context, namespace)
    source = source_of(pipeline, stages, body.get("hint"))
    spec, stages = source.spec, source.stages
    is_plain = source.unpack is None
    counted = _count_of_all(context, base, spec, pipeline_context, source.rest, body) if is_plain else None
    if counted is not None:
        return iter(counted)
    is_marked = is_scored(pipeline_context) or is_keyed(pipeline_context)
    firsts = None
    if is_plain and not is_marked:
        firsts = first_of_each(context, base, spec, pipeline_context, stages, source.hint)
    if firsts is not None:
        return map(encoded, run_pipeline(firsts.stages, decoded(firsts.documents)))
    sort = stages[0] if is_plain and stages and isinstance(stages[0], Sort) else None
    results, plan = in_order(
        context, base, spec, pipeline_context.collation,
        Order() if sort is None else Order(sort.order, sort.count_max),
        variables=pipeline_context.variables, hint=source.hint, scored=is_scored(pipeline_context),
        keyed=is_keyed(pipeline_context) and is_plain,
    )  # fmt: skip
    results = unpacked(source, results)
    if sort is not None and plan is not None and plan.is_sorted:
        limit = sort.count_max
        results, stages = results if limit is None else islice(results, limit), stages[1:]
    if stages and isinstance(stages[0], Sort):
        results, stages = stages[0].apply_raw(results), stages[1:]
    results, stages = _on_raw(stages, results, scored=is_marked)
    if not stages:
        return results
    grouped = None if is_marked else _grouped_by_columns(stages, results)
    if grouped is not None:
        return map(encoded, run_pipeline(*grouped))
    return map(encoded, run_pipeline(stages, decoded(results)))


def _run_of_inputs(
    context: CommandContext, namespace: str, body: dict[str, Any], request: Request
) -> Callable[[list[dict[str, Any]]], Iterator[dict[str, Any]]]:
    """Return a function that runs an input of a fusion. Raise 10557301 for a time series."""
    _, of_views = resolve(context, namespace)
    if any("$_internalUnpackBucket" in stage for stage in of_views):
        raise CommandError(10557301, "$rankFusion and $scoreFusion are unsupported on timeseries collections")
    return lambda pipeline: decoded(run_pipeline_on(context, namespace, [*of_views, *pipeline], body, request))


def with_view(of_views: list[dict[str, Any]], pipeline: list[Any]) -> list[Any]:
    """Return a pipeline over a view as one over its collection. A fusion runs the view's stages in each input."""
    return pipeline if is_fusion(pipeline) else [*of_views, *pipeline]


def _on_raw(
    stages: tuple[Stage, ...], raws: Iterator[bytes], *, scored: bool
) -> tuple[Iterator[bytes], tuple[Stage, ...]]:  # fmt: skip
    """Apply the first stages that work on raw documents. Return their results and the remaining stages."""
    while stages:
        stage = stages[0]
        if isinstance(stage, Limit):
            raws = islice(raws, stage.count)
        elif isinstance(stage, Skip):
            raws = islice(raws, stage.count, None)
        elif isinstance(stage, DocumentStage) and stage.name == "$project" and not scored:
            fields, project = included_fields(stage.spec), limited(stage.each)
            if fields is None:
                break
            raws = cut_documents(raws, fields, partial(_projected, project))
        else:
            break
        stages = stages[1:]
    return raws, stages


def _projected(project: Callable[[dict[str, Any]], dict[str, Any] | None], raw: bytes) -> bytes:
    document = project(decode(raw))
    assert document is not None
    return encoded(document)


def _grouped_by_columns(
    stages: Sequence[Stage], raws: Iterator[bytes]
) -> tuple[Sequence[Stage], Iterator[dict[str, Any]]] | None:
    """Run a `$group`, maybe after an `$unwind`, on columns if it reads few fields. Return the remaining stages and
    their input; None if that is not possible."""
    unwind = stages[0] if stages and isinstance(stages[0], Unwind) else None
    rest = stages[unwind is not None :]
    if not rest or not isinstance(rest[0], Group):
        return None
    columns = group_columns(rest[0], unwind)
    return None if columns is None else (rest[1:], rest[0].apply_columns(columns, raws))


def is_scored(context: PipelineContext) -> bool:
    """Whether a stage of the last parsed pipeline reads text scores."""
    return context.text is not None and context.text.score.is_read


def is_keyed(context: PipelineContext) -> bool:
    """Whether a stage of the last parsed pipeline reads `{$meta: "indexKey"}`."""
    return context.carried is not None and context.carried.is_read


class FirstDocuments(NamedTuple):
    """The first document of each group, in place of all documents. `stages` are the remaining stages."""

    access: IndexAccess
    path: str
    documents: Iterator[bytes]
    stages: tuple[Stage, ...]


def first_of_each(
    context: CommandContext, namespace: str, spec: dict[str, Any], pipeline_context: PipelineContext,
    stages: Sequence[Stage], hint: Any,
) -> FirstDocuments | None:  # fmt: skip
    """Return the input of a `$group` that needs only the first document of each value, if an index finds these; or
    None."""
    sort = stages[0] if stages and isinstance(stages[0], Sort) else None
    rest = tuple(stages[sort is not None :])
    if not rest or not isinstance(rest[0], Group):
        return None
    path = _grouped_path(rest[0].spec, sort)
    collection = stored(context, namespace)
    if path is None or collection is None or collection.is_view:
        return None
    finder = Finder(collection, spec, pipeline_context.collation, pipeline_context.variables, hint)
    order = Order() if sort is None else Order(sort.order)
    access = finder.distinct(context.view, path, order, with_missing=True)
    if access is None:
        return None
    return FirstDocuments(access, path, distinct_documents(context, collection, access, path), rest)


def _grouped_path(spec: dict[str, Any], sort: Sort | None) -> str | None:
    """Return the path of a `$group` that needs only one document of each group (with a sort, the first); or None."""
    by = spec.get("_id")
    if type(by) is not str or not by.startswith("$") or by.startswith("$$"):
        return None
    path = by[1:]
    if len(spec) == 1:
        return path if sort is None else None
    if sort is None or not sort.order.paths or sort.order.paths[0][0] != path or sort.count_max is not None:
        return None
    firsts = all(list(value) == ["$first"] for name, value in spec.items() if name != "_id")
    return path if firsts else None


def _count_of_all(
    context: CommandContext, namespace: str, spec: dict[str, Any], pipeline_context: PipelineContext,
    rest: list[dict[str, Any]], body: dict[str, Any],
) -> list[bytes] | None:  # fmt: skip
    """Return the result of a pipeline that only counts matches, such as drivers' `count_documents`; otherwise None."""
    collection = stored(context, namespace)
    if len(rest) != 1 or collection is None or collection.is_view:
        return None
    head: dict[str, Any] = {}
    match rest[0]:
        case {"$count": str(name)}:
            pass
        case {"$group": {"_id": int() | None as constant, **sums}} if len(sums) == 1:
            name, accumulator = str(next(iter(sums))), next(iter(sums.values()))
            if (
                type(accumulator) is not dict
                or list(accumulator.items()) != [("$sum", 1)]
                or accumulator["$sum"] is True
            ):
                return None
            head = {"_id": constant}
        case _:
            return None
    finder = Finder(collection, spec, pipeline_context.collation, pipeline_context.variables, body.get("hint"))
    total = quick_count(context, collection, finder, spec)
    if total is None:
        return None
    return [encode_in_order({**head, name: total})] if total else []
