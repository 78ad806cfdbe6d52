"""The server as commands describe it to clients: versions, addresses and the topology."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from bson import Int64, ObjectId, Timestamp

from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import ClientInfo
from headrace.hashing import sha256

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine


def first_history_id(options: ServerOptions) -> bytes:
    """Return the history id for a data directory whose version stored none. It is derived, so that it never changes."""
    return sha256(f"{options.replica_set}\0{options.dbpath.absolute()}".encode())[:12]


def op_time(timestamp: Timestamp) -> dict[str, Any]:
    """Return a replica set's optime: the timestamp and the term, which is always 1 in a set of one."""
    return {"ts": timestamp, "t": Int64(1)}


MONGODB_VERSION: Final = (8, 2, 0)
"""The release whose behaviour Headrace follows."""
MONGODB_VERSION_TEXT: Final = ".".join(map(str, MONGODB_VERSION))
FEATURE_VERSION: Final = f"{MONGODB_VERSION[0]}.{MONGODB_VERSION[1]}"


@cache
def headrace_version() -> str:
    """Return the installed version of Headrace; `unknown` if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and not needed to open a server

    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"


_COUNTER_IN_A_SET: Final = 6
"""The topology counter of a mongod that has become the primary of a new set."""


ELECTION_ID: Final = ObjectId("7fffffff0000000000000001")
"""The election id that mongod makes in term 1."""


def topology_version(engine: Engine) -> dict[str, Any]:
    """Return hello's `topologyVersion`. Its counter grows when the server steps down, and when it is primary again."""
    first = _COUNTER_IN_A_SET if engine.options.oplog else 0
    return {"processId": engine.process_id, "counter": Int64(first + engine.primacy.change_count)}


def host_of(engine: Engine, client: ClientInfo) -> str:
    """Return the `host:port` for hello: from `--advertise`, or the address that the client connected to."""
    return engine.options.advertised_host or client.local_host
