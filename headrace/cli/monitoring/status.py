"""`headrace status`: the activity of a server, and which change streams lag, and why."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.arguments import add_command, add_json, add_uri, number_argument

if TYPE_CHECKING:
    from headrace.cli.connection import Client
    from headrace.cli.monitoring.own_traffic import OwnTraffic

PIPELINE: Final = [{"$currentOp": {"allUsers": True, "idleCursors": True}}]
PAUSED_SECS: Final = 2.0
"""After this time without a getMore the client is the reason that its stream lags."""


@dataclass
class OpenStream:
    """One open change stream."""

    scope: str
    """`db.collection`, `db`, or `all databases`."""
    client: str
    user: str | None
    pipeline: list[Any]
    """The stages after `$changeStream`."""
    is_waiting: bool
    """Whether the client waits for events now."""
    idle_secs: float
    """The time since the client's last getMore."""
    event_count: int
    caught_up: bool | None
    """None if the server does not report it, as MongoDB."""
    reads: str | None
    """`memory` or `oplog`."""
    lag_secs: int
    has_slow_stages: bool

    @property
    def is_slow(self) -> bool:
        """Whether events wait longer than it takes to deliver them."""
        if self.caught_up is None:
            return not self.is_waiting and self.idle_secs >= PAUSED_SECS
        return not self.caught_up and self.lag_secs >= PAUSED_SECS

    @property
    def reason(self) -> str:
        """The reason why the stream is slow, in a few words; empty if it is not."""
        from headrace.cli.terminal import duration

        if not self.is_slow:
            return ""
        if not self.is_waiting and self.idle_secs >= PAUSED_SECS:
            return f"its client has not asked for {duration(self.idle_secs)}"
        if self.has_slow_stages:
            return "its stages take long"
        if self.reads == "oplog":
            return "it reads from disk what memory no longer holds"
        return "its client reads more slowly than others write"

    def document(self) -> dict[str, Any]:
        """Return the stream for scripts."""
        return {
            "scope": self.scope, "client": self.client, "user": self.user, "pipeline": self.pipeline,
            "waiting": self.is_waiting, "idleSecs": round(self.idle_secs, 3), "events": self.event_count,
            "caughtUp": self.caught_up, "reads": self.reads, "lagSecs": self.lag_secs, "slow": self.is_slow,
            "reason": self.reason,
        }  # fmt: skip


def open_streams(client: Client, now: datetime) -> list[OpenStream]:
    """Return the open streams, the slowest first. `now` is the server's time. Raises PyMongoError."""
    streams = []
    for operation in client.admin.aggregate(PIPELINE):
        cursor = operation.get("cursor") or {}
        pipeline = (cursor.get("originatingCommand") or {}).get("pipeline") or []
        is_stream = "changeStream" in operation or (pipeline and "$changeStream" in pipeline[0])
        if is_stream:
            streams.append(_stream(operation, cursor, pipeline, now))
    return sorted(streams, key=lambda stream: (not stream.is_slow, -stream.lag_secs, -stream.idle_secs, stream.scope))


def _stream(operation: dict[str, Any], cursor: dict[str, Any], pipeline: list[Any], now: datetime) -> OpenStream:
    progress = operation.get("changeStream") or {}
    users = operation.get("effectiveUsers") or [{}]
    read = cursor.get("lastAccessDate")
    is_waiting = operation.get("type") == "op"
    return OpenStream(
        scope=_scope(operation.get("ns", "")),
        client=operation.get("appName") or _driver(operation) or operation.get("client", ""),
        user=users[0].get("user"),
        pipeline=pipeline[1:],
        is_waiting=is_waiting,
        idle_secs=0.0 if read is None or is_waiting else max((now - read).total_seconds(), 0.0),
        event_count=int(cursor.get("nDocsReturned", 0)),
        caught_up=progress.get("caughtUp"),
        reads=progress.get("reads"),
        lag_secs=int(progress.get("lagSecs", 0)),
        has_slow_stages=bool(progress.get("slowStages")),
    )


def _scope(namespace: str) -> str:
    database, _, collection = namespace.partition(".")
    if collection == "$cmd.aggregate":
        return "all databases" if database == "admin" else database
    return namespace


def _driver(operation: dict[str, Any]) -> str:
    driver = (operation.get("clientMetadata") or {}).get("driver") or {}
    return str(driver.get("name", ""))


