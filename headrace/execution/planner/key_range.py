"""`min` and `max` of a find: the keys of the hinted index from `min`, inclusive, to `max`, exclusive.

Source: MongoDB's documentation of `cursor.min` and `cursor.max`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.errors import CommandError
from headrace.execution.planner.collated_bounds import COLLATED, has_order_of
from headrace.execution.planner.index_access import IndexAccess, cut_ranges, direction_of
from headrace.execution.planner.index_kinds import is_ordered
from headrace.query.collation import Collation
from headrace.query.sort import SortKey
from headrace.store.catalog import Index
from headrace.store.indexes.collated_keys import collated_key
from headrace.store.indexes.index_entries import collation_of_index, key_maker
from headrace.store.indexes.index_keys import INVERTED, descends
from headrace.values.keystring import encode_value

_PREFIX: str = "error processing query: planner returned error :: caused by :: "


class IndexRange(NamedTuple):
    """The values of `min` and `max` by the fields of an index; `{}`: no bound."""

    least: dict[str, Any]
    limit: dict[str, Any]

    def check(self) -> None:
        """Raise 51176 if `min` and `max` have different fields."""
        if self.least and self.limit and list(self.least) != list(self.limit):
            raise CommandError(51176, "min and max must have the same field names")


def range_access(index: Index, wanted: IndexRange, collation: Collation | None, sort: SortKey | None) -> IndexAccess:
    """Return the access through the range. Raise 51174 for an index with other fields, 51175 for an empty range."""
    pattern = index.spec["key"]
    low, high = ends_of(index, wanted, collation)
    bounds = [None] * len(pattern)
    has_order = sort is not None and sort.paths and has_order_of(index, collation)
    direction = direction_of(index, bounds, sort) if sort is not None and has_order else None
    ranges = tuple(cut_ranges([(low, high)]))
    return IndexAccess(
        index, tuple(bounds), ranges, direction == -1, direction is not None, is_exact=False, point_count=0,
        between=wanted,
    )  # fmt: skip


def range_test(index: Index, wanted: IndexRange, collation: Collation | None) -> Callable[[bytes], bool]:
    """Return the test whether a raw document has a key in the range, which truncated keys cannot show. Raise 51174 or
    51175."""
    low, high = ends_of(index, wanted, collation)
    maker: Any = key_maker(index)
    return lambda document: any(low <= key < high for key in maker.whole_keys(document))


def ends_of(index: Index, wanted: IndexRange, collation: Collation | None) -> tuple[bytes, bytes]:
    """Return [low, high) of the keys before truncation. Raise 51174 or 51175.

    An index with another collation than the operation's can be used if no value depends on the collation.
    """
    pattern, own = index.spec["key"], collation_of_index(index)
    is_collated = any(type(value) in COLLATED for values in wanted for value in values.values())
    if not is_ordered(index) or (own != collation and is_collated):
        raise CommandError(51174, _PREFIX + "The index chosen is not compatible with min/max")
    number = index.number.to_bytes(4, "big")
    positions = []
    for values, missing in ((wanted.least, b"\x01"), (wanted.limit, b"\xff")):
        if values and list(values) != list(pattern):
            raise CommandError(51174, _PREFIX + "The index chosen is not compatible with min/max")
        if not values:
            positions.append(number + missing)
            continue
        pieces = [
            encode_value(value) if own is None else collated_key(own.key, value)
            for value in values.values()
        ]  # fmt: skip
        inverted = [
            piece.translate(INVERTED) if descends(kind) else piece for piece, kind in zip(pieces, pattern.values())
        ]
        positions.append(number + b"".join(inverted) + b"\x01")
    low, high = positions
    if low >= high:
        raise CommandError(
            51175,
            _PREFIX + "The value provided for min() does not come before the value provided for max() in the hinted "
            "index",
        )
    return low, high
