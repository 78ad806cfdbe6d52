"""What the commands that describe the server may ask of it; the engine that runs commands is one of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from bson import Int64, ObjectId, Timestamp

from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import ClientInfo
from headrace.dispatch.shell import Shell


class Clock(Protocol):
    """The engine's clock; `headrace.clock.SystemClock` outside tests."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> float: ...


class ServerInfo(Protocol):
    """The server as its descriptive commands see it."""

    options: ServerOptions
    process_id: ObjectId
    """Made anew at each start: the drivers' sign that the server was restarted."""
    started_ms: int
    """Wall-clock milliseconds at the start."""
    parameters: dict[str, Any]
    """Current values of the parameters (`commands/server_info/parameters.py` has the table and the first values)."""
    metrics: dict[str, int]
    """Counters since the start by dotted name: `commands.find.total`, `document.inserted`, `network.bytesIn`."""
    shell: Shell
    """The server of sockets around it."""
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


MONGODB_VERSION: Final = (8, 2, 0)
"""The release whose behaviour Headrace follows."""


MONGODB_VERSION_TEXT: Final = ".".join(map(str, MONGODB_VERSION))


FEATURE_VERSION: Final = f"{MONGODB_VERSION[0]}.{MONGODB_VERSION[1]}"


def headrace_version() -> str:
    """The installed version of Headrace; `unknown` when it runs without being installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and not needed to open a server

    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"


_COUNTER_IN_A_SET: Final = 6
"""What a mongod's topology counter is once it has become the primary of a new set."""


ELECTION_ID: Final = ObjectId("7fffffff0000000000000001")
"""As mongod makes it in term 1."""


def topology_version(engine: Any) -> dict[str, Any]:
    """What tells a driver that nothing has changed: the process, and the count of its changes."""
    return {"processId": engine.process_id, "counter": Int64(_COUNTER_IN_A_SET if engine.options.oplog else 0)}


def host_of(engine: ServerInfo, client: ClientInfo) -> str:
    """The address to tell this client: the operator's, or the one at which it has reached us."""
    return engine.options.advertised_host or client.local_host
