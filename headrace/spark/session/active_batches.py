"""The batches that this process's sinks are writing, by their queries: the end of queries, or of the process, waits.

Spark calls sinks on daemon threads, which Python abandons at its end. One that is amid native code (Delta's, say) may
then crash the process, so its end waits for them: a driver's end usually, unless Spark's JVM has died first. And a
query that is stopped amid a batch ends with an error and a trace of Java, as Spark cancels its jobs.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace import limits


class QueryStopping(RuntimeError):
    """A batch came as its query is stopped; the next run of the query repeats it.

    Spark ends a query without an error if a function of `foreachBatch` fails when the query was stopped, and its
    message has this text, as that of an interrupted call of Java's has.
    """

    def __init__(self) -> None:
        interrupted = "py4j.protocol.Py4JJavaError: An error occurred while calling java.lang.InterruptedException"
        super().__init__(f"the query is stopping; its next run repeats this batch ({interrupted})")


class ActiveBatches:
    """See above. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queries: list[str] = []
        self._holder_count = 0
        self._ending = False

    def begin(self, query: str) -> None:
        """A sink is about to write. While batches are held it waits, then raises QueryStopping.

        Once the process ends it never returns: a sink that raised would be an error of the query.
        """
        with self._changed:
            if self._holder_count:
                self._changed.wait_for(lambda: not self._holder_count)
                raise QueryStopping
            if self._ending:
                self._changed.wait_for(lambda: False)
            self._queries.append(query)

    def finish(self, query: str) -> None:
        """The sink has written, or failed."""
        with self._changed:
            self._queries.remove(query)
            self._changed.notify_all()

    def wait(self, query: str | None, timeout_s: float, *, ending: bool = False) -> bool:
        """Waits until no batch (of the query, if given) is being written; False if the time is up."""
        with self._changed:
            self._ending = self._ending or ending
            return self._changed.wait_for(
                lambda: query not in self._queries if query is not None else not self._queries, timeout_s
            )

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """While queries are stopped inside the context, no batch begins; those that were being written have ended."""
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
