"""The access to the matches of a filter through one index: bounds of its fields, ranges of its keys, and its order.

Rules for arrays. An index knows the paths at which its documents have had arrays (`Index.traits`). Two conditions may
match in different array elements. They bound the same key only in these cases:

    on one field: there has been no array on its path
    on different fields: their paths share no such array
    in one `$elemMatch`: it is at the only such array

Otherwise only one condition is used. A field with a number in its path ("a.0") is never bounded, because the number may
be an element or a name.
Source: MongoDB's documentation of multikey index bounds and of sorting with indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import CommandError
from headrace.execution.planner.bounds import Intervals, PathCondition, intersection, key_pieces, key_positions
from headrace.execution.planner.collated_bounds import COLLATED, has_order_of
from headrace.execution.planner.index_kinds import is_ordered
from headrace.execution.planner.key_bounds import key_bounds
from headrace.query.collation import Collation
from headrace.query.sort import SortKey
from headrace.store.catalog import Index
from headrace.store.indexes.field_keys import collated_key
from headrace.store.indexes.index_entries import collation_of_index, key_maker
from headrace.store.indexes.index_keys import CUT_BYTES, CUT_KEY, INVERTED, descends
from headrace.store.view import Skip
from headrace.values.keystring.encoding import encode_value

if TYPE_CHECKING:
    from headrace.text.search import TextSearch

RANGE_COUNT_MAX: Final = 1000
"""The maximum of key ranges from combined point values of several fields. Later fields are left to the filter."""
_CUT: Final = CUT_BYTES + 4
"""The length to which ends of ranges are truncated, like keys. A range may then contain keys of other values."""
_PAIR_COUNT_MAX: Final = 100_000
"""The maximum of key ranges from several fields. With more, only the first fields bound the keys."""

Range = tuple[bytes, bytes]
"""[low, high) of keys, the index's number included."""

_Element = tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class _Field:
    path: str
    descending: bool
    arrays: frozenset[str]
    """The paths of arrays on the field's path, itself included."""
    is_positional: bool
    is_hashed: bool


@dataclass(frozen=True, slots=True)
class IndexAccess:
    """One way to read through an index."""

    index: Index
    bounds: tuple[Intervals | None, ...]
    """For each field; None: all values."""
    ranges: tuple[Range, ...]
    """The ranges of keys, in reading order."""
    backward: bool
    is_sorted: bool
    """Whether documents come in the requested order."""
    is_exact: bool
    """Whether the keys in the ranges are exactly the matching documents, each once."""
    point_count: int
    """How many of the first fields have point values, not ranges."""
    between: IndexRange | None = None
    """The range from `min` and `max`, if any."""
    says_all: bool = False
    """Whether every key in the bounds belongs to a match, provided that no bounded field has had an array."""
    skip: Skip | None = None
    """A function that says whether a key in the ranges is in the bounds; None: all are."""
    sure: tuple[Range, ...] = ()
    """The part of the ranges in which every key belongs to a match. The filter tests the others."""

    @property
    def branches(self) -> tuple[IndexAccess, ...]:
        """The access itself, as the only branch."""
        return (self,)

    @property
    def may_repeat(self) -> bool:
        """Whether the access may find a document more than once."""
        return bool(self.index.traits - {CUT_KEY})

    def has_distinct(self, path: str) -> bool:
        """Whether a scan that skips from each value of a path to the next finds all values of the matches.

        MongoDB's rules: no keys are truncated, and no number in the path may mean an element. With a filter, the first
        field has bounds, and the path has had no array: the bounds would leave out other elements.
        """
        fields = _fields(self.index)
        field = fields[list(self.index.spec["key"]).index(path)]
        if CUT_KEY in self.index.traits or field.is_positional:
            return False
        bounded = [item for item, intervals in zip(fields, self.bounds) if intervals is not None]
        if any(item.arrays for item in bounded) or (bounded and (field.arrays or self.bounds[0] is None)):
            return False
        return self.says_all

    @property
    def bounded_count(self) -> int:
        """The number of fields with bounds."""
        return sum(intervals is not None for intervals in self.bounds)

    def leads_to(self, path: str) -> bool:
        """Whether keys are in the order of a path: fields before it have one value, fields after it have no bounds."""
        position = list(self.index.spec["key"]).index(path)
        if any(name.isdigit() for name in path.split(".")):
            return False
        return all(map(_is_fixed, self.bounds[:position])) and not any(self.bounds[position + 1 :])


