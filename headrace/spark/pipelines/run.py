"""`headrace.spark.pipeline`: a MongoDB pipeline over a DataFrame.

The kind of result depends only on the stages:

    $match only          the rows that match, with their columns
    other stages         documents: the column `document`, and `token`, `clusterTime`, `clusterTimeIncrement` and
                         `wallTime` of events, or the other columns of any other DataFrame
    with a $group        documents only, and `window` if one was given
    output="events"      rows of events again, as if the source had been given the stages
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.clock import SystemClock
from headrace.spark.pipelines.evaluate import (
    FAILED,
    DocumentReader,
    FilterDocuments,
    MakeDocuments,
    RewriteEvents,
)
from headrace.spark.pipelines.groups import PartialGroups, grouped
from headrace.spark.pipelines.plan import (
    EvaluateStep,
    FilterStep,
    GroupStep,
    PipelinePlan,
    PlanOptions,
    plan,
    table_documents,
)
from headrace.spark.pipelines.program import Program, Setting, canonical
from headrace.spark.pipelines.refusals import StageRefused
from headrace.spark.pipelines.windows import Window
from headrace.values.arrow.event_columns import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DOCUMENT: Final = "document"
_CARRIED: Final = ("token", "clusterTime", "clusterTimeIncrement", "wallTime")
Tables = Mapping[str, "DataFrame | tuple[DataFrame, str]"]


def pipeline(
    df: DataFrame,
    stages: Sequence[Mapping[str, Any]],
    *,
    document: str | None = None,
    output: str | None = None,
    tables: Tables | None = None,
    window: Window | None = None,
    delay: str | None = None,
    order: str | None = None,
    let: Mapping[str, Any] | None = None,
    collation: Mapping[str, Any] | None = None,
    failures: bool = False,
) -> DataFrame:
    """The DataFrame after the stages, which mean what they mean to the server; batch or stream.

    df         events (the columns of the `headrace` source), or rows with a column of documents
    document   that column (Extended JSON as STRING, or BSON as BINARY); by default `document`, if df has no events
    output     None (see above), or "events": the stages must then leave `_id` as it is, as in a change stream
    tables     for `$lookup`: `from` to a DataFrame with a column `document`, or to (DataFrame, column); read now
    window     for `$group`: the window that groups fall into, besides their `_id`; see `Window`
    delay      for a `$dateTrunc` in a group's `_id` on a stream: how late documents may come ("10 seconds")
    order      the column that orders rows, for `$first` and `$last`; events are ordered by their tokens
    let        values of `$$` variables; `$$NOW` is the time of this call
    failures   True: a row on which a stage fails comes as it is, with the reason in the column `_failed`, which is
               null in others (and missing, if no stage can fail); after a $lookup the document as it came to the
               stage that fails; not with $group

    Raises StageRefused for a stage that Spark cannot run, and the server's CommandError for an invalid one, before
    anything runs. A stage that fails on a document fails the query.
    """
    now = DatetimeMS(SystemClock().now_ms())
    setting = Setting(
        canonical({"NOW": now} | dict(let or {})), None if collation is None else canonical(dict(collation))
    )
    builder = PipelineBuilder(df, document, order, tables or {}, failures=failures)
    return builder.build(stages, setting, output, window, delay)


class PipelineBuilder:
    """Applies a pipeline to a DataFrame, step by step."""

    def __init__(
        self, df: DataFrame, document: str | None, order: str | None, tables: Tables, *, failures: bool = False
    ) -> None:
        self.df = df
        self._failures = failures
        self.events = document is None and set(COLUMNS) <= set(df.columns)
        self._document = document or DOCUMENT
        if not self.events and self._document not in df.columns:
            raise ValueError(
                f"the DataFrame has neither all columns of events nor a column {self._document!r} of documents; it has "
                f"{', '.join(df.columns)}"
            )
        self._order = order or ("token" if "token" in df.columns else None)
        self._tables = {
            name: table if isinstance(table, tuple) else (table, DOCUMENT) for name, table in tables.items()
        }

    def build(
        self, stages: Sequence[Mapping[str, Any]], setting: Setting, output: str | None, window: Window | None,
        delay: str | None,
    ) -> DataFrame:  # fmt: skip
        """Return the DataFrame after the stages."""
        given = PlanOptions(
            events=self.events, streaming=self.df.isStreaming, ordered=self._order is not None,
            tables=frozenset(self._tables), window=window, delay=delay, failures=self._failures,
        )  # fmt: skip
        planned = plan(stages, setting, given)
        if output not in (None, "events") or (output and not self.events):
            raise ValueError("output is None, or 'events' for a DataFrame of events")
        if output and any("$group" in stage or "$lookup" in stage for stage in stages):
            raise StageRefused("$group and $lookup make no events; leave out output='events'")
        if self._failures and any(isinstance(step, GroupStep) for step in planned.steps):
            raise StageRefused("$group has no rows to come as they are; leave out failures")
        steps = list(planned.steps)
        while steps:
            self._take(planned, steps, output)
        return self.df if planned.only_filters or output else self._documents(setting)

    def _take(self, planned: PipelinePlan, steps: list[Any], output: str | None) -> None:
        step = steps.pop(0)
        if isinstance(step, FilterStep):
            self.df = self.df.where(step.condition)
            return
        if isinstance(step, EvaluateStep):
            program = self._program(step, planned.setting)
            if steps and isinstance(steps[0], GroupStep):
                self._group(steps.pop(0), program)
            else:
                self._evaluate(planned, step, program, output)
        else:
            self._group(step, Program((), planned.setting))

    def _program(self, step: EvaluateStep, setting: Setting) -> Program:
        names = {stage["$lookup"]["from"] for stage in step.stages if "$lookup" in stage}
        return Program(step.stages, setting, {name: table_documents(*self._tables[name]) for name in sorted(names)})

    def _evaluate(self, planned: PipelinePlan, step: EvaluateStep, program: Program, output: str | None) -> None:
        columns = tuple(self.df.columns)
        if step.filtering and (planned.only_filters or output):
            select = FilterDocuments(self._source, program, columns, self._failures)
            self.df = self.df.mapInArrow(select, self._schema(columns))
        elif output:
            rewrite = RewriteEvents(self._source, program, columns, self._failures)
            self.df = self.df.mapInArrow(rewrite, self._schema(columns))
        else:
            self._documents(planned.setting, program)

    def _documents(self, setting: Setting, program: Program | None = None) -> DataFrame:
        """Replace events, or documents, by the documents that the program makes of them."""
        if program is None and not self.events:
            return self.df
        carried = self._carried
        program = program or Program((), setting)
        build = MakeDocuments(self._source, program, carried, self._document, self._failures)
        self.df = self.df.mapInArrow(build, self._document_schema(carried))
        self.events = False
        return self.df

    def _group(self, step: GroupStep, program: Program) -> None:
        partials = PartialGroups(self._source, program, step.grouping, self._order)
        self.df = grouped(self.df, partials, self._document)
        self.events, self._order = False, None

    @property
    def _source(self) -> DocumentReader:
        return DocumentReader(None if self.events else self._document)

    @property
    def _carried(self) -> tuple[str, ...]:
        """The columns that are kept beside documents."""
        if self.events:
            extra = self._order if self._order not in _CARRIED else None
            return (*_CARRIED, *([extra] if extra else []))
        return tuple(name for name in self.df.columns if name not in (self._document, FAILED))

    def _schema(self, columns: tuple[str, ...]) -> Any:
        schema = self.df.select(*columns).schema
        return schema.add(FAILED, "string") if self._failures else schema

    def _document_schema(self, carried: tuple[str, ...]) -> str:
        kinds = {field.name: field.dataType.simpleString() for field in self.df.schema.fields}
        kind = "string" if self.events else kinds[self._document]
        failed = [f"`{FAILED}` string"] if self._failures else []
        return ", ".join([*(f"`{name}` {kinds[name]}" for name in carried), f"`{self._document}` {kind}", *failed])
