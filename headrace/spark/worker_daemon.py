"""PySpark's daemon of workers, silent about a worker that Spark had closed already.

When a query ends while a worker writes, PySpark prints the worker's BrokenPipeError with its traceback, into the
output of whoever runs the job. Spark, which closed the pipe, needs not be told; so the worker just ends.
"""

from __future__ import annotations

from typing import Any

from pyspark import daemon

_worker = daemon.worker


def worker(sock: Any, authenticated: bool) -> int:
    """As PySpark's: the code that the worker ends with."""
    try:
        code: int = _worker(sock, authenticated)
    except BrokenPipeError:
        return 1
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
