"""Recognizes that a Python process of Spark's was killed: a worker that reads a partition, or the planner of batches.

On a cluster Spark runs a task again, up to `spark.task.maxFailures` times. It does not with `local[N]`, and never for
the process that plans. Then the query ends, and a job starts it again: the checkpoint has the batch, which is the same.
(`local[N, F]` would also repeat a task F times if its source raises an error, which recurs each time.)
"""

from __future__ import annotations

import re
from typing import Final

_TASK: Final = re.compile(r"Python worker (exited unexpectedly|process terminated)")
_SOCKET: Final = re.compile(
    r"java\.(?:io\.EOFException|io\.IOException|net\.SocketException)[^\n]*(?:\n\s+at java[^\n]*)*"
    r"\n\s+at org\.apache\.spark\.[\w.]*\bPython"
)
"""An error of a socket or a pipe in one of Spark's classes for Python."""


class WorkerKilled(RuntimeError):
    """A Python process of Spark's was killed again and again, without a batch in between."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"a Python worker of Spark was killed {count} times in the same batch, perhaps for its memory: set "
            "maxBytesPerTrigger in [source] to less, or give the machine more; run the job again to resume"
        )


def is_worker_killed(error: Exception) -> bool:
    """Whether the query ended because a Python process of Spark's was killed."""
    text = f"{error}\n{getattr(error, '_stackTrace', '')}"
    return _TASK.search(text) is not None or _SOCKET.search(text) is not None