def index_access(
    index: Index, conditions: Sequence[PathCondition], sort: SortKey | None, *, is_complete: bool, hinted: bool = False
) -> IndexAccess | None:
    """Return the access through an index; None if the index does not help. `is_complete`: the conditions express the
    whole filter.

    `conditions` are translated for this index, and the index orders strings as `sort` does: see `collated_bounds.py`.
    """
    fields = _fields(index)
    bounds, used = _bounds(fields, conditions)
    direction = direction_of(index, bounds, sort) if sort is not None and sort.paths else None
    if bounds[0] is None and direction is None and not hinted:
        return None
    point_count = 0
    while point_count < len(fields) and are_points(bounds[point_count]):
        point_count += 1
    backward = direction == -1
    ranges = ranges_of(index, bounds)
    are_whole = all(len(low) < _CUT and len(high) < _CUT for low, high in ranges)
    is_all = is_complete and len(used) == len(conditions)
    says_all = is_all and all(condition.is_exact for condition in conditions)
    skip = skip_of(index, bounds, conditions)
    sure = _sure(index, bounds, conditions) if is_all and are_whole and skip is None else ()
    return IndexAccess(
        index, tuple(bounds), tuple(reversed(ranges) if backward else ranges), backward, direction is not None,
        says_all and are_whole and not index.traits, point_count, says_all=says_all, skip=skip, sure=sure,
    )  # fmt: skip


def _sure(index: Index, bounds: Sequence[Intervals | None], conditions: Sequence[PathCondition]) -> tuple[Range, ...]:
    """Return the ranges in which every document matches: one condition has sure intervals, the others are exact."""
    doubtful = [condition for condition in conditions if not condition.is_exact]
    if len(doubtful) != 1 or doubtful[0].sure is None or index.traits:
        return ()
    place = list(index.spec["key"]).index(doubtful[0].path)
    if sum(condition.path == doubtful[0].path for condition in conditions) > 1:
        return ()
    return tuple(ranges_of(index, [*bounds[:place], doubtful[0].sure, *bounds[place + 1 :]]))


def skip_of(index: Index, bounds: Sequence[Intervals | None], conditions: Sequence[PathCondition]) -> Skip | None:
    """Return the function that says whether a key in the ranges is in the bounds; None: all are."""
    return key_bounds(index, bounds, conditions, are_ranges=_are_ranges(bounds))


def _fields(index: Index) -> list[_Field]:
    """Return the fields of an index, cached until its traits change."""
    if index.fields is not None and index.fields[0] is index.traits:
        made: list[_Field] = index.fields[1]
        return made
    fields = _made_fields(index)
    index.fields = index.traits, fields
    return fields


def _made_fields(index: Index) -> list[_Field]:
    fields = []
    for path, kind in index.spec["key"].items():
        names = path.split(".")
        prefixes = {".".join(names[:count]) for count in range(1, len(names) + 1)}
        arrays = frozenset(prefixes & index.traits)
        fields.append(_Field(path, descends(kind), arrays, any(name.isdigit() for name in names), type(kind) is str))
    return fields


def are_points(intervals: Intervals | None) -> bool:
    """Whether the intervals are point values, not ranges."""
    return bool(intervals) and all(interval.is_point for interval in intervals or ())


