"""The plan of a filter as `explain` reports it, and a view that counts keys and documents examined.

    IDHACK     the document of one `_id`
    IXSCAN     an index: some keys, ranges, or all of them in order; the documents are fetched
    COUNT_SCAN the keys of an index are counted
    COLLSCAN   every document
    EOF        there is no collection

Rule: `Finder` and `sources` choose the plan; this asks them the same questions in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from headrace.execution.plan import Finder
from headrace.execution.planner.bounds import end_shown
from headrace.execution.planner.choice import ANY_ORDER, NO_INDEX, Access, OrAccess, Order
from headrace.execution.planner.collated_bounds import CollationKey
from headrace.execution.planner.index_access import IndexAccess
from headrace.execution.planner.intervals import Intervals
from headrace.query.collation import Collation
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.index_keys import descends
from headrace.store.view import View
from headrace.values.bson.to_string import to_string

Stage = dict[str, Any]
_LOGICAL: Final = frozenset({"$and", "$nor", "$or"})


class Examined:
    """How many keys and documents a command has examined, however often it has paused."""

    __slots__ = ("documents", "keys")

    def __init__(self) -> None:
        self.keys = 0
        self.documents = 0

    def counting(self, view: View) -> View:
        """A view that counts what it gives out."""
        return CountingView(view, self)


class CountingView(View):
    """A view that counts the keys and documents it gives out."""

    __slots__ = ("_examined",)

    def __init__(self, base: View, examined: Examined) -> None:
        super().__init__(base.store, base.kv)
        self._examined = examined

    def by_id(self, collection: Collection, id_key: bytes) -> tuple[bytes, bytes] | None:
        match = super().by_id(collection, id_key)
        self._examined.keys += 1
        self._examined.documents += match is not None
        return match

    def scan_chunk(
        self, collection: Collection, *, after: bytes | None = None, backward: bool = False
    ) -> list[tuple[bytes, bytes]]:
        chunk = super().scan_chunk(collection, after=after, backward=backward)
        self._examined.documents += len(chunk)
        return chunk

    def scan(
        self, collection: Collection, *, after: bytes | None = None, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for item in super().scan(collection, after=after, backward=backward):
            self._examined.documents += 1
            yield item

    def index_keys(
        self, index: Index, low: bytes, high: bytes, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for item in super().index_keys(index, low, high, backward=backward):
            self._examined.keys += 1
            yield item

    def count_keys(self, index: Index, low: bytes, high: bytes, count_max: int) -> tuple[int, bytes]:
        count, last = super().count_keys(index, low, high, count_max)
        self._examined.keys += count
        return count, last

    def fetch(self, collection: Collection, index: Index, record: bytes) -> bytes:
        self._examined.documents += 1
        return super().fetch(collection, index, record)

    def scan_ids(
        self, collection: Collection, low: bytes, high: bytes, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        for item in super().scan_ids(collection, low, high, backward=backward):
            self._examined.keys += 1
            self._examined.documents += 1
            yield item


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How documents are read: the stage, whether it gives the order that was asked for, and the ways not taken."""

    stage: Stage
    is_sorted: bool = False
    rejected: tuple[Stage, ...] = ()


def access(
    view: View, collection: Collection | None, spec: dict[str, Any], collation: Collation | None,
    variables: dict[str, Any] | None, *, backward: bool = False, order: Order = ANY_ORDER, hint: Any = None,
) -> ReadPlan:  # fmt: skip
    """The stage that reads the matches. Raises what a bad filter raises."""
    if collection is None:
        return ReadPlan({"stage": "EOF"}, is_sorted=True)
    finder = Finder(collection, spec, collation, variables, hint)
    if finder.is_by_id:
        return ReadPlan({"stage": "IDHACK"}, is_sorted=True)
    direction = finder.id_direction(order)
    if direction:
        return ReadPlan(_by_id(spec, direction), is_sorted=True)
    choice = NO_INDEX if backward else finder.choice(view, order)
    if choice.access is not None:
        is_sorted = isinstance(choice.access, IndexAccess) and choice.access.is_sorted
        return ReadPlan(_fetch(spec, choice.access), is_sorted, tuple(_fetch(spec, way) for way in choice.rejected))
    if finder.has_id_keys or (finder.id_range is not None and not backward):
        return ReadPlan(_by_id(spec, 1))
    return ReadPlan(
        {"stage": "COLLSCAN"} | _filter(spec) | {"direction": "backward" if backward else "forward"}
    )  # fmt: skip


def counting_plan(
    view: View, collection: Collection | None, spec: dict[str, Any], collation: Collation | None, hint: Any
) -> ReadPlan:
    """The stage that counts the matches."""
    if collection is not None and not spec:
        return ReadPlan({"stage": "RECORD_STORE_COUNT"})
    plan = access(view, collection, spec, collation, None, hint=hint)
    below = plan.stage
    if (
        below["stage"] == "FETCH"
        and collection is not None
        and "filter" not in below
        and below["inputStage"]["indexName"] != "_id_"
    ):
        below = below["inputStage"] | {"stage": "COUNT_SCAN"}
    return ReadPlan({"stage": "COUNT", "inputStage": below}, rejected=plan.rejected)