STREAM_COUNT: Final = 20
"""Without `--all`, this many streams are listed, the slowest first."""
_DESCRIPTION: Final = (
    "Show what a server does: operations and commits a second, memory, and the open change streams with their lag, the "
    "slowest first, and why they are slow. For a MongoDB server: the fields it reports."
)
UNAUTHORIZED: Final = 13
_OPERATIONS: Final = ("insert", "query", "update", "delete", "getmore", "command")


def add_parser(commands: Any) -> None:
    """Add the subcommand `status`."""
    examples = ("headrace status", "headrace status --json | jq '.streams[] | select(.slow)'")
    parser = add_command(commands, "status", _run, "show what a server does, and its streams", _DESCRIPTION, examples)
    add_uri(parser)
    add_interval(parser, "measure rates over N seconds")
    parser.add_argument("--all", action="store_true", help=f"list all streams, not only the first {STREAM_COUNT}")
    add_json(parser)


_SECONDS: Final = number_argument(float, 0.1, 3600, "a number of seconds from 0.1 to 3600")


def add_interval(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add `--interval`."""
    parser.add_argument("--interval", metavar="SECONDS", type=_SECONDS, default=1.0, help=f"{meaning} (default: 1)")


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.cli.terminal import Painter, one_line, width

    with observed(arguments.uri) as take:
        before = take()
        time.sleep(arguments.interval)
        status = Status(before, take())
    if arguments.json:
        print(one_line(status.document()))
    else:
        columns = width() if sys.stdout.isatty() else None
        print("\n".join(status.lines(Painter(), columns, None if arguments.all else STREAM_COUNT)))
    return 0


@dataclass
class ServerSample:
    """The figures of a server at one moment."""

    at: float
    """Seconds of the monotonic clock."""
    status: dict[str, Any]
    streams: list[OpenStream]
    own_connections: int = 0
    """This program's connections, which the server counts too."""
    own_commands: dict[str, int] = field(default_factory=dict)
    """This program's commands so far, by their names in opcounters."""
    streams_problem: str = ""
    """Why the user may not see the streams; empty if all are listed."""


@contextmanager
def observed(uri: str) -> Iterator[Callable[[], ServerSample]]:
    """Yield a function that asks the server for a sample. Raises Failed, also for driver errors in the body."""
    from headrace.cli.connection import connected
    from headrace.cli.monitoring.own_traffic import OPTIONS, OwnTraffic

    own = OwnTraffic()
    with connected(uri, event_listeners=[own], **OPTIONS) as client:
        yield lambda: sample_of(client, own)


def sample_of(client: Client, own: OwnTraffic) -> ServerSample:
    """Ask the server for a sample. Raises PyMongoError."""
    from pymongo.errors import OperationFailure

    from headrace.cli.connection import failure

    commands = dict(own.commands)
    status = client.admin.command("serverStatus", codec_options=client.codec_options)
    at, now = time.monotonic(), status["localTime"]
    streams, problem = [], ""
    try:
        streams = open_streams(client, now)
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        problem = str(failure(error))
    return ServerSample(at, status, streams, own.connections(client.address), commands, problem)


class Status:
    """The state of a server and its rates, from two samples."""

    def __init__(self, before: ServerSample, after: ServerSample) -> None:
        self._before = before
        self._after = after
        self.streams = after.streams

    def rate(self, *path: str) -> float | None:
        """Return the growth per second of a counter of serverStatus; None if the server has no such counter."""
        one, other = _at(self._before.status, path), _at(self._after.status, path)
        if other is None:
            return None
        own = 0
        if path[0] == "opcounters":
            own = self._after.own_commands.get(path[1], 0) - self._before.own_commands.get(path[1], 0)
        return float(max(other - (one or 0) - own, 0) / max(self._after.at - self._before.at, 1e-9))

    def _connections(self) -> int | None:
        current = _at(self._after.status, ("connections", "current"))
        return None if current is None else max(int(current) - self._after.own_connections, 0)

    def document(self) -> dict[str, Any]:
        """Return the status for scripts."""
        status, memory = self._after.status, self._after.status.get("mem", {})
        commits, writes = self.rate("metrics", "commits", "total"), self.rate("metrics", "commits", "writes")
        return {
            "host": status.get("host"),
            "process": status.get("process"),
            "version": status.get("headraceVersion", status.get("version")),
            "uptimeSecs": int(status.get("uptime", 0)),
            "connections": self._connections(),
            "operationsPerSec": {name: _rounded(self.rate("opcounters", name)) for name in _OPERATIONS},
            "commitsPerSec": _rounded(commits),
            "writesPerCommit": _rounded(writes / commits if commits and writes is not None else None),
            "bytesInPerSec": _rounded(self.rate("network", "bytesIn")),
            "bytesOutPerSec": _rounded(self.rate("network", "bytesOut")),
            "memory": {
                "residentMiB": memory.get("resident"), "countedBytes": memory.get("countedBytes"),
                "limitBytes": memory.get("limitBytes"), "cutOff": memory.get("cutOff"),
                "largest": memory.get("largest"),
            },
            "streams": [stream.document() for stream in self.streams],
            **({"streamsProblem": self._after.streams_problem} if self._after.streams_problem else {}),
        }  # fmt: skip

    def lines(self, painter: Any, columns: int | None, stream_count: int | None) -> Iterator[str]:
        """Yield the status for people in lines of at most `columns` characters; None for any length."""
        from headrace.cli.terminal import duration, printable, size

        shown = self.document()
        memory = shown["memory"]

        def row(title: str, text: str) -> str:
            return f"{painter(f'{title:13}', 'bold')}{printable(text)}"

        yield row(
            "server", f"{shown['process']} {shown['version']} at {shown['host']}, up {duration(shown['uptimeSecs'])}"
        )
        yield row("connections", f"{shown['connections']}")
        rates = [f"{name} {rate:.0f}" for name, rate in shown["operationsPerSec"].items() if rate is not None]
        yield row("operations", f"{', '.join(rates)} a second")
        if shown["commitsPerSec"] is not None:
            batch = "" if shown["writesPerCommit"] is None else f", {shown['writesPerCommit']:.1f} writes each"
            yield row("commits", f"{shown['commitsPerSec']:.0f} a second{batch}")
        counted = memory["countedBytes"]
        budget = "" if counted is None else f"; clients hold {size(counted)} of {size(memory['limitBytes'])}"
        cut_off = f"; {memory['cutOff']} were cut off" if memory["cutOff"] else ""
        yield row("memory", f"{size((memory['residentMiB'] or 0) * 1024 * 1024)} resident{budget}{cut_off}")
        for account in (memory["largest"] or [])[:3]:
            yield row("", f"{size(account['bytes']):>9}  {account['holder']}")
        yield from self._stream_lines(painter, columns, stream_count)

    def _stream_lines(self, painter: Any, columns: int | None, count_max: int | None) -> Iterator[str]:
        from headrace.cli.terminal import duration, printable, shortened, shown, table

        slow = [stream for stream in self.streams if stream.is_slow]
        slow_text = f"{len(slow)} slow" if slow else "none is slow"
        title = painter(f"{'streams':13}", "bold")
        if self._after.streams_problem:
            yield f"{title}{printable(self._after.streams_problem)}"
            return
        yield f"{title}{len(self.streams)} open" + (
            f", {painter(slow_text, 'red') if slow else slow_text}" if self.streams else ""
        )
        if not self.streams:
            return
        rows = [
            (
                printable(stream.scope), _state(stream), duration(stream.lag_secs) if stream.lag_secs else "",
                stream.reason, f"{stream.event_count:,}", printable(shortened(stream.client, 24)),
                shown(stream.pipeline) if stream.pipeline else "",
            )
            for stream in self.streams[:count_max]
        ]  # fmt: skip
        yield ""
        lines = table(("SCOPE", "STATE", "LAG", "WHY", "EVENTS", "CLIENT", "PIPELINE"), rows, right=(2, 4))
        for index, line in enumerate(lines):
            is_slow = index > 0 and self.streams[index - 1].is_slow
            cut = line if columns is None else shortened(line, columns)
            yield painter(cut, *(["red"] if is_slow else ["bold"] if not index else []))
        left = len(self.streams) - len(rows)
        if left:
            yield f"and {left} more"


def _state(stream: OpenStream) -> str:
    if stream.caught_up is None:
        return "waiting" if stream.is_waiting else "idle"
    if stream.reads == "oplog":
        return "from disk"
    return "from memory" if stream.is_slow else "live"


def _at(status: dict[str, Any], path: Sequence[str]) -> Any:
    value: Any = status
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
