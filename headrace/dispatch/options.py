"""The options of a server, from the command line or from `headrace.Server(...)`.

A time has the unit of its flag. `None` can mean a default that only the running server can compute, such as 5 % of the
free disk, but at least 1 GiB.
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
    """The TLS options: `--tlsMode` and related flags."""

    certificate_key_file: Path
    """A PEM file with the server's certificate, the intermediate certificates and the private key."""
    mode: str = "requireTLS"
    """`allowTLS`, `preferTLS` (both also accept plain clients) or `requireTLS`. `disabled`: no `TlsOptions` at all."""
    certificate_key_password: str | None = field(default=None, repr=False)
    """The password of the private key; None: the key is not encrypted."""
    ca_file: Path | None = None
    """A PEM file with the authorities of clients' certificates."""
    revocation_file: Path | None = None
    """A PEM file with lists of certificates that these authorities have revoked."""
    allow_connections_without_certificates: bool = False
    """Whether clients need no certificate. A certificate that a client sends is checked in any case."""
    allow_invalid_certificates: bool = False
    """Whether the server requests no certificates from clients. No client can then log in by X.509."""
    disabled_protocols: frozenset[str] = frozenset()
    """The versions `TLS1_2` and `TLS1_3` to refuse. Older versions are always refused."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The options of the audit log: `--auditDestination` and related flags."""

    destination: str = "file"
    """`file`, `console` or `syslog`."""
    path: Path | None = None
    """The file of the destination `file`."""
    filter: str | None = None
    """A filter for the events, in MongoDB's query language as JSON; None: log all events."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options that are fixed when a server starts. Options that can change later are parameters
    (`setParameter`)."""

    dbpath: Path
    """The data directory, created if missing."""
    bind_ips: tuple[str, ...] = ("127.0.0.1",)
    """Addresses to listen on; empty for none (Unix socket only)."""
    port: int = 27017
    """The TCP port; 0 picks a free one."""
    unix_socket_prefix: Path | None = None
    """Folder of the Unix socket `mongodb-PORT.sock`; None: no Unix socket."""
    unix_socket_mode: int = 0o700
    """The permissions of the Unix socket."""
    auth: bool = False
    """Require a login, and for each command the privileges that it declares."""
    mechanisms: tuple[str, ...] = MECHANISMS
    """The mechanisms for logins that are enabled."""
    ttl_seconds: int = limits.TTL_SECONDS
    """Initial seconds between two TTL passes; a parameter changes it later."""
    localhost_exception: bool = True
    """Whether a client on this machine may create the first user."""
    allow_unauthenticated: bool = False
    """Whether a server without authentication may listen on addresses that other machines reach."""
    audit: AuditOptions | None = None
    """The audit log; None: no audit log."""
    tls: TlsOptions | None = None
    """The TLS options; None: no TLS."""
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
    """Memory that clients may make the server hold; None: a quarter of the memory of the machine or control group."""
    readers: int = 0
    """The maximum number of processes that run long reads; 0: the server runs long reads itself."""
    map_bytes: int = limits.MAP_BYTES
    """The address space for the data file, in bytes. The data file cannot exceed it."""
    enable_test_commands: bool = False
    """Enable `configureFailPoint` and other commands for tests."""
    log_format: str = "text"
    """`text`, or `json`: MongoDB's structured lines."""
    slow_ms: int | None = 100
    """The duration from which a command is logged as slow, until `profile` sets another; None: log none."""
    slow_share: float = 1.0
    """The share of slow commands that is logged and profiled."""
    profile_level: int = 0
    """The profiler level of every database, 0, 1 or 2, until the command `profile` sets another."""
    quiet: bool = False
    """Log warnings only."""
    logpath: Path | None = None
    """Log file of the daemon; None: the standard output."""
    logappend: bool = False
    """Append to an existing log file instead of renaming it."""
    reopens_log: bool = False
    """On rotation, only reopen the log file, because another program has renamed the old one."""
    metrics_address: str = "127.0.0.1"
    """The address for `metrics_port`."""
    metrics_port: int | None = None
    """TCP port for `/metrics` and `/healthz` over HTTP; 0 picks a free one, None: no such port."""
    fork: bool = False
    """Run the daemon in the background."""
    pidfilepath: Path | None = None
    """File for the daemon's process id."""
    advertised_host: str | None = None
    """The `host:port` in hello replies; None: the address that the client connected to."""
    argv: tuple[str, ...] = field(default=(), compare=False)
    """The command line, for `getCmdLineOpts`."""


OPTION_NAMES: Final = frozenset(field.name for field in fields(ServerOptions)) - {"bind_ips", "dbpath"}
"""The options of a server or store inside a program, other than its path and host."""
