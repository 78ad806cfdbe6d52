"""The batches that this process's sinks are writing, by query, so that the end of a query or of the process can wait.

Spark calls sinks on daemon threads, which Python abandons when the process ends. A thread in native code (such as
Delta's) may then crash the process, so the process's end waits for these threads. Usually Spark's driver does, unless
the JVM has died first. A query that is stopped during a batch ends with an error and a Java stack trace, because Spark
cancels its jobs.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace import limits


class QueryStopping(RuntimeError):
    """A batch came while its query is being stopped; the next run of the query repeats the batch.

    If a function of `foreachBatch` fails after the query was stopped, Spark ends the query without an error, provided
    that the message has this text, which an interrupted Java call has.
    """

    def __init__(self) -> None:
        interrupted = "py4j.protocol.Py4JJavaError: An error occurred while calling java.lang.InterruptedException"
        super().__init__(f"the query is stopping; its next run repeats this batch ({interrupted})")


class ActiveBatches:
    """The active batches, by query. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queries: list[str] = []
        self._holder_count = 0
        self._ending = False

    def begin(self, query: str) -> None:
        """Begin a batch of a sink. While batches are held, wait and then raise QueryStopping.

        When the process ends, never return: an error of the sink would be an error of the query.
        """
        with self._changed:
            if self._holder_count:
                self._changed.wait_for(lambda: not self._holder_count)
                raise QueryStopping
            if self._ending:
                self._changed.wait_for(lambda: False)
            self._queries.append(query)

    def finish(self, query: str) -> None:
        """End a batch, whether the sink has written it or failed."""
        with self._changed:
            self._queries.remove(query)
            self._changed.notify_all()

    def wait(self, query: str | None, timeout_s: float, *, ending: bool = False) -> bool:
        """Wait until no batch (of the query, if given) is being written. Return False after the timeout."""
        with self._changed:
            self._ending = self._ending or ending
            return self._changed.wait_for(
                lambda: query not in self._queries if query is not None else not self._queries, timeout_s
            )

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """Hold new batches within the context, while queries are stopped; enter it when running batches have ended."""
        with self._changed:
            self._holder_count += 1
        try:
            self.wait(None, timeout_s)
            yield
        finally:
            with self._changed:
                self._holder_count -= 1
                self._changed.notify_all()


ACTIVE: Final = ActiveBatches()
atexit.register(ACTIVE.wait, None, limits.SINK_EXIT_SECONDS_MAX, ending=True)