def _by_id(spec: dict[str, Any], direction: int) -> Stage:
    scan = {
        "stage": "IXSCAN", "keyPattern": {"_id": 1}, "indexName": "_id_", "isMultiKey": False, "isUnique": True,
        "isSparse": False, "isPartial": False, "indexVersion": 2,
        "direction": "forward" if direction == 1 else "backward",
    }  # fmt: skip
    return {"stage": "FETCH"} | _filter(spec) | {"inputStage": scan}


def _fetch(spec: dict[str, Any], way: Access) -> Stage:
    """The documents of an index's keys; without a filter where the bounds say all of it."""
    if isinstance(way, OrAccess):
        scans = [_index_scan(branch) for branch in way.branches]
        return {"stage": "FETCH"} | _filter(spec) | {"inputStage": {"stage": "OR", "inputStages": scans}}
    return {"stage": "FETCH"} | ({} if way.is_exact else _filter(spec)) | {"inputStage": _index_scan(way)}


def _index_scan(way: IndexAccess) -> Stage:
    index, spec = way.index, way.index.spec
    collation = {"collation": spec["collation"]} if "collation" in spec else {}
    arrays = {
        path: [prefix for prefix in _prefixes(path) if prefix in index.traits] for path in spec["key"]
    }  # fmt: skip
    return {
        "stage": "IXSCAN", "keyPattern": spec["key"], "indexName": index.name, **collation,
        "isMultiKey": way.may_repeat, "multiKeyPaths": arrays, "isUnique": index.unique,
        "isSparse": bool(spec.get("sparse")), "isPartial": "partialFilterExpression" in spec, "indexVersion": 2,
        "direction": "backward" if way.backward else "forward",
        "indexBounds": {
            path: _bounds_shown(intervals, descends(kind) != way.backward)
            for (path, kind), intervals in zip(spec["key"].items(), way.bounds)
        },
    }  # fmt: skip


def _prefixes(path: str) -> list[str]:
    names = path.split(".")
    return [".".join(names[:count]) for count in range(1, len(names) + 1)]


def _bounds_shown(intervals: Intervals | None, reverse: bool) -> list[str]:
    """The bounds of a field in the order in which they are read."""
    if intervals is None:
        return ["[MaxKey, MinKey]" if reverse else "[MinKey, MaxKey]"]
    shown = []
    for interval in reversed(intervals) if reverse else intervals:
        ends = [end_shown(interval.low), end_shown(interval.high)]
        (first, with_first), (last, with_last) = reversed(ends) if reverse else ends
        shown.append(f"{'[' if with_first else '('}{_shown(first)}, {_shown(last)}{']' if with_last else ')'}")
    return shown


def _shown(value: Any) -> str:
    if isinstance(value, CollationKey):
        return f"CollationKey(0x{value.hex()})"
    if type(value) is float and value in (inf, -inf):
        return "inf" if value > 0 else "-inf"
    return to_string(value)


def with_counts(stage: Stage, examined: Examined, returned: int) -> Stage:
    """A stage with what it has examined, as far as that is counted for itself; the top one has returned `returned`."""
    made: Stage = {"stage": stage["stage"], "nReturned": returned}
    if stage["stage"] in ("COUNT_SCAN", "IXSCAN"):
        made["keysExamined"] = examined.keys
    if stage["stage"] in ("COLLSCAN", "FETCH"):
        made["docsExamined"] = examined.documents
    made |= {name: value for name, value in stage.items() if name not in made}
    below = stage.get("inputStage")
    if below is None:
        return made
    if stage["stage"] in _PASSING:
        made["inputStage"] = with_counts(below, examined, returned)
    elif below["stage"] in ("COUNT_SCAN", "IXSCAN"):
        made["inputStage"] = with_counts(below, examined, examined.keys)
    return made


_PASSING: Final = frozenset({"PROJECTION_DEFAULT", "SORT"})
"""Stages that return what they are given."""


def _filter(spec: dict[str, Any]) -> Stage:
    return {"filter": parsed_query(spec)} if spec else {}


def parsed_query(spec: dict[str, Any]) -> dict[str, Any]:
    """A filter with every condition written out: `{a: 1, b: {$gt: 1, $lt: 5}}` is an `$and` of three."""
    conditions: list[dict[str, Any]] = []
    for name, value in spec.items():
        if name == "$and":
            conditions += [part for item in value for part in _conjuncts(parsed_query(item))]
        elif name in _LOGICAL:
            conditions.append({name: [parsed_query(item) for item in value]})
        elif name.startswith("$"):
            if name != "$comment":
                conditions.append({name: value})
        elif type(value) is dict and next(iter(value), "").startswith("$") and "$ref" not in value:
            conditions += [{name: part} for part in _conditions(value)]
        else:
            conditions.append({name: {"$eq": value}})
    return conditions[0] if len(conditions) == 1 else {"$and": conditions} if conditions else {}


def _conjuncts(parsed: dict[str, Any]) -> list[dict[str, Any]]:
    return parsed["$and"] if list(parsed) == ["$and"] else [parsed] if parsed else []


def _conditions(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each operator of a field by itself, but for a regular expression and its options."""
    for name, operand in value.items():
        if name == "$regex" and "$options" in value:
            yield {"$regex": operand, "$options": value["$options"]}
        elif name != "$options":
            yield {name: operand}
