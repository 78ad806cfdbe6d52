"""What the commands that describe the server may ask of it; the engine that runs commands is one of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from bson import Int64, ObjectId, Timestamp

from headrace.commands.options import ServerOptions


class Clock(Protocol):
    """The engine's clock; `headrace.clock.SystemClock` outside tests."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> float: ...


class ServerFacts(Protocol):
    """The server as its descriptive commands see it."""

    options: ServerOptions
    process_id: ObjectId
    """Made anew at each start: the drivers' sign that the server was restarted."""
    started_ms: int
    """Wall-clock milliseconds at the start."""
    parameters: dict[str, Any]
    """Current values of the parameters (`commands/parameters.py` has the table and the first values)."""
    metrics: dict[str, int]
    """Counters since the start by dotted name: `commands.find.total`, `document.inserted`, `network.bytesIn`."""
    shut_down: Callable[[], None] | None
    """Ends the server cleanly; None where the process that it is in decides."""
    log: Sequence[str]
    """The last lines of the server's log."""
    connections_open: int
    connections_created: int

    @property
    def clock(self) -> Clock:
        """What tells the time."""

    @property
    def commands(self) -> Mapping[str, Any]:
        """The whole table of commands, by name and by alias."""

    def end_sessions(self, sessions: list[bytes] | None) -> None:
        """Abort the transactions and close the cursors of these sessions (their 16 bytes); None: of all."""

    def last_write(self) -> tuple[Timestamp, int]:
        """Cluster time and wall-clock milliseconds of the last committed entry."""


def op_time(timestamp: Timestamp) -> dict[str, Any]:
    """A position as replica sets tell it: with the term, which for a set of one is always 1."""
    return {"ts": timestamp, "t": Int64(1)}
