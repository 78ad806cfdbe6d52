"""A mirror in a table of Spark's catalogs, with Delta's and Iceberg's own jars, from Maven Central.

The jars must be made for the PySpark that there is. For 4.3 there are none yet: Delta 4.4.0 is made for 4.2, and its
first MERGE ends with `NoSuchMethodError` of Spark's `LogicalRDD`; Iceberg 1.12.0 is made for 4.1, and ends with
`IncompatibleClassChangeError` of `SparkView`. So each is tested with the PySpark that it is made for.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from headrace.spark.sinks.sink_options import SinkError, parse_sink
from tests.spark.support.other_pyspark import cache, environment_with_pyspark

# The format, a PySpark, and the jars for it.
TESTED: Final = [
    ("delta", "4.2.0", "io.delta:delta-spark_2.13:4.4.0"),
    ("iceberg", "4.1.4", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"),
]


@pytest.mark.network
@pytest.mark.spark
@pytest.mark.parametrize(("kind", "pyspark", "jars"), TESTED)
def test_a_batch_crashed_at_any_step_of_spark_s_merge_ends_as_if_nothing_had_been(
    kind: str, pyspark: str, jars: str, tmp_path: Path
) -> None:
    """Takes one to two minutes: each of twenty batches is some statements of Spark's."""
    command = [
        sys.executable,
        "-m",
        "tests.spark.sinks.catalog_crashes",
        kind,
        jars,
        str(cache() / "ivy"),
        str(tmp_path),
    ]
    environ = environment_with_pyspark(pyspark)
    done = subprocess.run(command, check=False, env=environ, cwd=tmp_path, capture_output=True, text=True)
    if "unresolved dependency" in done.stdout + done.stderr:
        pytest.skip(f"Maven Central did not give {jars}")
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["right"]), done.stderr[-5000:]


def test_a_mirror_in_a_catalog_has_a_name_and_nothing_of_a_path(tmp_path: Path) -> None:
    sink = parse_sink({"kind": "mirror", "table": "lake.shop.orders"}, tmp_path)
    assert (str(sink), sink.location) == ("mirror lake.shop.orders", None)
    for other in ({"path": "m"}, {"buckets": 4}):
        with pytest.raises(SinkError, match="no path and no buckets"):
            parse_sink({"kind": "mirror", "table": "lake.shop.orders"} | other, tmp_path)
    with pytest.raises(SinkError, match="needs 'path'"):
        parse_sink({"kind": "mirror", "table": "delta"}, tmp_path)
