"""The server as commands describe it to clients: versions, addresses, the topology; the engine provides it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Protocol

from bson import Int64, ObjectId, Timestamp

from headrace.clock import Clock
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import ClientInfo
from headrace.dispatch.shell import Shell
from headrace.hashing import sha256
from headrace.memory_budget import Memory


def first_history_id(options: ServerOptions) -> bytes:
    """Return the id of the history in a directory of a version that stored none: derived, so that it stays the same."""
    return sha256(f"{options.replica_set}\0{options.dbpath.absolute()}".encode())[:12]


class ServerInfo(Protocol):
    """The parts of the engine that commands such as hello, buildInfo and serverStatus read."""

    options: ServerOptions
    process_id: ObjectId
    """New at each start, so that drivers recognize a restarted server (`topologyVersion.processId`)."""
    started_ms: int
    """Wall-clock milliseconds at the start."""
    parameters: dict[str, Any]
    """Current values of the parameters (`commands/server_info/parameters.py` has the table and the first values)."""
    metrics: dict[str, int]
    """Counters since the start by dotted name: `commands.find.total`, `document.inserted`, `network.bytesIn`."""
    memory: Memory
    """The memory of the process: its budget, and what counts."""
    shell: Shell
    """The server of sockets around it."""
    cursors: Any
    """The open cursors of all clients."""
    primacy: Any
    """Whether this is the primary: its `Primacy`."""
    connections_open: int
    connections_created: int

    @property
    def clock(self) -> Clock:
        """The engine's clock."""

    @property
    def commands(self) -> Mapping[str, Any]:
        """All commands, by name and by alias."""

    def end_sessions(self, sessions: list[bytes] | None) -> None:
        """Abort the transactions and close the cursors of these sessions (their 16 bytes); None: of all."""

    def last_write(self) -> tuple[Timestamp, int]:
        """Cluster time and wall-clock milliseconds of the last committed entry."""


def op_time(timestamp: Timestamp) -> dict[str, Any]:
    """A replica set's optime: the timestamp and the term, which is always 1 in a set of one."""
    return {"ts": timestamp, "t": Int64(1)}


MONGODB_VERSION: Final = (8, 2, 0)
"""The release whose behaviour Headrace follows."""
MONGODB_VERSION_TEXT: Final = ".".join(map(str, MONGODB_VERSION))
FEATURE_VERSION: Final = f"{MONGODB_VERSION[0]}.{MONGODB_VERSION[1]}"


@cache
def headrace_version() -> str:
    """The installed version of Headrace; `unknown` when it runs without being installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and not needed to open a server

    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"


_COUNTER_IN_A_SET: Final = 6
"""The topology counter of a mongod that has become the primary of a new set."""


ELECTION_ID: Final = ObjectId("7fffffff0000000000000001")
"""As mongod makes it in term 1."""


def topology_version(engine: Any) -> dict[str, Any]:
    """hello's `topologyVersion`. Its counter changes when the server steps down, and when it is the primary again."""
    first = _COUNTER_IN_A_SET if engine.options.oplog else 0
    return {"processId": engine.process_id, "counter": Int64(first + engine.primacy.change_count)}


def host_of(engine: ServerInfo, client: ClientInfo) -> str:
    """The `host:port` that hello answers: that of `--advertise`, or the address that the client connected to."""
    return engine.options.advertised_host or client.local_host
