"""Starts Spark's JVM directly and connects PySpark to it, which is quicker than `spark-submit`.

`spark-submit` starts one JVM to compute the command line of a second one. It also always requests the module
`jdk.incubator.vector`, which the Java from PyPI lacks (only MLlib uses it). A JVM started here needs neither, and can
use an archive of loaded classes (AppCDS).

The JVM exits at the end of its standard input, so it ends with this process, however that ends.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from pkgutil import iter_modules
from typing import IO, Final

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.session.java import Java, cache_folder, find_java
from headrace.spark.session.jvm_output import pass_on

_SCRATCH: Final = "headrace-spark-"
# The packages that Spark's launcher opens (JavaModuleOptions), without the incubator module.
_OPENED: Final = (
    "java.base/java.io", "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect",
    "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
    "java.base/sun.nio.cs", "java.base/sun.security.action", "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)  # fmt: skip
_ALWAYS: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    # Stopping a query in the middle of a batch runs a regular expression over a deep stack trace.
    "-Xss4m",
)
# The optimizing compiler waits for code that is really hot: at a start it took half of all time. There is one collector
# thread, and no full collection when Spark's classes reach 21 MB. No counters are written for jstat 20 times a second.
_STARTS_SOON: Final = (
    "-XX:+UseSerialGC", "-XX:MetaspaceSize=256m", "-XX:-UsePerfData", "-Xshare:auto",
    "-XX:Tier4InvocationThreshold=50000", "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000", "-XX:Tier4BackEdgeThreshold=400000",
)  # fmt: skip
# Starts sooner, with a lower peak speed: for tests, demonstrations and small jobs. With one compiler Java's default is
# 48 MB of compiled code. A job with tables in catalogs fills that; then nothing more is compiled.
QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
# Without an archive each class of Spark's own jars is verified when it is loaded: a third of the JVM's time. Classes of
# an archive were verified when it was made. Later versions of Java may warn about the option.
_UNVERIFIED: Final = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
_UNVERIFIED_JAVA_MAX: Final = 21
_LOGGING: Final = """\
rootLogger.level = {level}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


class JvmFailed(RuntimeError):
    """The JVM ended, or was not ready in time. Its output is on standard error."""


