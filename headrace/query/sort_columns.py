"""Sort keys of many raw documents. Only the fields in the sort are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace.query.sort import NULL, SortKey
from headrace.time_limit import limited
from headrace.values.bson import MISSING, Missing, decode
from headrace.values.bson.columns import FIELD_COUNT_MAX, Columns
from headrace.values.order import RANKS, Key, sort_key

_INTEGERS: Final = frozenset({DatetimeMS, Int64, int})


class SortColumns:
    """Computes `SortKey.merge_key` for many documents at once."""

    __slots__ = ("_columns", "_is_plain", "_key", "_names", "_order")

    def __init__(self, order: SortKey) -> None:
        names = sorted(order.fields())
        self._order = order
        self._key: Callable[[dict[str, Any]], tuple[Any, ...]] = limited(order.merge_key)
        self._columns = Columns(names) if len(names) <= FIELD_COUNT_MAX else None
        self._is_plain = not any("." in path for path, _ in order.paths)

    def of(self, documents: Sequence[bytes]) -> Sequence[tuple[Any, ...]]:
        """The key of each document. Raises 2 if paths go through two arrays of a document."""
        if self._columns is None:
            return list(map(self._key, map(decode, documents)))
        columns = self._columns.values(documents)
        kinds = {name: set(map(type, column)) for name, column in columns.items()}
        if self._is_plain and not any(list in found for found in kinds.values()):
            order = self._order
            keys = [_keys(columns[path], kinds[path], order.collation) for path, _ in order.paths]
            return order.merge_keys(keys) if keys else [()] * len(documents)
        names = list(columns)
        rows = zip(*columns.values())
        return [self._key({name: value for name, value in zip(names, row) if value is not MISSING}) for row in rows]


def _keys(column: Sequence[Any], kinds: set[type], collation: Any) -> list[Key]:
    """The ascending key of each value of a column without arrays."""
    if len(kinds) == 1:
        (kind,) = kinds
        rank = RANKS[kind]
        if kind in _INTEGERS:
            return [(rank, int(value)) for value in column]
        if kind is str and collation is None:
            return [(rank, value) for value in column]
    if Missing in kinds:
        return [NULL if value is MISSING else sort_key(value, collation) for value in column]
    return [sort_key(value, collation) for value in column]
