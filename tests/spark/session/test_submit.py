"""The same job under spark-submit: the cluster's own session, workers in other processes, headrace from a zip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pymongo.database import Database

import headrace
from headrace.spark.rows.tokens import Token
from headrace.spark.session.jvm import find_java, home_for_spark
from tests.spark.support.distribution import java_options, spark_distribution

pytestmark = [pytest.mark.process, pytest.mark.spark]

Db = Database[dict[str, Any]]
JOB: Final = Path(__file__).with_name("submitted.py")
# A zone that is not the one of the session that headrace starts: nothing may depend on it.
CONF: Final = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "America/New_York",
               "spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1"}  # fmt: skip


def zipped(folder: Path) -> Path:
    """The package for workers that have it not installed, as docs/spark/cluster.md makes it."""
    package = Path(headrace.__file__).parent
    return Path(shutil.make_archive(str(folder / "headrace"), "zip", package.parent, package.name))


def submit(folder: Path, master: str, uri: str, *more: str, script: Path = JOB) -> dict[str, Any]:
    """What the job told."""
    # Executors of such a cluster live in Spark's own directory: here in one that leads to pip's.
    spark = spark_distribution(folder)
    conf = [part for name, value in CONF.items() for part in ("--conf", f"{name}={value}")]
    command = [str(spark / "bin" / "spark-submit"), "--master", master, *conf, *more, str(script), uri, str(folder)]
    environ = os.environ | {"JAVA_HOME": str(home_for_spark(find_java())), "PYSPARK_PYTHON": sys.executable,
                            "SPARK_HOME": str(spark), "JDK_JAVA_OPTIONS": java_options()}  # fmt: skip
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        environ.pop(name, None)
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def test_a_cluster_of_processes_runs_it_with_the_package_from_a_zip(uri: str, database: Db, tmp_path: Path) -> None:
    """Takes over a minute: six JVMs, which are new to Spark's classes."""
    collection = database.client.get_database("d").submitted
    collection.drop()
    collection.insert_many([{"_id": number, "n": number} for number in range(100)])
    # Whatever only the server needs cannot be imported where this is on the path.
    for name in ("lmdb", "uvloop"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not for workers')\n")
    files = [zipped(tmp_path), tmp_path / "lmdb.py", tmp_path / "uvloop.py"]
    result = submit(tmp_path, "local-cluster[2,1,1024]", uri, "--py-files", ",".join(map(str, files)))
    assert result["same"] and result["master"] == "local-cluster[2,1,1024]" and result["zone"] == "America/New_York"
    workers = result["workers"]
    assert sum(worker["rows"] for worker in workers) == 50
    assert all(worker["folder"].startswith(str(tmp_path / "spark" / "work")) for worker in workers), (
        workers
    )  # an executor's own
    assert all("headrace.zip" in worker["path"] and not worker["seen"] for worker in workers), workers
    table = DeltaTable(tmp_path / "changes").to_pyarrow_table()
    times = [moment.timestamp() for moment in table["clusterTime"].to_pylist()]
    assert times == [Token(text).time.time for text in table["token"].to_pylist()]
    assert sorted(table["operationType"].to_pylist()) == ["snapshot"] * 100 + ["snapshotBegin", "snapshotEnd"]
    collection.delete_many({"_id": {"$gte": 90}})
    submit(tmp_path, "local[2]", uri)  # goes on from the same checkpoint, on another master
    table = DeltaTable(tmp_path / "changes").to_pyarrow_table()
    assert table.num_rows == 112
    assert table["operationType"].to_pylist().count("delete") == 10
    collection.drop()