@dataclass(frozen=True, slots=True)
class Jvm:
    """A running JVM: the port and secret of its gateway, and a scratch directory."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str
    scratch: Path


def launch(
    conf: Mapping[str, str], *, java: Java | None = None, memory: str = "1g", flags: tuple[str, ...] = (),
    log_level: str = "error", archive: bool = True, meanwhile: Callable[[], object] | None = None,
) -> Jvm:  # fmt: skip
    """Start a JVM that waits for PySpark, with `conf` as Spark's configuration; connect with `attached`.

    `memory` is its heap, in Java's notation. `archive`: use the user's archive of classes. `meanwhile` is called while
    the JVM starts. Raise JavaMissing or JvmFailed.
    """
    java = java or find_java()
    scratch = _scratch()
    (scratch / "log4j2.properties").write_text(_LOGGING.format(level=log_level))
    info = scratch / "connection"
    environ = _environment(scratch, local=conf.get("spark.master", "").startswith("local["))
    environ |= {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(info), "SPARK_CONNECT_MODE": "0"}
    flags = (*flags, *(_archive(java) if archive else ()))
    process = subprocess.Popen(
        _command(java, conf, memory, flags, scratch), stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environ,
        start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    pass_on(process.stderr)
    if meanwhile:
        meanwhile()
    port, secret = _await_connection(process, info)
    return Jvm(process, port, secret, scratch)


def _environment(scratch: Path, *, local: bool) -> dict[str, str]:
    """Return the JVM's environment.

    With SPARK_HOME, Spark's workers import PySpark from a zip, and each compiles it again, for a second of CPU. Workers
    of a `local` session import the installed package instead, through links. A PYTHONPATH with its whole folder would
    put all other packages before the standard library.
    """
    if not local:
        return dict(os.environ, SPARK_HOME=str(spark_home()))
    environ = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    environ.setdefault("SPARK_CONF_DIR", str(spark_home() / "conf"))
    packages = scratch / "python"
    packages.mkdir()
    for name in ("py4j", "pyspark"):
        (packages / name).symlink_to(_package(name))
    if not any(module.name.startswith("pyspark_") for module in iter_modules()):
        # Otherwise Spark starts two processes of this Python to search for sources in such packages; there are none.
        environ["PYSPARK_DRIVER_PYTHON"] = str(scratch / "no-packages-with-sources")
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(packages))))
    return environ


# The locks of this process; a garbage-collected file would release its lock.
_HELD: Final[list[IO[str]]] = []


def _scratch() -> Path:
    """Make a directory for one session, locked while in use.

    It is removed at exit, or by a later session if this process is killed.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*/lock"):
        if is_abandoned(left):
            shutil.rmtree(left.parent, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    lock = (scratch / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    # An empty lock file is about to be locked: see `is_abandoned`.
    lock.write(str(os.getpid()))
    lock.flush()
    _HELD.append(lock)
    return scratch


def is_abandoned(lock: Path) -> bool:
    """Whether the process that made the lock's directory has ended, which released the lock."""
    try:
        with lock.open("r+") as file:
            if not file.read():
                return False
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        # It is locked, belongs to another user, or has just been removed.
        return False


def _command(java: Java, conf: Mapping[str, str], memory: str, flags: tuple[str, ...], scratch: Path) -> list[str]:
    # An archive of classes is valid only for the same order of jars.
    jars = sorted(str(path) for path in (spark_home() / "jars").glob("*.jar"))
    newer = ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"] if java.major >= 23 else []
    settings = [word for name, value in sorted(conf.items()) for word in ("--conf", f"{name}={value}")]
    return [
        str(java.command), "-cp", os.pathsep.join(jars), f"-Xmx{memory}",
        *[f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED], *newer, *_ALWAYS, *_STARTS_SOON,
        *flags,
        f"-Dlog4j2.configurationFile={scratch / 'log4j2.properties'}", f"-Djava.io.tmpdir={scratch}",
        "org.apache.spark.deploy.SparkSubmit", *settings, "pyspark-shell",
    ]  # fmt: skip


def _await_connection(process: subprocess.Popen[bytes], info: Path) -> tuple[int, str]:
    """Return port and secret, which the JVM writes to `info` (renamed when complete). Raise JvmFailed."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + limits.JVM_START_SECONDS_MAX * 1000
    while not info.is_file():
        if process.poll() is not None:
            raise JvmFailed(f"Spark's JVM ended with status {process.returncode} before it was ready")
        if clock.monotonic_ms() > deadline_ms:
            process.kill()
            raise JvmFailed(f"Spark's JVM was not ready after {limits.JVM_START_SECONDS_MAX:.0f} s")
        time.sleep(0.02)
    data = info.read_bytes()
    port, size = struct.unpack(">ii", data[:8])
    return port, data[8 : 8 + size].decode()


@contextmanager
def attached(jvm: Jvm) -> Iterator[None]:
    """Connect PySpark to `jvm` within the context; afterwards child processes do not inherit its address."""
    os.environ["PYSPARK_GATEWAY_PORT"] = str(jvm.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = jvm.secret
    try:
        yield
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def spark_home() -> Path:
    """Return the directory of the package pyspark, without importing it. Raise JvmFailed if it is not installed."""
    return _package("pyspark")


def _package(name: str) -> Path:
    from importlib.util import find_spec

    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise JvmFailed("PySpark is not installed: pip install 'headrace[spark]'")
    return Path(spec.origin).parent


def archive_path(java: Java) -> Path:
    """Return the path of the user's archive of loaded classes for this Java and this Spark; it need not exist."""
    release = java.home / "release"
    build = release.read_text(errors="replace") if release.is_file() else str(java.major)
    key = hashlib.sha256(f"{java.home}|{build}|{spark_home()}|{version('pyspark')}".encode()).hexdigest()[:12]
    return cache_folder() / f"spark-{key}.jsa"


def _archive(java: Java) -> list[str]:
    # The JVM ignores an archive that does not fit.
    path = archive_path(java)
    if path.is_file():
        return [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return list(_UNVERIFIED) if java.major <= _UNVERIFIED_JAVA_MAX else []
