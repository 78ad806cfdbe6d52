"""`$group` on Spark: the evaluator makes partial groups on workers, and Spark's aggregates combine them.

    documents --PartialGroups--> a row per group --groupBy([window or end,] key)--> --FinishGroups--> documents

Rules:

- The key is the keystring of `_id`: 1, 1.0 and NumberLong(1) are one group, as are null and a missing value.
- The result's `_id` is that of the first document, by the order of rows if there is one.
- A calendar bin is part of the key; Spark needs only its `end`. That column is marked as event time, like the column
  of a Spark window: when the watermark reaches it, the group is output and its state is dropped.
- On a stream a document without the window's date is an error; it is not skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from bson import ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions import Env
from headrace.query.stages.group import Group, parse_group
from headrace.spark.pipelines.accumulate import ORDERED, PARTIAL_ACCUMULATORS
from headrace.spark.pipelines.evaluate import Batches, DocumentReader, Failures, run_over
from headrace.spark.pipelines.program import Document, Program, Setting, flow_of
from headrace.spark.pipelines.refusals import refused
from headrace.spark.pipelines.windows import Bins, Window, delay_of, window_of_key
from headrace.spark.rows.extjson import dumps, loads
from headrace.values.keystring.encoding import encode_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FIXED: Final = (("key", "binary"), ("id", "string"), ("at", "string"), ("moment", "timestamp"), ("end", "timestamp"))
_EVENT_TIME: Final = "spark.watermarkDelayMs"
"""Spark's key in the metadata of an event-time column."""
_ARROW: Final = {
    "bigint": pa.int64(), "binary": pa.binary(), "decimal(38,0)": pa.decimal128(38, 0), "int": pa.int32(),
    "string": pa.string(), "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grouping:
    """A `$group` that Spark can run. `window` is the caller's, or, on a stream, the window of its `$dateTrunc`."""

    spec: Document
    setting: Setting
    window: Window | Bins | None

    @property
    def has_window_column(self) -> bool:
        """Whether the caller gave the window: then it is a column of the result."""
        return isinstance(self.window, Window)

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """The names of the fields after `_id`, each with the name of its accumulator."""
        return tuple((name, next(iter(value))) for name, value in self.spec.items() if name != "_id")

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """The names and types of the columns of partial groups."""
        accumulator_columns = [
            (f"a{index}_{name}", kind)
            for index, (_, operator) in enumerate(self.fields)
            for name, kind in PARTIAL_ACCUMULATORS[operator].columns
        ]
        return (*_FIXED, *accumulator_columns)

    def parsed(self) -> Group:
        """Return the stage, parsed by the evaluator."""
        (stage,) = parse_group("$group", self.spec, self.setting.context())
        assert isinstance(stage, Group)
        return stage


def grouping(
    spec: Any, setting: Setting, *, window: Window | None, delay: str | None, streaming: bool, ordered: bool
) -> Grouping:
    """Check a `$group` and return it; raise StageRefused, or the CommandError of an invalid one."""
    parse_group("$group", spec, setting.context())
    for name, value in spec.items():
        operator = next(iter(value)) if name != "_id" else "$count"
        if operator not in PARTIAL_ACCUMULATORS:
            raise refused("$group", f"its accumulators are {', '.join(sorted(PARTIAL_ACCUMULATORS))}, not {operator}")
        if operator in ORDERED and not ordered:
            raise refused("$group", f"{operator} needs an order of rows (order=, a column)")
    if setting.collation is not None:
        raise refused("$group", "Spark compares strings without a collation")
    chosen = window or (window_of_key(spec["_id"], delay) if streaming else None)
    if streaming and chosen is None:
        raise refused(
            "$group", "on a stream it needs a window that ends: $dateTrunc in its _id, or window=Window('1 hour')"
        )
    if streaming and chosen is not None:
        delay_of(chosen)
    return Grouping(spec, setting, chosen)


@dataclass(frozen=True, slots=True)
class PartialGroups:
    """For `mapInArrow`: runs the program's stages and maps documents to a row for each group of a batch."""

    source: DocumentReader
    program: Program
    grouping: Grouping
    order: str | None

    def __call__(self, batches: Batches) -> Batches:
        flow = flow_of(self.program.stages())
        maker = _PartialGroupMaker(self.grouping)
        for batch in batches:
            indexes, made = run_over(self.source.read(batch), flow, Failures(raising=True))
            yield maker.rows(list(zip(self._order(batch, indexes), made, strict=True)))

    def _order(self, batch: pa.RecordBatch, indexes: list[int]) -> Iterator[str]:
        """Yield each document's position in the order of rows, as text that sorts."""
        if self.order is None:
            yield from ("" for _ in indexes)
            return
        column = batch.column(self.order).cast(pa.string()).to_pylist()
        for count, index in enumerate(indexes):
            yield f"{column[index] or ''} {count:09d}"


class _PartialGroupMaker:
    """Makes the rows of partial groups; has no state between batches."""

    def __init__(self, grouping: Grouping) -> None:
        self._stage = grouping.parsed()
        self._columns = grouping.columns
        self._kinds = [PARTIAL_ACCUMULATORS[operator] for _, operator in grouping.fields]
        window, context = grouping.window, grouping.setting.context()
        self._date = None if window is None else context.expression(window.date)
        self._by_moment = grouping.has_window_column
        self._bins = window if isinstance(window, Bins) else None
        self._cut = None if self._bins is None else context.expression({"$dateTrunc": self._bins.truncation})

    def rows(self, documents: list[tuple[str, Document]]) -> pa.RecordBatch:
        """Return the partial groups of documents, each of which comes with its position."""
        groups: dict[tuple[bytes, int | None], tuple[list[Any], list[Any]]] = {}
        for at, document in documents:
            identity = self._stage.key(document)
            key = encode_value(identity)
            moment = None if self._date is None else instant(self._date(document))
            index = (key, moment if self._by_moment else None)
            group = groups.get(index)
            if group is None:
                head = [key, dumps({"": identity}), at, moment, self._end(document)]
                group = groups[index] = (head, [kind.partial() for kind in self._kinds])
            elif moment is not None:
                group[0][3] = max(group[0][3], moment)
            env = Env(document, self._stage.context.bound)
            for (_, accumulator), partial in zip(self._stage.fields, group[1], strict=True):
                partial.add(accumulator.evaluate(env), at)
        group_rows = [
            (*head, *(cell for partial in partials for cell in partial.cells())) for head, partials in groups.values()
        ]
        cells = list(zip(*group_rows, strict=True)) if group_rows else [()] * len(self._columns)
        arrays = [pa.array(column, _ARROW[kind]) for column, (_, kind) in zip(cells, self._columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self._columns])

    def _end(self, document: Document) -> int | None:
        """Return the end of the document's bin in microseconds; None without bins."""
        return None if self._cut is None or self._bins is None else int(self._bins.end(self._cut(document))) * 1000


def instant(value: Any) -> int:
    """Return the microseconds since the epoch of a date, timestamp or ObjectId; raise error 4 for other values."""
    if type(value) is DatetimeMS:
        return int(value) * 1000
    if type(value) is Timestamp:
        return value.time * 1_000_000
    if type(value) is ObjectId:
        return int.from_bytes(value.binary[:4], "big", signed=True) * 1_000_000
    raise CommandError(4, "a document without the window's date cannot be grouped on a stream: $match it away before")


@dataclass(frozen=True, slots=True)
class FinishGroups:
    """For `mapInArrow`: maps combined cells to groups' documents in the column `into`, with the columns `carried`.

    `fields` are the names of the documents' fields after `_id`, with their accumulators.
    """

    fields: tuple[tuple[str, str], ...]
    carried: tuple[str, ...]
    into: str

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            columns = {
                name: batch.column(name).to_pylist() for name in batch.schema.names if name[0] == "a" or name == "id"
            }
            texts = []
            for row in range(batch.num_rows):
                document = {"_id": loads(columns["id"][row])[""]}
                for index, (name, operator) in enumerate(self.fields):
                    kind = PARTIAL_ACCUMULATORS[operator]
                    cells = [columns[f"a{index}_{short}"][row] for short in result_columns(operator)]
                    document[name] = kind.result(*cells)
                texts.append(dumps(document))
            arrays = [*[batch.column(name) for name in self.carried], pa.array(texts, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, names=[*self.carried, self.into])


def result_columns(operator: str) -> tuple[str, ...]:
    """Return the columns that an accumulator's aggregates leave, in the order of the arguments of its `result`."""
    return tuple(name for name, _ in PARTIAL_ACCUMULATORS[operator].columns if name not in ("a", "o"))


def grouped(df: DataFrame, partials: PartialGroups, into: str) -> DataFrame:
    """Return the DataFrame of groups: the column `into`, and `window` if the caller gave a window."""
    from pyspark.sql import functions as f

    grouping = partials.grouping
    rows = df.mapInArrow(partials, ", ".join(f"{name} {kind}" for name, kind in grouping.columns))
    keys: list[Any] = ["key"]
    window = grouping.window
    if window is not None and df.isStreaming:
        rows = rows.withWatermark("moment", delay_of(window))
    if isinstance(window, Bins):
        # Spark allows one event-time column only.
        rows = rows.withColumn("end", f.col("end").alias("end", metadata={_EVENT_TIME: 0})).drop("moment")
        keys.insert(0, "end")
    elif window is not None:
        keys.insert(0, f.window("moment", window.duration, window.slide, window.start))
    first = f.min_by("id", f.struct("at", "id")).alias("id")
    aggregates = [
        column
        for index, (_, operator) in enumerate(grouping.fields)
        for column in PARTIAL_ACCUMULATORS[operator].aggregates(f"a{index}")
    ]
    carried = ("window",) if grouping.has_window_column else ()
    schema = ", ".join([*("window struct<start:timestamp,end:timestamp>" for _ in carried), f"{into} string"])
    finished = FinishGroups(grouping.fields, carried, into)
    return rows.groupBy(*keys).agg(first, *aggregates).mapInArrow(finished, schema)
