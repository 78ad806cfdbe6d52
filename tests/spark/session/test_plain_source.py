"""The source in a program's own session: its workers' Python, and a last line for what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pymongo.database import Database

from headrace.spark.session.jvm import find_java, home_for_spark
from headrace.spark.session.spark_session import source_error
from tests.ports import free_port
from tests.spark.support.distribution import java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Db = Database[dict[str, Any]]
PROGRAM: Final = """
import sys
from pyspark.sql import SparkSession
from headrace.spark.session import register

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False)
spark = register(builder.config("spark.driver.host", "127.0.0.1").getOrCreate())
options = dict(word.split("=", 1) for word in sys.argv[2:])
if sys.argv[1] == "batch":
    print("rows:", spark.read.format("headrace").options(**options).load().count())
else:
    rows = spark.readStream.format("headrace").options(**options).load()
    rows.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
"""


def ran(folder: Path, way: str, **options: str) -> subprocess.CompletedProcess[str]:
    """The program run where `python3` is no Python that has Headrace, and no variable names another one."""
    other = folder / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho this is another python3 >&2\nexit 1\n")
    other.chmod(0o755)
    java = {"JAVA_HOME": str(home_for_spark(find_java())), "JDK_JAVA_OPTIONS": java_options()}
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
    environ = {name: value for name, value in os.environ.items() if name not in names} | java
    environ["PATH"] = f"{other.parent}{os.pathsep}{environ['PATH']}"
    words = [f"{name}={value}" for name, value in options.items()]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, way, *words],
        env=environ, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_workers_have_the_programs_python_without_a_setting(uri: str, database: Db, tmp_path: Path) -> None:
    database.c.insert_many([{"_id": key} for key in range(7)])
    done = ran(tmp_path, "batch", uri=uri, database=database.name, collection="c", startingPosition="snapshot")
    assert done.returncode == 0 and "rows: 7" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("way", ["batch", "stream"])
def test_the_last_line_says_that_no_server_answers(tmp_path: Path, way: str) -> None:
    port = free_port()
    uri = f"mongodb://u:secret@127.0.0.1:{port}/?serverSelectionTimeoutMS=100"
    done = ran(tmp_path, way, uri=uri, database="d", collection="c")
    last = done.stderr.rstrip("\n").rpartition("\n")[2]
    assert done.returncode == 1
    assert last.startswith(f"headrace: ServerSelectionTimeoutError: 127.0.0.1:{port}: ") and "refused" in last, last
    assert "secret" not in last and "Topology" not in last


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("asOf", "2099-01-01T00:00:00Z"), ("awaitMs", "-1"), ("batchRows", "many"),
        ("cappedCollections", "no"), ("documents", "xml"), ("fullDocument", "updateLokup"), ("mask", "{"),
        ("maxBytesPerTrigger", "0"), ("maxRowsPerTrigger", "many"), ("notHeld", "no"), ("onPositionLost", "no"),
        ("onServerDown", "no"), ("partitionBy", "no"), ("partitions", "0"), ("pipeline", "{}"), ("portions", "4"),
        ("startingPosition", "yesterday"), ("transport", "no"), ("uri", "http://h"),
    ],
)  # fmt: skip
def test_an_option_that_is_wrong_is_said_in_a_line_with_its_name(spark: SparkSession, option: str, value: str) -> None:
    given = {"uri": "mongodb://127.0.0.1:1/", "database": "d", "collection": "c"} | {option: value}
    for reader in (spark.read, spark.readStream):
        with pytest.raises(Exception, match="headrace") as caught:
            reader.format("headrace").options(**given).load()
        line = source_error(caught.value)
        assert "\n" not in line and option.lower() in line.lower() and "SQLSTATE" not in line, line
