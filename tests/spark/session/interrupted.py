"""A program that follows a collection into a table until it is interrupted; run by `test_interrupts.py`.

    python interrupted.py URI FOLDER headrace|builder [PIPE]

The session is Headrace's, or one of PySpark's own, as in its shell. With a named pipe a batch waits on its way to the
sink until that is closed, if it is there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.sinks.contract import BatchReport
from headrace.spark.sinks.folding_sink import mirror_sink
from headrace.spark.sinks.foreach_batch import for_each_batch

if TYPE_CHECKING:
    import pyarrow as pa


def main(uri: str, folder: str, made_by: str, pipe: str = "") -> None:
    if made_by == "headrace":
        from headrace.spark.session import get_session

        spark = get_session(quick=True)
    else:
        from pyspark.sql import SparkSession

        from headrace.spark.session import register

        os.environ["PYSPARK_PYTHON"] = sys.executable
        settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
        builder = SparkSession.builder.master("local[2]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = register(builder.getOrCreate())
    options = {"uri": uri, "database": "d", "collection": "c", "startingPosition": "snapshot"}
    rows = spark.readStream.format("headrace").options(**options).load()
    if pipe:
        rows = rows.mapInArrow(lambda batches: held(batches, Path(pipe)), rows.schema)
    write = for_each_batch(mirror_sink(f"{folder}/table"), listener=said)
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint").start()
    query.awaitTermination()


def held(batches: Iterator[pa.RecordBatch], pipe: Path) -> Iterator[pa.RecordBatch]:
    """The batches, once the pipe's writer has closed it."""
    if pipe.exists():
        pipe.read_bytes()
    yield from batches


def said(report: BatchReport) -> None:
    print(f"batch {report.batch}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
