"""Slow queries from the profiler's `system.profile`, and for each the index that would help, with the reason.

The rule for an index is MongoDB's ESR guideline: fields of equality, then fields of the sort, then ranges
(https://www.mongodb.com/docs/manual/tutorial/equality-sort-range-guideline/).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo.errors import OperationFailure

from headrace.changes.scope import INTERNAL_DATABASES
from headrace.cli.connection import Client
from headrace.cli.terminal import one_line, shortened

ENTRIES_MAX: Final = 1000
"""The newest entries of each database that are read."""
SHAPES_MAX: Final = 50
_COMMANDS: Final = frozenset(
    {"aggregate", "count", "delete", "distinct", "find", "findAndModify", "q", "query", "update"}
)
"""A profiled command has one of these fields if it has a filter that an index may serve."""
_EXAMINED_PER_RETURNED: Final = 3
_EXAMINED_MIN: Final = 100
"""Below this number of documents an index does not matter."""
_EQUALITY: Final = frozenset({"$eq", "$in"})
_FIELDS: Final = {
    "_id": 0, "appName": 1, "command": 1, "docsExamined": 1, "hasSortStage": 1, "keysExamined": 1, "millis": 1,
    "nMatched": 1, "ndeleted": 1, "nreturned": 1, "ns": 1, "op": 1, "planSummary": 1, "ts": 1,
}  # fmt: skip


@dataclass
class SlowShape:
    """The operations of one collection with the same shape: the same fields and operators."""

    namespace: str
    operation: str
    filter: Mapping[str, Any]
    sort: Mapping[str, Any]
    count: int = 0
    millis: int = 0
    millis_max: int = 0
    examined: int = 0
    returned: int = 0
    sorts: bool = False
    plans: set[str] = field(default_factory=set)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add an entry of the profiler."""
        self.count += 1
        self.millis += int(entry.get("millis", 0))
        self.millis_max = max(self.millis_max, int(entry.get("millis", 0)))
        self.examined += int(entry.get("docsExamined", 0))
        self.returned += int(entry.get("nreturned", entry.get("nMatched", entry.get("ndeleted", 0))) or 0)
        self.sorts = self.sorts or bool(entry.get("hasSortStage"))
        self.plans.add(str(entry.get("planSummary", "")))

    def document(self) -> dict[str, Any]:
        """Return the shape for the page."""
        key, why = self.advice()
        return {
            "namespace": self.namespace, "operation": self.operation, "filter": shortened(one_line(self.filter), 500),
            "sort": one_line(self.sort) if self.sort else "", "count": self.count, "millis": self.millis,
            "millisMax": self.millis_max, "examined": self.examined, "returned": self.returned,
            "plan": ", ".join(sorted(filter(None, self.plans))), "index": one_line(key) if key else "", "why": why,
        }  # fmt: skip

    def advice(self) -> tuple[dict[str, Any], str]:
        """Return the key of the index that would help, empty for none, and the reason."""
        scans = any(plan.startswith("COLLSCAN") for plan in self.plans)
        reads_much = self.examined > max(_EXAMINED_PER_RETURNED * self.returned, _EXAMINED_MIN * self.count)
        key = index_for(self.filter, self.sort)
        if not (scans or reads_much or self.sorts):
            return {}, "It reads about what it returns: no index would help."
        if not key:
            return {}, "It has no filter and no sort that an index could serve."
        average, returned = self.examined // self.count, self.returned // self.count
        if scans:
            return key, f"No index serves it: it reads {average:,} documents to return {returned:,}."
        if reads_much:
            return key, f"Its index leads to {average:,} documents, of which {returned:,} match."
        return key, "It sorts in memory; this index has the order of the sort."


def index_for(filter: Mapping[str, Any], sort: Mapping[str, Any]) -> dict[str, Any]:
    """Return an index key: fields of equality, of the sort, of ranges. Empty for a filter by `_id` or only `$or`."""
    equal: list[str] = []
    ranges: list[str] = []
    for path, condition in _conditions(filter):
        is_operator = isinstance(condition, Mapping) and any(str(name).startswith("$") for name in condition)
        is_equal = not is_operator or set(condition) <= _EQUALITY
        (equal if is_equal else ranges).append(path)
    if "_id" in equal:
        return {}
    ordered = [path for path in sort if not path.startswith("$") and path not in equal]
    key: dict[str, Any] = dict.fromkeys(equal, 1) | {path: sort[path] for path in ordered}
    key |= {path: 1 for path in ranges if path not in key}
    return {} if key == {"_id": 1} or not key else key


def _conditions(filter: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in filter.items():
        if name == "$and" and isinstance(value, list):
            for part in value:
                yield from _conditions(part)
        elif not name.startswith("$"):
            yield name, value


def slow_queries(client: Client) -> dict[str, Any]:
    """Return the shapes of all databases with the longest total time, and the databases without profiler."""
    shapes: dict[str, SlowShape] = {}
    off, refused = [], []
    for database in sorted(client.list_database_names()):
        if database in INTERNAL_DATABASES:
            continue
        try:
            if not client[database].command("profile", -1).get("was"):
                off.append(database)
            for entry in client[database]["system.profile"].find({}, _FIELDS).sort("$natural", -1).limit(ENTRIES_MAX):
                _add(shapes, entry)
        except OperationFailure:
            refused.append(database)
    ordered = sorted(shapes.values(), key=lambda shape: -shape.millis)[:SHAPES_MAX]
    return {"shapes": [shape.document() for shape in ordered], "off": off, "refused": refused}


def _add(shapes: dict[str, SlowShape], entry: Mapping[str, Any]) -> None:
    command = entry.get("command") or {}
    if str(entry.get("appName", "")).startswith("headrace console") or entry.get("op") not in (
        "query", "update", "remove", "command", "getmore",
    ):  # fmt: skip
        return
    filter, sort = _asked(command.get("originatingCommand") or command)
    if filter is None:
        return
    shape = f"{entry.get('ns')} {entry.get('op')} {one_line(_shape(filter))} {one_line(sort)}"
    if shape not in shapes:
        shapes[shape] = SlowShape(str(entry.get("ns", "")), str(entry.get("op")), filter, sort)
    shapes[shape].add(entry)


def _asked(command: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    """Return the filter of a command, None for no filter, and its sort."""
    if not _COMMANDS & command.keys():
        return None, {}
    pipeline = command.get("pipeline")
    if isinstance(pipeline, list):
        match = pipeline[0].get("$match") if pipeline else None
        sort = pipeline[1].get("$sort") if match is not None and len(pipeline) > 1 else None
        return match, sort or {}
    for name in ("filter", "query", "q"):
        if isinstance(command.get(name), Mapping):
            return command[name], command.get("sort") or {}
    return ({} if "find" in command else None), command.get("sort") or {}


def _shape(value: Any) -> Any:
    """Return a filter's names and operators without its values."""
    if isinstance(value, Mapping):
        return {name: _shape(part) for name, part in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [_shape(part) for part in value]
    return 0
