"""Plans and explains where each stage of a pipeline runs, before anything runs and without Spark.

Rule: leading filters of events become a condition for Spark, as far as columns can decide them. Consecutive stages of
one document, and `$lookup`s, form one step of the evaluator. `$group` is Spark's aggregation around the evaluator.
Other stages are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from headrace.query.match.match_expression import And, LeafMatchExpression, MatchExpression, MatchType, Or
from headrace.query.pipeline import parse_pipeline
from headrace.query.stages.joins import parse_lookup
from headrace.query.stages.match_stage import Match
from headrace.spark.pipelines.groups import Grouping, grouping
from headrace.spark.pipelines.program import ONE_DOCUMENT, Document, Setting, canonical
from headrace.spark.pipelines.reader import split_stages
from headrace.spark.pipelines.refusals import refused
from headrace.spark.pipelines.row_events import reader
from headrace.spark.pipelines.windows import Window, delay_of
from headrace.spark.rows.extjson import dumps, loads
from headrace.values import bson
from headrace.values.keystring.encoding import encode_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The inputs of a plan besides the stages. The last four fields are arguments of `pipeline`.

    `events`: rows are events. `ordered`: rows have an order.
    """

    events: bool = True
    streaming: bool = False
    ordered: bool = True
    tables: frozenset[str] = frozenset()
    window: Window | None = None
    delay: str | None = None
    failures: bool = False


@dataclass(frozen=True, slots=True)
class FilterStep:
    """A condition in SQL that is true for all rows that the leading `$match` stages match. An EvaluateStep runs them,
    too."""

    stages: tuple[Document, ...]
    condition: str


@dataclass(frozen=True, slots=True)
class EvaluateStep:
    """Stages of one document each, and `$lookup`s, which the evaluator runs."""

    stages: tuple[Document, ...]

    @property
    def filtering(self) -> bool:
        """Whether all of these stages are filters."""
        return all("$match" in stage for stage in self.stages)


@dataclass(frozen=True, slots=True)
class GroupStep:
    """A `$group`, run by Spark's aggregation."""

    stage: Document
    grouping: Grouping


Step = FilterStep | EvaluateStep | GroupStep


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """The steps of a pipeline in order, and the names that its stages may refer to."""

    steps: tuple[Step, ...]
    setting: Setting

    @property
    def only_filters(self) -> bool:
        """Whether the pipeline only selects rows."""
        return all(
            isinstance(step, FilterStep) or (isinstance(step, EvaluateStep) and step.filtering) for step in self.steps
        )


def parse_stages(stages: Sequence[Mapping[str, Any]], setting: Setting) -> list[Document]:
    """Return the checked stages with canonical values. Raise StageRefused, or the CommandError of an invalid stage."""
    given: list[Document] = canonical([dict(stage) for stage in stages])
    for stage in given:
        name = next(iter(stage), "")
        if name not in ONE_DOCUMENT and name not in ("$group", "$lookup"):
            parse_known(name, stage, setting)
            raise refused(name)
    # All stages together, so that the first error is the one that the server would report.
    parse_pipeline(given, context=setting.context(lambda database, collection, depth: ()))
    for stage in given:
        if "$fill" in stage and any("method" in how for how in stage["$fill"]["output"].values()):
            raise refused("$fill", "it fills from other documents; only values can be filled in")
    return given


def parse_known(name: str, stage: Document, setting: Setting) -> None:
    """Raise the server's error for an unknown stage, or for a document that is not a stage."""
    from headrace.query.pipeline import STAGES

    if name not in STAGES or len(stage) != 1:
        parse_pipeline([stage], context=setting.context())


def plan(stages: Sequence[Mapping[str, Any]], setting: Setting, given: PlanOptions) -> PipelinePlan:
    """Return the plan. Raise StageRefused for a stage that Spark cannot run, CommandError for an invalid one."""
    steps: list[Step] = []
    rest = parse_stages(stages, setting)
    if given.events and setting.collation is None:
        leading = list(takewhile(lambda stage: "$match" in stage, rest))
        if condition := _condition(leading, setting):
            steps.append(FilterStep(tuple(leading), condition))
    while rest:
        rest = _next_step(steps, rest, setting, given)
    return PipelinePlan(tuple(steps), setting)


