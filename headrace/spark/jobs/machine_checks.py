"""Checks that this machine has what a job needs: writable folders, Java, jars, a connection to object stores."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headrace import limits
from headrace.spark.errors import error_line
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.metrics import AddressRefused, JobMetrics, serve
from headrace.spark.sinks.kafka_sink import PACKAGE, PROVIDER
from headrace.spark.sinks.table_paths import has_placeholders
from headrace.spark.tables.table_location import check_store, location_of

_JAR_LISTS: Final = ("spark.driver.extraClassPath", "spark.jars")
_SESSION_CATALOG: Final = "spark_catalog"


class CannotStart(RuntimeError):
    """This machine lacks something that a job needs; `lines` has a line for each."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join(self.lines))


def machine_problems(job: Job, *, starts_spark: bool = True) -> list[str]:
    """Return what this machine lacks for the job, a line each. `starts_spark`: the job starts Spark itself."""
    lines = [line for line in map(_unwritable, _folders(job)) if line]
    lines += _missing_command(job)
    return lines + (_session_problems(job) if starts_spark else [])


def check_stores(job: Job) -> None:
    """Raise StoreUnreachable if an object store with a table of the job does not answer within some seconds."""
    others = [location_of(path) for path in (job.deadletter, job.options.archive) if path]
    locations = [*(sink.location for sink in job.sinks), *others]
    buckets = {location.url.split("/")[2]: location.url for location in locations if location and location.in_store}
    for url in buckets.values():
        check_store(url, limits.START_CHECK_SECONDS_MAX)


def address_problems(job: Job) -> Iterator[str]:
    """Yield a line if the metrics' address is taken, unless the job is running and has taken it itself."""
    from headrace.spark.jobs.runner import running_process

    try:
        with serve(JobMetrics(job.name), job.metrics):
            pass
    except AddressRefused as error:
        if running_process(job) is None:
            yield error_line(error)


def _missing_command(job: Job) -> Iterator[str]:
    if job.on_lag and job.on_lag.run and shutil.which(job.on_lag.run[0]) is None:
        yield f"on_lag: there is no command {job.on_lag.run[0]!r}"


def _session_problems(job: Job) -> list[str]:
    if "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ:
        return []  # another program started Spark, with its own configuration
    return [*_missing_java(), *_missing_jars(job), *_missing_catalogs(job), *_missing_kafka(job)]


def _folders(job: Job) -> list[Path]:
    """Return the folders in which the job writes."""
    sinks = [Path(sink.location.url) for sink in job.sinks if sink.location and not sink.location.in_store]
    positions = [Path(sink.options["position"]).parent for sink in job.sinks if sink.kind == "kafka"]
    columns = [Path(file).parent for sink in job.sinks for file in sink.schema_files if not has_placeholders(file)]
    letters = [Path(job.deadletter)] if job.deadletter and not location_of(job.deadletter).in_store else []
    return [job.checkpoint.absolute(), *sinks, *positions, *columns, *letters]


def _unwritable(folder: Path) -> str:
    """Return why the folder, which need not exist yet, is not writable; empty if it is."""
    at = folder
    while not at.exists() and at != at.parent:
        at = at.parent
    if not at.is_dir():
        return f"{folder} is no folder that can be made: {at} is a file"
    if not os.access(at, os.W_OK | os.X_OK) or not _allows_files(at):
        return f"{folder} is not writable"
    return ""


def _allows_files(folder: Path) -> bool:
    """Whether the file system takes files. Root passes every permission check, but cannot write to a read-only disk."""
    name = folder / f".headrace.{os.getpid()}"
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except OSError as error:
        return error.errno == errno.EEXIST
    name.unlink()
    return True


def _missing_java() -> Iterator[str]:
    from headrace.spark.session.jvm import JavaMissing, find_java

    try:
        find_java()
    except JavaMissing as error:
        yield str(error)


def _missing_jars(job: Job) -> Iterator[str]:
    for jar in _jars(job):
        if not jar.is_file():
            yield f"the jar {jar} is not there"


def _jars(job: Job) -> Iterator[Path]:
    """Yield the jars that the configuration names by a path on this machine."""
    conf = job.spark.get("conf", {})
    for name in _JAR_LISTS:
        for item in str(conf.get(name, "")).replace(os.pathsep if name != "spark.jars" else ",", ",").split(","):
            url = urlsplit(item.strip())
            if item.strip().endswith(".jar") and url.scheme in {"", "file"}:
                yield Path(unquote(url.path))


def _missing_catalogs(job: Job) -> Iterator[str]:
    """Yield lines about catalogs of sinks that the configuration lacks, or whose class is in no jar."""
    conf: dict[str, Any] = dict(job.spark.get("conf", {}))
    if _may_have_more():
        return
    for sink in job.sinks:
        catalog, *rest = str(sink.options.get("table", "")).split(".")
        if not sink.in_catalog or (len(rest) < 2 and f"spark.sql.catalog.{catalog}" not in conf):
            continue
        name = f"spark.sql.catalog.{catalog}"
        if name not in conf and catalog != _SESSION_CATALOG:
            yield f"{sink}: there is no catalog {catalog!r}: the file's [spark] conf has no {name}"
        elif name in conf and not _has_class(job, str(conf[name])):
            yield f"{sink}: no jar has the class {conf[name]} of the catalog {catalog!r}: add it to spark.jars"


def _missing_kafka(job: Job) -> Iterator[str]:
    """Yield a line that names the package with Spark's Kafka writer, if a sink needs it and it is not configured."""
    conf: dict[str, Any] = dict(job.spark.get("conf", {}))
    if not any(sink.kind == "kafka" for sink in job.sinks) or _may_have_more():
        return
    packages = str(conf.get("spark.jars.packages", ""))
    if "spark-sql-kafka" not in packages and (packages or not _has_class(job, PROVIDER)):
        yield (
            f"no jar has Spark's writer for Kafka: add {PACKAGE}:{version('pyspark')} to spark.jars.packages in the "
            "file's [spark] conf"
        )


def _may_have_more() -> bool:
    """Whether Spark has a configuration besides the job file's."""
    return (Path(os.environ.get("SPARK_CONF_DIR", "")) / "spark-defaults.conf").is_file()


def _has_class(job: Job, name: str) -> bool:
    """Whether a jar has the class; True if Spark downloads jars or looks in folders."""
    from headrace.spark.session.jvm import spark_home

    conf = job.spark.get("conf", {})
    if any(setting in conf for setting in ("spark.jars.packages", "spark.driver.extraClassPath")):
        return True
    entry = f"{name.replace('.', '/')}.class"
    shipped = spark_home() / "jars"
    jars = [jar for jar in _jars(job) if jar.is_file()] + sorted(shipped.glob("*.jar"))
    return any(_contains(jar, entry) for jar in jars)


def _contains(jar: Path, entry: str) -> bool:
    try:
        with zipfile.ZipFile(jar) as file:
            return entry in file.NameToInfo
    except (OSError, zipfile.BadZipFile):
        return False
