"""Keeps one process that has imported what a source needs, and copies it for each streaming query of a session.

Spark starts a Python process for each streaming query. Its imports take half a second of CPU time, more than the rest
of a small query. Here the first such process imports and then forks the *host*, which waits at a socket in the
session's scratch directory. The processes of later queries are copies of the host. They start in 40 ms and share its
memory.

    SparkContext.pythonExec → source_launcher.py → a copy of the host, or the first process → Spark's module

A copy ends when its launcher is killed, as Spark does when a query stops. The host ends with the program that started
the session. If anything here fails, the process is one as Spark would have started it.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from headrace.spark.session import source_launcher

_IMPORTED: Final = (source_launcher.MODULE, "headrace.spark.source.data_source", "headrace.spark.source.prefetch")
_REQUEST_BYTES_MAX: Final = 1 << 20
_LOOK_SECONDS: Final = 1.0
_WAITING_MAX: Final = 64


def main(path: str, module: str) -> None:
    """Fork a host and run the module, in this process and in copies of the host."""
    for name in _IMPORTED:
        with suppress(ImportError):
            import_module(name)
    with suppress(OSError):
        _fork_host(Path(path))
    sys.argv[1:] = []
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
                # The launcher of a copy gets no answer, and runs the source itself.
                os._exit(1)


def _detach() -> None:
    """Leave the first source's session and output: it would not end for Spark before its output is closed."""
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
    inode = path.stat().st_ino
    with suppress(FileNotFoundError):
        # Of several sources that begin at the same time, each makes a host, and the last one stays.
        while path.stat().st_ino == inode and not is_abandoned(path.with_name("lock")):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                return connection
            connection.close()
    return None


def _become(launcher: socket.socket) -> None:
    """Take the launcher's directory, environment and output, and end when it does."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    launcher.settimeout(source_launcher.ANSWER_SECONDS_MAX)
    request, streams, _, _ = socket.recv_fds(launcher, _REQUEST_BYTES_MAX, 2)
    folder, *variables = request.split(b"\0")
    os.chdir(folder)
    os.environb.clear()
    for variable in variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    for stream, target in zip(streams, (1, 2), strict=True):
        os.dup2(stream, target)
        os.close(stream)
    launcher.send(b"1")
    launcher.settimeout(None)
    threading.Thread(target=_end_with, args=(launcher,), daemon=True).start()


def _end_with(launcher: socket.socket) -> None:
    """End this process when the launcher has ended."""
    with suppress(OSError):
        launcher.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