def _next_step(steps: list[Step], rest: list[Document], setting: Setting, given: PlanOptions) -> list[Document]:
    stage = rest[0]
    if "$group" in stage:
        if given.streaming and any(isinstance(step, GroupStep) for step in steps):
            raise refused("$group", "on a stream there is one")
        ordered = given.ordered and not any(isinstance(step, GroupStep) for step in steps)
        grouped = grouping(
            stage["$group"], setting, window=given.window, delay=given.delay, streaming=given.streaming, ordered=ordered
        )
        steps.append(GroupStep(stage, grouped))
        return rest[1:]
    end = next((index for index in range(1, len(rest)) if _ends(rest, index, given)), len(rest))
    for spec in (stage["$lookup"] for stage in rest[:end] if "$lookup" in stage):
        check_lookup(spec, setting)
        if spec["from"] not in given.tables:
            raise refused("$lookup", f"no table is given for {spec['from']!r} (tables=)")
    steps.append(EvaluateStep(tuple(rest[:end])))
    return rest[end:]


def _ends(rest: list[Document], index: int, given: PlanOptions) -> bool:
    """Whether the evaluator's step ends before this stage. A failed row has the document that came to the step, so with
    `failures` a `$lookup` is a step of its own."""
    alone = given.failures and ("$lookup" in rest[0] or "$lookup" in rest[index])
    return "$group" in rest[index] or alone


def _condition(filters: list[Document], setting: Setting) -> str:
    """Return the condition of all these `$match` stages; empty if columns cannot decide any."""
    matches = [stage for stage in parse_pipeline(filters, context=setting.context()) if isinstance(stage, Match)]
    return " AND ".join(filter(None, (column_condition(stage.predicate.node) for stage in matches)))


_COLUMNS: Final = {"ns.coll": "collection", "ns.db": "database", "operationType": "operationType"}
_PLAIN: Final = re.compile(r"[\w.-]+")


def column_condition(node: MatchExpression) -> str:
    """Return a condition in SQL that is true for every row that a filter matches; empty if the columns cannot decide.

    With it, Spark drops rows before it gives them to Python. The evaluator decides on all other rows, so only common
    and simple filters are covered: operation and namespace, equal to a text or in a list of texts, without a collation.
    A row without such a column may have the field in `other`, with another type, and is never dropped.
    """
    if isinstance(node, And):
        return " AND ".join(filter(None, map(column_condition, node.children)))
    if isinstance(node, Or):
        each = list(map(column_condition, node.children))
        return f"({' OR '.join(each)})" if each and all(each) else ""
    if not isinstance(node, LeafMatchExpression) or node.path not in _COLUMNS:
        return ""
    wanted = {MatchType.EQ: [node.wanted], MatchType.IN: node.argument}.get(node.kind)
    if type(wanted) is not list or not all(type(each) is str and _PLAIN.fullmatch(each) for each in wanted):
        return ""
    column = _COLUMNS[node.path]
    texts = ", ".join(f"'{each}'" for each in wanted)
    return f"({column} IS NULL OR {column} IN ({texts}))" if wanted else ""


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


_READING: Final = frozenset({"$facet", "$graphLookup", "$lookup", "$unionWith"})


def check_lookup(spec: Any, setting: Setting) -> None:
    """Raise the CommandError of an invalid `$lookup`, or StageRefused if Spark cannot run it."""
    parse_lookup("$lookup", spec, setting.context(lambda database, collection, depth: ()))
    if "localField" not in spec or type(spec.get("from")) is not str:
        raise refused("$lookup", "it must say from, localField and foreignField: without them nothing can be joined")
    inner = sorted(_names(spec.get("pipeline", [])) & _READING)
    if inner:
        raise refused("$lookup", f"its pipeline has {inner[0]}")


def _names(value: Any) -> set[str]:
    """Return all names in a value, at any depth."""
    if type(value) is list:
        return set().union(*map(_names, value))
    if type(value) is not dict:
        return set()
    return set(value).union(*map(_names, value.values()))


def table_documents(table: DataFrame, column: str) -> tuple[bytes, ...]:
    """Return the documents of a `$lookup`'s table, in the order of their `_id`, as BSON; each worker holds them."""
    cells = table.select(column).toArrow().column(0)
    read = reader(cells.type)
    documents = [read(cell) for cell in cells.to_pylist() if cell is not None]
    documents.sort(key=lambda document: encode_value(document.get("_id")))
    return tuple(map(bson.encode, documents))
