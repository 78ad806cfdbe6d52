"""`make demo`: run the server, the flights, Spark and the check in one process and its JVM.

The exit status is 1 if the check fails.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Event
from typing import Final

from pymongo import MongoClient
from tqdm import tqdm

import headrace
from headrace.demo.flights import Write, writes
from headrace.demo.replay import replay
from headrace.spark.errors import redacted
from headrace.spark.mirror import BatchReport, Mirror, follow
from headrace.spark.session import get_session
from headrace.spark.verify.comparison import compare

DATABASE: Final = "airline"
COLLECTION: Final = "flights"
# The writes are spread over this many seconds, or take longer if the server is slower.
REPLAY_S: Final = 15.0


class DemoMetrics:
    """A listener of the job that counts events and records the lag of every batch in milliseconds."""

    def __init__(self) -> None:
        self.started = Event()
        self.reported = Event()
        self.event_count = 0
        self.lags_ms: list[int] = []

    def __call__(self, report: BatchReport) -> None:
        self.event_count += report.event_count
        if report.first_event_ms is not None:
            self.lags_ms.append(report.committed_ms - report.first_event_ms)
        self.started.set()
        self.reported.set()

    def wait_for(self, event_count: int) -> None:
        """Wait until `event_count` events are counted, or until no batch has come for five seconds."""
        while self.event_count < event_count and self.reported.wait(5):
            self.reported.clear()

    @property
    def lag(self) -> str:
        """The lag of the last batch, for the progress bar."""
        return f"{self.lags_ms[-1]} ms" if self.lags_ms else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; return 1 if the table and the collection differ, otherwise 0."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace.demo", description="Replay flights into a server and follow them into a table."
    )
    parser.add_argument("--days", type=int, default=1, choices=range(1, 366), metavar="1..365", help="days of flights")
    parser.add_argument("--keep", type=Path, help="folder for the table (default: a temporary one)")
    parser.add_argument("--kind", choices=["delta", "parquet"], default="delta", help="the table's format")
    parser.add_argument("--seconds", type=float, default=REPLAY_S, help="least duration of the replay")
    parser.add_argument("--uri", help="a MongoDB-compatible server to use instead of an embedded one")
    given = parser.parse_args(arguments)
    folder: AbstractContextManager[str] = nullcontext(str(given.keep)) if given.keep else tempfile.TemporaryDirectory()
    server = nullcontext(given.uri) if given.uri else headrace.Server()
    with folder as directory, server as running:
        uri = given.uri or running.uri
        say(f"Server listens at {redacted(uri)}")
        mirror = Mirror(uri, DATABASE, COLLECTION, Path(directory) / COLLECTION, given.kind)
        return run(mirror, writes(given.days), given.days, given.seconds)


def run(mirror: Mirror, planned: list[Write], days: int, seconds: float) -> int:
    """Write the flights while the job runs, compare the table with the collection, and return the exit status."""
    say("Spark starts…")
    session = get_session(quick=True)
    metrics = DemoMetrics()
    client: MongoClient[dict[str, object]] = MongoClient(mirror.uri)
    client.drop_database(mirror.database)
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(follow, mirror, stop, session=session, listener=metrics)
        while not metrics.started.wait(0.1):
            if job.done():
                job.result()
        try:
            took_s = write(client, mirror, planned, seconds, metrics)
            metrics.wait_for(len(planned))
        finally:
            stop.set()
        job.result()
    return report(mirror, metrics, len(planned), took_s, days)


def write(
    client: MongoClient[dict[str, object]], mirror: Mirror, planned: list[Write], seconds: float, metrics: DemoMetrics
) -> float:
    """Write the flights in about `seconds`, with a progress bar; return the seconds taken."""
    flights = sum(write.kind == "insert" for write in planned)
    with tqdm(total=len(planned), unit=" events", desc=f"{flights} flights", mininterval=0.25) as bar:

        def advance_bar() -> None:
            bar.set_postfix_str(f"in the table {metrics.event_count}, lag {metrics.lag}", refresh=False)
            bar.update()

        return replay(
            client[mirror.database][mirror.collection],
            planned,
            a_second=len(planned) / seconds,
            after_write=advance_bar,
        )


def report(mirror: Mirror, metrics: DemoMetrics, event_count: int, took_s: float, days: int) -> int:
    """Print the figures and whether the table equals the collection; return the exit status."""
    comparison = compare(mirror)
    lags_ms = sorted(metrics.lags_ms) or [0]
    worst = lags_ms[min(len(lags_ms) - 1, round(0.95 * len(lags_ms)))]
    outcome = "equal, row for row" if comparison.equal else "NOT EQUAL"
    plural = "s" if days > 1 else ""
    say(f"events    {event_count} of {days} day{plural} in {took_s:.1f} s, {event_count / took_s:.0f} a second")
    say(f"applied   {metrics.event_count} events, in {len(lags_ms)} batches")
    say(f"lag       {statistics.median(lags_ms):.0f} ms median, {worst} ms 95th percentile over the batches,")
    say("          from the write of a batch's first event to its commit in the table")
    say(f"checked   table and collection are {outcome} ({comparison})")
    return 0 if comparison.equal else 1


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
