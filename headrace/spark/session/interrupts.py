"""The batches that this process's sinks are writing, and SIGINT in a process that starts a Spark session.

PySpark sets its own handler, and replaces any other. It cancels all jobs, also the job of a streaming query's batch, so
the query fails in the middle of a batch. It also talks to the JVM on a connection that may be in use, so the handler
itself fails. Here a program's own handler stays. Otherwise, in place of Python's or PySpark's handler, queries are
stopped in order, between two batches of Headrace's sinks; then KeyboardInterrupt is raised, as by PySpark.
"""

from __future__ import annotations

import atexit
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from headrace import limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class QueryStopping(RuntimeError):
    """A batch came while its query is being stopped; the next run of the query repeats the batch.

    If a function of `foreachBatch` fails after the query was stopped, Spark ends the query without an error, provided
    that the message has this text, which an interrupted Java call has.
    """

    def __init__(self) -> None:
        interrupted = "py4j.protocol.Py4JJavaError: An error occurred while calling java.lang.InterruptedException"
        super().__init__(f"the query is stopping; its next run repeats this batch ({interrupted})")


class ActiveBatches:
    """The batches that sinks are writing, by query, so that the end of a query or of the process can wait. Thread-safe.

    Spark calls sinks on daemon threads, which Python abandons when the process ends. A thread in native code (such as
    Delta's) may then crash the process, so the process's end waits for these threads. Usually Spark's driver does,
    unless the JVM has died first. A query that is stopped during a batch ends with an error and a Java stack trace,
    because Spark cancels its jobs.
    """

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


_POLL_S: Final = 0.01


@contextmanager
def handler_restored() -> Iterator[None]:
    """A context in which PySpark makes a session without changing the handler of SIGINT."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupted)
        elif before is not None:
            signal.signal(signal.SIGINT, before)


def replace_handler() -> None:
    """Replace PySpark's handler, if it is set, after other code has made the session."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
        if getattr(handler, "__qualname__", "").startswith("SparkContext."):
            signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: Any) -> NoReturn:
    """Stop jobs and queries on a separate thread: the interrupted thread may be waiting for Spark's answer."""
    stopping = threading.Thread(target=_stop_all, name="interrupted", daemon=True)
    stopping.start()
    stopping.join(limits.SINK_EXIT_SECONDS_MAX)
    raise KeyboardInterrupt


def _stop_all() -> None:
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession
    # The program is interrupted, whatever error Spark raises.
    with suppress(Exception):
        if session is not None:
            _cancel_jobs(session)
            if not _at_a_prompt():
                _stop_queries(session.streams.active)


def _stop_queries(queries: list[StreamingQuery]) -> None:
    """Stop queries when no sink is writing. A batch that comes meanwhile is held until Spark knows that they stop."""

    def stop(query: StreamingQuery) -> None:
        with suppress(Exception):
            query.stop()

    stopping = [threading.Thread(target=stop, args=(query,), daemon=True) for query in queries]
    with ACTIVE.held(limits.SINK_EXIT_SECONDS_MAX):
        for thread in stopping:
            thread.start()
        pause = threading.Event()
        while any(thread.is_alive() and query.isActive for thread, query in zip(stopping, queries, strict=True)):
            pause.wait(_POLL_S)
    for thread in stopping:
        thread.join()


def _cancel_jobs(session: SparkSession) -> None:
    """Cancel the jobs that do not belong to a streaming query; jobs of a query are in its group."""
    context = session.sparkContext
    for job in context.statusTracker().getJobIdsForGroup(None):
        context._jsc.sc().cancelJob(job)  # type: ignore[union-attr]


def _at_a_prompt() -> bool:
    """Whether this is a prompt: there an interrupt discards the typed line, and queries continue in the background."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)
