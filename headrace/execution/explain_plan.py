"""Plans as `explain` reports them, with the documents and keys that their stages have examined and returned.

    IDHACK        the document of one `_id`
    GEO_NEAR_...  a geospatial index, from the nearest document on
    IXSCAN        an index: some keys, ranges, or all keys in order; the documents are fetched (FETCH), or the results
                  are made from the keys (PROJECTION_COVERED)
    COUNT_SCAN    the keys of an index are counted
    DISTINCT_SCAN an index, from each value of a field to the next
    OR            several indexes, one after the other; SORT_MERGE: merged in their order
    TEXT_MATCH    a search in a text index; TEXT_OR: with scores
    COLLSCAN      every document
    CLUSTERED_IXSCAN  some documents of a clustered collection, from one `_id` to another
    EOF           there is no collection

Rule: explain shows the `ReadPlan` that is executed. The counts come from its scans and from a `CountingView`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.cursors.collection_scan import WITHOUT_KEYS, clustered_summary
from headrace.cursors.index_scan import IndexScan
from headrace.execution.planner.bounds import Intervals, end_shown, point
from headrace.execution.planner.collated_bounds import CollationKey
from headrace.execution.planner.id_ranges import records_shown
from headrace.execution.planner.index_access import Access, IndexAccess, OrAccess
from headrace.execution.planner.near_access import NearAccess
from headrace.execution.planner.query import hash_of, shape_of
from headrace.execution.planner.trial import Trial, indexes_of
from headrace.execution.read_plan import ReadKind, ReadPlan
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.index_keys import descends
from headrace.store.indexes.text_keys import TERM, is_text
from headrace.store.view import LEFT_OUT, Counted, Skip, View
from headrace.values.bson import to_string

if TYPE_CHECKING:
    from headrace.cursors.index_scan import TermKeys
    from headrace.text.search import TextSearch

Stage = dict[str, Any]
_LOGICAL: Final = frozenset({"$and", "$nor", "$or"})
_NEAR: Final = frozenset({"$geoNear", "$near", "$nearSphere"})
_NEAR_STAGES: Final = frozenset({"GEO_NEAR_2D", "GEO_NEAR_2DSPHERE"})


@dataclass(slots=True)
class Counts:
    """The numbers of keys and documents examined."""

    keys: int = 0
    documents: int = 0
    left_out: int = 0
    """Examined keys that are outside the bounds."""
    collection_scans: int = 0
    indexes: dict[str, None] = field(default_factory=dict)
    """The names of the indexes used, in order."""


class Examined:
    """The keys and documents that a command, and each stage of its pipeline, has examined, across all pauses."""

    __slots__ = ("now", "of_source")

    def __init__(self) -> None:
        self.of_source = Counts()
        """The counts of the plan, or of the first stage of a pipeline."""
        self.now = self.of_source
        """The counts of the stage that is running now."""

    def counting(self, view: View) -> View:
        """Return a view that counts the keys and documents read through it."""
        return CountingView(view, self)

    def by(self, counts: Counts, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items. Keys and documents examined for them are added to `counts`."""
        while True:
            before, self.now = self.now, counts
            try:
                item = next(items, _END)
            finally:
                self.now = before
            if item is _END:
                return
            yield item


_END: Final = object()


