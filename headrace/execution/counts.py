"""Counts of what matches, without a look at the documents where that can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace import limits
from headrace.cursors.index_scan import check_index, plan_summary
from headrace.dispatch.context import CommandContext
from headrace.execution.plan import Finder
from headrace.execution.planner.id_ranges import IdRange
from headrace.execution.planner.index_access import IndexAccess
from headrace.execution.storage_stats import count_of
from headrace.store.catalog import Collection
from headrace.turns import examined, tick


def quick_count(context: CommandContext, collection: Collection, finder: Finder, spec: dict[str, Any]) -> int | None:
    """How many documents match, by the number that is stored or the keys of an index; None where neither tells."""
    if collection.is_view:
        return None
    if not spec and not finder.is_hinted:  # a sparse index has fewer
        return count_of(context, collection)
    if finder.is_by_id:
        return None
    access = finder.choice(context.current_view).access
    if access is None:
        return None if finder.id_ranges is None else _id_count(context, collection, finder.id_ranges)
    return _key_count(context, collection, access) if isinstance(access, IndexAccess) and access.is_exact else None


def _id_count(context: CommandContext, collection: Collection, ranges: Sequence[IdRange]) -> int:
    def look(low: bytes, high: bytes) -> tuple[int, bytes]:
        return context.view.count_ids(collection, low, high, limits.COUNT_COUNT)

    return _count(look, ranges, "COUNT_SCAN { _id: 1 }")


def _key_count(context: CommandContext, collection: Collection, access: IndexAccess) -> int:
    def look(low: bytes, high: bytes) -> tuple[int, bytes]:
        view = context.view
        check_index(view, collection, access.index)
        return view.count_keys(access.index, low, high, limits.COUNT_COUNT)

    return _count(look, access.ranges, plan_summary("COUNT_SCAN", access.index))


def _count(look: Callable[[bytes, bytes], tuple[int, bytes]], ranges: Sequence[IdRange], summary: str) -> int:
    """All keys in the ranges; `look` counts some of them, and says which was the last."""
    total = 0
    for low, high in ranges:
        while True:
            count, last = look(low, high)
            examined(summary, 0, count)
            total += count
            if count < limits.COUNT_COUNT:
                break
            low = last + b"\0"
            tick()
        tick()
    return total
