"""Parses pipelines to stages, and runs stages over documents. `STAGES` has every stage that MongoDB knows.

    stages = parse_pipeline([{"$match": {"a": 1}}, {"$limit": 3}], context=PipelineContext())
    list(run_pipeline(stages, documents))

Rule: `parse_pipeline` raises every error that does not depend on documents: first the errors of each stage, then those
of the stages' placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.query.match.filter_parser import NO_TEXT_HERE
from headrace.query.stages.bucket import parse_bucket, parse_bucket_auto
from headrace.query.stages.carried_metadata import metadata_after, with_metadata
from headrace.query.stages.densify import parse_densify
from headrace.query.stages.facet import parse_facet
from headrace.query.stages.fusion import FUSIONS, parse_rank_fusion, parse_score, parse_score_fusion
from headrace.query.stages.geo_near import parse_geo_near
from headrace.query.stages.group import parse_count, parse_group, parse_sort_by_count
from headrace.query.stages.joins import parse_graph_lookup, parse_lookup, parse_union_with, with_unwinds
from headrace.query.stages.match_stage import Search, parse_match
from headrace.query.stages.reshaping import (
    parse_add_fields,
    parse_project,
    parse_redact,
    parse_replace_root,
    parse_replace_with,
    parse_unset,
    parse_unwind,
)
from headrace.query.stages.server_stage import (
    ServerStage,
    parse_admin_stage,
    parse_change_stream,
    parse_documents,
    parse_list_cluster_catalog,
    parse_list_local_sessions,
    parse_list_sessions,
    parse_query_settings,
    parse_server_stage,
    parse_split,
)
from headrace.query.stages.sort_stage import (
    ONE_BY_ONE,
    SortedKey,
    key_after,
    parse_limit,
    parse_sample,
    parse_skip,
    parse_sort_stage,
    with_limits,
    with_sort_keys,
)
from headrace.query.stages.stage import JOINING, Document, DocumentStage, Parser, PipelineContext, Stage
from headrace.query.stages.unpack_bucket import parse_unpack_bucket
from headrace.query.stages.window import parse_fill, parse_set_window_fields
from headrace.query.stages.writes import parse_merge, parse_out
from headrace.time_limit import limited_call
from headrace.turns import paced

_NO_SEARCH = "{} needs Atlas Search, which Headrace does not have; match with $regex, or export to a search engine"
_NOT_HERE = "{} is not available on this server"
UNSUPPORTED: Final[dict[str, tuple[int, str]]] = {
    "$listSearchIndexes": (31082, _NO_SEARCH),
    "$search": (31082, _NO_SEARCH),
    "$searchMeta": (31082, _NO_SEARCH),
    "$shardedDataDistribution": (6789101, _NOT_HERE),
    "$vectorSearch": (31082, _NO_SEARCH),
}


def parse_unsupported(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """Raise the stage's error. In a change stream, return a stage for the placement check to refuse."""
    if context.in_change_stream:
        return (ServerStage(name, spec),)
    code, message = UNSUPPORTED[name]
    raise CommandError(code, message.format(name))


