"""Indexes of special kinds, which the planner treats as ordered indexes on other keys, and the conditions on these.

    hashed     {a: "hashed"}   {a: 5}       →  the same index, with the hash of 5 as the one value of a
    2d         {a: "2d"}                      →  the same index, with ranges of squares
    2dsphere   {a: "2dsphere"}                →  the same index, with ranges of cells
    wildcard   {$**: 1}        {a.b: 5}     →  an index {$_path: 1, "a.b": 1} in which $_path is "a.b"

A hash bounds equality only, has no order, and is never exact, because other values may have the same hash.

A wildcard index acts as one index for each path that has a condition. It has no keys for missing values, nor for whole
objects and arrays (`store/indexes/wildcard_keys.py`). So a condition bounds it only if the condition needs a value and
allows no object or array. If a path only has other conditions that need a value, it is read with all paths below it,
unless the index excludes some of these.

    {at: {$geoWithin: ...}}   →   at is in the cells of a covering or, if lines and polygons are stored, around them

If all documents have points, those in a cell wholly inside the region match without a test. A condition on the sphere
bounds the cells of a 2dsphere index. A condition on the plane bounds the squares of a 2d index, and so does a circle on
the sphere that does not reach 180 degrees or a pole. Without such a condition the index is not used, because it lacks
documents.

Source: MongoDB's documentation of hashed and wildcard indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from bson import Int64

from headrace.execution.planner.bounds import (
    BEFORE,
    BEHIND,
    Before,
    End,
    Interval,
    Intervals,
    PathCondition,
    point,
    union,
)
from headrace.execution.planner.collated_bounds import CollationKey
from headrace.query.match.match_expression import AlwaysBoolean, LeafMatchExpression, MatchType
from headrace.store.catalog import Index
from headrace.store.indexes.field_keys import hash_in_index
from headrace.store.indexes.geo_keys import flat_path, geo_paths
from headrace.store.indexes.index_entries import collation_of_index
from headrace.store.indexes.index_keys import CUT_KEY
from headrace.store.indexes.text_keys import is_text
from headrace.store.indexes.wildcard_keys import ANY_ARRAY, WildcardPaths, wildcard_of
from headrace.values.keystring.encoding import encode_value

if TYPE_CHECKING:
    from headrace.geo.plane import Box

_OBJECTS: Final = b"\x46", b"\x51"
"""The range of objects and arrays among keystrings."""
_PATH: Final = "$_path"

Variant = tuple[Index, Sequence[PathCondition]]


def variants(index: Index, conditions: Sequence[PathCondition]) -> list[Variant]:
    """Return the ordered indexes as which an index acts, each with all conditions of the filter.

    An access needs all conditions to decide whether its bounds express the whole filter."""
    pattern = index.spec["key"]
    if is_text(pattern):
        return []  # a text index lacks documents without terms; `text_bounds.py` handles searches
    if wildcard_of(pattern) is not None:
        return list(_wildcard(index, conditions))
    if geo_paths(pattern) or flat_path(pattern) is not None:
        on_cells = cell_conditions(index, conditions)
        return [] if on_cells is None else [(index, on_cells)]
    if "hashed" in pattern.values():
        return [(index, [_hashed(index, condition) for condition in conditions])]
    return [(index, conditions)]


def is_ordered(index: Index) -> bool:
    """Whether the index is of the ordinary kind, with the values of its fields as keys."""
    pattern = index.spec["key"]
    return not any(type(kind) is str for kind in pattern.values()) and wildcard_of(pattern) is None


# ------------------------------------------------------------------ hashed


def _hashed(index: Index, condition: PathCondition) -> PathCondition:
    intervals = condition.intervals
    if index.spec["key"].get(condition.path) != "hashed" or intervals is None:
        return condition
    if not all(interval.is_point for interval in intervals):
        return condition._replace(intervals=None, is_exact=False)
    collation = collation_of_index(index)
    sort_key = None if collation is None else collation.key
    hashes = [hash_in_index(_value(interval), sort_key) for interval in intervals]
    return condition._replace(intervals=union(point(Int64(number)) for number in hashes), is_exact=False)


def _value(interval: Interval) -> Any:
    value = interval.low.value
    return value.text if isinstance(value, CollationKey) else value


# ------------------------------------------------------------------ wildcard


def _wildcard(index: Index, conditions: Sequence[PathCondition]) -> Iterator[Variant]:
    pattern: dict[str, Any] = index.spec["key"]
    paths = WildcardPaths(index.spec)
    wanted = dict.fromkeys(
        condition.path for condition in conditions
        if condition.needs_value and condition.path not in pattern and paths.has(condition.path)
        and not any(name.isdigit() for name in condition.path.split("."))
    )  # fmt: skip
    for path in wanted:
        bounding = [_bounding(condition) if condition.path == path else condition for condition in conditions]
        is_bounded = any(condition.path == path and condition.intervals is not None for condition in bounding)
        if not is_bounded and not paths.has_all_below(path):
            continue  # a document with only excluded values has no key
        at_path = point(path)
        intervals = [at_path] if is_bounded else [at_path, _below(path)]
        yield (
            _variant(index, {_PATH: 1, path: pattern[wildcard_of(pattern) or ""]}, path, repeats=not is_bounded),
            [*bounding, PathCondition(_PATH, intervals, True, True, None, AlwaysBoolean(True))],
        )
    if next(iter(pattern)) != wildcard_of(pattern):
        yield _variant(index, {_PATH: 1}, None, repeats=True), conditions


def _variant(index: Index, fields: dict[str, Any], path: str | None, *, repeats: bool) -> Index:
    """Return the index with these fields in place of the wildcard; without a path, cut off after them."""
    key: dict[str, Any] = {}
    for name, kind in index.spec["key"].items():
        if name == wildcard_of(index.spec["key"]):
            key |= fields
            if path is None:
                break
        else:
            key[name] = kind
    made = Index(index.number, {**index.spec, "key": key})
    names = [] if path is None else path.split(".")
    prefixes = {".".join(names[:count]) for count in range(1, len(names) + 1)}
    arrays = prefixes if ANY_ARRAY in index.traits else prefixes & index.traits
    cut = index.traits & {CUT_KEY}  # a truncated key counts for any path, so a document may come again
    made.traits = frozenset(arrays | cut | ({ANY_ARRAY} if repeats or cut else set()))
    return made


def _below(path: str) -> Interval:
    """Return the interval of all paths below this one."""
    prefix = b"<" + path.encode() + b"."
    return Interval(End(prefix, path + ".", is_prefix=True), End(prefix, Before(path + "/"), is_prefix=True))


def _bounding(condition: PathCondition) -> PathCondition:
    """Return the condition, without its intervals if some matches have no key in them."""
    intervals = condition.intervals
    if intervals is None or (condition.needs_value and not any(_has_objects(item) for item in intervals)):
        return condition
    return condition._replace(intervals=None, is_exact=False)


def _has_objects(interval: Interval) -> bool:
    if interval.is_point and interval.low.value == {}:
        return False
    low, high = interval.positions()
    return low < _OBJECTS[1] and high > _OBJECTS[0]


# ------------------------------------------------------------------ 2dsphere and 2d


def cell_conditions(index: Index, conditions: Sequence[PathCondition]) -> list[PathCondition] | None:
    """Return the conditions, with conditions on geometries as ranges of cells; None if no geometry is bounded."""
    flat = flat_path(index.spec["key"])
    paths = geo_paths(index.spec["key"]) if flat is None else [flat]
    made = [_on_cells(index, condition) if condition.path in paths else condition for condition in conditions]
    if not any(condition.path in paths and condition.intervals is not None for condition in made):
        return None
    return made


def _on_cells(index: Index, condition: PathCondition) -> PathCondition:
    node = condition.node
    intervals = sure = None
    is_flat = flat_path(index.spec["key"]) is not None
    if not isinstance(node, LeafMatchExpression) or node.kind is not MatchType.GEO:
        pass
    elif is_flat:
        box = node.argument.box()
        intervals = None if box is None else _square_intervals(index, box)
    elif not node.argument.is_flat:
        cover = node.argument.cover()
        intervals = _intervals(cover.spans())
        if index.traits:
            intervals = _with_cells_around(intervals, cover.numbers)
        elif condition.element is None:
            sure = _intervals(cover.sure_spans()) or None
    return condition._replace(intervals=intervals, is_exact=False, sure=sure)


def _square_intervals(index: Index, box: Box) -> Intervals:
    """Return the ranges of the squares that cover a box."""
    from headrace.geo.plane import Grid

    grid = Grid.of(index.spec)
    made = []
    for square in grid.covering(box):
        first, last = grid.numbers(square)
        made.append(CellInterval(first, last))
    return union(made)


def _intervals(spans: Sequence[tuple[int, int]]) -> Intervals:
    return [CellInterval(first, last) for first, last in spans]


def _with_cells_around(intervals: Intervals, numbers: Sequence[int]) -> Intervals:
    """Return the intervals of cells, and of all larger cells that contain these."""
    from headrace.geo.cells import cells_around, signed

    return union([*intervals, *(point(Int64(signed(number))) for number in cells_around(numbers))])


class CellInterval(Interval):
    """The numbers of leaves from `first` to `last`. A query has many intervals, so their ends are made when needed."""

    __slots__ = ("_numbers",)
    _numbers: tuple[int, int]

    def __init__(self, first: int, last: int) -> None:
        object.__setattr__(self, "_numbers", (first, last))

    @property
    def low(self) -> End:  # type: ignore[override]
        """The first number."""
        return _end(self._numbers[0])

    @property
    def high(self) -> End:  # type: ignore[override]
        """The last number."""
        return _end(self._numbers[1])

    @property
    def is_point(self) -> bool:
        """Whether the interval is a single number."""
        return self._numbers[0] == self._numbers[1]

    def positions(self, descending: bool = False) -> tuple[bytes, bytes]:
        """Return [low, high) in bytes of the field's key."""
        if descending:
            return Interval.positions(self, descending)
        first, last = self._numbers
        return encode_value(first) + BEFORE, encode_value(last) + BEHIND


def _end(number: int) -> End:
    return End(encode_value(number), Int64(number))
