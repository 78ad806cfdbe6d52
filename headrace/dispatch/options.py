"""The options of a server, from the command line or from `headrace.Server(...)`.

Times are in the units of the flag they come from; `None` means the default that only the running
server can work out (5 % of the free disk, but at least 1 GiB).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """All that can be chosen at the start; what may change later is a parameter (`setParameter`)."""

    dbpath: Path
    bind_ips: tuple[str, ...] = ("127.0.0.1",)
    """Addresses to listen on; empty for none (Unix socket only)."""
    port: int = 27017
    """0 picks a free one."""
    unix_socket_prefix: Path | None = None
    """Folder of the Unix socket `mongodb-PORT.sock`; None: no Unix socket."""
    replica_set: str = "rs0"
    oplog: bool = True
    """False: a standalone; no `local` database, no change streams."""
    oplog_bytes_max: int | None = None
    oplog_hours: float = 24.0
    """Entries younger than this are retained unless another bound removes them; 0: no bound by time."""
    oplog_entries_max: int | None = None
    """None: no bound by number."""
    enable_test_commands: bool = False
    """`configureFailPoint` and its like."""
    quiet: bool = False
    logpath: Path | None = None
    logappend: bool = False
    fork: bool = False
    pidfilepath: Path | None = None
    advertised_host: str | None = None
    """The `host:port` that hello answers; None: the address that the client connected to."""
    argv: tuple[str, ...] = field(default=(), compare=False)
    """The command line, for `getCmdLineOpts`."""
