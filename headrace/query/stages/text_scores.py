"""Scores of a text search on their way through a pipeline, from the `$match` that it begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.query.match.text_match import TextQuery
from headrace.query.stages.sort_stage import ONE_BY_ONE
from headrace.query.stages.stage import DocumentStage, Stage
from headrace.query.text_score import TextScore

CARRIED: Final = frozenset({"$sample", "$setWindowFields", "$sort"})
"""Stages that read ahead and return the documents that they read: a score goes through them in its document."""
HIDDEN: Final = "$_internalTextScore"
"""The name of the stages that do that."""


def score_after(stage: Stage, text: TextQuery, score: TextScore | None) -> TextScore | None:
    """Return the score that documents have after a stage; `score` is the one they had before it."""
    if score is None:
        return text.score if stage.name == "$match" and text.search is not None else None
    return score if stage.name in ONE_BY_ONE or stage.name in CARRIED else None


def with_text_scores(stages: Sequence[Stage], score: TextScore) -> list[Stage]:
    """Return the stages, of which the first is the search, with those between them that note and carry the score. None
    are needed where nothing asks for it."""
    if not score.is_read:
        return list(stages)
    note = DocumentStage(HIDDEN, {}, score.note)
    carry = DocumentStage(HIDDEN, {}, score.carry)
    made: list[Stage] = [stages[0], note]
    has_score = True
    for stage in stages[1:]:
        has_score = has_score and (stage.name in ONE_BY_ONE or stage.name in CARRIED)
        if not has_score or stage.name not in CARRIED:
            made.append(stage)
        elif made[-1] is note:
            made[-1:] = [stage, note]
        else:
            made += [carry, stage, note]
    return made
