"""Explains where each stage of a pipeline runs, without running anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.spark.pipelines.plan import EvaluateStep, FilterStep, PlanOptions, Step, plan
from headrace.spark.pipelines.program import Document, Setting, canonical
from headrace.spark.pipelines.reader import split_stages
from headrace.spark.pipelines.windows import Window, delay_of
from headrace.spark.rows.extjson import dumps, loads

SERVER, READER = "server cursor", "source reader"
COLUMNS, EVALUATOR, AGGREGATION = "Spark columns", "Spark evaluator", "Spark aggregation"


@dataclass(frozen=True, slots=True)
class ExplainedStage:
    """A stage, where it runs, and details. A stage that runs in two steps is listed twice, in order."""

    stage: str
    where: str
    how: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The stages in the order in which documents pass them; `str` formats them as a table."""

    stages: tuple[ExplainedStage, ...]

    def __str__(self) -> str:
        width = max((len(item.where) for item in self.stages), default=0)
        lines = []
        for item in self.stages:
            lines.append(f"{item.where:{width}}  {item.stage}")
            if item.how:
                lines.append(f"{'':{width}}    {item.how}")
        return "\n".join(lines) or "no stages"


def explain(
    stages: Sequence[Mapping[str, Any]],
    source: Mapping[str, Any] | None = None,
    *,
    events: bool = True,
    streaming: bool = True,
    tables: Sequence[str] = (),
    window: Window | None = None,
    delay: str | None = None,
    order: str | None = "token",
) -> Explanation:
    """Return where each stage of `headrace.spark.pipeline(df, stages)` runs, after a source with the options `source`.

    Of these options only `pipeline` (JSON text, or the stages) matters. `events=False`: df has a column of documents.
    The other arguments, and the errors raised, are those of `pipeline`.
    """
    options = {name.lower(): value for name, value in (source or {}).items()}
    explained = _of_source(options.get("pipeline", []))
    given = PlanOptions(
        events=events, streaming=streaming, ordered=order is not None, tables=frozenset(tables), window=window,
        delay=delay,
    )  # fmt: skip
    for step in plan(stages, Setting({"NOW": None}), given).steps:
        explained.extend(_of_step(step))
    return Explanation(tuple(explained))


def _of_source(pipeline: Any) -> list[ExplainedStage]:
    stages = loads(pipeline) if isinstance(pipeline, str) else canonical(list(pipeline))
    server, reader = split_stages(stages)
    return [ExplainedStage(_short(stage), SERVER) for stage in server] + [
        ExplainedStage(_short(stage), READER) for stage in reader
    ]


def _of_step(step: Step) -> list[ExplainedStage]:
    if isinstance(step, FilterStep):
        return [ExplainedStage(" ".join(map(_short, step.stages)), COLUMNS, f"at most: {step.condition}")]
    if isinstance(step, EvaluateStep):
        return [
            ExplainedStage(_short(stage), EVALUATOR, f"each worker holds {lookup['from']}" if lookup else "")
            for stage in step.stages
            for lookup in [stage.get("$lookup")]
        ]
    window = step.grouping.window
    how = "" if window is None else f"{window}, watermark on {dumps(window.date)}"
    if window is not None:
        how += f" less {window.delay or (delay_of(window) if window.date == '$clusterTime' else 'nothing')}"
    return [ExplainedStage(_short(step.stage), AGGREGATION, how)]


def _short(stage: Document) -> str:
    text = dumps(stage)
    return text if len(text) <= 100 else text[:97] + "..."
