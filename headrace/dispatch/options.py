"""The options of a server, from the command line or from `headrace.Server(...)`.

Times are in the units of the flag they come from; `None` means the default that only the running
server can work out (5 % of the free disk, but at least 1 GiB).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace import limits

MECHANISMS: Final = ("MONGODB-X509", "SCRAM-SHA-1", "SCRAM-SHA-256")
"""By which there can be logins."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS as `--tlsMode` and the flags beside it describe it."""

    certificate_key_file: Path
    """The server's certificate, those between it and the authority, and its private key, as PEM."""
    mode: str = "requireTLS"
    """`allowTLS`, `preferTLS` (both: plain clients, too) or `requireTLS`. `disabled` is no TLS options at all."""
    certificate_key_password: str | None = field(default=None, repr=False)
    """What the private key is encrypted with; None: it is not."""
    ca_file: Path | None = None
    """The authorities of clients' certificates, as PEM."""
    revocation_file: Path | None = None
    """Lists of certificates that these authorities have revoked, as PEM."""
    allow_connections_without_certificates: bool = False
    """Clients need no certificate; one that they send is checked nevertheless."""
    allow_invalid_certificates: bool = False
    """Clients are not asked for certificates, so nobody can log in by X.509."""
    disabled_protocols: frozenset[str] = frozenset()
    """Of `TLS1_2` and `TLS1_3`, those that are not spoken. Older ones never are."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The audit log, as `--auditDestination` and the flags beside it describe it."""

    destination: str = "file"
    """`file`, `console` or `syslog`."""
    path: Path | None = None
    """Of the destination `file`."""
    filter: str | None = None
    """A filter of MongoDB's query language, as JSON, for the events; None: all."""


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
    auth: bool = False
    """Require of each command the privileges that it declares, of a user who has logged in."""
    mechanisms: tuple[str, ...] = MECHANISMS
    """By which clients may log in."""
    localhost_exception: bool = True
    """A client on this machine may create the first user."""
    allow_unauthenticated: bool = False
    """Listen on addresses that other machines reach, though nobody is asked who he is."""
    audit: AuditOptions | None = None
    """The audit log; None: there is none."""
    tls: TlsOptions | None = None
    """TLS; None: no socket speaks it."""
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
    map_bytes: int = limits.MAP_BYTES
    """Address space for the data file, in bytes, and so its greatest size."""
    enable_test_commands: bool = False
    """Enable `configureFailPoint` and other commands for tests."""
    log_format: str = "text"
    """`text`, or `json`: MongoDB's structured lines."""
    slow_ms: int | None = 100
    """How long a command takes that the log has a line for, until `profile` sets another; None: no such lines."""
    slow_share: float = 1.0
    """Of what is slow, the share that is logged and profiled."""
    profile_level: int = 0
    """The profiler's level of every database, until the command `profile` sets another: 0, 1 or 2."""
    quiet: bool = False
    """Log warnings only."""
    logpath: Path | None = None
    """Log file of the daemon; None: the standard output."""
    logappend: bool = False
    """Append to an existing log file instead of renaming it."""
    reopens_log: bool = False
    """A rotation opens the log file again, which somebody else has renamed, instead of renaming it."""
    fork: bool = False
    """Run the daemon in the background."""
    pidfilepath: Path | None = None
    """File for the daemon's process id."""
    advertised_host: str | None = None
    """The `host:port` that hello answers; None: the address that the client connected to."""
    argv: tuple[str, ...] = field(default=(), compare=False)
    """The command line, for `getCmdLineOpts`."""
