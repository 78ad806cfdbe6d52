"""Counts of matching documents, without reading the documents if possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from headrace import limits
from headrace.cursors.index_scan import check_index, plan_summary
from headrace.dispatch.context import CommandContext
from headrace.execution.plan import Finder
from headrace.execution.planner.id_ranges import IdRange
from headrace.execution.planner.index_access import IndexAccess
from headrace.execution.storage_stats import count_of
from headrace.running_command import examined
from headrace.store.catalog import Collection
from headrace.store.view import LEFT_OUT, Counted, id_bounds


def quick_count(
    context: CommandContext, collection: Collection, finder: Finder, spec: dict[str, Any], wanted: int | None = None
) -> int | None:
    """Return the number of matches from the stored count or the keys of an index; None if neither suffices.

    `wanted`: the count stops at this number.
    """
    if collection.is_view:
        return None
    if not spec and not finder.is_hinted:  # a hinted sparse index has fewer keys
        if context.transaction is not None or context.snapshot is not None:
            return _id_count(context, collection, [id_bounds(None, None)], wanted)
        return count_of(context, collection)
    if finder.is_by_id or finder.near is not None:
        return None
    access = finder.choice(context.current_view).access
    if access is None:
        ranges = finder.id_ranges
        return None if ranges is None else _id_count(context, collection, ranges, wanted)
    if not isinstance(access, IndexAccess) or not access.is_exact:
        return None
    return _key_count(context, collection, access, wanted)


def _id_count(
    context: CommandContext, collection: Collection, ranges: Sequence[IdRange], wanted: int | None
) -> int:  # fmt: skip
    context.view.store.uses.ids[collection.number] += 1

    def look(low: bytes, high: bytes, count_max: int) -> Counted:
        return context.view.count_ids(collection, low, high, count_max)

    return _count(context, look, ranges, "COUNT_SCAN { _id: 1 }", wanted)


def _key_count(context: CommandContext, collection: Collection, access: IndexAccess, wanted: int | None) -> int:
    index, skip = access.index, access.skip

    def look(low: bytes, high: bytes, count_max: int) -> Counted:
        view = context.view
        check_index(view, collection, index)
        if skip is None:
            return view.count_keys(index, low, high, count_max)
        looked = list(islice(view.index_keys_within(index, low, high, skip), count_max))
        count = sum(record is not LEFT_OUT for _, record in looked)
        return Counted(count, len(looked), looked[-1][0] if looked else low)

    return _count(context, look, access.ranges, plan_summary("COUNT_SCAN", index), wanted)


def _count(
    context: CommandContext, look: Callable[[bytes, bytes, int], Counted], ranges: Sequence[IdRange], summary: str,
    wanted: int | None,
) -> int:  # fmt: skip
    """Count the keys in the ranges, up to `wanted`. `look` counts a bounded number of keys."""
    total, piece = 0, limits.COUNT_COUNT if context.transaction is None else limits.TRANSACTION_COUNT_COUNT
    for low, high in ranges:
        while True:
            count_max = piece if wanted is None else min(piece, wanted - total)
            count, key_count, last = look(low, high, count_max)
            examined(summary, 0, key_count)
            total += count
            if total == wanted:
                return total
            if key_count < count_max:
                break
            low = last + b"\0"
            context.tick()
        context.tick()
    return total
