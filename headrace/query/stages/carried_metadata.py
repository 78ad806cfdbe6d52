"""Carries the metadata of documents through a pipeline: of a search, a `$geoNear`, a `$score`, a fusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.query.document_metadata import DocumentMetadata
from headrace.query.match.index_conditions import TextQuery
from headrace.query.stages.facet import Facet
from headrace.query.stages.fusion import Fusion, Score
from headrace.query.stages.geo_near import GeoNear
from headrace.query.stages.sort_stage import ONE_BY_ONE
from headrace.query.stages.stage import DocumentStage, Stage

CARRIED: Final = frozenset({"$sample", "$setWindowFields", "$sort"})
"""Stages that read ahead and return the documents that they read. Metadata passes through them inside the document."""
HIDDEN: Final = "$_internalMetadata"
"""The name of the stages that note and carry metadata."""


def metadata_after(stage: Stage, text: TextQuery | None, before: DocumentMetadata | None) -> DocumentMetadata | None:
    """Return the metadata that documents have after a stage. `before`: their metadata before the stage. `text`: the
    search that the first stage may be."""
    if isinstance(stage, Fusion | GeoNear | Score):
        return stage.live
    if text is not None and text.search is not None and stage.name == "$match":
        return text.score
    return before if stage.name in ONE_BY_ONE or stage.name in CARRIED else None


def with_metadata(
    stages: Sequence[Stage], found: DocumentMetadata | None, outer: DocumentMetadata | None = None
) -> list[Stage]:
    """Return the stages, with hidden stages between them that note and carry metadata, if a stage reads it.

    `found`: the metadata of the search that the first stage is. `outer`: the metadata of the documents of a `$facet`.
    """
    made: list[Stage] = [] if outer is None else [_noting(outer)]
    now, noted = outer, outer is not None  # `noted`: whether the last stage is hidden and notes
    for index, stage in enumerate(stages):
        own = metadata_after(stage, None, None)  # such a stage notes the values of each document itself
        if own is not None or (index == 0 and found is not None):
            now, noted = own or found, own is None and found is not None and found.is_read
            made += [stage, _noting(found)] if noted and found is not None else [stage]
        elif now is None or not now.is_read or stage.name in ONE_BY_ONE:
            made.append(stage)
            noted = False
        elif stage.name in CARRIED or isinstance(stage, Facet):
            made[-1:] = [] if noted else [made[-1], DocumentStage(HIDDEN, {}, now.carry)]
            noted = stage.name in CARRIED
            made += [stage, _noting(now)] if noted else [stage]
            now = now if noted else None
        else:
            made.append(stage)
            now = None
    return made


def _noting(metadata: DocumentMetadata) -> DocumentStage:
    return DocumentStage(HIDDEN, {}, metadata.note)
