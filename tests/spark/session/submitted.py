"""The job that `test_submit.py` gives to spark-submit: batch, a pipeline, a stream into a table, on whatever cluster.

spark-submit submitted.py URI DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.spark import pipeline
from headrace.spark.session import get_session
from headrace.spark.sinks.foreach_batch import for_each_batch
from headrace.spark.sinks.log_sink import changes_sink

SERVERS_ALONE = {"lmdb", "uvloop", "headrace.server", "headrace.store", "deltalake"}


def whereabouts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row for each batch that a worker reads: which headrace it imports, and which other modules are loaded."""
    import headrace

    for batch in batches:
        seen = sorted(SERVERS_ALONE & sys.modules.keys())
        result = {"path": [headrace.__file__], "folder": [os.getcwd()], "seen": [",".join(seen)]}
        yield pa.RecordBatch.from_pydict(result | {"rows": [batch.num_rows]}, worker_schema())


def worker_schema() -> pa.Schema:
    return pa.schema([("path", pa.string()), ("folder", pa.string()), ("seen", pa.string()), ("rows", pa.int64())])


def main(uri: str, directory: str) -> None:
    session = SparkSession.builder.getOrCreate()
    spark = get_session()
    # No other test has events of this collection: the batch reads all there have been.
    source = {"uri": uri, "database": "d", "collection": "submitted"}
    events = spark.read.format("headrace").options(**source, startingPosition="earliest", partitions="4").load()
    evens = pipeline(events, [{"$match": {"fullDocument.n": {"$mod": [2, 0]}}}, {"$project": {"n": "$fullDocument.n"}}])
    workers = evens.mapInArrow(whereabouts, "path STRING, folder STRING, seen STRING, rows BIGINT").collect()

    rows = spark.readStream.format("headrace").options(**source, startingPosition="snapshot").load()
    writer = rows.writeStream.foreachBatch(for_each_batch(changes_sink(Path(directory) / "changes")))
    query = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    result: dict[str, Any] = {
        "same": session is spark, "master": spark.sparkContext.master,
        "zone": spark.conf.get("spark.sql.session.timeZone"), "workers": [row.asDict() for row in workers],
    }  # fmt: skip
    (Path(directory) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
