"""Collections for the page: sizes, indexes, documents, query plans, slow queries. Every query has a time limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bson import json_util
from pymongo.errors import OperationFailure

from headrace.changes.stream import INTERNAL_DATABASES
from headrace.cli.arguments import Failed
from headrace.cli.connection import Client, split_namespace
from headrace.cli.tail.start import json_object, json_of
from headrace.cli.terminal import one_line, shortened

COLLECTIONS_MAX: Final = 300
DOCUMENTS_MAX: Final = 20
TEXT_MAX: Final = 20_000
"""The page shows this many characters of a document."""
TIME_MS: Final = 10_000
_STATS: Final[list[dict[str, Any]]] = [{"$collStats": {"storageStats": {}}}]


def collections_of(client: Client) -> dict[str, Any]:
    """Return the collections that the user may list, with their sizes; beyond `COLLECTIONS_MAX` only their number."""
    rows: list[dict[str, Any]] = []
    left = 0
    for database in sorted(client.list_database_names()):
        for found in sorted(
            client[database].list_collections(authorizedCollections=True, nameOnly=True), key=lambda one: one["name"]
        ):
            if len(rows) >= COLLECTIONS_MAX:
                left += 1
                continue
            kind = found.get("type", "collection")
            row = {"database": database, "collection": found["name"], "type": kind}
            rows.append(row | (_sizes(client, database, found["name"]) if kind != "view" else {}))
    return {"collections": rows, "left": left}


def _sizes(client: Client, database: str, collection: str) -> dict[str, Any]:
    try:
        stats = next(iter(client[database][collection].aggregate(_STATS, maxTimeMS=TIME_MS)))["storageStats"]
    except (OperationFailure, StopIteration, KeyError):  # no privilege, or the collection was dropped meanwhile
        return {}
    return {
        "count": stats.get("count"), "bytes": stats.get("size"), "storageBytes": stats.get("storageSize"),
        "indexes": stats.get("nindexes"), "indexBytes": stats.get("totalIndexSize"),
    }  # fmt: skip


def collection_of(client: Client, namespace: str) -> dict[str, Any]:
    """Return a collection's options, and its indexes with their sizes and how often each was used."""
    database, name = _names(namespace)
    found = next(iter(client[database].list_collections(filter={"name": name})), None)
    if found is None:
        raise Failed(f"there is no collection {namespace}")
    if found.get("type") == "view":
        return {"namespace": namespace, "options": one_line(found.get("options", {})), "indexes": []}
    collection = client[database][name]
    try:
        stats = next(iter(collection.aggregate(_STATS, maxTimeMS=TIME_MS)))["storageStats"].get("indexSizes", {})
        uses = {one["name"]: one["accesses"]["ops"] for one in collection.aggregate([{"$indexStats": {}}])}
    except (OperationFailure, StopIteration, KeyError):
        stats, uses = {}, {}
    indexes = [
        {
            "name": index["name"], "key": one_line(index["key"]), "bytes": stats.get(index["name"]),
            "uses": uses.get(index["name"]),
            "options": one_line({key: index[key] for key in index if key not in ("v", "key", "name")}),
        }
        for index in collection.list_indexes()
    ]  # fmt: skip
    return {"namespace": namespace, "options": one_line(found.get("options", {})), "indexes": indexes}


def documents_of(client: Client, query: Mapping[str, str], *, writes: bool = False) -> dict[str, Any]:
    """Return the documents that a query of the page finds, as Extended JSON, and whether there are more.

    With `writes`, its pipeline may end with `$out` or `$merge`.
    """
    database, command = _command(query, writes=writes)
    skip = _whole(query.get("skip", ""))
    if "find" in command:
        command |= {"limit": DOCUMENTS_MAX + 1, "batchSize": DOCUMENTS_MAX + 1, "skip": skip}
    elif not _writing_stages(command["pipeline"]):
        command["pipeline"] += [{"$skip": skip}, {"$limit": DOCUMENTS_MAX + 1}]
    cursor = client[database].command(command, codec_options=client.codec_options)["cursor"]
    if cursor["id"]:
        client[database].command("killCursors", cursor["ns"].partition(".")[2], cursors=[cursor["id"]])
    batch = cursor["firstBatch"]
    texts = [
        shortened(json_util.dumps(document, json_options=json_util.RELAXED_JSON_OPTIONS, indent=2, ensure_ascii=False),
                  TEXT_MAX)
        for document in batch[:DOCUMENTS_MAX]
    ]  # fmt: skip
    return {"documents": texts, "more": len(batch) > DOCUMENTS_MAX}


