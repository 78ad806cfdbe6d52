"""The documents that a text search finds. If the index keys decide matches and scores, no text is parsed again.

The keys decide for a search of words alone, if none of its terms is in truncated keys (`OrAccess.is_exact_search`).
Otherwise each document that has one of the terms is tested and scored by its texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.cursors.text_scan import TermKeys, TextScan, score_of
from headrace.dispatch.context import CommandContext
from headrace.execution.command_memory import memory_of
from headrace.execution.planner.several_accesses import OrAccess
from headrace.execution.read_plan import ReadPlan, by_index
from headrace.query.document_metadata import MARK
from headrace.values.bson import decode, encode_in_order


def found_by_keys(context: CommandContext, plan: ReadPlan, wanted: int | None) -> Iterator[bytes] | None:
    """Return the raw matches, marked with their scores if requested; None if the texts must be tested."""
    access = plan.choice.access
    if not isinstance(access, OrAccess) or not access.is_exact_search:
        return None
    if not plan.finder.marks_scores:
        return _matching(context.paced(by_index(context, plan, wanted)), plan)
    terms = [
        TermKeys(branch.index, branch.ranges, branch.skip, len(branch.ranges[0][0]) - 1) for branch in access.branches
    ]
    note_bytes = memory_of(context, {}).add
    scan = TextScan(lambda: context.view, plan.collection, terms, note_bytes, wanted)
    plan.scans = list(scan.terms)
    return _marked(context.paced(scan), plan)


def _matching(documents: Iterator[bytes], plan: ReadPlan) -> Iterator[bytes]:
    """Yield the raw documents that match the filter without its text search."""
    rest = plan.finder.besides_search
    for raw in documents:
        if rest is None or rest(decode(raw)):
            yield raw


def _marked(scan: Iterator[Any], plan: ReadPlan) -> Iterator[bytes]:
    """Yield the raw matches, each marked with its score."""
    finder, rest = plan.finder, plan.finder.besides_search
    assert finder.text is not None and finder.predicate is not None
    for item in scan:
        raw, score = score_of(item)
        document = decode(raw)
        if score is None:
            score = finder.text.score(document) if finder.predicate(document) else None
        elif rest is not None and not rest(document):
            continue
        if score is not None:
            yield encode_in_order({**document, MARK: score})
