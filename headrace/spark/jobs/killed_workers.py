"""Recognizes that a Python process of Spark's was killed: one that reads a partition, or that plans batches.

Spark runs a task again on a cluster, up to `spark.task.maxFailures` times. It does not with `local[N]`, and never for
the process that plans. Then the query ends, and a job starts it again: the batch is in the checkpoint, and is the same.
(`local[N, F]` would also run a task F times whose source raises an error, which is the same error each time.)
"""

from __future__ import annotations

import re
from typing import Final

_TASK: Final = re.compile(r"Python worker (exited unexpectedly|process terminated)")
_SOCKET: Final = re.compile(
    r"java\.(?:io\.EOFException|io\.IOException|net\.SocketException)[^\n]*(?:\n\s+at java[^\n]*)*"
    r"\n\s+at org\.apache\.spark\.[\w.]*\bPython"
)
"""An error of a socket or a pipe in a class of Spark's that is about Python."""


class WorkerKilled(RuntimeError):
    """A Python process of Spark's was killed again and again, with no batch between."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"a Python worker of Spark was killed {count} times in the same batch, perhaps for its memory: set "
            "maxBytesPerTrigger in [source] to less, or give the machine more; run the job again to resume"
        )


def is_worker_killed(error: Exception) -> bool:
    """Return whether the query ended because a Python process of Spark's did."""
    text = f"{error}\n{getattr(error, '_stackTrace', '')}"
    return _TASK.search(text) is not None or _SOCKET.search(text) is not None
