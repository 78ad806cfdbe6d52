"""Rows a second of a job, from a server's backlog to committed, by sink; and the CPU time of a row by part.

    python bench/spark_jobs.py                                # starts a Headrace, fills it, measures, removes it
    python bench/spark_jobs.py --only 'changes;mirror' --rows 200000 --batch 100000 --rounds 3 --json figures.json
    python bench/spark_jobs.py --collections 300              # a job of so many
    python bench/spark_jobs.py --cluster --partitions 1,4     # on a standalone cluster of two workers of one core

Each case is a job as a file describes it, run to its end over the same events from an empty target: 70 % updates, 20 %
inserts, 10 % deletes after the first thousand inserts, which is what a mirror has to fold. `nothing` has a sink of
one's own that keeps nothing: the source, Spark, and the rows' way to the driver. `once` is a function of one's own
in foreachBatch with its notes (`OnceSink`). Cases take turns, round by round, each with every number of partitions;
the median of the rounds but the first counts. The first rate is from the call to the end, with the query's start; the
second from the first commit to the last. `cores` is the CPU time of all parts in this time, divided by it: two cores
can be at most `2 / cores` times as fast, at the same CPU time a row.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne
from spark_meter import CONF, Cpu, cpu_now
from spark_source import DATABASE, document
from target import StartedServer, Target

from headrace.spark.jobs.job_file import parse_job
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.jobs.status import job_status
from headrace.spark.session import get_session
from headrace.spark.sinks.contract import BatchReport
from headrace.spark.sinks.foreach_batch import OnceSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET: Final = "headrace_bench_target"
CASES: Final[dict[str, dict[str, Any]]] = {
    "nothing": {"kind": "own", "factory": "spark_latency:Nothing"},
    "changes": {"kind": "changes", "path": "to"},
    "changes typed": {"kind": "changes", "path": "to", "schema": "infer"},
    "parquet": {"kind": "parquet", "path": "to"},
    "history": {"kind": "history", "path": "to"},
    "mirror": {"kind": "mirror", "path": "to"},
    "mirror typed": {"kind": "mirror", "path": "to", "schema": "infer"},
    "mirror, 16 buckets": {"kind": "mirror", "path": "to", "buckets": 16},
    "mirror, parquet": {"kind": "mirror", "path": "to", "table": "parquet"},
    "mongodb": {"kind": "mongodb", "database": TARGET, "collection": "c"},
    "once": {"kind": "own", "factory": "spark_jobs:once"},
}


@contextmanager
def two_workers() -> Iterator[dict[str, str]]:
    """The settings of a session on a standalone cluster, which is that of the tests."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from tests.spark.support.standalone_cluster import standalone_cluster

    with tempfile.TemporaryDirectory() as folder, standalone_cluster(Path(folder), "2g") as master:
        yield {"spark.master": master, "spark.executor.memory": "1500m"}


def once(notes: str) -> OnceSink:
    """A function of one's own."""
    return OnceSink(lambda rows: rows.num_rows, notes)


def fill(client: MongoClient[dict[str, Any]], rows: int) -> str:
    """Writes so many events; the token before the first."""
    client.drop_database(DATABASE)
    collection = client[DATABASE].c
    with collection.watch() as stream:
        token = str(stream.resume_token["_data"])
    chance, keys = random.Random(7), []
    for start in range(0, rows, 1000):
        writes: list[Any] = []
        for number in range(start, min(start + 1000, rows)):
            draw = chance.random() if number >= 1000 else 0.0
            if draw < 0.2:
                made = document()
                keys.append(made["_id"])
                writes.append(InsertOne(made))
            elif draw < 0.9:
                change = {"$set": {"age": number, "note": f"{number:080}"}}
                writes.append(UpdateOne({"_id": keys[chance.randrange(len(keys))]}, change))
            else:
                index = chance.randrange(len(keys))
                keys[index], keys[-1] = keys[-1], keys[index]
                writes.append(DeleteOne({"_id": keys.pop()}))
        collection.bulk_write(writes, ordered=False)
    return token


def run(
    spark: SparkSession, server: Target, start: str, sink: dict[str, Any], batch: int, partitions: int
) -> tuple[float, float]:
    """One job over all events, from an empty target to its end; rows a second and cores used, from the first commit to
    the last."""
    reports: list[tuple[BatchReport, float, float]] = []
    uri = uri_of(server)

    def note(report: BatchReport) -> None:
        reports.append((report, time.perf_counter(), cpu_now(server).total))

    with tempfile.TemporaryDirectory() as folder:
        described = dict(sink)
        if described["kind"] == "mongodb":
            described["uri"] = uri
        if described.get("factory") == "spark_jobs:once":
            described["notes"] = f"{folder}/notes"
        source = {"uri": uri, "database": DATABASE, "collection": "c", "startingPosition": start}
        source |= {"maxRowsPerTrigger": str(batch), "partitions": str(partitions)}
        given = {"checkpoint": "checkpoint", "source": source, "sink": [described]}
        job = parse_job(given | {"trigger": {"availableNow": True}}, "bench", Path(folder))
        figures = run_job(job, session=spark, report=lambda _: None, listener=note)
        # Spark's listener, which counts, is called on a thread of its own.
        assert figures.running == 0
    if len(reports) < 2:
        return float("nan"), float("nan")
    (first, first_at, first_cpu), (last, last_at, last_cpu) = reports[0], reports[-1]
    rows = sum(report.row_count for report, _, _ in reports[1:])
    return rows / (last.committed_ms - first.committed_ms) * 1000, (last_cpu - first_cpu) / (last_at - first_at)


