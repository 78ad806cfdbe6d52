"""The open change streams of a server, from `$currentOp`: how far each has read, and why it lags."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace.cli.connection import Client

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
