"""From an insert to the commit of the micro-batch that has it, and the CPU time of a job that waits.

    python bench/spark_latency.py                    # starts a Headrace, measures each case, removes it
    python bench/spark_latency.py --only noop,mirror --rate 20 --seconds 20 --idle 30 --json figures.json
    python bench/spark_latency.py --phases           # where the time goes, as Spark tells it

A case is a stream of one collection into a sink: `noop` is Spark's own sink that keeps nothing, `each` an empty
function in foreachBatch, `job` a job of Headrace whose sink keeps nothing, the others jobs with the sink of that name.
Inserts come one by one at a steady rate; the time ends when Spark has noted the batch as committed. After that nobody
writes, and the CPU time of each part is counted: 1 % is a hundredth of one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pymongo import MongoClient
from spark_meter import CONF, Covers, Writer, cpu_now, headrace_covers, latencies_ms, percentile, phases, progress_of
from spark_source import DATABASE
from target import StartedServer, Target

from headrace.spark.jobs.job_file import parse_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.session import get_session
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.tables.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WARM_S: Final = 8.0
Running = Callable[["SparkSession", str, Path], Any]


class Nothing:
    """A sink that keeps nothing."""

    def apply(self, batch: MicroBatch) -> None:
        """The rows came to the driver; that is all."""

    def position(self) -> Progress:
        return Progress()


def source(uri: str) -> dict[str, str]:
    return {"uri": uri, "database": DATABASE, "collection": "c", "startingPosition": "latest"}


@contextmanager
def noop(spark: SparkSession, uri: str, folder: Path) -> Iterator[StreamingQuery]:
    rows = spark.readStream.format("headrace").options(**source(uri)).load()
    with running(rows.writeStream.format("noop"), folder) as query:
        yield query


@contextmanager
def each(spark: SparkSession, uri: str, folder: Path) -> Iterator[StreamingQuery]:
    rows = spark.readStream.format("headrace").options(**source(uri)).load()
    with running(rows.writeStream.foreachBatch(lambda _rows, _number: None), folder) as query:
        yield query


@contextmanager
def running(writer: Any, folder: Path) -> Iterator[StreamingQuery]:
    """The query of a writer, as often as there is something, stopped at the end."""
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="0 seconds").start()
    try:
        yield query
    finally:
        query.stop()


def job(*sinks: dict[str, Any]) -> Running:
    @contextmanager
    def run(spark: SparkSession, uri: str, folder: Path) -> Iterator[StreamingQuery]:
        described = [{"path": f"{sink['kind']}"} | sink if sink["kind"] != "own" else sink for sink in sinks]
        # A table of documents begins with those that are there.
        documents = {"startingPosition": "snapshot"} if {"history", "mirror"} & {s["kind"] for s in sinks} else {}
        given: dict[str, Any] = {"checkpoint": "checkpoint", "source": source(uri) | documents, "sink": described}
        given["report_seconds"] = 5.0
        stop = threading.Event()
        options: dict[str, Any] = {"stop": stop, "session": spark, "report": lambda _: None}
        thread = threading.Thread(target=run_job, args=[parse_job(given, "bench", folder)], kwargs=options)
        thread.start()
        while thread.is_alive() and not spark.streams.active:
            time.sleep(0.05)
        try:
            yield spark.streams.active[0]
        finally:
            stop.set()
            thread.join()

    return run


CASES: Final[dict[str, Running]] = {
    "noop": noop,
    "each": each,
    "job": job({"kind": "own", "factory": "spark_latency:Nothing"}),
    "changes": job({"kind": "changes"}),
    "mirror": job({"kind": "mirror"}),
}


def measure(
    case: Running, spark: SparkSession, server: Target, *, rate: float, seconds: float, idle: float,
    warm: float = WARM_S, covers: Covers = headrace_covers,
) -> dict[str, Any]:  # fmt: skip
    """The figures of one case, on a collection of its own."""
    uri = f"mongodb://{server.address[0]}:{server.address[1]}/?directConnection=true"
    with MongoClient[dict[str, Any]](uri) as client:
        client.drop_database(DATABASE)
        client[DATABASE].create_collection("c")
    with tempfile.TemporaryDirectory() as folder, case(spark, uri, Path(folder)) as query:
        with Writer(uri, rate) as writer:
            until(writer, query, covers, 1)
            time.sleep(warm)
            skipped, before, used = len(writer.sent), len(progress_of(query)), cpu_now(server)
            time.sleep(seconds)
            busy = (cpu_now(server) - used).over(seconds)
        until(writer, query, covers, len(writer.sent))
        batches = progress_of(query)
        waits = latencies_ms(writer.sent[skipped:], batches, covers)
        time.sleep(min(2.0, idle))
        idle_from, used = len(progress_of(query)), cpu_now(server)
        time.sleep(idle)
        waiting = (cpu_now(server) - used).over(max(idle, 1e-9))
        empty = len(progress_of(query)) - idle_from
    return {
        "median_ms": percentile(waits, 0.5), "p95_ms": percentile(waits, 0.95), "events": len(waits),
        "batches": len(batches) - before, "busy": asdict(busy), "idle": asdict(waiting), "idle_total": waiting.total,
        "idle_batches": empty, "phases": phases(batches[before:]),
    }  # fmt: skip


def until(writer: Writer, query: StreamingQuery, covers: Covers, count: int) -> None:
    """Waits until so many of the writer's events are committed; raises what stopped the query."""
    while True:
        failure = query.exception()
        if failure:
            raise failure
        if not query.isActive:
            raise RuntimeError("the query has ended")
        batches = progress_of(query)
        if len(writer.sent) >= count and batches and covers(batches[-1], writer.sent[count - 1][1]):
            return
        time.sleep(0.2)


def line(name: str, measured: dict[str, Any]) -> str:
    idle = measured["idle"]
    return (
        f"{name:12} median {measured['median_ms']:6.0f} ms  p95 {measured['p95_ms']:6.0f} ms  "
        f"{measured['batches']:5} batches of {measured['events']} events  idle {measured['idle_total']:6.1%} "
        f"(driver {idle['driver']:.1%}, JVM {idle['jvm']:.1%}, workers {idle['workers']:.1%}, "
        f"server {idle['server']:.1%}; "
        f"{measured['idle_batches']} batches)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="cases, with commas")
    parser.add_argument("--rate", type=float, default=20, help="inserts a second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--idle", type=float, default=30, help="seconds without inserts")
    parser.add_argument("--phases", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    figures = {}
    with StartedServer() as server:
        spark = get_session(app="bench", conf=CONF)
        for name in given.only.split(","):
            measured = measure(CASES[name], spark, server, rate=given.rate, seconds=given.seconds, idle=given.idle)
            print(line(name, measured), flush=True)
            if given.phases:
                print("   ", ", ".join(f"{phase} {ms:.0f}" for phase, ms in measured["phases"].items()), flush=True)
            figures[name] = measured
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
