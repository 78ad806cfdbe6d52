"""A thread for each connection that samples the server every two seconds and keeps the samples of an hour.

All browsers of a connection read the same samples. A sample has the output of `headrace status --json` and the round
trip of a `ping`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pymongo.errors import PyMongoError

from headrace.cli.connection import Client, failure
from headrace.cli.console.broadcast import MessageLog
from headrace.cli.monitoring.own_traffic import OwnTraffic
from headrace.cli.monitoring.status import ServerSample, Status, sample_of

INTERVAL_SECONDS: Final = 2.0
FAILED_SECONDS: Final = 8.0
"""The extra wait before the next sample after an error, such as a server that requires a user."""
SAMPLE_COUNT: Final = 1800
"""An hour of samples."""
LAGS_MAX: Final = 5
"""A sample keeps the lags of this many streams, the slowest ones."""
STREAM_COUNT_MAX: Final = 200
_LATENCIES: Final = ("reads", "writes", "commands")


class Sampler:
    """The thread that samples one server until `stop`."""

    def __init__(self, client: Client, own: OwnTraffic) -> None:
        self._client = client
        self._own = own
        self.log = MessageLog()
        self._points: deque[dict[str, Any]] = deque(maxlen=SAMPLE_COUNT)
        self._status: dict[str, Any] | None = None
        self._error: str | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="console sampler")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread at its next step."""
        self._stopped.set()

    def history(self) -> dict[str, Any]:
        """Return the newest status (None before the first), the points of the last hour (oldest first), and an error.

        A point has the numbers to plot; its `at` is in seconds since the Unix epoch. The error is the message of the
        last sample, None if that succeeded.
        """
        return {"status": self._status, "points": list(self._points), "error": self._error}

    def _run(self) -> None:
        before: ServerSample | None = None
        while not self._stopped.is_set():
            try:
                before = self._step(before)
                self._error = None
            except PyMongoError as error:
                self._error = str(failure(error))
                self.log.publish("trouble", {"error": self._error})
                before = None
                self._stopped.wait(FAILED_SECONDS)
            self._stopped.wait(INTERVAL_SECONDS)

    def _step(self, before: ServerSample | None) -> ServerSample:
        after = sample_of(self._client, self._own)
        began = time.perf_counter()
        self._client.admin.command("ping")
        round_trip_ms = (time.perf_counter() - began) * 1000
        if before is not None:
            shown = Status(before, after).document()
            point = point_of(shown, after.at - before.at, before.status, after.status)
            point["roundTripMs"] = round(round_trip_ms, 3)
            self._points.append(point)
            streams = shown["streams"]
            shown |= {"streams": streams[:STREAM_COUNT_MAX], "streamCount": len(streams)}
            self._status = shown
            self.log.publish("sample", {"status": shown, "point": point})
        return after


def point_of(
    shown: dict[str, Any], seconds: float, before: dict[str, Any], after: dict[str, Any],
    now: Callable[[], float] = time.time,
) -> dict[str, Any]:  # fmt: skip
    """Return the numbers of a sample to plot. Latencies are in ms, None if the server does not report them."""
    memory = shown["memory"]
    lags = [stream["lagSecs"] for stream in shown["streams"]]
    by_stream: dict[str, int] = {}
    for stream in sorted(shown["streams"], key=lambda stream: -stream["lagSecs"]):
        if stream["lagSecs"] and len(by_stream) < LAGS_MAX:
            by_stream.setdefault(" · ".join(filter(None, (stream["scope"], stream["client"]))), stream["lagSecs"])
    point = {
        "at": round(now(), 1), "lag": max(lags, default=0), "lags": by_stream,
        "streams": len(lags), "commits": shown["commitsPerSec"],
        "residentBytes": (memory["residentMiB"] or 0) * 1024 * 1024,
        "counted": memory["countedBytes"], "connections": shown["connections"],
    }  # fmt: skip
    point |= shown["operationsPerSec"]
    for name in _LATENCIES:
        one, other = ((status.get("opLatencies") or {}).get(name) or {} for status in (before, after))
        count = other.get("ops", 0) - one.get("ops", 0)
        point[f"{name}Ms"] = round((other["latency"] - one["latency"]) / count / 1000, 3) if one and count > 0 else None
    return point