STAGES: Final[dict[str, Parser]] = {
    "$_internalUnpackBucket": parse_unpack_bucket,
    "$addFields": parse_add_fields,
    "$bucket": parse_bucket,
    "$bucketAuto": parse_bucket_auto,
    "$changeStream": parse_change_stream,
    "$changeStreamSplitLargeEvent": parse_split,
    "$collStats": parse_server_stage,
    "$count": parse_count,
    "$currentOp": parse_admin_stage,
    "$densify": parse_densify,
    "$documents": parse_documents,
    "$facet": parse_facet,
    "$fill": parse_fill,
    "$geoNear": parse_geo_near,
    "$graphLookup": parse_graph_lookup,
    "$group": parse_group,
    "$indexStats": parse_server_stage,
    "$limit": parse_limit,
    "$listClusterCatalog": parse_list_cluster_catalog,
    "$listLocalSessions": parse_list_local_sessions,
    "$listSampledQueries": parse_admin_stage,
    "$listSessions": parse_list_sessions,
    "$lookup": parse_lookup,
    "$match": parse_match,
    "$merge": parse_merge,
    "$out": parse_out,
    "$planCacheStats": parse_server_stage,
    "$project": parse_project,
    "$querySettings": parse_query_settings,
    "$queryStats": parse_admin_stage,
    "$rankFusion": parse_rank_fusion,
    "$redact": parse_redact,
    "$replaceRoot": parse_replace_root,
    "$replaceWith": parse_replace_with,
    "$sample": parse_sample,
    "$score": parse_score,
    "$scoreFusion": parse_score_fusion,
    "$set": parse_add_fields,
    "$setWindowFields": parse_set_window_fields,
    "$skip": parse_skip,
    "$sort": parse_sort_stage,
    "$sortByCount": parse_sort_by_count,
    "$unionWith": parse_union_with,
    "$unset": parse_unset,
    "$unwind": parse_unwind,
    **dict.fromkeys(UNSUPPORTED, parse_unsupported),
}


__all__ = ["DocumentStage", "PipelineContext", "Stage", "parse_pipeline", "run_pipeline"]


@limited_call
def parse_pipeline(pipeline: Sequence[Any], *, context: PipelineContext) -> tuple[Stage, ...]:
    """The stages of `pipeline`. Raises 7749501 if they are too many, or the `CommandError` of the first invalid one.

    With `context.in_change_stream` these are the stages after `$changeStream`. A stage not allowed there raises 20.
    """
    if len(pipeline) > limits.PIPELINE_STAGE_COUNT_MAX:
        raise CommandError(7749501, f"Pipeline length must be no longer than {limits.PIPELINE_STAGE_COUNT_MAX} stages")
    stages: list[Stage] = []
    key: SortedKey | None = None
    text, outer = context.text, context.carried
    for element in pipeline:
        try:
            for stage in _parse_stage(element, context, key):
                stages.append(stage)
                key = key_after(stage, key)
                carried = metadata_after(stage, context.text, context.carried)
                if context.text is not None or carried is not context.carried:
                    context = replace(context, text=None, carried=carried)
        except CommandError as error:
            if error.message != NO_TEXT_HERE:
                raise
            raise _misplaced_search(context, is_first=not stages) from error
    check_placement(stages, context)
    if text is not None and text.search is not None:
        if context.inside:
            stages[0] = Search.instead_of(stages[0], text.score, context)
        stages = with_metadata(stages, text.score)
    elif stages and outer is not None and context.inside != "$facet" and stages[0].name == "$match":
        stages = with_metadata(stages, outer)
    elif stages and (
        isinstance(stages[0], ServerStage) or (outer is not None and not outer.is_read and context.inside != "$facet")
    ):
        stages = with_metadata(stages, None)
    else:
        stages = with_metadata(stages, None, outer)
    return with_unwinds(with_limits(list(with_sort_keys(stages))))


def _misplaced_search(context: PipelineContext, *, is_first: bool) -> CommandError:
    """The error of a `$text` at a place where no index can answer it."""
    if is_first and context.inside == "$facet":
        return CommandError(40600, "$match is not allowed to be used within a $facet stage")
    if is_first and context.inside not in JOINING and not context.in_change_stream:
        return CommandError(2, NO_TEXT_HERE)
    return CommandError(17313, "$match with $text is only allowed as the first pipeline stage")


def check_stage_names(pipeline: Sequence[Any]) -> None:
    """Raise 14, 40323 and 40324 for elements that are not stages."""
    for element in pipeline:
        _stage_name(element)


def _stage_name(element: Any) -> str:
    if type(element) is not dict:
        raise CommandError(14, "Each element of the 'pipeline' array must be an object")
    if len(element) != 1:
        raise CommandError(40323, "A pipeline stage specification object must contain exactly one field.")
    name: str = next(iter(element))
    if name not in STAGES:
        raise CommandError(40324, f"Unrecognized pipeline stage name: '{name}'")
    return name


