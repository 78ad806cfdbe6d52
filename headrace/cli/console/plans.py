"""A reply of `explain` as a tree of stages with their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.cli.terminal import one_line, shortened

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
