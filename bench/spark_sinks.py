"""Rows a second that the sinks of events take, in batches of 100,000 rows (or of what is asked).

    python bench/spark_sinks.py                      # changes and parquet, from one partition and from two
    python bench/spark_sinks.py --rows 1000          # small batches: what a batch costs at the least
    python bench/spark_sinks.py --upkeep --batches 3600 --rows 10   # what an hour of one-second batches leaves

The rows are read from Parquet files, so that the source, which has a bench of its own, is not what is measured.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from headrace.spark.session import get_session
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.foreach_batch import for_each_batch
from headrace.spark.sinks.log_sink import changes_sink
from headrace.spark.sinks.sink_options import parse_sink
from headrace.spark.tables.table_location import location_of
from headrace.spark.upkeep.delta_upkeep import DeltaUpkeep, UpkeepOptions

LAST: Final = 100
"""So many batches at the end say what a commit takes by then."""

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


def measure_upkeep(
    folder: Path, *, batches: int, size: int, upkeep: bool, report: Callable[[str], None] = print
) -> dict[str, float]:
    """The figures of a table of so many one-second batches of so many rows, which come without waiting for the second.

    Upkeep is done after as many as there are in ten minutes, as a job does it. Nothing is older than a day then, so
    files of old versions are still there: a scan reads those of the table.
    """
    options = UpkeepOptions()
    sink, keeping = changes_sink(folder), DeltaUpkeep(location_of(folder), "changes", options)
    commits: list[float] = []
    pauses = [0.0]
    for number in range(batches):
        begun = time.perf_counter()
        sink.apply(MicroBatch("bench", number, rows(number * size, size)))
        commits.append(time.perf_counter() - begun)
        if upkeep and (number + 1) % options.every_seconds == 0:
            pauses.append(keeping.run().ms / 1000)
            print(f"  {number + 1} batches, upkeep {pauses[-1]:.1f} s", file=sys.stderr, flush=True)
    begun = time.perf_counter()
    table = DeltaTable(str(folder))
    opened = time.perf_counter() - begun
    read = table.to_pyarrow_table(columns=["token", "operationType", "fullDocument"]).num_rows
    scanned = time.perf_counter() - begun
    assert read == batches * size
    files = table.file_uris()
    figures = {
        "files": len(files), "megabytes": sum(Path(file).stat().st_size for file in files) / 1e6,
        "log_files": len(list((folder / "_delta_log").iterdir())), "open_ms": opened * 1000, "scan_ms": scanned * 1000,
        "commit_ms": statistics.median(commits[-LAST:]) * 1000, "longest_upkeep_s": max(pauses),
    }  # fmt: skip
    report(
        f"{'with' if upkeep else 'without'} upkeep, {batches} batches of {size} rows: {figures['files']} files, "
        f"{figures['megabytes']:.1f} MB, {figures['log_files']} files of the log; opened in {figures['open_ms']:.0f} ms"
        f", scanned in {figures['scan_ms']:.0f}; a commit {figures['commit_ms']:.0f} ms; "
        f"upkeep at most {figures['longest_upkeep_s']:.1f} s"
    )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--upkeep", action="store_true", help="one-second batches, with upkeep and without, instead")
    arguments = parser.parse_args()
    if arguments.upkeep:
        for upkeep in (True, False):
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "table"
                measure_upkeep(path, batches=arguments.batches, size=arguments.rows, upkeep=upkeep)
        return
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