def _parse_stage(element: Any, context: PipelineContext, key: SortedKey | None) -> tuple[Stage, ...]:
    name = _stage_name(element)
    parse, value = STAGES[name], element[name]
    if key is not None and name in ONE_BY_ONE:
        context = replace(context, sort_key=key.reader)
    return parse(name, value, context)


def run_pipeline(stages: Iterable[Stage], documents: Iterable[Document]) -> Iterator[Document]:
    """The documents that leave the last stage, computed lazily. Input documents are not changed.

    The command may pause before each document enters a stage.
    """
    flow: Iterator[Document] = paced(documents)
    for stage in stages:
        flow = paced(stage.apply(flow))
    return flow


# Positions of stages: first, last, inside another stage, after `$changeStream`.


FIRST: Final = frozenset(
    {
        "$changeStream",
        "$collStats",
        "$currentOp",
        "$documents",
        "$geoNear",
        "$indexStats",
        "$listCachedAndActiveUsers",
        "$listClusterCatalog",
        "$listLocalSessions",
        "$listSampledQueries",
        "$listSearchIndexes",
        "$listSessions",
        "$planCacheStats",
        "$querySettings",
        "$queryStats",
        "$rankFusion",
        "$scoreFusion",
        "$search",
        "$searchMeta",
        "$shardedDataDistribution",
        "$vectorSearch",
    }
)
LAST: Final = frozenset({"$changeStreamSplitLargeEvent", "$merge", "$out"})
WRITING: Final = frozenset({"$merge", "$out"})
REFUSED_INSIDE: Final = {
    "$facet": (40600, (FIRST | LAST | {"$facet"}) - {"$changeStreamSplitLargeEvent"}),
    "$lookup": (51047, WRITING | {"$changeStream"}),
    "$unionWith": (31441, WRITING | {"$changeStream"}),
}


def check_placement(stages: Sequence[Stage], context: PipelineContext) -> None:
    """Raise the error of the first stage that is not allowed at its position."""
    if context.in_change_stream:
        _check_change_stream(stages)
    if context.inside:
        _check_inside(stages, context.inside)
    last = len(stages) - 1
    for index, stage in enumerate(stages):
        if stage.name in FIRST and (index or context.in_change_stream):
            raise not_first(stage.name)
        if stage.name in LAST and index != last:
            raise _not_last(stage.name)
        if stage.name == "$changeStreamSplitLargeEvent" and not context.in_change_stream:
            raise CommandError(20, f"{stage.name} can only be used in a $changeStream pipeline")


def not_first(name: str) -> CommandError:
    """Return the error of a stage that must be first, and is not."""
    if name in FUSIONS:
        return CommandError(
            10170100, "$rankFusion/$scoreFusion can only be the first stage of an aggregation pipeline."
        )
    code = 40603 if name == "$geoNear" else 40602
    return CommandError(code, f"{name} is only valid as the first stage in a pipeline")


def _not_last(name: str) -> CommandError:
    if name == "$changeStreamSplitLargeEvent":
        return CommandError(7182802, f"{name} must be the last stage in the pipeline")
    return CommandError(40601, f"{name} can only be the final stage in the pipeline")


def _check_change_stream(stages: Sequence[Stage]) -> None:
    names = [stage.name for stage in stages]
    if names.count("$changeStreamSplitLargeEvent") > 1:
        raise CommandError(7183900, "$changeStreamSplitLargeEvent may be used once in a pipeline")
    for stage in stages:
        if stage.name == "$changeStream":
            raise CommandError(40602, "$changeStream is only valid as the first stage in a pipeline")
        if not stage.allowed_in_change_stream:
            raise CommandError(20, f"{stage.name} is not permitted in a $changeStream pipeline")


def _check_inside(stages: Sequence[Stage], inside: str) -> None:
    code, refused = REFUSED_INSIDE[inside]
    for stage in stages:
        if stage.name not in refused:
            continue
        if inside == "$facet":
            raise CommandError(code, f"{stage.name} is not allowed to be used within a $facet stage")
        raise CommandError(code, f"{stage.name} is not allowed within a {inside}'s sub-pipeline")
