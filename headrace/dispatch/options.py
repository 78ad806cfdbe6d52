"""The options of a server, from the command line or from `headrace.Server(...)`.

Times are in the units of the flag they come from; `None` means the default that only the running
server can work out (5 % of the free disk, but at least 1 GiB).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What is fixed when a server starts. What can change later is a parameter (`setParameter`)."""

    dbpath: Path
    """The data directory, created if missing."""
    bind_ips: tuple[str, ...] = ("127.0.0.1",)
    """Addresses to listen on; empty for none (Unix socket only)."""
    port: int = 27017
    """0 picks a free one."""
    unix_socket_prefix: Path | None = None
    """Folder of the Unix socket `mongodb-PORT.sock`; None: no Unix socket."""
    unix_socket_mode: int = 0o700
    """The permissions of that socket."""
    allow_unauthenticated: bool = False
    """Listen on addresses that other machines reach, though nobody is asked who he is."""
    replica_set: str = "rs0"
    """Name of the replica set."""
    oplog: bool = True
    """False: a standalone; no `local` database, no change streams."""
    oplog_bytes_max: int | None = None
    """Size limit of the oplog; None: 5 % of the free disk, at least 1 GiB."""
    oplog_hours: float = 24.0
    """Age limit of the oplog; 0: none."""
    oplog_entries_max: int | None = None
    """Limit of oplog entries; None: none."""
    memory_bytes_max: int | None = None
    """Memory that clients may make the server hold; None: a quarter of the machine's, or of its control group's."""
    enable_test_commands: bool = False
    """Enable `configureFailPoint` and other commands for tests."""
    quiet: bool = False
    """Log warnings only."""
    logpath: Path | None = None
    """Log file of the daemon; None: the standard output."""
    logappend: bool = False
    """Append to an existing log file instead of renaming it."""
    fork: bool = False
    """Run the daemon in the background."""
    pidfilepath: Path | None = None
    """File for the daemon's process id."""
    advertised_host: str | None = None
    """The `host:port` that hello answers; None: the address that the client connected to."""
    argv: tuple[str, ...] = field(default=(), compare=False)
    """The command line, for `getCmdLineOpts`."""
