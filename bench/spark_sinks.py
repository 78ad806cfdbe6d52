"""Rows a second that the sinks of events take, in batches of 100,000 rows (or of what is asked).

    python bench/spark_sinks.py                      # changes and parquet, from one partition and from two
    python bench/spark_sinks.py --rows 1000          # small batches: what a batch costs at the least

The rows are read from Parquet files, so that the source, which has a bench of its own, is not what is measured.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.spark.session import get_session
from headrace.spark.sinks.foreach_batch import for_each_batch
from headrace.spark.sinks.sink_options import parse_sink

MOMENT: Final = pa.timestamp("us", "UTC")
NAMES: Final = (
    "token", "clusterTime", "clusterTimeIncrement", "operationType", "database", "collection", "documentKey",
    "fullDocument", "fullDocumentBeforeChange", "updateDescription", "lsid", "txnNumber", "wallTime", "other",
)  # fmt: skip
KINDS: Final = {"clusterTime": MOMENT, "wallTime": MOMENT, "clusterTimeIncrement": pa.int64(), "txnNumber": pa.int64()}
SCHEMA: Final = pa.schema([pa.field(name, KINDS.get(name, pa.string()), name != "token") for name in NAMES])
DOCUMENT: Final = (
    '{{"_id":{{"$oid":"{0:024x}"}},"name":"John Smith number 5","age":{{"$numberInt":"35"}},"active":true,'
    '"address":{{"city":"Zurich","zip":"8000"}},"tags":["a","b","c"],"note":"' + "x" * 80 + '"}}'
)


def rows(first: int, count: int) -> pa.Table:
    """So many inserts, in the order of their tokens."""
    numbers = range(first, first + count)
    moments = [(1_700_000_000 + number // 1000) * 1_000_000 for number in numbers]
    columns = {
        "token": [
            f"82{1_700_000_000 + n // 1000:08X}{n % 1000 + 1:08X}2B022C0100296E5A1004" + "0" * 40 for n in numbers
        ],
        "clusterTime": moments,
        "clusterTimeIncrement": [number % 1000 + 1 for number in numbers],
        "operationType": ["insert"] * count,
        "database": ["shop"] * count,
        "collection": ["orders"] * count,
        "documentKey": [f'{{"_id":{{"$oid":"{number:024x}"}}}}' for number in numbers],
        "fullDocument": [DOCUMENT.format(number) for number in numbers],
        "wallTime": moments,
    }
    return pa.table([columns.get(name, [None] * count) for name in NAMES], schema=SCHEMA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=8)
    arguments = parser.parse_args()
    spark = get_session(memory="2g", conf={"spark.sql.files.openCostInBytes": str(1 << 30)})
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for partitions in (1, 2):
            size = arguments.rows // partitions
            for number in range(arguments.batches):
                (folder / f"{partitions}" / f"{number}").mkdir(parents=True)
                for part in range(partitions):
                    table = rows(number * arguments.rows + part * size, size)
                    pq.write_table(table, folder / f"{partitions}" / f"{number}" / f"{part}.parquet")
        for kind in ("changes", "parquet"):
            for partitions in (1, 2):
                apply = for_each_batch(parse_sink({"kind": kind, "path": "kept"}, folder).open())
                seconds = []
                for number in range(arguments.batches):
                    frame = spark.read.parquet(str(folder / f"{partitions}" / f"{number}"))
                    begun = time.perf_counter()
                    apply(frame, number)
                    seconds.append(time.perf_counter() - begun)
                shutil.rmtree(folder / "kept")
                # The first two warm Spark and its workers.
                spent = statistics.median(seconds[2:])
                rate = arguments.rows / spent
                print(f"{kind}, {partitions} partitions: {rate:,.0f} rows/s, {spent * 1000:.0f} ms a batch", flush=True)


if __name__ == "__main__":
    main()