def uri_of(server: Target) -> str:
    return f"mongodb://{server.address[0]}:{server.address[1]}/?directConnection=true"


def measure(
    spark: SparkSession, server: Target, cases: dict[str, dict[str, Any]], *, rows: int, batch: int, rounds: int,
    partitions: Sequence[int] = (1,), report: Callable[[str], None] = print,
) -> dict[str, Any]:  # fmt: skip
    """The figures of each case, by name."""
    runs = {
        f"{name}, 1 partition" if count == 1 else f"{name}, {count} partitions": (sink, count)
        for name, sink in cases.items()
        for count in partitions
    }
    rates: dict[str, list[tuple[float, float, float]]] = {name: [] for name in runs}
    costs: dict[str, list[Cpu]] = {name: [] for name in runs}
    with MongoClient[dict[str, Any]](uri_of(server)) as client:
        start = fill(client, rows)
        for _ in range(rounds + 1):
            for name, (sink, count) in runs.items():
                client.drop_database(TARGET)
                begun, used = time.perf_counter(), cpu_now(server)
                steady, cores = run(spark, server, start, sink, batch, count)
                rates[name].append((rows / (time.perf_counter() - begun), steady, cores))
                costs[name].append((cpu_now(server) - used).over(rows / 1e6))
                print(f"  {name}: {rates[name][-1][0]:,.0f} rows/s", file=sys.stderr, flush=True)
    figures = {}
    for name in runs:
        driver, jvm, workers, served = (
            statistics.median(getattr(cost, part) for cost in costs[name][1:])
            for part in ("driver", "jvm", "workers", "server")
        )
        rate, steady, cores = (statistics.median(each) for each in zip(*rates[name][1:], strict=True))
        cost = f"driver {driver:.1f}, JVM {jvm:.1f}, workers {workers:.1f}, server {served:.1f}"
        steadily = f"{steady:9,.0f} between commits on {cores:.2f} cores"
        report(f"{name:32} {rate:9,.0f} rows/s, {steadily}  µs of CPU a row: {cost}")
        figures[name] = {
            "rate": rate, "steady_rate": steady, "steady_cores": cores,
            "driver_us": driver, "jvm_us": jvm, "workers_us": workers, "server_us": served,
        }  # fmt: skip
    return figures


def measure_collections(
    spark: SparkSession, server: Target, *, collections: int, documents: int, report: Callable[[str], None] = print
) -> dict[str, float]:
    """The figures of a job of so many collections with so many documents each, and a typed mirror of each.

    The first is from the call to the end of all snapshots, with the query's start; the second of a run behind an update
    in each collection; the third what `headrace pipeline status` takes, without Python's start.
    """
    uri = uri_of(server)
    source = {"uri": uri, "database": "bench_collections", "startingPosition": "snapshot"}
    sink = {"kind": "mirror", "path": "{collection}", "schema": "infer", "upkeep": False}
    given = {"checkpoint": "_checkpoint", "source": source, "sink": [sink], "trigger": {"availableNow": True}}
    figures: dict[str, float] = {"collections": collections, "documents": documents}
    with tempfile.TemporaryDirectory() as folder, MongoClient[dict[str, Any]](uri) as client:
        job = parse_job(given, "bench", Path(folder))
        database = client["bench_collections"]
        for number in range(collections):
            made = [{"_id": each, "name": f"name {each}", "n": each} for each in range(documents)]
            database[f"c{number:04}"].insert_many(made)

        def timed(name: str, call: Callable[[], Any]) -> None:
            begun = time.perf_counter()
            call()
            figures[name] = time.perf_counter() - begun

        timed("snapshot_s", lambda: run_job(job, session=spark, report=lambda _: None))
        for number in range(collections):
            database[f"c{number:04}"].update_one({"_id": 0}, {"$set": {"n": -1}})
        timed("batch_s", lambda: run_job(job, session=spark, report=lambda _: None))
        timed("status_s", lambda: job_status(job))
        assert all(each.equal for each in verify_job(job))
    figures["driver_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report(
        f"{collections} collections of {documents} documents: snapshots {figures['snapshot_s']:.1f} s, an update in "
        f"each {figures['batch_s']:.1f} s, status {figures['status_s']:.2f} s; driver {figures['driver_mb']:.0f} MB"
    )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="cases, with semicolons")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=50_000, help="rows a micro-batch at most")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--partitions", default="1,2", help="partitions of a batch, with commas")
    parser.add_argument("--collections", type=int, help="a job of so many collections instead")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cluster", action="store_true", help="on a standalone cluster of two workers of one core")
    given = parser.parse_args()
    names = given.only.split(";") if given.only else list(CASES)
    with StartedServer() as server, ExitStack() as stack:
        conf = CONF | (stack.enter_context(two_workers()) if given.cluster else {})
        spark = get_session(app="bench", conf=conf, memory="2g")
        if given.collections:
            measure_collections(spark, server, collections=given.collections, documents=100)
            return
        chosen = {name: CASES[name] for name in names}
        partitions = list(map(int, given.partitions.split(",")))
        sizes = {"rows": given.rows, "batch": given.batch, "rounds": given.rounds}
        figures = measure(spark, server, chosen, **sizes, partitions=partitions)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