def explained(client: Client, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the plan of a query of the page. The server runs the query to report its numbers."""
    database, command = _command(query, writes=False)
    del command["maxTimeMS"]
    explain = {"explain": command, "verbosity": "executionStats", "maxTimeMS": TIME_MS}
    return plan_of(client[database].command(explain, codec_options=client.codec_options))


def _command(query: Mapping[str, str], *, writes: bool) -> tuple[str, dict[str, Any]]:
    """Return the database and the command of a query: `aggregate` if the filter is a pipeline, otherwise `find`.

    Raises Failed.
    """
    database, name = _names(query.get("ns", ""))
    given = {field: query[field] for field in ("filter", "projection", "sort") if query.get(field, "").strip()}
    command: dict[str, Any]
    if given.get("filter", "").lstrip().startswith("["):
        if len(given) > 1:
            raise Failed("a pipeline has stages of its own for the sort and the fields: $sort, $project")
        pipeline = json_of(given["filter"], "the pipeline")
        if not writes and (stages := _writing_stages(pipeline)):
            raise Failed(f"{stages[0]} writes, and this console only reads: start it with --write")
        # One more than the limit, so that the server closes the cursor.
        command = {"aggregate": name, "pipeline": pipeline, "cursor": {"batchSize": DOCUMENTS_MAX + 2}}
    else:
        command = {"find": name, **{field: json_object(text, f"the {field}") for field, text in given.items()}}
    return database, command | {"maxTimeMS": TIME_MS}


def _writing_stages(pipeline: list[Any]) -> list[str]:
    return [name for stage in pipeline if isinstance(stage, dict) for name in stage if name in ("$merge", "$out")]


def _names(namespace: str) -> tuple[str, str]:
    database, name = split_namespace(namespace)
    if not database or not name:
        raise Failed(f"{namespace!r} is not the name of a collection: DATABASE.COLLECTION")
    return database, name


def _whole(text: str) -> int:
    if text and not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise Failed(f"{text!r} is not a whole number")
    return int(text or 0)


# Plans.


_CHILDREN: Final = ("inputStage", "inputStages", "innerStage", "outerStage", "thenStage", "elseStage", "shards")
_NUMBERS: Final = {
    "docsExamined": "documents examined",
    "executionTimeMillisEstimate": "ms",
    "keysExamined": "keys examined",
    "nReturned": "returned",
}
_TEXTS: Final = ("indexName", "keyPattern", "direction", "indexBounds", "sortPattern", "filter", "specification")


def plan_of(explain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan: its `totals`, its `root` stage, and advice if it reads much more than it returns."""
    stages = list(explain.get("stages") or ())
    if stages and (read := next(iter(stages[0].values()), None)) and "queryPlanner" in read:
        explain = read
        del stages[0]
    planner, stats = explain.get("queryPlanner") or {}, explain.get("executionStats") or {}
    winning = planner.get("winningPlan") or {}
    root = stats.get("executionStages") or winning.get("queryPlan") or winning
    totals = {
        "returned": stats.get("nReturned"), "ms": stats.get("executionTimeMillis"),
        "keys": stats.get("totalKeysExamined"), "documents": stats.get("totalDocsExamined"),
    }  # fmt: skip
    advice = _advice(root, totals)
    for stage in stages:
        root = _pipeline_stage(stage, root)
        totals["returned"] = stage.get("nReturned")
    rejected = len(planner.get("rejectedPlans") or ())
    return {"totals": totals, "root": _stage(root), "rejected": rejected, "advice": advice}


def _pipeline_stage(stage: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pipeline's stage as a stage of a plan; `source` is the stage that feeds it."""
    name = next((name for name in stage if name.startswith("$")), "?")
    numbers = {number: stage[number] for number in _NUMBERS if number in stage}
    return {"stage": name, "specification": stage.get(name), "inputStage": source, **numbers}


def stages_of(root: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a plan's stages, from the root down."""
    yield str(root.get("stage", "?"))
    for child in _children(root):
        yield from stages_of(child)


def _stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "stage": str(stage.get("stage", "?")),
        "numbers": {title: stage[name] for name, title in _NUMBERS.items() if name in stage},
        "texts": {
            name: stage[name] if isinstance(stage[name], str) else shortened(one_line(stage[name]), 300)
            for name in _TEXTS
            if stage.get(name)
        },
        "children": [_stage(child) for child in _children(stage)],
    }


def _children(stage: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in _CHILDREN:
        found = stage.get(name)
        for child in found if isinstance(found, list) else [found]:
            if isinstance(child, Mapping):
                yield child.get("executionStages") or child


def _advice(root: Mapping[str, Any], totals: Mapping[str, Any]) -> str:
    stages = set(stages_of(root))
    examined, returned = totals["documents"] or 0, totals["returned"] or 0
    if "COLLSCAN" in stages and examined > 10 * max(returned, 1):
        return f"It reads all {examined:,} documents and returns {returned:,}: an index on the filter's fields helps."
    if "SORT" in stages and examined > 100:
        return "It sorts in memory: an index that ends with the sort's fields would return the documents in order."
    if examined > 10 * max(returned, 1):
        return f"Its index leads to {examined:,} documents, of which {returned:,} match: an index with more of the " \
               "filter's fields helps."  # fmt: skip
    return ""


# Slow queries from the profiler's `system.profile`, and for each the index that would help, with the reason. The rule
# for an index is MongoDB's ESR guideline: fields of equality, then fields of the sort, then ranges
# (https://www.mongodb.com/docs/manual/tutorial/equality-sort-range-guideline/).


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
