"""The sessions of browsers, and their connections to the server.

A session begins with the token of the console's address and is identified by a cookie. It uses the connection of the
console's URI until its user signs in. Sessions with equal credentials share a connection, its samples and its change
streams. pymongo keeps credentials in this process's memory as long as a session uses them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pymongo.errors import PyMongoError

from headrace.cli.connection import Client, failure, opened
from headrace.cli.console.broadcast import MessageLog
from headrace.cli.console.tailing import Tails
from headrace.cli.monitoring.own_traffic import OPTIONS, OwnTraffic
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
    """The thread that samples one server every two seconds until `stop`, and keeps the samples of an hour.

    All browsers of a connection read the same samples. A sample has the output of `headrace status --json` and the
    round trip of a `ping`.
    """

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


SESSIONS_MAX: Final = 500
"""Beyond this number the least recently used session ends."""
ANSWERS_MAX: Final = 200
"""The most answers that a connection caches."""
IDLE_SECONDS: Final = 3600.0
"""After this time without a request or an event stream a session is signed out."""


class ServerConnection:
    """A client of the server with one user's credentials, shared by this user's sessions."""

    def __init__(self, client: Client, own: OwnTraffic) -> None:
        self.client = client
        self.sampler = Sampler(client, own)
        self.tails = Tails(client)
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._answers: dict[tuple[str, ...], tuple[float, Any]] = {}

    def cached(self, key: tuple[str, ...], seconds: float, ask: Callable[[], Any]) -> Any:
        """Return an answer of `ask` that is at most `seconds` old, so that many browsers cost as much as one.

        `key` is the path and its parameters. One thread at a time asks for a path.
        """
        with self._locks[key[0]]:
            kept = self._answers.get(key)
            if kept is not None and time.monotonic() - kept[0] < seconds:
                return kept[1]
            answer = ask()
            if len(self._answers) > ANSWERS_MAX:
                self._answers.clear()
            self._answers[key] = (time.monotonic(), answer)
            return answer

    def close(self) -> None:
        """End the sampler and close the client."""
        self.sampler.stop()
        self.client.close()


class Sessions:
    """All sessions of a console. Use it on the event loop; only `connect` is safe from any thread."""

    def __init__(self, uri: str) -> None:
        """Make the connection of the URI, without connecting yet. Raises Failed, OptionError and PyMongoError."""
        self._uri = uri
        self.token = secrets.token_urlsafe(32)
        self._salt = secrets.token_bytes(32)
        self.base = self.connect()
        self.base.sampler.start()
        self._used: dict[str, float] = {}
        self._streaming: Counter[str] = Counter()
        """Open event streams by session."""
        self._keys: dict[str, bytes] = {}
        """The key in `_connections` of each session that has signed in."""
        self._connections: dict[bytes, ServerConnection] = {}

    def connect(self, **credentials: Any) -> ServerConnection:
        """Return a connection with credentials, without trying them. Safe from any thread."""
        own = OwnTraffic()
        options = {"appname": "headrace console", "event_listeners": [own], **OPTIONS, **credentials}
        return ServerConnection(opened(self._uri, **options), own)

    def begin(self, token: str) -> str | None:
        """Begin a session and return its cookie; None if the token is wrong."""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return None
        while len(self._used) >= SESSIONS_MAX:
            oldest = min(self._used, key=lambda name: self._used[name])
            self.sign_out(oldest)
            del self._used[oldest]
        session = secrets.token_urlsafe(32)
        self._used[session] = time.monotonic()
        return session

    def is_session(self, session: str) -> bool:
        """Return whether a cookie belongs to a session."""
        return session in self._used

    def connection(self, session: str) -> ServerConnection:
        """Return the connection of a session, mark the session as used, and sign out idle sessions."""
        now = time.monotonic()
        for name in [name for name in self._keys if not self._streaming[name]]:
            if now - self._used[name] > IDLE_SECONDS:
                self.sign_out(name)
        self._used[session] = now
        return self._connections[self._keys[session]] if session in self._keys else self.base

    @contextmanager
    def streaming(self, session: str) -> Iterator[None]:
        """Keep a session from being idle while the body runs, because an event stream is open."""
        self._streaming[session] += 1
        try:
            yield
        finally:
            self._streaming[session] -= 1
            if session in self._used:
                self._used[session] = time.monotonic()

    def sign_in(self, session: str, credentials: dict[str, str], connection: ServerConnection) -> None:
        """Give a session a connection with accepted credentials; reuse the one that already has these credentials."""
        self.sign_out(session)
        text = "\0".join(f"{name}={value}" for name, value in sorted(credentials.items()))
        key = hmac.digest(self._salt, text.encode("utf-8", "surrogatepass"), hashlib.sha256)
        if key in self._connections:
            connection.close()
        else:
            connection.sampler.start()
            self._connections[key] = connection
        self._keys[session] = key

    def sign_out(self, session: str) -> None:
        """Return a session to the connection of the URI; close the user's connection after its last session."""
        key = self._keys.pop(session, None)
        if key is not None and key not in self._keys.values():
            self._connections.pop(key).close()

    def close(self) -> None:
        """Close all connections."""
        for connection in (self.base, *self._connections.values()):
            connection.close()
