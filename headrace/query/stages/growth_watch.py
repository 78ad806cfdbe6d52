"""A watch over the memory of groups whose states grow with each document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from headrace.query.accumulators.states import ELEMENT_BYTES, GROWTH
from headrace.query.operation_memory import StageMemory

if TYPE_CHECKING:
    from headrace.query.stages.group import Group

WATCH_COUNT: Final = 64
"""Documents between two checks whether the groups have grown."""

Groups = dict[Any, tuple[Any, list[Any]]]
"""(key, states of the accumulators) of each group, by the key's hash."""


class GrowthWatch:
    """Decides when growing groups are measured again, because a measure looks at every group."""

    __slots__ = ("_count", "_group", "_growth", "_memory")

    def __init__(self, group: Group, memory: StageMemory) -> None:
        self._group = group
        self._memory = memory
        self._count = 0
        self._growth = GROWTH.bytes

    def is_due(self, count: int) -> bool:
        """Whether the groups may have grown much since the last measure. Called after each `count` documents."""
        self._count += count
        least = max(self._memory.step, self._memory.used // 8)
        return GROWTH.bytes - self._growth >= least or self._count * ELEMENT_BYTES >= least

    def measure(self, groups: Iterable[tuple[Any, list[Any]]]) -> int:
        """Return the memory of the groups in bytes. Raises 146 if one state takes too much."""
        size = 0
        for value, states in self._group.context.paced(groups):
            size += self._group.size(value, states)
        self._count, self._growth = 0, GROWTH.bytes
        return size