def _bounds(fields: list[_Field], conditions: Sequence[PathCondition]) -> tuple[list[Intervals | None], set[int]]:
    """Return the bounds of each field, and the numbers of the conditions used for them."""
    bounds: list[Intervals | None] = []
    elements: list[_Element] = []
    used: set[int] = set()
    for field in fields:
        best: tuple[tuple[int, int, int], Intervals, _Element, set[int]] | None = None
        for element, group in _groups(field, conditions):
            if not _are_compatible(fields, bounds, elements, field, element):
                continue
            intervals = _intersected([conditions[number].intervals or [] for number in group])
            rank = (int(are_points(intervals) or not intervals), len(group), -len(intervals))
            if best is None or rank > best[0]:
                best = rank, intervals, element, set(group)
        bounds.append(None if best is None else best[1])
        elements.append(None if best is None else best[2])
        if best is not None:
            used |= best[3]
    return bounds, used


def _groups(field: _Field, conditions: Sequence[PathCondition]) -> list[tuple[_Element, list[int]]]:
    """Return the conditions on a field, by number, in groups that bound the same key."""
    if field.is_positional:
        return []
    numbers = [
        number for number, condition in enumerate(conditions)
        if condition.path == field.path and condition.intervals is not None
        and not (condition.is_single and field.arrays)
    ]  # fmt: skip
    if not field.arrays:
        return [(None, numbers)] if numbers else []
    groups: dict[Any, tuple[_Element, list[int]]] = {}
    for number in numbers:
        element = conditions[number].element
        if element is not None and field.arrays == {element[1]}:
            groups.setdefault(element, (element, []))[1].append(number)
        else:
            groups[number] = (None, [number])
    return list(groups.values())


def _are_compatible(
    fields: list[_Field], bounds: list[Intervals | None], elements: list[_Element], field: _Field, element: _Element
) -> bool:
    """Whether a condition on a field bounds the same keys as the conditions on earlier fields."""
    for before, intervals, other in zip(fields, bounds, elements):
        shared = before.arrays & field.arrays
        if intervals is None or not shared:
            continue
        if element is None or element != other or shared != {element[1]}:
            return False
    return True


def _intersected(all_intervals: list[Intervals]) -> Intervals:
    made = all_intervals[0]
    for intervals in all_intervals[1:]:
        made = intersection(made, intervals)
    return made


def ranges_of(index: Index, bounds: Sequence[Intervals | None]) -> list[Range]:
    """Return the ranges of keys, ascending and disjoint."""
    fields = _fields(index)
    prefixes = [index.number.to_bytes(4, "big")]
    for field, intervals in zip(fields, bounds):
        if intervals is None:
            break
        if are_points(intervals) and (len(prefixes) == 1 or len(prefixes) * len(intervals) <= RANGE_COUNT_MAX):
            pieces = key_pieces(intervals, descending=field.descending)
            prefixes = [prefix + piece for prefix in prefixes for piece in pieces]
            continue
        if len(prefixes) > 1 and len(prefixes) * len(intervals) > _PAIR_COUNT_MAX:
            break  # the filter tests the remaining fields
        positions = key_positions(intervals, descending=field.descending)
        return cut_ranges([(prefix + low, prefix + high) for prefix in prefixes for low, high in positions])
    return cut_ranges([(prefix + b"\x01", prefix + b"\xff") for prefix in prefixes])


def cut_ranges(ranges: list[Range]) -> list[Range]:
    """Truncate the ends of ranges that are too long, like keys. Join ranges that then overlap."""
    if all(len(low) <= _CUT and len(high) <= _CUT for low, high in ranges):
        return ranges
    made: list[Range] = []
    for low, high in ranges:
        cut = low[:_CUT], (high if len(high) <= _CUT else high[:_CUT] + b"\xff" * 40)
        if made and cut[0] <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], cut[1])
        else:
            made.append(cut)
    return made


def _are_ranges(bounds: Sequence[Intervals | None]) -> bool:
    """Whether the ranges express all bounds."""
    bounded = [intervals for intervals in bounds if intervals is not None]
    if any(intervals is None for intervals in bounds[: len(bounded)]):
        return False
    count = 1
    for intervals in bounded[:-1]:
        if not are_points(intervals) or (count > 1 and count * len(intervals) > RANGE_COUNT_MAX):
            return False
        count *= len(intervals)
    return count == 1 or count * len(bounded[-1]) <= _PAIR_COUNT_MAX


# ------------------------------------------------------------------ order


