"""Sinks in tables of Spark's catalogs, with Delta's and Iceberg's own jars, from Maven Central.

The jars must be made for the PySpark that there is. For 4.3 there are none yet: Delta 4.4.0 is made for 4.2, and its
first MERGE ends with `NoSuchMethodError` of Spark's `LogicalRDD`; Iceberg 1.12.0 is made for 4.1, and ends with
`IncompatibleClassChangeError` of `SparkView`. So each is tested with the PySpark that it is made for.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.spark.sinks.file_values import FileError
from headrace.spark.sinks.sink_options import SinkError, parse_sink
from headrace.spark.upkeep.delta_upkeep import UpkeepOptions
from tests.spark.support.other_pyspark import cache, environment_with_pyspark

# By format a PySpark, and the jars for it.
TESTED: Final = {
    "delta": ("4.2.0", "io.delta:delta-spark_2.13:4.4.0"),
    "iceberg": ("4.1.4", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"),
}


def run(kind: str, program: str, before: list[str], folder: Path, *after: str) -> None:
    """Runs a program of this package with the jars; skips the test where these cannot be had."""
    pyspark, jars = TESTED[kind]
    command = [sys.executable, "-m", f"tests.spark.sinks.{program}", *before, jars, str(cache() / "ivy"), str(folder)]
    environ = environment_with_pyspark(pyspark)
    done = subprocess.run([*command, *after], check=False, env=environ, cwd=folder, capture_output=True, text=True)
    if any(text in done.stdout + done.stderr for text in ("unresolved dependency", "download failed")):
        pytest.skip(f"Maven Central did not give {jars}")
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["right"]), done.stderr[-5000:]


@pytest.mark.network
@pytest.mark.spark
@pytest.mark.parametrize("kind", TESTED)
def test_a_batch_crashed_at_any_step_of_spark_s_commits_ends_as_if_nothing_had_been(kind: str, tmp_path: Path) -> None:
    """Takes two to three minutes: each of some forty batches is some statements of Spark's."""
    run(kind, "catalog_crashes", [kind], tmp_path, "mirror", "changes", "history", "mirrors")


@pytest.mark.network
@pytest.mark.spark
@pytest.mark.parametrize("kind", TESTED)
def test_a_sink_goes_on_behind_the_upkeep_of_its_table(kind: str, tmp_path: Path) -> None:
    run(kind, "catalog_crashes", [kind], tmp_path, "upkeep")


@pytest.mark.network
@pytest.mark.spark
def test_a_job_into_a_catalog_goes_on_and_refuses_what_is_another_s(tmp_path: Path) -> None:
    """Takes about a minute: five runs of a job with three tables."""
    run("iceberg", "catalog_job", [], tmp_path)


@pytest.mark.network
@pytest.mark.spark
@pytest.mark.parametrize(("kind", "sinks"), [("delta", ["changes", "mirror"]), ("iceberg", ["history", "mirror"])])
def test_tables_of_several_collections_are_made_and_crashed_at_any_step(
    kind: str, sinks: list[str], tmp_path: Path
) -> None:
    """Takes about two minutes: each of some forty attempts is some statements of Spark's."""
    run(kind, "catalog_collections", [kind], tmp_path, *sinks)


@pytest.mark.network
@pytest.mark.spark
@pytest.mark.parametrize("kind", TESTED)
def test_a_job_of_several_collections_makes_their_tables_in_a_catalog(kind: str, tmp_path: Path) -> None:
    """Takes two to three minutes: eight runs of a job with up to eight tables."""
    run(kind, "catalog_collections", [kind], tmp_path)


@pytest.mark.network
@pytest.mark.spark
@pytest.mark.parametrize("kind", TESTED)
def test_dead_letters_are_replayed_into_a_catalog_and_tables_made_for_two_servers(kind: str, tmp_path: Path) -> None:
    """Takes two to three minutes: seven runs of a job with up to six tables."""
    run(kind, "catalog_letters", [kind], tmp_path)


@pytest.mark.parametrize("kind", ["changes", "history", "mirror"])
def test_a_table_in_a_catalog_has_a_name_and_nothing_of_a_path(kind: str, tmp_path: Path) -> None:
    sink = parse_sink({"kind": kind, "table": "lake.shop.orders"}, tmp_path)
    assert (str(sink), sink.location, sink.in_catalog) == (f"{kind} lake.shop.orders", None, True)
    others: list[dict[str, Any]] = [{"path": "m"}]
    others += {"changes": [{"writers": "tasks"}], "mirror": [{"buckets": 4}]}.get(kind, [])
    for other in others:
        with pytest.raises(SinkError, match=f"a table of Spark's catalogs: it has no {next(iter(other))}"):
            parse_sink({"kind": kind, "table": "lake.shop.orders"} | other, tmp_path)
    with pytest.raises(SinkError, match="typed columns in a Delta table with a path only"):
        parse_sink({"kind": kind, "table": "lake.shop.orders", "schema": "infer"}, tmp_path)
    assert sink.upkeep is None
    upkeep = {"every": "1 hour", "target": "64 MB"}
    looked_after = parse_sink({"kind": kind, "table": "lake.shop.orders", "upkeep": upkeep}, tmp_path)
    assert looked_after.upkeep == UpkeepOptions(every_seconds=3600, target_bytes=64_000_000)
    with pytest.raises(SinkError, match=r"joins its files, and has no 'retain': what removes .* is yours to run"):
        parse_sink({"kind": kind, "table": "lake.shop.orders", "upkeep": {"retain": "1 day"}}, tmp_path)
    with pytest.raises(FileError, match="needs 'path'"):
        parse_sink({"kind": kind, "table": "delta"}, tmp_path)


@pytest.mark.parametrize("kind", ["changes", "history"])
def test_a_table_that_is_neither_delta_nor_a_catalog_s_is_refused(kind: str, tmp_path: Path) -> None:
    assert parse_sink({"kind": kind, "table": "delta", "path": "t"}, tmp_path).location is not None
    with pytest.raises(FileError, match="'delta', or a name with a dot"):
        parse_sink({"kind": kind, "table": "parquet", "path": "t"}, tmp_path)
