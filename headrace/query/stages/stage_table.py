"""Every stage that MongoDB knows: the stages that Headrace runs, and the unsupported ones with their errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.stages.add_fields import parse_add_fields
from headrace.query.stages.bucket import parse_bucket
from headrace.query.stages.bucket_auto import parse_bucket_auto
from headrace.query.stages.change_stream import parse_change_stream, parse_split
from headrace.query.stages.densify import parse_densify
from headrace.query.stages.documents_stage import parse_documents
from headrace.query.stages.facet import parse_facet
from headrace.query.stages.fill import parse_fill
from headrace.query.stages.fusion import parse_rank_fusion, parse_score_fusion
from headrace.query.stages.geo_near import parse_geo_near
from headrace.query.stages.graph_lookup import parse_graph_lookup
from headrace.query.stages.group import parse_count, parse_group, parse_sort_by_count
from headrace.query.stages.limit import parse_limit, parse_skip
from headrace.query.stages.lookup import parse_lookup
from headrace.query.stages.match_stage import parse_match
from headrace.query.stages.project import parse_project, parse_unset
from headrace.query.stages.redact import parse_redact
from headrace.query.stages.replace_root import parse_replace_root, parse_replace_with
from headrace.query.stages.sample import parse_sample
from headrace.query.stages.score import parse_score
from headrace.query.stages.server_stage import (
    parse_admin_stage,
    parse_list_cluster_catalog,
    parse_list_local_sessions,
    parse_list_sessions,
    parse_query_settings,
    parse_server_stage,
)
from headrace.query.stages.sort_stage import parse_sort_stage
from headrace.query.stages.stage import Document, Parser, PipelineContext, Stage
from headrace.query.stages.union_with import parse_union_with
from headrace.query.stages.unpack_bucket import parse_unpack_bucket
from headrace.query.stages.unwind import parse_unwind
from headrace.query.stages.window import parse_set_window_fields
from headrace.query.stages.writes import parse_merge, parse_out

_NO_SEARCH = "{} needs Atlas Search, which Headrace does not have; match with $regex, or export to a search engine"
_NOT_HERE = "{} is not available on this server"
UNSUPPORTED: Final[dict[str, tuple[int, str]]] = {
    "$listSearchIndexes": (31082, _NO_SEARCH),
    "$search": (31082, _NO_SEARCH),
    "$searchMeta": (31082, _NO_SEARCH),
    "$shardedDataDistribution": (6789101, _NOT_HERE),
    "$vectorSearch": (31082, _NO_SEARCH),
}


@dataclass(frozen=True, slots=True)
class Refused(Stage):
    """Stands in a change stream's pipeline until the check of the stages' placement refuses it."""

    name: str
    spec: Any

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """Never run."""
        raise AssertionError(f"{self.name} should have been refused")


def parse_unsupported(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """Raise the stage's error. In a change stream, return a stage for the placement check to refuse."""
    if context.in_change_stream:
        return (Refused(name, spec),)
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
