"""`$lookup` on Spark: a join with a table, in which the evaluator decides which documents match.

    documents --LocalKeys--> a row per local value --left join, table by value--> --AttachMatches--> documents

Rules:

- The join by keystrings matches at least what MongoDB's equality matches. For each document the evaluator's `$lookup`
  then runs over the matches, with its pipeline if it has one.
- The table is broadcast, so the rows of one document stay together and no state is needed. On a stream the table is
  read again for each micro-batch, if its source allows that.
- Documents of the table are in the order of their `_id`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.query.stages.joins import local_values
from headrace.query.stages.lookup import LookupStage, parse_lookup
from headrace.spark.pipelines import row_events
from headrace.spark.pipelines.evaluate import (
    FAILED,
    Batches,
    DocumentReader,
    Failures,
    failures_before,
    run_over,
)
from headrace.spark.pipelines.program import Document, Program, Setting, flow_of
from headrace.spark.pipelines.refusals import refused
from headrace.values import bson
from headrace.values.bson import MISSING
from headrace.values.keystring import encode_value
from headrace.values.paths import located_values, split_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_READING: Final = frozenset({"$facet", "$graphLookup", "$lookup", "$unionWith"})
_KEY_COLUMNS: Final = "_row int, _rows int, _key binary"


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


@dataclass(frozen=True, slots=True)
class LocalKeys:
    """For `mapInArrow`: runs the program's stages and maps documents to a row for each value of their local field.

    Only the first row of a document has the document; all its rows have the columns `carried`. With `failures` a
    document on which a stage fails has one row, with the unchanged document and the reason in the column `_failed`.
    """

    source: DocumentReader
    program: Program
    path: str
    carried: tuple[str, ...]
    into: str
    failures: bool = False

    def __call__(self, batches: Batches) -> Batches:
        stages, path = self.program.stages(), split_path(self.path)
        for batch in batches:
            documents = self.source.read(batch)
            failed = Failures(raising=not self.failures, before=failures_before(batch))
            indexes, made = run_over(documents, stages, failed)
            kind = pa.string() if self.source.document is None else batch.column(self.into).type
            write = row_events.writer(kind)
            matches: list[tuple[int, Any, int, int, bytes]] = []
            for index, document in zip(indexes, made, strict=True):
                keys = sorted({encode_value(value) for value in local_values(document, path)} or {encode_value(None)})
                text = write(document)
                matches.extend(
                    (index, None if row_number else text, row_number, len(keys), key)
                    for row_number, key in enumerate(keys)
                )
            nothing = encode_value(None)
            matches.extend((index, write(documents[index] or {}), 0, 1, nothing) for index in failed.reasons)
            cells = list(zip(*matches, strict=True)) if matches else [()] * 5
            taken = batch.select(list(self.carried)).take(pa.array(cells[0], pa.int64()))
            arrays = [
                *taken.columns, pa.array(cells[1], kind), *failed.column(cells[0], wanted=self.failures),
                pa.array(cells[2], pa.int32()), pa.array(cells[3], pa.int32()), pa.array(cells[4], pa.binary()),
            ]  # fmt: skip
            names = [*self.carried, self.into, *([FAILED] if self.failures else []), "_row", "_rows", "_key"]
            yield pa.RecordBatch.from_arrays(arrays, names=names)


@dataclass(frozen=True, slots=True)
class ForeignKeys:
    """For `mapInArrow`: maps the table's documents to a row for each value of their foreign field."""

    document: str
    path: str

    def __call__(self, batches: Batches) -> Batches:
        from pyspark import TaskContext

        path = split_path(self.path)
        # Spark's function for row ids is not allowed in a streaming query.
        task = TaskContext.get()
        numbers = count((task.partitionId() if task else 0) << 33)
        for batch in batches:
            read = row_events.reader(batch.column(self.document).type)
            matches: list[tuple[bytes, bytes, int, bytes]] = []
            for cell, number in zip(batch.column(self.document).to_pylist(), numbers):
                if cell is None:
                    continue
                document = read(cell)
                order, body = encode_value(document.get("_id")), bson.encode(document)
                values = (value for value, _ in located_values(document, path))
                keys = {encode_value(None if value is MISSING else value) for value in values}
                matches.extend((key, order, number, body) for key in sorted(keys))
            cells = list(zip(*matches, strict=True)) if matches else [()] * 4
            kinds = (pa.binary(), pa.binary(), pa.int64(), pa.binary())
            arrays = [pa.array(column, kind) for column, kind in zip(cells, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=["_key", "order", "number", "body"])


@dataclass(frozen=True, slots=True)
class AttachMatches:
    """For `mapInArrow`: maps rows joined with the table to documents, through the evaluator's `$lookup`."""

    lookup: Program
    carried: tuple[str, ...]
    into: str
    failures: bool = False

    def __call__(self, batches: Batches) -> Batches:
        foreign_documents: list[Document] = []
        spec = bson.decode(self.lookup.body)["stages"][0]["$lookup"]
        context = self.lookup.setting.context(lambda database, collection, depth: foreign_documents)
        (stage,) = parse_lookup("$lookup", spec, context)
        assert isinstance(stage, LookupStage)
        flow = flow_of((stage,))
        pending: list[Any] = []
        gathered: dict[tuple[bytes, int], bytes] = {}
        for batch in batches:
            kind = batch.column(self.into).type
            read, write = row_events.reader(kind), row_events.writer(kind)
            indexes, made = [], []
            failed = Failures(raising=not self.failures, before=failures_before(batch))
            for index, (cell, row_number, row_count, matches) in enumerate(_joined(batch, self.into)):
                if row_number == 0:
                    pending, gathered = [cell], {}
                if not pending or pending[0] is None:
                    raise RuntimeError("the rows of one document were separated by the join")
                gathered |= {(each["order"], each["number"]): each["body"] for each in matches or ()}
                if row_number == row_count - 1:
                    foreign_documents[:] = [bson.decode(gathered[index]) for index in sorted(gathered)]
                    given = read(pending[0])
                    if index not in failed.reasons:
                        # A document on which the stage fails is returned without the joined documents.
                        (given,) = failed.results(flow, given, index) or (given,)
                    indexes.append(index)
                    made.append(write(given))
                    pending = []
            taken = batch.select(list(self.carried)).take(pa.array(indexes, pa.int64()))
            arrays = [*taken.columns, pa.array(made, kind), *failed.column(indexes, wanted=self.failures)]
            names = [*self.carried, self.into, *([FAILED] if self.failures else [])]
            yield pa.RecordBatch.from_arrays(arrays, names=names)


def _joined(batch: pa.RecordBatch, into: str) -> Iterator[tuple[Any, ...]]:
    columns = [batch.column(name).to_pylist() for name in (into, "_row", "_rows", "_matches")]
    return zip(*columns, strict=True)


def joined(df: DataFrame, table: DataFrame, document: str, keyed: LocalKeys, lookup: Program, schema: str) -> DataFrame:
    """Return the DataFrame with the table's documents joined; `schema` is the DDL of its columns."""
    from pyspark.sql import functions as f

    spec = bson.decode(lookup.body)["stages"][0]["$lookup"]
    foreign = table.select(document).mapInArrow(
        ForeignKeys(document, spec["foreignField"]), "_key binary, order binary, number bigint, body binary"
    )
    matches = f.collect_list(f.struct("order", "number", "body")).alias("_matches")
    by_key = f.broadcast(foreign.groupBy("_key").agg(matches))
    local = df.mapInArrow(keyed, f"{schema}, {_KEY_COLUMNS}")
    return local.join(by_key, "_key", "left_outer").mapInArrow(
        AttachMatches(lookup, keyed.carried, keyed.into, keyed.failures), schema
    )
