"""Metadata of documents on its way through a pipeline, from the search or the `$geoNear` that it begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.query.document_metadata import DocumentMetadata
from headrace.query.match.text_match import TextQuery
from headrace.query.stages.geo_near import GeoNear
from headrace.query.stages.sort_stage import ONE_BY_ONE
from headrace.query.stages.stage import DocumentStage, Stage

CARRIED: Final = frozenset({"$sample", "$setWindowFields", "$sort"})
"""Stages that read ahead and return the documents that they read: metadata goes through them in its document."""
HIDDEN: Final = "$_internalMetadata"
"""The name of the stages that do that."""


def metadata_after(stage: Stage, text: TextQuery | None, before: DocumentMetadata | None) -> DocumentMetadata | None:
    """Return the metadata that documents have after a stage; `before`: what they had before it. `text`: of the search
    that a first stage may be."""
    if isinstance(stage, GeoNear):
        return stage.live
    if text is not None and text.search is not None and stage.name == "$match":
        return text.score
    return before if stage.name in ONE_BY_ONE or stage.name in CARRIED else None


def with_metadata(stages: Sequence[Stage], metadata: DocumentMetadata) -> list[Stage]:
    """Return the stages, of which the first makes the metadata, with those between them that note and carry it. None
    are needed where nothing asks for it."""
    if not metadata.is_read:
        return list(stages)
    note = DocumentStage(HIDDEN, {}, metadata.note)
    carry = DocumentStage(HIDDEN, {}, metadata.carry)
    made: list[Stage] = [stages[0]]
    if not isinstance(stages[0], GeoNear):  # which notes the values of each document itself
        made.append(note)
    goes_on = True
    for stage in stages[1:]:
        goes_on = goes_on and (stage.name in ONE_BY_ONE or stage.name in CARRIED)
        if not goes_on or stage.name not in CARRIED:
            made.append(stage)
        elif made[-1] is note:
            made[-1:] = [stage, note]
        else:
            made += [carry, stage, note]
    return made
