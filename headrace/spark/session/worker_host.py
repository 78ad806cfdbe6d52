"""Keeps one process that has imported what Spark's Python processes need, and copies it for each of them.

Spark starts a Python process for each streaming query, and others for schemas, plans and tasks. The imports of each
take half a second of CPU time, more than the rest of a small query. Here the first such process imports and then forks
the *host*, which waits at a socket in the session's scratch directory. Later processes are copies of the host. They
start in 40 ms and share its memory.

    SparkContext.pythonExec → worker_launcher.py → a copy of the host, or the first process → Spark's module

A copy ends when its launcher is killed, as Spark does when a query stops. The host ends with the program that started
the session. If anything here fails, the process is one as Spark would have started it.
"""

from __future__ import annotations

import fcntl
import gc
import os
import runpy
import signal
import socket
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from headrace.spark.session import worker_launcher

_IMPORTED: Final = (
    "pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read", "pyspark.sql.streaming.python_streaming_source_runner",
    "headrace.spark.source.data_source", "headrace.spark.source.readers",
)  # fmt: skip
# Variables that are read when Python starts or when a module is imported. Spark gives its workers one thread.
_READ_EARLY: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "", "LD_LIBRARY_PATH": "", "LD_PRELOAD": "", "MALLOC_CONF": "", "MKL_NUM_THREADS": "",
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "", "PYTHONHASHSEED": "", "PYTHONHOME": "", "PYTHONMALLOC": "",
    "PYTHONOPTIMIZE": "", "PYTHONPATH": "", "PYTHONWARNINGS": "", "TZ": "",
}  # fmt: skip
_REQUEST_BYTES_MAX: Final = 1 << 20
_LOOK_SECONDS: Final = 1.0
_WAITING_MAX: Final = 64


def main(path: str, *arguments: str) -> None:
    """Fork a host and run the module, in this process and in copies of the host."""
    os.environ.setdefault("OMP_NUM_THREADS", _READ_EARLY["OMP_NUM_THREADS"])
    # Libraries have threads of their own, which survive a fork or are not needed.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    for name in _IMPORTED:
        with suppress(ImportError):
            import_module(name)
    sys.argv[1:] = arguments
    with suppress(OSError):
        _fork_host(Path(path))
    module = sys.argv[1]
    del sys.argv[1]
    # The module runs as a program, which it does not while it is imported.
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _fork_host(path: Path) -> None:
    """Fork the host, in place of one that has ended. Return in the process that calls, and in copies of the host."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener:
        own = path.with_name(f"{path.name}.{os.getpid()}")
        listener.bind(str(own))
        gc.freeze()
        if os.fork() == 0:
            try:
                _detach()
                listener.listen(_WAITING_MAX)
                own.rename(path)
                launcher = _serve(listener, path)
                if launcher is None:
                    os._exit(0)
                _become(launcher)
            except (OSError, ValueError):
                # The launcher of a copy gets no answer, and runs the module itself.
                os._exit(1)


def _detach() -> None:
    """Leave the first process's session, input and output. Spark waits until all processes have closed the output."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)


def _serve(listener: socket.socket, path: Path) -> socket.socket | None:
    """Copy this process for each launcher. Return the connection to it in a copy, None at the end of the session."""
    from headrace.spark.session.jvm import is_abandoned

    listener.settimeout(_LOOK_SECONDS)
    inode, lock = path.stat().st_ino, path.with_name("lock")
    with suppress(FileNotFoundError):
        # Of several processes that begin at the same time, each makes a host, and the last one stays.
        while path.stat().st_ino == inode and lock.exists() and not is_abandoned(lock):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                return connection
            connection.close()
    return None


def _become(launcher: socket.socket) -> None:
    """Take the launcher's directory, arguments, environment, input and output, and end when it does.

    Raise ValueError if this process would be another one with that environment.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    launcher.settimeout(worker_launcher.ANSWER_SECONDS_MAX)
    request, streams, _, _ = socket.recv_fds(launcher, _REQUEST_BYTES_MAX, 3)
    folder, count, *texts = map(os.fsdecode, request.split(b"\0"))
    arguments, variables = texts[: int(count)], texts[int(count) :]
    environ = dict(variable.split("=", 1) for variable in variables)
    if _read_early(environ) != _read_early(os.environ):
        raise ValueError
    os.chdir(folder)
    sys.argv[1:] = arguments
    os.environ.clear()
    os.environ.update(environ)
    for stream, target in zip(streams, (0, 1, 2), strict=True):
        os.dup2(stream, target)
        os.close(stream)
    launcher.send(b"1")
    _end_with(launcher)


def _read_early(environ: Mapping[str, str]) -> list[str]:
    return [environ.get(name, default) for name, default in _READ_EARLY.items()]


def _end_with(launcher: socket.socket) -> None:
    """Let the system terminate this process when the launcher ends. Raise ConnectionError if it has ended."""
    connection = os.dup(launcher.fileno())  # is never closed
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)
    launcher.setblocking(False)
    with suppress(BlockingIOError):
        launcher.recv(1)
        raise ConnectionError("the launcher has ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
