"""A standalone cluster of Spark on this machine: a master and workers, started by PySpark's own `spark-class`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from headrace.spark.session.jvm import find_java, home_for_spark
from tests.ports import free_port
from tests.spark.support.distribution import java_options, spark_distribution

_DEPLOY: Final = "org.apache.spark.deploy"


@contextmanager
def daemon(folder: Path, name: str, until: str, *arguments: str) -> Iterator[None]:
    """A master or a worker, started by PySpark's own `spark-class` in the folder, which has said `until`."""
    spark, log = spark_distribution(folder), folder / f"{name.rpartition('.')[2]}-{len(list(folder.glob('*.log')))}.log"
    environ = os.environ | {"JAVA_HOME": str(home_for_spark(find_java())), "SPARK_HOME": str(spark),
                            "JDK_JAVA_OPTIONS": java_options(), "PYSPARK_PYTHON": sys.executable}  # fmt: skip
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
def standalone_cluster(folder: Path, memory: str = "1g") -> Iterator[str]:
    """The address of the master of two workers, each of one core and this much memory."""
    port, work = free_port(), str(folder / "work")
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        ports = "--port", str(port), "--webui-port", str(free_port())
        stack.enter_context(daemon(folder, "master.Master", "New state: ALIVE", *ports))
        for _ in range(2):
            given = "--cores", "1", "--memory", memory, "--work-dir", work, "--webui-port", str(free_port())
            stack.enter_context(daemon(folder, "worker.Worker", "Successfully registered with master", *given, master))
        yield master
