"""A Spark for `spark-submit`, whose workers start in a second less than those of the one from pip."""

from __future__ import annotations

from pathlib import Path

from headrace.spark.session import jvm
from headrace.spark.session.jvm import find_java, spark_home


def spark_distribution(folder: Path) -> Path:
    """A directory in `folder` to be SPARK_HOME: all of PySpark's own, as links, but for `python`.

    So workers import the PySpark that is installed, which is compiled. The one in a zip is compiled by each worker
    anew; on a busy machine that took longer than the ten seconds that Spark waits for a worker.
    """
    spark = folder / "spark"
    if not spark.exists():
        spark.mkdir()
        for each in spark_home().iterdir():
            if each.name != "python":
                (spark / each.name).symlink_to(each)
    return spark


def java_options() -> str:
    """Return JDK_JAVA_OPTIONS with which Spark's own programs start as soon as Headrace's sessions do."""
    unverified = jvm._UNVERIFIED if find_java().major <= jvm._UNVERIFIED_JAVA_MAX else ()
    return " ".join((*jvm._STARTS_SOON, *jvm.QUICK, *unverified))
