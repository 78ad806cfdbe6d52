"""Rules for the position of a stage: first, last, inside another stage, after `$changeStream`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.errors import CommandError
from headrace.query.stages.fusion import FUSIONS
from headrace.query.stages.stage import PipelineContext, Stage

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
