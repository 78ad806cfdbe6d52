"""Through Spark Connect: a program without a JVM reads, runs pipelines and writes a sink on a server of Spark's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pymongo import MongoClient

import headrace
from headrace.spark.session.jvm import find_java, home_for_spark
from tests.ports import free_port
from tests.spark.support.distribution import java_options, spark_distribution

pytestmark = [pytest.mark.process, pytest.mark.spark]

PROGRAM: Final = Path(__file__).with_name("connected.py")
_STARTED: Final = "Spark Connect server started"
_GATEWAY: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_HOME")
# What says that it listens is told at this level.
_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
logger.connect.name = org.apache.spark.sql.connect.service.SparkConnectServer
logger.connect.level = info
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %m%n%ex
"""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server, started as docs/spark/cluster.md says, with what comes with PySpark."""
    folder = tmp_path_factory.mktemp("connect")
    (folder / "log4j2.properties").write_text(_LOGGING)
    port = free_port()
    conf = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"}  # fmt: skip
    spark = spark_distribution(folder)
    server = subprocess.Popen(
        [str(spark / "bin" / "spark-submit"), "--master", "local[2]",
         *[part for name, value in conf.items() for part in ("--conf", f"{name}={value}")],
         "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"],
        cwd=folder, env=environ(SPARK_HOME=str(spark)), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stderr is not None
    output: list[str] = []
    for line in server.stderr:
        output.append(line)
        if _STARTED in line:
            break
    else:
        raise AssertionError("".join(output))
    # Whoever does not read what it says stops it, once the pipe is full.
    reading = threading.Thread(target=lambda: output.extend(server.stderr or ()))
    reading.start()
    yield f"sc://127.0.0.1:{port}"
    server.terminate()
    server.wait(60)
    reading.join()


def environ(**more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in _GATEWAY}
    java = {"JAVA_HOME": str(home_for_spark(find_java())), "JDK_JAVA_OPTIONS": java_options(),
            "PYSPARK_PYTHON": sys.executable, "SPARK_CONNECT_MODE": "0"}  # fmt: skip
    return plain | java | more


def test_source_pipelines_and_a_sink_work_and_what_does_not_says_so(remote: str, tmp_path: Path) -> None:
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        client.d.c.insert_many([{"_id": number, "n": number} for number in range(20)])
        run = [sys.executable, str(PROGRAM), server.uri, str(tmp_path)]
        plain = {name: value for name, value in os.environ.items() if name not in _GATEWAY}
        for _ in range(2):  # the second goes on in the same checkpoint, and has a session of its own
            done = subprocess.run(
                run, env=plain | {"SPARK_REMOTE": remote}, capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, done.stderr[-5000:]
            client.d.c.delete_one({"_id": 7})
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["module"] == "pyspark.sql.connect.session" and result["same"] and result["columns"]
    assert (result["matched"], result["counted"]) == (5, 20)
    assert result["shaped"] == ['{"n":{"$numberInt":"3"}}']
    assert result["grouped"] == [
        '{"_id":{"$numberInt":"0"},"n":{"$numberInt":"90"}}', '{"_id":{"$numberInt":"1"},"n":{"$numberInt":"100"}}',
    ]  # fmt: skip
    table = DeltaTable(tmp_path / "changes").to_pyarrow_table()
    assert sorted(table["operationType"].to_pylist()) == ["delete"] + ["snapshot"] * 20 + [
        "snapshotBegin",
        "snapshotEnd",
    ]
