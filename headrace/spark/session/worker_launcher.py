"""Starts a Python process for Spark: a copy of the session's host, or the first process, which makes the host.

    python -IS worker_launcher.py PYTHON SOCKET MODULE [ARGUMENT...]

Spark runs this file through the program that `program` writes. It uses the standard library alone, so that it starts
in 15 ms. `worker_host.py` has the other half, and says why.
"""

from __future__ import annotations

import os
import socket
import sys

HOST_MODULE = "headrace.spark.session.worker_host"
ANSWER_SECONDS_MAX = 5.0
_PROGRAM = """\
#!/bin/sh
case "$1 $2" in "-m pyspark."*) shift; exec {launch} "$@";; esac
exec {python} "$@"
"""


def program(scratch: str, python: str) -> str:
    """Write the program that Spark runs as its Python, and return its path; `python` where copies are not safe."""
    import shlex

    if sys.platform != "linux":
        # Elsewhere libraries of the system may not survive a fork.
        return python
    path = os.path.join(scratch, "python-for-spark")
    launch = shlex.join([python, "-IS", __file__, python, os.path.join(scratch, "workers")])
    with open(path, "w", encoding="utf-8", opener=_executable) as file:
        file.write(_PROGRAM.format(launch=launch, python=shlex.quote(python)))
    return path


def _executable(path: str, flags: int) -> int:
    return os.open(path, flags, 0o700)


def wait_for_copy(path: str, arguments: list[str]) -> bool:
    """Have the host make a copy of itself that runs the module, and wait until it ends. Return False without a host.

    The copy gets this process's directory, environment, input and output, and ends when this process does.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER_SECONDS_MAX)
        try:
            connection.connect(path)
            socket.send_fds(connection, [encode_request(arguments)], [0, 1, 2])
            if not connection.recv(1):
                return False
            connection.settimeout(None)
            connection.recv(1)
        except OSError:
            return False
    return True


def encode_request(arguments: list[str]) -> bytes:
    """Return this process's directory, arguments and environment, separated by zero bytes."""
    variables = (name + b"=" + value for name, value in os.environb.items())
    return b"\0".join([os.getcwdb(), b"%d" % len(arguments), *map(os.fsencode, arguments), *variables])


def main(python: str, path: str, *arguments: str) -> None:
    """Run the module, in a copy of the host or here."""
    if not wait_for_copy(path, list(arguments)):
        os.execv(python, [python, "-m", HOST_MODULE, path, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
