"""Text indexes, as the planner uses them: the keys of each search term, high scores first.

    {$text: {$search: "oil lamps"}, a: 1}  on  {a: 1, _fts: "text", _ftsx: 1}   →   (1, "lamp"), then (1, "oil")

Only the text index can answer a search. The fields before the text need one value each. A partial index must have all
documents that can match. All branches of an `$or` around the search need an index.
Source: MongoDB's documentation of `$text`; its codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import CommandError
from headrace.execution.planner.bounds import PathCondition, point
from headrace.execution.planner.collated_bounds import conditions_for
from headrace.execution.planner.eligibility import holds
from headrace.execution.planner.index_access import IndexAccess, OrAccess, index_access, ranges_of, skip_of
from headrace.query.collation import Collation
from headrace.query.match.index_conditions import TextMatchExpression
from headrace.query.match.match_expression import AlwaysBoolean, And, MatchExpression
from headrace.store.catalog import Index
from headrace.store.indexes.index_keys import CUT_BYTES
from headrace.store.indexes.text_keys import SCORE, TERM, is_text, term_in_index
from headrace.text.search import TextSearch

_FAILED = "error processing query: planner returned error :: caused by :: "


def text_search_of(node: MatchExpression) -> TextSearch | None:
    """Return the text search that every match of a filter fulfils; None without one, or if it is within an `$or`."""
    for child in node.children if isinstance(node, And) else (node,):
        if isinstance(child, TextMatchExpression):
            return child.search
    return None


def text_access(
    indexes: Sequence[Index], conditions: Sequence[PathCondition], search: TextSearch, collation: Collation | None
) -> OrAccess | None:
    """Return the access through the text index, with a branch for each term; None if the index cannot be used."""
    index = next((item for item in indexes if is_text(item.spec["key"]) and item.has_entries), None)
    if index is None or index.spec.get("hidden"):
        return None
    others = [item for item in conditions_for(index, conditions, collation) if item.path not in (TERM, SCORE)]
    if not holds(index, others, hinted=True):
        return None
    conditions = [*others, _on_term(search.terms[0] if search.terms else "")]
    first = index_access(index, conditions, None, is_complete=False)
    if first is None or not _has_whole_prefix(first):
        return None
    at = list(index.spec["key"]).index(TERM)
    branches: list[IndexAccess] = []
    for term in search.terms:
        on_term = _on_term(term)
        bounds = (*first.bounds[:at], on_term.intervals, *first.bounds[at + 1 :])
        skip = None if first.skip is None else skip_of(index, bounds, [*others, on_term])
        ranges = tuple(reversed(ranges_of(index, bounds)))
        branches.append(replace(first, bounds=bounds, ranges=ranges, backward=True, skip=skip))
    ends = [end for branch in branches for keys in branch.ranges for end in keys]
    is_exact = search.is_plain and all(len(end) < CUT_BYTES for end in ends)
    return OrAccess(tuple(branches), text=search, is_exact_search=is_exact)


def _on_term(term: str) -> PathCondition:
    return PathCondition(TERM, [point(term_in_index(term))], False, True, None, AlwaysBoolean(True))


def _has_whole_prefix(way: IndexAccess) -> bool:
    """Whether each field before the text has one value."""
    before = list(way.index.spec["key"]).index(TERM)
    return all(
        intervals is not None and len(intervals) == 1 and intervals[0].is_point for intervals in way.bounds[:before]
    )


def no_way(*, within_or: bool) -> CommandError:
    """Return error 291 for a search that the text index cannot answer."""
    if within_or:
        return CommandError(
            291, _FAILED + "Failed to produce a solution for TEXT under OR - other non-TEXT clauses under OR have to "
            "be indexed as well.",
        )  # fmt: skip
    return CommandError(
        291, _FAILED + "failed to use text index to satisfy $text query (if text index is compound, are equality "
        "predicates given for all prefix fields?)",
    )  # fmt: skip
