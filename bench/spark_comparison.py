"""The same streams by Headrace's source and by the MongoDB Spark Connector, in one session, from one server, in turn.

    python bench/spark_comparison.py                         # gets the connector's jars as Spark gets packages
    python bench/spark_comparison.py --jars a.jar,b.jar      # or takes them from files
    python bench/spark_comparison.py --only backlog,events --rows 20000
    python bench/spark_comparison.py --only backlog --debezium FOLDER_OF_JARS

What is measured: `backlog`, a run over what is there into Spark's sink that keeps nothing; `latency`, as in
`spark_latency.py`, with the CPU time while nobody writes; `events`, which events become rows. Rounds go by turns,
and a rate is the median of the rounds but the first. Both give documents as text, Extended JSON. With `--debezium`,
Debezium's embedded engine reads the backlog, too, without Spark: its rows go to a function that drops them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp
from debezium_engine import FORMATS, DebeziumProcess
from pymongo import MongoClient
from spark_latency import line, measure, running
from spark_meter import CONF, Cpu, Progress, cpu_now, headrace_covers, progress_of
from spark_source import DATABASE, document
from target import StartedServer, Target

from headrace.spark.session import get_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PACKAGE: Final = "org.mongodb.spark:mongo-spark-connector_2.13:10.5.0"
SCHEMA: Final = (
    "_id STRING, operationType STRING, clusterTime STRING, ns STRING, documentKey STRING, fullDocument STRING, "
    "updateDescription STRING"
)
COLUMNS: Final = "token,operationType,clusterTime,database,collection,documentKey,fullDocument,updateDescription"
Reading = Callable[["SparkSession", str, int | None], "DataFrame"]
BacklogReader = Callable[[int, int], tuple[int, int, float]]
"""Reads from a time on (in seconds) so many rows: how many came, in how many batches, in how many seconds."""


def headrace(spark: SparkSession, uri: str, since: int | None, **more: str) -> DataFrame:
    """A stream by Headrace's source, from a time on (in seconds) or from now."""
    options = {"uri": uri, "database": DATABASE, "collection": "c", "columns": COLUMNS} | more
    if since is not None:
        options["startingPosition"] = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(since))
    return spark.readStream.format("headrace").options(**options).load()


def connector(spark: SparkSession, uri: str, since: int | None, schema: str = SCHEMA, **more: str) -> DataFrame:
    """The same by the MongoDB Spark Connector."""
    options = {"connection.uri": uri, "database": DATABASE, "collection": "c", "outputExtendedJson": "true"}
    if since is not None:
        mode = "change.stream.startup.mode"
        options |= {mode: "timestamp", f"{mode}.timestamp.start.at.operation.time": str(since)}
    return spark.readStream.format("mongodb").options(**options, **more).schema(schema).load()


SOURCES: Final[dict[str, Reading]] = {"headrace": headrace, "connector": connector}


def connector_covers(progress: Progress, moment: Timestamp) -> bool:
    """Its offsets are seconds; a batch has what came before the second of its end."""
    seconds = re.search(r'"t"\D*(\d+)', json.dumps(progress["sources"][0]["endOffset"]))
    return seconds is not None and int(seconds[1]) > moment.time


COVERS: Final = {"headrace": headrace_covers, "connector": connector_covers}


def run_over(rows: DataFrame, take: Callable[[DataFrame, int], None] | None = None) -> list[Progress]:
    """A run over what is there, to its end; its batches."""
    with tempfile.TemporaryDirectory() as folder:
        writer = rows.writeStream.foreachBatch(take) if take else rows.writeStream.format("noop")
        writer = writer.option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return progress_of(query)


def read_by_spark(spark: SparkSession, uri: str, read: Reading, since: int, _: int) -> tuple[int, int, float]:
    """A run over a backlog into Spark's sink that keeps nothing: its rows, batches and seconds."""
    begun = time.perf_counter()
    batches = run_over(read(spark, uri, since))
    return sum(batch["numInputRows"] for batch in batches), len(batches), time.perf_counter() - begun


def backlog_readers(spark: SparkSession, uri: str, debezium: DebeziumProcess | None) -> dict[str, BacklogReader]:
    """All that take part, by name."""
    readers: dict[str, BacklogReader] = {
        name: partial(read_by_spark, spark, uri, read) for name, read in SOURCES.items()
    }
    if debezium:
        readers |= {f"debezium {form}": partial(debezium.read, form) for form in FORMATS}
    return readers


