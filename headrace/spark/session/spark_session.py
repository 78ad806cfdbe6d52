"""One Spark session for a process, quick to start, with the `headrace` source registered.

A new session runs on this machine only. An existing one (under `spark-submit`, through Spark Connect, or made by the
program) is used unchanged, and only the source is registered.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.errors import error_line
from headrace.spark.session import jvm, worker_launcher
from headrace.spark.session.interrupts import handler_restored, replace_handler

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Together these settings halve the time of a small micro-batch.
CONF: Final[dict[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # Hadoop's default manager forks a chmod for each checkpoint file. This manager is for local checkpoints only.
    "spark.sql.streaming.checkpointFileManagerClass":
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}  # fmt: skip
# Modules that are otherwise imported later, one after the other. The first one imports pandas, which PySpark imports
# with the first call to Java.
_IMPORTED_LATER: Final = (
    "pyspark.testing.utils", "pyspark.sql.classic.dataframe", "pyspark.sql.streaming.query",
    "headrace.spark.source.data_source",
)  # fmt: skip


def get_session(
    *, app: str = "headrace", cores: int = 2, quick: bool = False, memory: str = "1g",
    conf: Mapping[str, str] | None = None, log_level: str = "error",
) -> SparkSession:  # fmt: skip
    """Return the process's Spark session with the source registered: an existing one, or a new one on `cores` threads.

    For a new session: `quick` starts it sooner with a lower peak speed, `memory` is the JVM's heap, `conf` is added to
    its configuration. Raise JavaMissing or JvmFailed.
    """
    from pyspark.sql import SparkSession

    with handler_restored():
        session = SparkSession.getActiveSession() or _existing()
        if session is None:
            settings = CONF | {"spark.app.name": app, "spark.master": f"local[{cores}]"} | dict(conf or {})
            session = _start(settings, quick, memory, log_level)
    return register(session)


class ConnectRefused(RuntimeError):
    """Spark Connect is used for a task that needs Spark's driver in this process."""


def in_this_process(session: SparkSession, what: str) -> SparkSession:
    """Return the same session; raise ConnectRefused, about `what`, if its driver is in another process."""
    if _is_connect(session):
        raise ConnectRefused(
            f"{what} writes its tables and keeps its lock beside Spark's driver, and through Spark Connect that is "
            "another process: run it there with spark-submit, or give for_each_batch(..., checkpoint=...) to a query"
        )
    return session


def _is_connect(session: object) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect.")


def register(session: SparkSession) -> SparkSession:
    """Register the source, so that `format("headrace")` works in the session; return the session.

    From then on SIGINT stops queries in order, where PySpark's handler would interrupt them (`interrupts.py`). Workers
    on this machine run this Python, unless the program has named another. An error of the source that the program does
    not catch is printed in a line at its end.
    """
    from pyspark.errors import AnalysisException

    from headrace.spark.source.data_source import HeadraceSource

    replace_handler()
    say_source_errors_last()
    if not _is_connect(session):
        _set_worker_python(session)
        # PySpark 4.1 looks for sources in the thread's active session, which may be the session of a query or of a
        # table.
        of_spark: Any = type(session)
        of_spark._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    try:
        session.dataSource.register(HeadraceSource)
    except AnalysisException as error:
        # In the session of a query, which PySpark 4.1 gives a sink, the source exists and cannot be registered again.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    return session


def _set_worker_python(session: SparkSession) -> None:
    """Set the workers' Python. Without a setting, they run `python3`, which may be another one, without Headrace."""
    context = session.sparkContext
    named = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if not named and str(context.master).partition("[")[0] == "local":
        context.pythonExec = sys.executable


def _existing() -> SparkSession | None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if is_remote() or "SPARK_REMOTE" in os.environ:
        from pyspark.sql.connect.session import SparkSession as Remote

        remote: Any = Remote.getActiveSession() or SparkSession.builder.getOrCreate()
        session: SparkSession = remote
        return session
    # The active session is per thread, the context per process. Under spark-submit the JVM is running already, with the
    # cluster's configuration.
    there = SparkContext._active_spark_context is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    return SparkSession.builder.getOrCreate() if there else None


def _start(settings: Mapping[str, str], quick: bool, memory: str, log_level: str) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    own_python = os.environ["PYSPARK_PYTHON"] == sys.executable and "spark.pyspark.python" not in settings
    flags = jvm.QUICK if quick else ()
    running = jvm.launch(settings, memory=memory, flags=flags, log_level=log_level, meanwhile=_import_more)
    local = {"spark.local.dir": str(running.scratch), "spark.sql.warehouse.dir": str(running.scratch / "warehouse")}
    builder = SparkSession.builder
    for name, value in {**settings, **local}.items():
        builder = builder.config(name, value)
    with jvm.attached(running):
        session = builder.getOrCreate()
    if own_python and settings["spark.master"].startswith("local["):
        session.sparkContext.pythonExec = worker_launcher.program(str(running.scratch), sys.executable)
    jvm.make_in_background(jvm.find_java())
    return session


def _import_more() -> None:
    """Import what the session will need, while its JVM starts on another core."""
    for name in _IMPORTED_LATER:
        with suppress(ImportError):
            import_module(name)


def warm() -> None:
    """Write the user's archive of Spark's classes (150 MB), with which later sessions start in half the time.

    The first session that Headrace starts does this in the background. See `jvm.py`.
    """
    jvm.make()


_OURS: Final = re.compile(r"headrace[/\\.]spark")
_LINES: Final = list[str]()


@cache
def say_source_errors_last() -> None:
    """Print an uncaught error of the source in one line when the process ends. Calling this twice has no further
    effect.

    Spark shows such an error as a Python traceback inside a Java stack trace, and its logs repeat both. The line comes
    below all that, after Spark's JVM has ended.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if line := source_error(error):
            _LINES.append(line)

    sys.excepthook = hook


def source_error(error: BaseException) -> str:
    """Return the error in a line if it is one of Spark's that the source has raised; otherwise nothing."""
    is_of_spark = type(error).__module__.startswith(("pyspark.", "py4j."))
    return error_line(error) if is_of_spark and isinstance(error, Exception) and _OURS.search(str(error)) else ""


# Registered before a JVM is started, so it is called after the JVM has ended.
@atexit.register
def _say() -> None:
    for line in _LINES:
        print(f"headrace: {line}", file=sys.stderr, flush=True)
