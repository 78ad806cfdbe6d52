"""Sinks in tables of Spark's catalogs, with Delta's and Iceberg's own jars, from Maven Central.

The jars must be made for the PySpark that there is. For 4.3 there are none yet: Delta 4.4.0 is made for 4.2, and its
first MERGE ends with `NoSuchMethodError` of Spark's `LogicalRDD`; Iceberg 1.12.0 is made for 4.1, and ends with
`IncompatibleClassChangeError` of `SparkView`. So each is tested with the PySpark that it is made for, by programs that
share a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
ANSWERS: Final = ("ready", "right", "wrong")


class Programs:
    """Runs programs of this package (`catalog_programs`) in one process, which has the jars; a new one if it ends."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def run(self, program: str, folder: Path, *words: str) -> None:
        """Skip the test if the jars cannot be had."""
        process = self._started()
        assert process.stdin
        begin = self._errors.stat().st_size
        process.stdin.write(json.dumps([program, str(folder), *words]) + "\n")
        process.stdin.flush()
        assert self._answer(process) == "right", self._errors.read_bytes()[begin:].decode()[-5000:]

    def stop(self) -> None:
        """End the process if one was started."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()

    def _started(self) -> subprocess.Popen[str]:
        if self._process and self._process.poll() is None:
            return self._process
        pyspark, jars = TESTED[self.kind]
        environ = environment_with_pyspark(pyspark)
        command = [sys.executable, "-m", "tests.spark.sinks.catalog_programs", self.kind, jars, str(cache() / "ivy")]
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        self._errors = folder / "errors"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*command, str(folder)], env=environ, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True,
            )  # fmt: skip
        if self._answer(self._process) != "ready":
            text = self._errors.read_text()
            if any(each in text for each in ("unresolved dependency", "download failed")):
                pytest.skip(f"Maven Central did not give {jars}")
            raise AssertionError(text[-5000:])
        return self._process

    def _answer(self, process: subprocess.Popen[str]) -> str:
        """Return what it answers, after what Ivy prints; nothing if it has ended."""
        assert process.stdout
        return next((word for line in process.stdout if (word := line.strip()) in ANSWERS), "")


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """The programs of a format, which is the parameter."""
    running = Programs(request.param, tmp_path_factory.mktemp("catalogs"))
    yield running
    running.stop()


of_each = pytest.mark.parametrize("programs", TESTED, indirect=True)
# A history commits as a mirror does, with MERGE, so Delta's is in soak.
of_sinks = pytest.mark.parametrize(
    ("programs", "sink"),
    [
        ("delta", "mirror"),
        ("delta", "changes"),
        pytest.param("delta", "history", marks=pytest.mark.soak),
        ("iceberg", "mirror"),
        ("iceberg", "changes"),
        ("iceberg", "history"),
    ],
    indirect=["programs"],
)
# For long tests that hardly depend on the format: Delta takes twice as long.
of_each_in_soak = pytest.mark.parametrize(
    "programs", ["iceberg", pytest.param("delta", marks=pytest.mark.soak)], indirect=True
)


@pytest.mark.network
@pytest.mark.process
@pytest.mark.spark
@of_sinks
def test_a_batch_crashed_at_any_step_of_spark_s_commits_ends_as_if_nothing_had_been(
    programs: Programs, sink: str, tmp_path: Path
) -> None:
    """Takes a minute: each of some ten batches is some statements of Spark's."""
    programs.run("crashes", tmp_path, sink)


@pytest.mark.network
@pytest.mark.process
@pytest.mark.spark
@of_each_in_soak
def test_a_mirror_of_two_servers_crashed_at_any_step_ends_as_if_nothing_had_been(
    programs: Programs, tmp_path: Path
) -> None:
    programs.run("crashes", tmp_path, "mirrors")


@pytest.mark.network
@pytest.mark.process
@pytest.mark.spark
@of_each
def test_a_sink_goes_on_behind_the_upkeep_of_its_table(programs: Programs, tmp_path: Path) -> None:
    programs.run("crashes", tmp_path, "upkeep")


@pytest.mark.network
@pytest.mark.process
@pytest.mark.spark
@pytest.mark.parametrize("programs", ["iceberg"], indirect=True)
def test_a_job_into_a_catalog_goes_on_and_refuses_what_is_another_s(programs: Programs, tmp_path: Path) -> None:
    """Takes half a minute: ten runs of a job with three tables."""
    programs.run("job", tmp_path)


@pytest.mark.network
@pytest.mark.process
@pytest.mark.spark
@of_sinks
def test_tables_of_several_collections_are_made_and_crashed_at_any_step(
    programs: Programs, sink: str, tmp_path: Path
) -> None:
    """Takes half a minute: each of some twenty attempts is some statements of Spark's."""
    programs.run("collections", tmp_path, sink)


@pytest.mark.network
@pytest.mark.process
@pytest.mark.spark
@of_each_in_soak
def test_a_job_of_several_collections_makes_their_tables_in_a_catalog(programs: Programs, tmp_path: Path) -> None:
    """Takes a minute or two: eight runs of a job with up to eight tables."""
    programs.run("collections", tmp_path)


@pytest.mark.network
@pytest.mark.process
@pytest.mark.spark
@of_each_in_soak
def test_dead_letters_are_replayed_into_a_catalog_and_tables_made_for_two_servers(
    programs: Programs, tmp_path: Path
) -> None:
    """Takes a minute or two: seven runs of a job with up to six tables."""
    programs.run("letters", tmp_path)


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