def backlog(readers: dict[str, BacklogReader], server: Target, uri: str, rows: int, rounds: int) -> dict[str, Any]:
    """Rows a second of a backlog of inserts, and the CPU time of a row."""
    with MongoClient[dict[str, Any]](uri) as client:
        client.drop_database(DATABASE)
        # Positions are seconds to the connector: the drop is in an earlier one.
        time.sleep(1.1)
        since = int(time.time())
        for start in range(0, rows, 1000):
            client[DATABASE].c.insert_many([document() for _ in range(min(1000, rows - start))])
        # The connector reads up to the beginning of the present second.
        time.sleep(2)
    figures: dict[str, Any] = {name: {"rates": [], "cpu_us": [], "batches": []} for name in readers}
    for _ in range(rounds + 1):
        for name, read in readers.items():
            used = cpu_now(server)
            given, batches, taken = read(since, rows)
            spent = cpu_now(server) - used
            if given < rows:
                raise RuntimeError(f"{name} gave {given} rows of {rows}")
            figures[name]["rates"].append(rows / taken)
            figures[name]["cpu_us"].append(_micros(spent, rows))
            figures[name]["batches"].append(batches)
    for name, counted in figures.items():
        rate, cost = (
            statistics.median(counted["rates"][1:]),
            [statistics.median(c) for c in zip(*counted["cpu_us"][1:])],
        )
        print(f"backlog   {name:16} {rate:10,.0f} rows/s  µs of CPU a row: reader {cost[0]:.0f}, server {cost[1]:.0f}; "
              f"{counted['batches'][-1]} batches", flush=True)  # fmt: skip
        counted |= {"rate": rate, "reader_us": cost[0], "server_us": cost[1]}
    return figures


def _micros(spent: Cpu, rows: int) -> tuple[float, float]:
    return (spent.driver + spent.spark) / rows * 1e6, spent.server / rows * 1e6


def latency(spark: SparkSession, server: Target, given: argparse.Namespace) -> dict[str, Any]:
    figures = {}
    for name, read in SOURCES.items():
        figures[name] = measure(
            into_noop(read), spark, server, rate=given.rate, seconds=given.seconds, idle=given.idle, warm=given.warm,
            covers=COVERS[name],
        )  # fmt: skip
        print("latency  ", line(name, figures[name]), flush=True)
    return figures


def into_noop(read: Reading) -> Any:
    @contextmanager
    def run(spark: SparkSession, uri: str, folder: Path) -> Iterator[StreamingQuery]:
        with running(read(spark, uri, None).writeStream.format("noop"), folder) as query:
            yield query

    return run


def rows_of_known_events(spark: SparkSession, uri: str) -> dict[str, Any]:
    """Which of known events become rows, by source and option."""
    with MongoClient[dict[str, Any]](uri) as client:
        client.drop_database(DATABASE)
        time.sleep(1.1)
        since, collection = int(time.time()), client[DATABASE].c
        collection.insert_many([{"_id": number, "n": 0} for number in range(100)])
        time.sleep(1.1)
        later = int(time.time())
        for n in (1, 2):
            collection.update_many({"_id": {"$lt": 50}}, {"$set": {"n": n}})
        collection.delete_many({"_id": {"$lt": 30}})
        time.sleep(2)
    cases: dict[str, DataFrame] = {
        "headrace, from the first": headrace(spark, uri, since),
        "headrace, snapshot": headrace(spark, uri, None, startingPosition="snapshot"),
        "headrace, from later, 60 rows a batch": headrace(spark, uri, later, maxRowsPerTrigger="60"),
        "connector, from the first": connector(spark, uri, since),
        "connector, from later": connector(spark, uri, later),
        "connector, documents only": connector_documents(spark, uri, since),
    }
    figures = {}
    for name, rows in cases.items():
        counted: Counter[str] = Counter()
        batches = run_over(rows, _counted(counted))
        figures[name] = {"rows": dict(counted), "batches": len(batches)}
        print(f"events    {name:40} {dict(sorted(counted.items()))} in {len(batches)} batches", flush=True)
    return figures


def connector_documents(spark: SparkSession, uri: str, since: int) -> DataFrame:
    """Its way of giving documents in place of events."""
    from pyspark.sql import functions as F

    only = {"change.stream.publish.full.document.only": "true"}
    rows = connector(spark, uri, since, schema="_id INT, n INT", **only)
    return rows.select(F.format_string("document, n=%d", "n").alias("operationType"))


def _counted(counted: Counter[str]) -> Callable[[DataFrame, int], None]:
    def take(rows: DataFrame, _: int) -> None:
        for row in rows.select("operationType").collect():
            counted[str(row[0])] += 1

    return take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jars", help="the connector's and the driver's jar files, with commas")
    parser.add_argument("--debezium", type=Path, metavar="JARS", help="the folder of Debezium's jars (see the README)")
    parser.add_argument("--only", default="backlog,latency,events")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warm", type=float, default=8)
    parser.add_argument("--idle", type=float, default=30)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    jars = {"spark.jars": given.jars} if given.jars else {"spark.jars.packages": PACKAGE}
    figures: dict[str, Any] = {}
    with StartedServer() as server:
        uri = f"mongodb://{server.address[0]}:{server.address[1]}/?directConnection=true"
        spark = get_session(app="bench", conf=CONF | jars, memory="2g")
        for what in given.only.split(","):
            if what == "backlog":
                engine = DebeziumProcess(given.debezium, f"{uri}&replicaSet=rs0") if given.debezium else nullcontext()
                with engine as debezium:
                    readers = backlog_readers(spark, uri, debezium)
                    figures[what] = backlog(readers, server, uri, given.rows, given.rounds)
            elif what == "latency":
                figures[what] = latency(spark, server, given)
            else:
                figures[what] = rows_of_known_events(spark, uri)
            if given.json:
                given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
