"""Starts a source's process for Spark: a copy of the session's host, or the first process, which makes the host.

    python -IS source_launcher.py PYTHON SOCKET MODULE

Spark runs this file through the program that `program` writes. It uses the standard library alone, so that it starts
in 15 ms. `source_host.py` has the other half, and says why.
"""

from __future__ import annotations

import os
import socket
import sys

MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
HOST_MODULE = "headrace.spark.session.source_host"
ANSWER_SECONDS_MAX = 5.0


def program(scratch: str, python: str) -> str:
    """Write the program that Spark runs as its Python, and return its path; `python` where copies are not safe."""
    import shlex

    if sys.platform != "linux":
        # Elsewhere libraries of the system may not survive a fork.
        return python
    path = os.path.join(scratch, "python-for-spark")
    launch = shlex.join([python, "-IS", __file__, python, os.path.join(scratch, "sources")])
    with open(path, "w", encoding="utf-8", opener=_executable) as file:
        file.write(f'#!/bin/sh\n[ "$1 $2" = "-m {MODULE}" ] && exec {launch} "$2"\nexec {shlex.quote(python)} "$@"\n')
    return path


def _executable(path: str, flags: int) -> int:
    return os.open(path, flags, 0o700)


def wait_for_copy(path: str) -> bool:
    """Have the host make a copy of itself that runs the source, and wait until it ends. Return False without a host.

    The copy gets this process's directory, environment and output, and ends when this process does.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER_SECONDS_MAX)
        try:
            connection.connect(path)
            socket.send_fds(connection, [encode_request()], [1, 2])
            if not connection.recv(1):
                return False
            connection.settimeout(None)
            connection.recv(1)
        except OSError:
            return False
    return True


def encode_request() -> bytes:
    """Return this process's directory and environment, separated by zero bytes."""
    variables = (name + b"=" + value for name, value in os.environb.items())
    return b"\0".join([os.getcwdb(), *variables])


def main(python: str, path: str, module: str) -> None:
    """Run the source, in a copy of the host or here."""
    if not wait_for_copy(path):
        os.execv(python, [python, "-m", HOST_MODULE, path, module])


if __name__ == "__main__":
    main(*sys.argv[1:])