def direction_of(index: Index, bounds: Sequence[Intervals | None], sort: SortKey) -> int | None:
    """Return 1 or -1 for the direction in which the index gives the order of a sort; None if it does not."""
    fields = _fields(index)
    if CUT_KEY in index.traits:
        return None
    at, direction = 0, 0
    fixed: set[str] = set()
    for path, descending in sort.paths:
        while at < len(fields) and fields[at].path != path and _is_fixed(bounds[at]):
            if not fields[at].arrays:
                fixed.add(fields[at].path)
            at += 1
        if at < len(fields) and fields[at].path == path:
            field = fields[at]
            if field.is_positional or field.is_hashed or not _sorts(fields, bounds, field):
                return None
            if not (_is_fixed(bounds[at]) and not field.arrays):
                wanted = 1 if descending == field.descending else -1
                if direction not in (0, wanted):
                    return None
                direction = wanted
            fixed.add(path)
            at += 1
        elif path not in fixed:
            return None
    return direction or 1


def _is_fixed(intervals: Intervals | None) -> bool:
    return intervals is not None and len(intervals) == 1 and intervals[0].is_point


def _sorts(fields: list[_Field], bounds: Sequence[Intervals | None], field: _Field) -> bool:
    """Whether a document sorts by its first key in the ranges, because the bounds exclude none of its keys."""
    return not any(intervals is not None and field.arrays & other.arrays for other, intervals in zip(fields, bounds))


SCAN_COUNT_MAX: Final = 200
"""The maximum of accesses into which one is divided for an order: MongoDB's `internalQueryMaxScansToExplode`."""


@dataclass(frozen=True, slots=True)
class OrAccess:
    """Several accesses that together find the matches: one for each branch of an `$or`, or for each value of an `$in`.

    {a: {$in: [1, 2]}} sorted by b, index {a, b}   →   the keys of a = 1 and those of a = 2, each in order of b
    """

    branches: tuple[IndexAccess, ...]
    sort: SortKey | None = None
    """The order of all branches, in which they are merged; None: they are read one after the other."""
    text: TextSearch | None = None
    """The text search, if each branch is one of its terms."""
    is_exact_search: bool = False
    """Whether each document that has a key matches the search, and its score is the sum of the keys' scores."""

    @property
    def is_sorted(self) -> bool:
        """Whether documents come in the requested order."""
        return self.sort is not None

    @property
    def may_repeat(self) -> bool:
        """Whether a document may come more than once."""
        return True

    @property
    def is_exact(self) -> bool:
        """Never: a document may be in several branches."""
        return False


Access = IndexAccess | OrAccess


def exploded(way: IndexAccess, sort: SortKey, conditions: Sequence[PathCondition]) -> OrAccess | None:
    """Divide an access with several values for its first fields into one for each, if each then gives the order.

    Otherwise return None. `conditions`: the conditions of the access.
    """
    count, combined = 1, 0
    for intervals in way.bounds:
        if intervals is None or not are_points(intervals) or count * len(intervals) > SCAN_COUNT_MAX:
            break
        count *= len(intervals)
        combined += 1
    if count == 1 or way.index.traits:
        return None
    branches = []
    for values in product(*[intervals or [] for intervals in way.bounds[:combined]]):
        bounds = (*([value] for value in values), *way.bounds[combined:])
        direction = direction_of(way.index, bounds, sort)
        if direction is None:
            return None
        ranges = ranges_of(way.index, bounds)
        backward = direction < 0
        branches.append(
            replace(
                way, bounds=bounds, ranges=tuple(reversed(ranges) if backward else ranges), backward=backward,
                is_sorted=True, skip=skip_of(way.index, bounds, conditions),
            )
        )  # fmt: skip
    return OrAccess(tuple(branches), sort)


_PREFIX: str = "error processing query: planner returned error :: caused by :: "


class IndexRange(NamedTuple):
    """`min` and `max` of a find by the fields of the hinted index: its keys from `min`, inclusive, to `max`, exclusive;
    `{}`: no bound. Source: MongoDB's documentation of `cursor.min` and `cursor.max`."""

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
