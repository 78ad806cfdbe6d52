"""Carries the metadata of documents through a pipeline that begins with a search or a `$geoNear`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.query.document_metadata import DocumentMetadata
from headrace.query.match.text_match import TextQuery
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
    if isinstance(stage, GeoNear):
        return stage.live
    if text is not None and text.search is not None and stage.name == "$match":
        return text.score
    return before if stage.name in ONE_BY_ONE or stage.name in CARRIED else None


def with_metadata(stages: Sequence[Stage], metadata: DocumentMetadata, *, made_by_first: bool = True) -> list[Stage]:
    """Return the stages, with hidden stages between them that note and carry metadata. The first stage makes the
    metadata, or the documents already have it. No hidden stage is added if nothing reads the metadata."""
    if not metadata.is_read:
        return list(stages)
    note = DocumentStage(HIDDEN, {}, metadata.note)
    carry = DocumentStage(HIDDEN, {}, metadata.carry)
    made: list[Stage] = [stages[0]] if made_by_first else []
    if not isinstance(stages[0], GeoNear):  # `$geoNear` notes the values of each document itself
        made.append(note)
    goes_on = True
    for stage in stages[made_by_first:]:
        goes_on = goes_on and (stage.name in ONE_BY_ONE or stage.name in CARRIED)
        if not goes_on or stage.name not in CARRIED:
            made.append(stage)
        elif made[-1] is note:
            made[-1:] = [stage, note]
        else:
            made += [carry, stage, note]
    return made
