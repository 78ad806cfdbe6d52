"""Rows a second of the Spark source, by the way events come from the server and by how documents are told.

    python bench/spark_source.py                     # starts a Headrace, fills it, measures, removes it
    python bench/spark_source.py --uri mongodb://…   # measures a server that runs already (only `bson` for MongoDB)
    python bench/spark_source.py --spark             # in a Spark session too: the same range written to `noop`

The reader alone is what one worker does for one partition, and the server beside it; with Spark comes what Spark adds.
Only the database `headrace_bench` is touched; it is dropped before and after.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bson import Int64, ObjectId
from pymongo import MongoClient
from pymongo.uri_parser import parse_uri
from pyspark.sql.types import BinaryType, DoubleType, LongType, StringType, StructField, StructType, TimestampType
from target import Target

from headrace.spark.source.local_server import uri_of
from headrace.spark.source.options import parse_options
from headrace.spark.source.readers import BatchReader, StreamReader
from headrace.spark.stream.partitions import EventRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DATABASE: Final = "headrace_bench"
REPRESENTATIONS: Final = ("bson", "extjson", "columns")
DDL: Final = "_id STRING, name STRING, age INT, balance DOUBLE, created TIMESTAMP, note STRING"
_HEAD: Final = ("token", "clusterTime", "operationType", "documentKey", "fullDocument")


def document() -> dict[str, Any]:
    """About 290 bytes of BSON: ten fields, an object and an array among them."""
    return {
        "_id": ObjectId(), "name": "John Smith number 5", "age": 35, "balance": 1234.5, "active": True,
        "address": {"city": "Zurich", "zip": "8000"}, "tags": ["a", "b", "c"], "created": datetime.now(UTC),
        "note": "x" * 80, "n": Int64(5),
    }  # fmt: skip


def fill(uri: str, rows: int) -> str:
    """Inserts so many documents; the token before the first."""
    with MongoClient[dict[str, Any]](uri) as client:
        client.drop_database(DATABASE)
        with client[DATABASE].c.watch() as stream:
            token = str(stream.resume_token["_data"])
        for _ in range(rows // 1000):
            client[DATABASE].c.insert_many([document() for _ in range(1000)])
    return token


def options_of(uri: str, start: str, transport: str, documents: str) -> dict[str, str]:
    options = {"uri": uri, "database": DATABASE, "collection": "c", "startingPosition": start, "transport": transport,
               "documents": documents, "columns": ",".join(_HEAD)}  # fmt: skip
    if documents == "columns":
        options |= {"documentSchema": DDL, "columns": ",".join((*_HEAD, "fullDocumentRest"))}
    return options


def schema_of(documents: str) -> StructType:
    """The schema that Spark would make of these options, made without Spark."""
    document_type: Any = StringType()
    if documents == "bson":
        document_type = BinaryType()
    kinds = {"STRING": StringType(), "INT": LongType(), "DOUBLE": DoubleType(), "TIMESTAMP": TimestampType()}
    fields = [StructField(name, document_type) for name in _HEAD]
    fields[0], fields[2] = StructField("token", StringType(), False), StructField("operationType", StringType())
    fields[1] = StructField("clusterTime", TimestampType())
    if documents == "columns":
        typed = [field.split() for field in DDL.split(", ")]
        fields[4] = StructField("fullDocument", StructType([StructField(name, kinds[kind]) for name, kind in typed]))
        fields.append(StructField("fullDocumentRest", StringType()))
    return StructType(fields)


def read_alone(options: dict[str, str], documents: str) -> int:
    """One worker's work: the range as batches."""
    reader = BatchReader(parse_options(options), schema_of(documents))
    (part,) = reader.partitions()
    assert isinstance(part, EventRange)
    return sum(batch.num_rows for batch in reader.read(part))


def plan_alone(options: dict[str, str]) -> int:
    """The driver's work: how far batches of 100,000 rows reach."""
    reader = StreamReader(parse_options(options | {"maxRowsPerTrigger": "100000"}), schema_of("bson"))
    reader.prepareForTriggerAvailableNow()
    offset, batches = reader.initialOffset(), 0
    while True:
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        if end == offset:
            return batches
        offset, batches = end, batches + 1


class Meter:
    """Prints a line for each thing measured: the median of the rounds, and the CPU time of a row here and there."""

    def __init__(self, uri: str, rows: int, rounds: int) -> None:
        host, port = parse_uri(uri)["nodelist"][0]
        self._server = Target("server", host, port or 27017)
        self._rows, self._rounds = rows, rounds

    def measure(self, name: str, run: Callable[[], Any]) -> None:
        run()
        rates, here, there = [], [], []
        for _ in range(self._rounds):
            begun, used, served = time.perf_counter(), time.process_time(), self._server.cpu_seconds()
            run()
            rates.append(self._rows / (time.perf_counter() - begun))
            here.append((time.process_time() - used) / self._rows * 1e6)
            there.append((self._server.cpu_seconds() - served) / self._rows * 1e6)
        rate, cost, theirs = map(statistics.median, (rates, here, there))
        print(f"{name:40}{rate:12,.0f} rows/s{cost:8.1f} µs here{theirs:8.1f} µs server", flush=True)


@contextmanager
def server(uri: str | None) -> Iterator[str]:
    if uri:
        yield uri
        return
    with tempfile.TemporaryDirectory() as directory:
        yield uri_of(directory, owner=os.getpid())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uri")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", action="store_true")
    arguments = parser.parse_args()
    with server(arguments.uri) as uri:
        start = fill(uri, arguments.rows)
        with MongoClient[dict[str, Any]](uri) as client:
            ways = ("arrow", "bson") if client.admin.command("buildInfo").get("headrace") else ("bson",)
        pairs = [(way, documents) for way in ways for documents in REPRESENTATIONS]
        each = [(way, documents, options_of(uri, start, way, documents)) for way, documents in pairs]
        meter = Meter(uri, arguments.rows, arguments.rounds)
        for way, documents, options in each:
            meter.measure(f"reader, {way} → {documents}", partial(read_alone, options, documents))
        for way in ways:
            meter.measure(f"planning, {way}", partial(plan_alone, options_of(uri, start, way, "bson")))
        if arguments.spark:
            in_spark(each, meter)
        with MongoClient[dict[str, Any]](uri) as client:
            client.drop_database(DATABASE)


def in_spark(each: list[tuple[str, str, dict[str, str]]], meter: Meter) -> None:
    """The same ranges as queries that throw their rows away, in one partition and in two."""
    from headrace.spark.session import get_session

    spark = get_session()
    for way, documents, options in each:
        for partitions in (1, 2):
            frame = spark.read.format("headrace").options(**options, partitions=str(partitions)).load()
            meter.measure(f"Spark, {way} → {documents}, {partitions} partitions", partial(thrown_away, frame))


def thrown_away(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
