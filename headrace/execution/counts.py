"""Counts of what matches, without a look at the documents where that can be."""

from __future__ import annotations

from typing import Any

from headrace import limits
from headrace.cursors.index_scan import check_index, plan_summary
from headrace.dispatch.context import CommandContext
from headrace.execution.plan import Finder
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
    if finder.is_by_id or finder.has_id_keys:
        return None
    access = finder.choice(context.view).access
    return _key_count(context, collection, access) if isinstance(access, IndexAccess) and access.is_exact else None


def _key_count(context: CommandContext, collection: Collection, access: IndexAccess) -> int:
    total = 0
    for low, high in access.ranges:
        while True:
            view = context.view
            check_index(view, collection, access.index)
            count, last = view.count_keys(access.index, low, high, limits.COUNT_COUNT)
            examined(plan_summary("COUNT_SCAN", access.index), 0, count)
            total += count
            if count < limits.COUNT_COUNT:
                break
            low = last + b"\0"
            tick()
        tick()
    return total
