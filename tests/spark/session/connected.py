"""The program that `test_connect.py` runs against a Spark Connect server: it has no JVM of its own.

SPARK_REMOTE=sc://... connected.py URI DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headrace.spark import pipeline
from headrace.spark.jobs.job_file import parse_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.mirror import Mirror, catch_up
from headrace.spark.session import ConnectRefused, get_session
from headrace.spark.sinks.foreach_batch import for_each_batch
from headrace.spark.sinks.log_sink import changes_sink


def pipelines(events: DataFrame) -> dict[str, Any]:
    def documents(*stages: dict[str, Any]) -> list[str]:
        return sorted(row.document for row in pipeline(events, stages).collect())

    matched = pipeline(events, [{"$match": {"operationType": "insert", "fullDocument.n": {"$gte": 15}}}])
    return {
        "matched": matched.count(),
        "columns": matched.columns == events.columns,
        "shaped": documents({"$match": {"fullDocument.n": 3}}, {"$project": {"_id": 0, "n": "$fullDocument.n"}}),
        "grouped": documents(
            {"$match": {"operationType": "insert"}},
            {"$group": {"_id": {"$mod": ["$fullDocument.n", 2]}, "n": {"$sum": "$fullDocument.n"}}},
        ),
        "counted": events.groupBy("operationType")
        .agg(f.count("*").alias("n"))
        .where("operationType = 'insert'")
        .collect()[0]
        .n,
    }


def stream(rows: DataFrame, directory: Path, **how: Any) -> None:
    """Everything there is, into the table."""
    write = for_each_batch(changes_sink(directory / "changes"), **how)
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(directory / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def main(uri: str, folder: str) -> None:
    spark = get_session()
    directory = Path(folder)
    source = {"uri": uri, "database": "d", "collection": "c"}
    events = spark.read.format("headrace").options(**source, startingPosition="earliest").load()
    result = {"module": type(spark).__module__, "same": SparkSession.builder.getOrCreate() is spark} | pipelines(events)

    rows = spark.readStream.format("headrace").options(**source, startingPosition="snapshot").load()
    with pytest.raises(Exception, match=r"for_each_batch\(\.\.\., checkpoint="):
        stream(rows, directory)
    stream(rows, directory, checkpoint=directory / "checkpoint")
    job = {"checkpoint": "jobs", "source": source, "sink": [{"kind": "changes", "path": "other"}]}
    with pytest.raises(ConnectRefused, match="a job"):
        run_job(parse_job(job, "job", directory), session=spark)
    with pytest.raises(ConnectRefused, match="a job"):
        catch_up(Mirror(uri, "d", "c", directory / "mirror"), session=spark)
    (directory / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
