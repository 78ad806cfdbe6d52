"""A standalone cluster of two workers: tables of each kind equal the collection, with a worker killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pymongo.database import Database

from headrace.spark.session.java import find_java, home_for_spark
from headrace.spark.session.jvm import QUICK
from tests.ports import free_port
from tests.spark.session.test_submit import submit
from tests.spark.support.distribution import spark_distribution

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the worker in /proc"),
]

Db = Database[dict[str, Any]]
_DEPLOY: Final = "org.apache.spark.deploy"


@contextmanager
def daemon(folder: Path, name: str, until: str, *arguments: str) -> Iterator[None]:
    """A master or a worker, started by PySpark's own `spark-class` in the folder, which has said `until`."""
    spark, log = spark_distribution(folder), folder / f"{name.rpartition('.')[2]}-{len(list(folder.glob('*.log')))}.log"
    environ = os.environ | {"JAVA_HOME": str(home_for_spark(find_java())), "SPARK_HOME": str(spark),
                            "JDK_JAVA_OPTIONS": " ".join(QUICK), "PYSPARK_PYTHON": sys.executable}  # fmt: skip
    command = [str(spark / "bin" / "spark-class"), f"{_DEPLOY}.{name}", "--host", "127.0.0.1", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with log.open("w") as file:
        for line in process.stderr:
            file.write(line)
            if until in line:
                break
        else:
            raise AssertionError(log.read_text())
        # Nobody reads what it says from now on: it goes on to a file.
        reader = subprocess.Popen(["cat"], stdin=process.stderr, stdout=file)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
        reader.wait(60)


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The address of the master of two workers, each of one core."""
    port, work = free_port(), str(folder / "work")
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        ports = "--port", str(port), "--webui-port", str(free_port())
        stack.enter_context(daemon(folder, "master.Master", "New state: ALIVE", *ports))
        for _ in range(2):
            given = "--cores", "1", "--memory", "1g", "--work-dir", work, "--webui-port", str(free_port())
            stack.enter_context(daemon(folder, "worker.Worker", "Successfully registered with master", *given, master))
        yield master


def test_two_workers_fold_and_write_with_a_worker_killed(uri: str, database: Db, tmp_path: Path) -> None:
    """Takes over a minute: six JVMs, which are new to Spark's classes."""
    collection = database.client.get_database("d").c
    collection.drop()
    late = {"late": 1, "n": 0.5}  # a new column, and another type of one
    documents = [{"_id": number, "n": number, "text": "x" * 100} for number in range(12_000)]
    collection.insert_many([each | late if each["_id"] > 7000 else each for each in documents])
    with cluster(tmp_path) as master:
        script = Path(__file__).with_name("clustered.py")
        result = submit(tmp_path, master, uri, "--executor-memory", "512m", script=script)
    assert result["master"] == master
    assert result["killed"] == [True]
    assert not result["folded"].pop("changes")
    assert all(folded and all(folded) for folded in result["folded"].values()), "tasks fold batches of each kind"
    for kind in ("mirror", "history", "mirror typed", "history typed"):
        table = DeltaTable(tmp_path / kind).to_pyarrow_table()
        assert table.num_rows == 12_000
        assert "typed" not in kind or table.column("late").null_count == 7001
    assert DeltaTable(tmp_path / "changes").to_pyarrow_table().num_rows == 12_002
    collection.drop()