class CountingView(View):
    """A view that counts the keys and documents read through it."""

    __slots__ = ("_examined",)

    def __init__(self, base: View, examined: Examined) -> None:
        self.store, self.kv, self.tables = base.store, base.kv, base.tables
        self.state, self.catalog = base.state, base.catalog
        self._examined = examined

    def by_id(self, collection: Collection, id_key: bytes) -> tuple[bytes, bytes] | None:
        match = super().by_id(collection, id_key)
        if not collection.clustered:
            self._examined.now.indexes["_id_"] = None
            self._examined.now.keys += 1
        self._examined.now.documents += match is not None
        return match

    def scan_chunk(
        self, collection: Collection, *, after: bytes | None = None, backward: bool = False,
        count_max: int = limits.VIEW_CHUNK_COUNT, bytes_max: int = limits.VIEW_CHUNK_BYTES,
    ) -> list[tuple[bytes, bytes]]:  # fmt: skip
        chunk = super().scan_chunk(collection, after=after, backward=backward, count_max=count_max, bytes_max=bytes_max)
        self._examined.now.documents += len(chunk)
        self._examined.now.collection_scans += after is None
        return chunk

    def scan(
        self, collection: Collection, *, after: bytes | None = None, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for item in super().scan(collection, after=after, backward=backward):
            self._examined.now.documents += 1
            yield item

    def index_keys(
        self, index: Index, low: bytes, high: bytes, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if not index.is_clustered:
            self._examined.now.indexes[index.name] = None
        for item in super().index_keys(index, low, high, backward=backward):
            self._examined.now.keys += not index.is_clustered
            yield item

    def index_ranges(self, index: Index, ranges: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for low, high in ranges:
            yield from self.index_keys(index, low, high)

    def index_keys_within(
        self, index: Index, low: bytes, high: bytes, skip: Skip, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self._examined.now.indexes[index.name] = None
        for item in super().index_keys_within(index, low, high, skip, backward=backward):
            self._examined.now.keys += 1
            self._examined.now.left_out += item[1] is LEFT_OUT
            yield item

    def count_keys(self, index: Index, low: bytes, high: bytes, count_max: int) -> Counted:
        counted = super().count_keys(index, low, high, count_max)
        self._examined.now.keys += counted.key_count
        return counted

    def id_keys(
        self, collection: Collection, low: bytes, high: bytes, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for item in super().id_keys(collection, low, high, backward=backward):
            self._examined.now.keys += not collection.clustered
            yield item

    def count_ids(self, collection: Collection, low: bytes, high: bytes, count_max: int) -> Counted:
        counted = super().count_ids(collection, low, high, count_max)
        if collection.clustered:
            self._examined.now.documents += counted.key_count
        else:
            self._examined.now.keys += counted.key_count
        return counted

    def fetch(self, collection: Collection, index: Index, record: bytes) -> bytes:
        self._examined.now.documents += 1
        return super().fetch(collection, index, record)

    def fetch_many(
        self, collection: Collection, index: Index, entries: Sequence[tuple[bytes, bytes]], bytes_max: int
    ) -> list[bytes]:
        documents = super().fetch_many(collection, index, entries, bytes_max)
        self._examined.now.documents += len(documents)
        return documents


def read_stage(plan: ReadPlan | None, spec: dict[str, Any]) -> Stage:
    """Return the stage that reads the matches. `plan` None: there is no collection."""
    if plan is None:
        return {"stage": "EOF"}
    if plan.collection.clustered and plan.near is None and (stage := _clustered_stage(plan, spec)) is not None:
        return stage
    if plan.kind is ReadKind.IDHACK:
        return {"stage": "IDHACK"}
    if plan.near is not None:
        return _near_stage(plan.near, spec)
    if plan.kind is ReadKind.IDS and plan.covered is not None:
        scan = _by_id(spec, "backward" if plan.backward else "forward")["inputStage"]
        return {"stage": "PROJECTION_COVERED", "transformBy": {"_id": 1}, "inputStage": scan}
    if plan.kind is ReadKind.IDS:
        return _by_id(spec, "backward" if plan.backward else "forward")
    if plan.choice.access is None:
        return {"stage": "COLLSCAN"} | _filter(spec) | {"direction": "backward" if plan.backward else "forward"}
    if plan.covered is not None:
        projection = dict.fromkeys(plan.covered, 1) | ({} if "_id" in plan.covered else {"_id": 0})
        scan = access_stage(plan.choice.access, spec)["inputStage"]
        return {"stage": "PROJECTION_COVERED", "transformBy": projection, "inputStage": scan}
    return access_stage(plan.choice.access, spec, scored=plan.finder.marks_scores)


def _clustered_stage(plan: ReadPlan, spec: dict[str, Any]) -> Stage | None:
    """Return the stage that scans a clustered collection, within bounds of `_id` if any; None if the plan uses another
    index."""
    access, between = plan.choice.access, plan.finder.between
    backward = plan.backward or plan.finder.is_natural_backward
    intervals = plan.finder.id_intervals
    if plan.kind is ReadKind.INDEX:
        if not isinstance(access, IndexAccess) or not access.index.is_clustered:
            return None
        backward, intervals = access.backward, access.bounds[0]
    elif plan.kind is ReadKind.IDHACK:
        intervals = [point(spec["_id"])]
    if between is not None:
        shown = {"minRecord": between.least.get("_id"), "maxRecord": between.limit.get("_id")}
        records = {name: value for name, value in shown.items() if value is not None}
    elif intervals is None:
        records = {}
    elif not intervals:
        return {"stage": "EOF"}
    else:
        records = records_shown(intervals)
    name = clustered_summary(is_bounded=bool(records))
    return {"stage": name} | _filter(spec) | {"direction": "backward" if backward else "forward"} | records


def rejected_stages(plan: ReadPlan | None, spec: dict[str, Any]) -> list[Stage]:
    """Return the stages of the rejected plans."""
    return [] if plan is None else [access_stage(way, spec) for way in plan.choice.rejected]


def cache_keys(plan: ReadPlan | None) -> dict[str, Any]:
    """Return the hash of a query's shape, and the hash of the shape with the candidate indexes."""
    ways = [] if plan is None or plan.choice.access is None else [plan.choice.access, *plan.choice.rejected]
    shape = shape_of(None, None, None) if plan is None else plan.finder.shape(plan.order)
    hashed = hash_of(shape)
    key = hash_of(shape, sorted({index for way in ways for index in indexes_of(way)}))
    return {"queryHash": hashed, "planCacheShapeHash": hashed, "planCacheKey": key}


def counting_stage(plan: ReadPlan | None, spec: dict[str, Any]) -> Stage:
    """Return the stage that counts the matches."""
    if plan is not None and not spec and not plan.finder.is_hinted:
        return {"stage": "RECORD_STORE_COUNT"}
    below = read_stage(plan, spec)
    access = None if plan is None else plan.choice.access
    if plan is not None and plan.collection.clustered and "inputStage" not in below:
        return {"stage": "COUNT", "inputStage": below}
    if isinstance(access, IndexAccess) and access.is_exact:
        below = below["inputStage"] | {"stage": "COUNT_SCAN"}
    elif access is None and plan is not None and plan.finder.id_ranges is not None:
        below = _by_id(spec, "forward")["inputStage"] | {"stage": "COUNT_SCAN"}
    return {"stage": "COUNT", "inputStage": below}


def distinct_stage(access: IndexAccess, path: str) -> Stage:
    """Return the stage that skips from each value of a path to the next. It fetches documents if keys never suffice."""
    scan = {"stage": "DISTINCT_SCAN"} | {name: value for name, value in _index_scan(access).items() if name != "stage"}
    kind = "COVERED"
    if "collation" in access.index.spec:
        scan = {"stage": "FETCH", "inputStage": scan}
        kind = "DEFAULT" if "." in path else "SIMPLE"
    return {"stage": f"PROJECTION_{kind}", "transformBy": {path: 1, "_id": 0}, "inputStage": scan}


def _near_stage(access: NearAccess, spec: dict[str, Any]) -> Stage:
    """Return the stage of a `$near`, below a FETCH with the rest of the filter, if any."""
    index = access.index
    stage = {
        "stage": f"GEO_NEAR_{access.kind.upper()}", "keyPattern": index.spec["key"], "indexName": index.name,
        "indexVersion": 2,
    }  # fmt: skip
    rest = {path: value for path, value in spec.items() if type(value) is not dict or not _NEAR & value.keys()}
    return {"stage": "FETCH", **_filter(rest), "inputStage": stage} if rest else stage


def _by_id(spec: dict[str, Any], direction: str) -> Stage:
    scan = {
        "stage": "IXSCAN", "keyPattern": {"_id": 1}, "indexName": "_id_", "isMultiKey": False, "isUnique": True,
        "isSparse": False, "isPartial": False, "indexVersion": 2, "direction": direction,
    }  # fmt: skip
    return {"stage": "FETCH"} | _filter(spec) | {"inputStage": scan}


def access_stage(way: Access, spec: dict[str, Any], *, scored: bool = False) -> Stage:
    """Return the stages that scan an index and fetch the documents. There is no filter if the bounds are exact.

    `scored`: with the scores of a text search."""
    if isinstance(way, OrAccess) and way.text is not None:
        return _text_stage(way, way.text, spec, scored)
    if isinstance(way, OrAccess):
        scans = [_index_scan(branch) for branch in way.branches]
        below: Stage = {"stage": "OR", "inputStages": scans}
        if way.sort is not None:
            pattern = {path: -1 if down else 1 for path, down in way.sort.paths}
            below = {"stage": "SORT_MERGE", "sortPattern": pattern, "inputStages": scans}
        return {"stage": "FETCH"} | _filter(spec) | {"inputStage": below}
    return {"stage": "FETCH"} | ({} if way.is_exact else _filter(spec)) | {"inputStage": _index_scan(way)}


def _text_stage(way: OrAccess, text: TextSearch, spec: dict[str, Any], scored: bool) -> Stage:
    """Return the stages of a text search, below a FETCH with the rest of the filter, if any."""
    scans = [_index_scan(branch) for branch in way.branches]
    one = {"inputStage": scans[0]} if len(scans) == 1 else {"inputStages": scans}
    below: Stage = {"stage": "TEXT_OR", **one}
    if not scored:
        below = {"stage": "FETCH", "inputStage": scans[0] if len(scans) == 1 else {"stage": "OR", **one}}
    index = {"indexPrefix": {}, "indexName": ""}
    if way.branches:
        first = way.branches[0]
        fixed = zip(first.index.spec["key"], first.bounds[: list(first.index.spec["key"]).index(TERM)])
        prefix = {path: intervals[0].low.value for path, intervals in fixed if intervals}
        index = {"indexPrefix": prefix, "indexName": first.index.name}
    stage: Stage = {
        "stage": "TEXT_MATCH", **index,
        "parsedTextQuery": {
            "terms": text.terms, "negatedTerms": text.negated_terms, "phrases": list(text.phrases),
            "negatedPhrases": list(text.negated_phrases),
        },
        "textIndexVersion": text.version, "inputStage": below,
    }  # fmt: skip
    rest = [item for item in _conjuncts(parsed_query(spec)) if "$text" not in item]
    if not rest:
        return stage
    return {"stage": "FETCH", "filter": rest[0] if len(rest) == 1 else {"$and": rest}, "inputStage": stage}


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
        "direction": "backward" if way.backward else "forward", "indexBounds": _all_bounds_shown(way),
    }  # fmt: skip


def _all_bounds_shown(way: IndexAccess) -> dict[str, Any]:
    if is_text(way.index.spec["key"]):
        return {}
    if way.between is not None:
        shown = {"startKey": way.between.least, "endKey": way.between.limit}
        return {name: value for name, value in shown.items() if value} | {
            "startKeyInclusive": True, "endKeyInclusive": False,
        }  # fmt: skip
    return {
        path: _bounds_shown(intervals, descends(kind) != way.backward)
        for (path, kind), intervals in zip(way.index.spec["key"].items(), way.bounds)
    }


def _prefixes(path: str) -> list[str]:
    names = path.split(".")
    return [".".join(names[:count]) for count in range(1, len(names) + 1)]


def _bounds_shown(intervals: Intervals | None, reverse: bool) -> list[str]:
    """Return the bounds of a field in reading order."""
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
    if type(value) is float and not isfinite(value):
        return repr(value)
    return to_string(value)


class StageCounts:
    """The number of documents that left each stage of a plan, and the counts of its scans."""

    __slots__ = ("_examined", "_returned", "_scans")

    def __init__(self, examined: Examined) -> None:
        self._examined = examined
        self._returned: dict[str, int] = {}
        self._scans: list[IndexScan | TermKeys] = []

    def count(self, name: str, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items and count them as results of the stage `name`."""
        self._returned.setdefault(name, 0)
        for item in items:
            self._returned[name] += 1
            yield item

    def add(self, name: str, count: int) -> None:
        """Add `count` results to a stage."""
        self._returned[name] = self._returned.get(name, 0) + count

    def executed(self, stage: Stage, plan: ReadPlan | None) -> Stage:
        """Return a stage with its counts, and the stages below it with theirs."""
        self._scans = [] if plan is None else list(plan.scans)
        return self._executed(stage)

    def _executed(self, stage: Stage) -> Stage:
        name = stage["stage"]
        shown = {key: value for key, value in stage.items() if key not in ("inputStage", "inputStages", "stage")}
        below = [self._executed(item) for item in stage.get("inputStages", ())]
        if "inputStage" in stage:
            below = [self._executed(stage["inputStage"])]
        examined: dict[str, int] = {}
        passed = sum(item["nReturned"] for item in below)
        if name in _LEAVES:
            passed = self._leaf(name, examined)
        elif name in ("FETCH", "TEXT_OR"):
            examined["docsExamined"] = self._examined.of_source.documents
        returned = self._returned.get("FETCH" if name in _READING else name, passed) if name not in _SILENT else 0
        works = 1 + max(passed, returned, *examined.values(), 0)
        filter_shown = {"filter": shown.pop("filter")} if "filter" in shown else {}
        made = {
            "stage": name, **filter_shown, "nReturned": returned, "executionTimeMillisEstimate": 0, "works": works,
            "advanced": returned, "needTime": works - 1 - returned, "needYield": 0, "saveState": 0, "restoreState": 0,
            "isEOF": 1, **shown, **examined,
        }  # fmt: skip
        if "inputStages" in stage:
            made["inputStages"] = below
        elif below:
            made["inputStage"] = below[0]
        return made

    def _leaf(self, name: str, examined: dict[str, int]) -> int:
        """Put a scan's counts into `examined`. Return the number of its results."""
        if name == "IXSCAN" and self._scans:
            scan = self._scans.pop(0)
            examined["keysExamined"] = scan.key_count
            return scan.key_count - scan.left_out_count
        elif name in WITHOUT_KEYS:
            examined["docsExamined"] = self._examined.of_source.documents
            return self._examined.of_source.documents
        elif name != "EOF":
            examined["keysExamined"] = self._examined.of_source.keys
            if name == "IDHACK" or name in _NEAR_STAGES:
                examined["docsExamined"] = self._examined.of_source.documents
                return self._examined.of_source.documents
        return examined.get("keysExamined", 0) - self._examined.of_source.left_out


_LEAVES: Final = _NEAR_STAGES | {
    "CLUSTERED_IXSCAN", "COLLSCAN", "COUNT_SCAN", "DISTINCT_SCAN", "EOF", "IDHACK", "IXSCAN", "RECORD_STORE_COUNT",
}  # fmt: skip
_READING: Final = _NEAR_STAGES | {
    "CLUSTERED_IXSCAN", "COLLSCAN", "FETCH", "IDHACK", "PROJECTION_COVERED", "TEXT_OR",
}  # fmt: skip
_SILENT: Final = frozenset({"COUNT", "DELETE", "UPDATE"})
"""Stages that return no documents. Their own fields count their work."""


def tried(trial: Trial, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the execution statistics of one candidate plan in its trial."""
    stage = access_stage(trial.access, spec)
    stages: Stage = {
        "stage": "FETCH", "nReturned": trial.result_count, "works": trial.works, "advanced": trial.result_count,
        "needTime": trial.works - trial.result_count - trial.is_eof, "isEOF": int(trial.is_eof),
        "docsExamined": trial.document_count, **{name: value for name, value in stage.items() if name != "stage"},
    }  # fmt: skip
    stages["inputStage"] = stages["inputStage"] | {"keysExamined": trial.key_count}
    return {
        "nReturned": trial.result_count, "executionTimeMillisEstimate": 0, "totalKeysExamined": trial.key_count,
        "totalDocsExamined": trial.document_count, "score": trial.score, "executionStages": stages,
    }  # fmt: skip


def _filter(spec: dict[str, Any]) -> Stage:
    return {"filter": parsed_query(spec)} if spec else {}


def parsed_query(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a filter with every condition written out: `{a: 1, b: {$gt: 1, $lt: 5}}` is an `$and` of three."""
    conditions: list[dict[str, Any]] = []
    for name, value in spec.items():
        if name == "$and":
            conditions += [part for item in value for part in _conjuncts(parsed_query(item))]
        elif name in _LOGICAL:
            conditions.append({name: [parsed_query(item) for item in value]})
        elif name.startswith("$"):
            if name != "$comment":
                conditions.append({name: value})
        elif type(value) is dict and _NEAR & value.keys():
            conditions.append({name: value})
        elif type(value) is dict and next(iter(value), "").startswith("$") and "$ref" not in value:
            conditions += [{name: part} for part in _conditions(value)]
        else:
            conditions.append({name: {"$eq": value}})
    return conditions[0] if len(conditions) == 1 else {"$and": conditions} if conditions else {}


def _conjuncts(parsed: dict[str, Any]) -> list[dict[str, Any]]:
    return parsed["$and"] if list(parsed) == ["$and"] else [parsed] if parsed else []


def _conditions(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each operator of a field by itself, but `$regex` together with its `$options`."""
    for name, operand in value.items():
        if name == "$regex" and "$options" in value:
            yield {"$regex": operand, "$options": value["$options"]}
        elif name != "$options":
            yield {name: operand}
