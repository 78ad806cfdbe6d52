"""Rows a second of `headrace.spark.pipeline`, by the way a stage goes: columns, prefilter, evaluator, group, join.

    python bench/spark_pipeline.py [--rows 200000] [--rounds 3] [--json figures.json]

The rows are events made beforehand, cached by Spark, in two partitions; the answer goes to Spark's `noop` sink, so
that all rows are computed and none is kept. A line is a pipeline: its rows a second (the median of the rounds, the
first of which is thrown away), and how many rows left it. `pass` is what Spark takes for the rows without a pipeline.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from bson import Int64, ObjectId, Timestamp, encode
from bson.datetime_ms import DatetimeMS

import headrace.spark
from headrace.spark.rows.events import SCHEMA
from headrace.spark.rows.typed import Shaper
from headrace.spark.session import get_session
from headrace.values.arrow.batches import events_batch
from headrace.values.arrow.event_columns import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 10_000
KINDS = ("insert", "insert", "update", "delete")
CITIES = ("Oslo", "Bergen", "Trondheim", "Stavanger", "Bodø")
AGED = {"$match": {"operationType": {"$in": ["insert", "update"]}, "fullDocument.age": {"$gt": 30}}}
CITY = "$fullDocument.address.city"
PROJECTED = {"$project": {"fullDocument.name": 1, "city": CITY, "b": {"$add": ["$txnNumber", 1]}}}
MINUTE = {"$dateTrunc": {"date": "$clusterTime", "unit": "minute"}}
JOINED = {"from": "t", "localField": CITY[1:], "foreignField": "_id", "as": "region"}

PIPELINES: dict[str, list[dict[str, Any]]] = {
    "columns: $match of the header": [{"$match": {"operationType": {"$in": ["insert", "update"]}, "ns.coll": "c"}}],
    "evaluator: $match of documentKey._id": [{"$match": {"documentKey._id": ObjectId("0" * 24)}}],
    "prefilter and evaluator: $match": [AGED],
    "prefilter and evaluator: $match, $project": [AGED, PROJECTED],
    "evaluator: $match of a document": [{"$match": {"fullDocument.age": {"$gte": 0}}}],
    "prefilter passes half, half matches: $match": [
        {"$match": {"operationType": "insert", "fullDocument.age": {"$lt": 45}}}
    ],
    "prefilter passes half, all of it matches: $match": [
        {"$match": {"operationType": "insert", "fullDocument.age": {"$lt": 90}}}
    ],
    "evaluator: $match of the header or a document": [
        {"$match": {"$or": [{"operationType": "insert"}, {"fullDocument.age": {"$lt": 45}}]}}
    ],
    "evaluator: $match of neither": [
        {"$match": {"$nor": [{"fullDocument.score": {"$gt": 9}}, {"fullDocument.name": "x"}]}}
    ],
    "evaluator: $set": [{"$set": {"fullDocument.next": {"$add": ["$fullDocument.age", 1]}}}],
    "evaluator: $replaceWith, $unwind": [
        {"$match": {"operationType": "insert"}}, {"$replaceWith": "$fullDocument"}, {"$unwind": "$tags"},
    ],
    "group: by minute and kind": [
        {"$group": {"_id": {"m": MINUTE, "k": "$operationType"}, "n": {"$sum": 1}, "a": {"$avg": "$fullDocument.age"}}}
    ],
    "join: $lookup": [{"$match": {"operationType": "insert"}}, {"$lookup": JOINED}],
}  # fmt: skip


def event(number: int) -> dict[str, Any]:
    """The event of this number; a document of about 250 bytes."""
    kind, identity = KINDS[number % 4], ObjectId(number.to_bytes(12, "big"))
    document = {
        "_id": identity, "name": f"somebody {number}", "age": number * 7919 % 90, "balance": Int64(number * 31),
        "address": {"city": CITIES[number % 5], "street": "Storgata 1"}, "tags": ["a", "b", "c"], "score": number / 7,
    }  # fmt: skip
    event: dict[str, Any] = {"_id": {"_data": f"82{number:016X}"}, "operationType": kind}
    event |= {"clusterTime": Timestamp(1_700_000_000 + number // 100, number % 100 + 1), "wallTime": DatetimeMS(number)}
    if kind != "delete":
        event["fullDocument"] = document
    return event | {"ns": {"db": "d", "coll": "c"}, "documentKey": {"_id": identity}}


def batches(count: int) -> Iterator[pa.RecordBatch]:
    """Rows of the source, in its Arrow schema."""
    from pyspark.sql.types import StructType

    shaper = Shaper(StructType.fromDDL(SCHEMA))
    for start in range(0, count, BATCH):
        yield shaper.shape(events_batch([encode(event(n)) for n in range(start, min(count, start + BATCH))], COLUMNS))


def rows_of(spark: SparkSession, count: int) -> DataFrame:
    """The events as rows, cached."""
    table = pa.Table.from_batches(list(batches(count)))
    df = spark.createDataFrame(table).repartition(2).cache()
    df.count()
    return df


def seconds(df: DataFrame) -> float:
    """How long it takes to compute all rows."""
    start = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def measure(df: DataFrame, tables: dict[str, DataFrame], count: int, rounds: int) -> Iterator[tuple[str, float, int]]:
    """(what, rows a second, rows left) of each pipeline."""
    cases = {"pass": df}
    for name, stages in PIPELINES.items():
        cases[name] = headrace.spark.pipeline(df, stages, tables=tables)
    for name, made in cases.items():
        taken = [seconds(made) for _ in range(rounds + 1)][1:]
        yield name, count / statistics.median(taken), made.count()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    spark = get_session(app="bench", memory="2g")
    table = [(f'{{"_id":"{city}","region":{{"$numberInt":"{number}"}}}}',) for number, city in enumerate(CITIES)]
    tables = {"t": spark.createDataFrame(table, "document STRING")}
    figures = {}
    for name, rate, left in measure(rows_of(spark, given.rows), tables, given.rows, given.rounds):
        print(f"{name:55} {rate:12,.0f} rows/s {left:10,} rows left", flush=True)
        figures[name] = {"rows_per_second": rate, "rows_left": left}
    if given.json:
        given.json.write_text(json.dumps({"rows": given.rows, "figures": figures}, indent=2))


if __name__ == "__main__":
    main()
