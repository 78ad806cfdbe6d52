"""`headrace doctor`: check whether this machine has all that a server and a pipeline need, and print a line for each.

A slow disk or a low limit is a warning. The exit status is 1 if something is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from headrace.cli.arguments import EXIT_FAILED, add_command, add_json

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"

FSYNC_COUNT: Final = 32
FSYNC_MS_MAX: Final = 20.0
"""Above this, a person notices the time of each acknowledged write."""
FREE_BYTES_MIN: Final = 1024**3
OPEN_FILES_MIN: Final = 4096
MEMORY_BYTES_MIN: Final = 256 * 1024**2
_PACKAGES: Final = ("pymongo", "lmdb", "pcre2", "uvloop", "greenlet")
_SPARK_PACKAGES: Final = ("pyspark", "pyarrow", "deltalake")


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str
    state: str
    """`OK`, `WARNING` or `FAILED`."""
    text: str


def add_parser(commands: Any) -> None:
    """Add the subcommand `doctor`."""
    parser = add_command(
        commands, "doctor", _run, "check this machine",
        "Check what a server and a pipeline need of this machine: versions, Java, the disk's time for a durable write, "
        "free space, limits of the operating system. The status is 1 if something is missing.",
        ("headrace doctor", "headrace doctor /var/lib/headrace --json"),
    )  # fmt: skip
    parser.add_argument(
        "path",
        metavar="DIR",
        nargs="?",
        type=Path,
        help="a folder on the disk to check (default: that of `headrace serve`)",
    )
    add_json(parser)


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.cli.arguments import data_directory
    from headrace.cli.terminal import Painter

    path = arguments.path or _existing(data_directory())
    findings = list(examined(path))
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        painter = Painter()
        colours = {FAILED: "red", OK: "green", WARNING: "yellow"}
        for finding in findings:
            print(f"{painter(f'{finding.state:8}', colours[finding.state])} {finding.subject:10} {finding.text}")
    return EXIT_FAILED if any(finding.state == FAILED for finding in findings) else 0


def examined(path: Path) -> Iterator[Finding]:
    """Run all checks; `path` is a folder on the disk of a data directory."""
    yield Finding(
        "system", OK, f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores"
    )
    yield Finding("python", OK, f"{platform.python_version()} ({sys.executable})")
    yield from _packages()
    yield from _spark()
    yield from _disk(path)
    yield _open_files()
    yield _memory()


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _packages() -> Iterator[Finding]:
    versions = {name: _version(name) for name in ("headrace", *_PACKAGES)}
    missing = [name for name, installed in versions.items() if installed is None and name not in ("headrace", "uvloop")]
    text = ", ".join(f"{name} {installed}" for name, installed in versions.items() if installed is not None)
    yield Finding("packages", FAILED if missing else OK, f"{text}; missing: {', '.join(missing)}" if missing else text)


def _spark() -> Iterator[Finding]:
    versions = {name: _version(name) for name in _SPARK_PACKAGES}
    if versions["pyspark"] is None:
        yield Finding("spark", OK, "the pipeline is not installed: pip install 'headrace[spark]'")
        return
    text = ", ".join(f"{name} {installed}" for name, installed in versions.items() if installed is not None)
    yield Finding("spark", OK, text)
    from headrace.spark.session.jvm import JavaMissing, find_java

    try:
        java = find_java()
    except JavaMissing as error:
        yield Finding("java", FAILED, str(error))
    else:
        yield Finding("java", OK, f"{java.major} in {java.home}")


def _disk(path: Path) -> Iterator[Finding]:
    try:
        milliseconds = fsync_ms(path)
    except OSError as error:
        yield Finding("disk", FAILED, f"{path} cannot be written: {error.strerror}")
        return
    text = f"a durable write of 4 KiB takes {milliseconds:.2f} ms in {path}"
    yield Finding("disk", OK if milliseconds <= FSYNC_MS_MAX else WARNING, text)
    usage = shutil.disk_usage(path)
    yield Finding(
        "space", OK if usage.free >= FREE_BYTES_MIN else WARNING,
        f"{usage.free / 1024**3:.1f} GiB of {usage.total / 1024**3:.1f} GiB are free",
    )  # fmt: skip


def fsync_ms(path: Path, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the median time in ms of a 4 KiB write with its fdatasync. Raises OSError."""
    import statistics
    import tempfile

    times = []
    sync = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(dir=path, buffering=0) as file:
        for _ in range(FSYNC_COUNT):
            started = clock()
            file.write(bytes(4096))
            sync(file.fileno())
            times.append((clock() - started) * 1000)
    return statistics.median(times)


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN
    advice = f": a connection takes one; `ulimit -n {OPEN_FILES_MIN}` allows more" if few else ""
    return Finding("limits", WARNING if few else OK, f"{soft} open files{advice}")


def _memory() -> Finding:
    from headrace.memory_budget import default_bytes_max

    share = default_bytes_max()
    return Finding(
        "memory", OK if share >= MEMORY_BYTES_MIN else WARNING,
        f"clients may make a server hold {share / 1024**2:.0f} MiB (--memoryLimit)",
    )  # fmt: skip


def _existing(path: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return path if path.is_dir() else _existing(path.parent)
