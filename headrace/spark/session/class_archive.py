"""The archive of Spark's loaded classes (AppCDS), with which sessions start in half the time.

It takes 150 MB of the user's cache. The first session that Headrace starts makes it in the background, in a separate
process that uses only idle time. After a failure the next try is a day later. `HEADRACE_CLASS_CACHE=off` in the
environment forbids it.

    spark-<key>.jsa          put in place by a rename; the key identifies the Java and the Spark that it fits
    spark-<key>.jsa.tried    touched when making the archive begins, and locked until it ends
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.session import jvm
from headrace.spark.session.java import Java, find_java

SWITCH: Final = "HEADRACE_CLASS_CACHE"
BACKGROUND: Final = "--background"
_CHILDREN: Final[list[subprocess.Popen[bytes]]] = []
"""Keeps references to child processes until this process ends; it does not wait for them."""


def make_in_background(
    java: Java, *, environ: Mapping[str, str] | None = None, spawn: Callable[[list[str]], object] | None = None
) -> bool:
    """Start a process that makes the archive for this Java, if there is none. Return whether it was started."""
    environ = os.environ if environ is None else environ
    path = jvm.archive_path(java)
    if environ.get(SWITCH, "").lower() in {"0", "no", "off"} or path.is_file() or _tried_lately(path):
        return False
    command = [sys.executable, "-m", "headrace.spark.session", BACKGROUND]
    with suppress(OSError):
        (spawn or _spawn)(command)
        return True
    return False


def _spawn(command: list[str]) -> None:
    none = subprocess.DEVNULL
    _CHILDREN.append(subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True))


def _tried_lately(path: Path) -> bool:
    try:
        age = SystemClock().now_ms() / 1000 - _marker(path).stat().st_mtime
    except OSError:
        return False
    return age < limits.CLASS_ARCHIVE_SECONDS_MIN


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.tried")


def make(*, background: bool = False) -> Path | None:
    """Make the archive and return its path; None if another process is making it.

    In the `background` use only idle time, and do nothing if the archive exists.
    """
    java = find_java()
    path = jvm.archive_path(java)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _marker(path).open("a") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        if background and path.is_file():
            return path
        os.utime(_marker(path))
        if background:
            _yield_to_others()
        making = path.with_name(f"_{path.name}.{os.getpid()}")
        try:
            _write(java, making)
            os.replace(making, path)
        finally:
            making.unlink(missing_ok=True)
    _marker(path).unlink(missing_ok=True)
    return path


def _yield_to_others() -> None:
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _write(java: Java, path: Path) -> None:
    """Run a small query of the source in a session whose JVM writes its classes at its end."""
    from pyspark.sql import SparkSession

    from headrace.spark.session.spark_session import CONF, register

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    flags = (*jvm.QUICK, f"-XX:ArchiveClassesAtExit={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
    running = jvm.launch(CONF | {"spark.master": "local[2]"}, java=java, flags=flags, log_level="off", archive=False)
    with jvm.attached(running):
        session = register(SparkSession.builder.getOrCreate())
    with tempfile.TemporaryDirectory() as folder:
        source = {"path": f"{folder}/data", "database": "d", "collection": "c", "startingPosition": "earliest"}
        stream = session.readStream.format("headrace").options(**source).load()
        query = stream.writeStream.foreachBatch(lambda rows, _: rows.toArrow()).trigger(availableNow=True)
        query.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
        session.stop()
    assert running.process.stdin is not None
    running.process.stdin.close()
    running.process.wait(limits.JVM_ARCHIVE_SECONDS_MAX)
