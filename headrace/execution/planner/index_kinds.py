"""Indexes of special kinds, which the planner treats as ordered indexes on other keys, and the conditions on these.

    hashed     {a: "hashed"}   {a: 5}       →  the same index, with the hash of 5 as the one value of a
    2d         {a: "2d"}                      →  the same index, with ranges of squares
    2dsphere   {a: "2dsphere"}                →  the same index, with ranges of cells (`geo_bounds.py`)
    wildcard   {$**: 1}        {a.b: 5}     →  an index {$_path: 1, "a.b": 1} in which $_path is "a.b"

A hash bounds equality only, has no order, and is never exact, because other values may have the same hash.

A wildcard index acts as one index for each path that has a condition. It has no keys for missing values, nor for whole
objects and arrays (`store/indexes/wildcard_keys.py`). So a condition bounds it only if the condition needs a value and
allows no object or array. If a path only has other conditions that need a value, it is read with all paths below it,
unless the index excludes some of these.

Source: MongoDB's documentation of hashed and wildcard indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from bson import Int64

from headrace.execution.planner.bounds import Before, PathCondition
from headrace.execution.planner.collated_bounds import CollationKey
from headrace.execution.planner.geo_bounds import cell_conditions
from headrace.execution.planner.intervals import End, Interval, point, union
from headrace.query.match.match_expression import AlwaysBoolean
from headrace.store.catalog import Index
from headrace.store.indexes.field_keys import hash_in_index
from headrace.store.indexes.geo_keys import flat_path, geo_paths
from headrace.store.indexes.index_entries import collation_of_index
from headrace.store.indexes.index_keys import CUT_KEY
from headrace.store.indexes.text_keys import is_text
from headrace.store.indexes.wildcard_keys import ANY_ARRAY, WildcardPaths, wildcard_of

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
