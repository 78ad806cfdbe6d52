"""`$lookup` on Spark: a join with a table, in which the evaluator decides what joins.

    documents --Keyed--> a row for each local value --left join, table by value--> --Attached--> documents

Rules:
- The join finds at least what MongoDB's equality finds (by keystrings); for each document the evaluator's `$lookup`
  then runs over what was found, with its pipeline if it has one.
- The table is broadcast, so the rows of one document stay beside each other and no state is kept; on a stream it is
  read again for each micro-batch, as far as its source allows.
- Documents of the table come in the order of their `_id`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.query.stages.joins import local_values
from headrace.query.stages.lookup import Lookup, parse_lookup
from headrace.spark.pipelines import rows
from headrace.spark.pipelines.evaluate import Batches, Source, run
from headrace.spark.pipelines.program import Document, Program, Setting
from headrace.spark.pipelines.refusals import refused
from headrace.values import bson
from headrace.values.bson import MISSING
from headrace.values.keystring import encode_value
from headrace.values.paths import located_values, split_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_READING: Final = frozenset({"$facet", "$graphLookup", "$lookup", "$unionWith"})
_PARTS: Final = "_part int, _parts int, _key binary"


def check_lookup(spec: Any, setting: Setting) -> None:
    """Raises the `CommandError` of a bad `$lookup`, or StageRefused for one that Spark cannot run."""
    parse_lookup("$lookup", spec, setting.context(lambda database, collection: ()))
    if "localField" not in spec or type(spec.get("from")) is not str:
        raise refused("$lookup", "it must say from, localField and foreignField: without them nothing can be joined")
    inner = sorted(_names(spec.get("pipeline", [])) & _READING)
    if inner:
        raise refused("$lookup", f"its pipeline has {inner[0]}")


def _names(value: Any) -> set[str]:
    """All names in a value, at any depth."""
    if type(value) is list:
        return set().union(*map(_names, value))
    if type(value) is not dict:
        return set()
    return set(value).union(*map(_names, value.values()))


@dataclass(frozen=True, slots=True)
class Keyed:
    """For `mapInArrow`: documents, after the program's stages, to a row for each value they join by.

    The document is in the first of its rows only, the columns `carried` are in all.
    """

    source: Source
    program: Program
    filters: int
    path: str
    carried: tuple[str, ...]
    into: str

    def __call__(self, batches: Batches) -> Batches:
        stages, path = self.program.stages(), split_path(self.path)
        for batch in batches:
            places, made = run(self.source, stages, batch, self.filters)
            kind = pa.string() if self.source.document is None else batch.column(self.into).type
            write = rows.writer(kind)
            found: list[tuple[int, Any, int, int, bytes]] = []
            for place, document in zip(places, made, strict=True):
                keys = sorted({encode_value(value) for value in local_values(document, path)} or {encode_value(None)})
                text = write(document)
                found.extend((place, None if part else text, part, len(keys), key) for part, key in enumerate(keys))
            cells = list(zip(*found, strict=True)) if found else [()] * 5
            taken = batch.select(list(self.carried)).take(pa.array(cells[0], pa.int64()))
            arrays = [
                *taken.columns, pa.array(cells[1], kind), pa.array(cells[2], pa.int32()),
                pa.array(cells[3], pa.int32()), pa.array(cells[4], pa.binary()),
            ]  # fmt: skip
            yield pa.RecordBatch.from_arrays(arrays, names=[*self.carried, self.into, "_part", "_parts", "_key"])


@dataclass(frozen=True, slots=True)
class Foreign:
    """For `mapInArrow`: the table's documents to a row for each value they are joined by."""

    document: str
    path: str

    def __call__(self, batches: Batches) -> Batches:
        from pyspark import TaskContext

        path = split_path(self.path)
        # Spark's own numbering of rows is not for streams, not even for a table beside one.
        task = TaskContext.get()
        numbers = count((task.partitionId() if task else 0) << 33)
        for batch in batches:
            read = rows.reader(batch.column(self.document).type)
            found: list[tuple[bytes, bytes, int, bytes]] = []
            for cell, number in zip(batch.column(self.document).to_pylist(), numbers):
                if cell is None:
                    continue
                document = read(cell)
                order, body = encode_value(document.get("_id")), bson.encode(document)
                values = (value for value, _ in located_values(document, path))
                keys = {encode_value(None if value is MISSING else value) for value in values}
                found.extend((key, order, number, body) for key in sorted(keys))
            cells = list(zip(*found, strict=True)) if found else [()] * 4
            kinds = (pa.binary(), pa.binary(), pa.int64(), pa.binary())
            arrays = [pa.array(column, kind) for column, kind in zip(cells, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=["_key", "order", "number", "body"])


@dataclass(frozen=True, slots=True)
class Attached:
    """For `mapInArrow`: rows joined with the table to documents with what the evaluator's `$lookup` gives them."""

    lookup: Program
    carried: tuple[str, ...]
    into: str

    def __call__(self, batches: Batches) -> Batches:
        held: list[Document] = []
        spec = bson.decode(self.lookup.body)["stages"][0]["$lookup"]
        context = self.lookup.setting.context(lambda database, collection: held)
        (stage,) = parse_lookup("$lookup", spec, context)
        assert isinstance(stage, Lookup)
        pending: list[Any] = []
        gathered: dict[tuple[bytes, int], bytes] = {}
        for batch in batches:
            kind = batch.column(self.into).type
            read, write = rows.reader(kind), rows.writer(kind)
            places, made = [], []
            for index, (cell, part, parts, found) in enumerate(_joined(batch, self.into)):
                if part == 0:
                    pending, gathered = [cell], {}
                if not pending or pending[0] is None:
                    raise RuntimeError("the rows of one document were parted by the join")
                gathered |= {(each["order"], each["number"]): each["body"] for each in found or ()}
                if part == parts - 1:
                    held[:] = [bson.decode(gathered[place]) for place in sorted(gathered)]
                    (document,) = stage.apply(iter((read(pending[0]),)))
                    places.append(index)
                    made.append(write(document))
                    pending = []
            taken = batch.select(list(self.carried)).take(pa.array(places, pa.int64()))
            yield pa.RecordBatch.from_arrays([*taken.columns, pa.array(made, kind)], names=[*self.carried, self.into])


def _joined(batch: pa.RecordBatch, into: str) -> Iterator[tuple[Any, ...]]:
    columns = [batch.column(name).to_pylist() for name in (into, "_part", "_parts", "_found")]
    return zip(*columns, strict=True)


def joined(df: DataFrame, table: DataFrame, document: str, keyed: Keyed, lookup: Program, schema: str) -> DataFrame:
    """The DataFrame with the table's documents joined in; `schema` is that of the carried columns and `into`."""
    from pyspark.sql import functions as f

    spec = bson.decode(lookup.body)["stages"][0]["$lookup"]
    foreign = table.select(document).mapInArrow(
        Foreign(document, spec["foreignField"]), "_key binary, order binary, number bigint, body binary"
    )
    found = f.collect_list(f.struct("order", "number", "body")).alias("_found")
    by_key = f.broadcast(foreign.groupBy("_key").agg(found))
    local = df.mapInArrow(keyed, f"{schema}, {_PARTS}")
    return local.join(by_key, "_key", "left_outer").mapInArrow(Attached(lookup, keyed.carried, keyed.into), schema)
