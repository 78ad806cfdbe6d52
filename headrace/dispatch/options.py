"""The options of a server, from the command line or from `headrace.Server(...)`.

Times are in the units of the flag they come from; `None` means the default that only the running
server can work out (5 % of the free disk, but at least 1 GiB).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from headrace import limits

MECHANISMS: Final = ("MONGODB-X509", "SCRAM-SHA-1", "SCRAM-SHA-256")
"""The mechanisms for logins."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS as `--tlsMode` and the flags beside it describe it."""

    certificate_key_file: Path
    """The server's certificate, those between it and the authority, and its private key, as PEM."""
    mode: str = "requireTLS"
    """`allowTLS`, `preferTLS` (both: plain clients, too) or `requireTLS`. `disabled` is no TLS options at all."""
    certificate_key_password: str | None = field(default=None, repr=False)
    """The password of the private key; None: the key is not encrypted."""
    ca_file: Path | None = None
    """The authorities of clients' certificates, as PEM."""
    revocation_file: Path | None = None
    """Lists of certificates that these authorities have revoked, as PEM."""
    allow_connections_without_certificates: bool = False
    """Clients need no certificate; one that they send is checked nevertheless."""
    allow_invalid_certificates: bool = False
    """Clients are not asked for certificates, so no client can log in by X.509."""
    disabled_protocols: frozenset[str] = frozenset()
    """The versions `TLS1_2` and `TLS1_3` to refuse. Older versions are always refused."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The audit log, as `--auditDestination` and the flags beside it describe it."""

    destination: str = "file"
    """`file`, `console` or `syslog`."""
    path: Path | None = None
    """The file of the destination `file`."""
    filter: str | None = None
    """A filter of MongoDB's query language, as JSON, for the events; None: all."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options that are fixed when a server starts. Options that can change later are parameters
    (`setParameter`)."""

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
    """Require a login, and for each command the privileges that it declares."""
    mechanisms: tuple[str, ...] = MECHANISMS
    """The mechanisms for logins that are enabled."""
    ttl_seconds: int = limits.TTL_SECONDS
    """Seconds between two rounds of the TTL indexes, at first: a parameter changes it."""
    localhost_exception: bool = True
    """A client on this machine may create the first user."""
    allow_unauthenticated: bool = False
    """Listen on addresses that other machines reach, without authentication."""
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
    readers: int = 0
    """Processes that run long reads, at most; 0: the server runs them itself."""
    map_bytes: int = limits.MAP_BYTES
    """Address space for the data file, in bytes, and so its greatest size."""
    enable_test_commands: bool = False
    """Enable `configureFailPoint` and other commands for tests."""
    log_format: str = "text"
    """`text`, or `json`: MongoDB's structured lines."""
    slow_ms: int | None = 100
    """How long a command takes that the log has a line for, until `profile` sets another; None: no such lines."""
    slow_share: float = 1.0
    """The share of slow commands that is logged and profiled."""
    profile_level: int = 0
    """The profiler's level of every database, until the command `profile` sets another: 0, 1 or 2."""
    quiet: bool = False
    """Log warnings only."""
    logpath: Path | None = None
    """Log file of the daemon; None: the standard output."""
    logappend: bool = False
    """Append to an existing log file instead of renaming it."""
    reopens_log: bool = False
    """On rotation, open the log file again, which another program has renamed, instead of renaming it."""
    metrics_address: str = "127.0.0.1"
    """The address for `metrics_port`."""
    metrics_port: int | None = None
    """TCP port for `/metrics` and `/healthz` over HTTP; 0 picks a free one, None: there is none."""
    fork: bool = False
    """Run the daemon in the background."""
    pidfilepath: Path | None = None
    """File for the daemon's process id."""
    advertised_host: str | None = None
    """The `host:port` that hello answers; None: the address that the client connected to."""
    argv: tuple[str, ...] = field(default=(), compare=False)
    """The command line, for `getCmdLineOpts`."""


OPTION_NAMES: Final = frozenset(field.name for field in fields(ServerOptions)) - {"bind_ips", "dbpath"}
"""The options of a server or store in a program, beside its path and host."""
