"""Updates by an aggregation pipeline: [{$set: …}, {$unset: …}]. The diff is computed from the two documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.errors import CommandError
from headrace.query.diff import compute_diff, identical
from headrace.query.expansion import size_above
from headrace.query.update.replacement_update import check_depth, with_old_id
from headrace.query.update.update import REPLACED, Applied, Diff, Update, UpdateContext

ALLOWED_STAGES: Final = frozenset({"$addFields", "$project", "$replaceRoot", "$replaceWith", "$set", "$unset"})


class PipelineUpdate(Update):
    """An update by stages. `_bound` holds NOW and CLUSTER_TIME, which are set before each run.

    So two threads must not apply one `PipelineUpdate` at the same time.
    """

    __slots__ = ("_bound", "_steps")
    kind = "pipeline"

    def __init__(self, steps: tuple[Callable[[dict[str, Any]], Any], ...], bound: dict[str, Any]) -> None:
        self._steps = steps
        self._bound = bound

    def apply(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        self._bound["NOW"] = DatetimeMS(context.now_ms)
        self._bound["CLUSTER_TIME"] = context.timestamp
        new = document
        for step in self._steps:
            new = step(new)
        if size_above(limits.DOCUMENT_BYTES_MAX, new):
            raise CommandError(17419, f"Resulting document after update is larger than {limits.DOCUMENT_BYTES_MAX}")
        new = with_old_id(document, new)
        if identical(document, new):
            return Applied(document, None)
        check_depth(new)
        if context.inserting:
            return Applied(new, REPLACED)
        diff = compute_diff(document, new)
        return Applied(new, REPLACED if diff is None else Diff({"$v": 2, "diff": diff}))


def parse_pipeline_update(pipeline: list[Any], variables: Mapping[str, Any] | None, collation: Any) -> PipelineUpdate:
    """The update of a list of stages. Raises the errors of stages, and 72 for a stage not allowed in updates."""
    from headrace.query.expressions import less_bound
    from headrace.query.pipeline import PipelineContext, parse_pipeline

    bound: dict[str, Any] = {"NOW": None, "CLUSTER_TIME": None}
    constants = less_bound(variables or {}, bound)
    context = PipelineContext(variables=constants, collation=collation, bound=bound)
    stages = parse_pipeline(pipeline, context=context)
    for stage in stages:
        if stage.name not in ALLOWED_STAGES:
            raise CommandError(72, f"{stage.name} is not allowed to be used within an update")
    return PipelineUpdate(tuple(stage.each for stage in stages), bound)  # type: ignore[attr-defined]
