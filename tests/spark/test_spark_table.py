"""A mirror in a table of Spark's catalogs, with Delta's own jars, from Maven Central.

The jars must be made for the PySpark that there is. For 4.3.0 there are none yet: Delta 4.4.0 is made for 4.2, and its
first MERGE ends with `NoSuchMethodError` of Spark's `LogicalRDD`.
HEADRACE_PYSPARK names a folder with another PySpark: pip install --target FOLDER pyspark==4.2.0
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from headrace.spark.sinks.open import SinkError, parse_sink

JARS = {"4.2": "io.delta:delta-spark_2.13:4.4.0"}
STORY = Path(__file__).with_name("catalog_story.py")
ELSEWHERE = os.environ.get("HEADRACE_PYSPARK", "")


def version() -> str:
    """Of the PySpark to test with, as far as jars go by it."""
    where = [ELSEWHERE] if ELSEWHERE else sys.path
    (found, *_) = distributions(name="pyspark", path=where)
    return ".".join(found.version.split(".")[:2])


@pytest.mark.slow
def test_a_batch_crashed_at_any_step_of_spark_s_merge_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    package = JARS.get(version())
    if package is None:
        pytest.skip(f"there is no jar of Delta for PySpark {version()}; HEADRACE_PYSPARK can name another")
    paths = [ELSEWHERE, str(STORY.parent), str(STORY.parents[2])]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(STORY), package, str(tmp_path)]
    done = subprocess.run(command, check=False, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    if "unresolved dependency" in done.stdout + done.stderr:
        pytest.skip(f"Maven Central did not give {package}")
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["right"]), done.stderr[-5000:]


def test_a_mirror_in_a_catalog_has_a_name_and_nothing_of_a_path(tmp_path: Path) -> None:
    sink = parse_sink({"kind": "mirror", "table": "lake.shop.orders"}, tmp_path)
    assert (str(sink), sink.path) == ("mirror lake.shop.orders", None)
    for other in ({"path": "m"}, {"buckets": 4}):
        with pytest.raises(SinkError, match="no path and no buckets"):
            parse_sink({"kind": "mirror", "table": "lake.shop.orders"} | other, tmp_path)
    with pytest.raises(SinkError, match="needs 'path'"):
        parse_sink({"kind": "mirror", "table": "delta"}, tmp_path)
