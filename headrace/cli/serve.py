"""`headrace serve`: turn mongod's flags into `ServerOptions` and run a server until a signal.

A flag of mongod that has no meaning or a different one here is refused with the reason.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final

from headrace import limits
from headrace.cli.arguments import data_directory, number_argument, port_argument, positive
from headrace.cli.background import Announce, notify_ready, open_log, pid_file, run_in_background
from headrace.cli.serve_beside import ServedConsole, add_backup_flags, add_console_flags, backup_words, console_words
from headrace.cli.tls_flags import BadOptions, add_tls_flags, tls_options_of, without_passwords
from headrace.dispatch.options import MECHANISMS, AuditOptions, ServerOptions
from headrace.errors import reason_of

_NO_KEY_FILE: Final = "Headrace is a set of one member and needs no key between members; access control is --auth"
_NO_SHARDS: Final = "Headrace is not part of a sharded cluster"
_NO_PEERS: Final = "a set of one connects to no other server"
_NO_SELECTOR: Final = "certificates are read from files: --tlsCertificateKeyFile"
_OLD_NAME: Final = "the flag is spelled --tls... : --tlsMode, --tlsCertificateKeyFile, --tlsCAFile"

REFUSED_FLAGS: Final[dict[str, str]] = {
    "--configsvr": _NO_SHARDS,
    "--directoryperdb": "all databases are in one file",
    "--keyFile": _NO_KEY_FILE,
    "--repair": "the data file needs no repair: acknowledged writes are intact after any crash",
    "--shardsvr": _NO_SHARDS,
    "--sslCAFile": _OLD_NAME,
    "--sslMode": _OLD_NAME,
    "--sslPEMKeyFile": _OLD_NAME,
    "--storageEngine": "LMDB is the only storage engine",
    "--syslog": "log to a file with --logpath, or to the standard output",
    "--tlsAllowInvalidHostnames": _NO_PEERS,
    "--tlsCertificateSelector": _NO_SELECTOR,
    "--tlsClusterCAFile": _NO_PEERS,
    "--tlsClusterCertificateSelector": _NO_PEERS,
    "--tlsClusterFile": _NO_PEERS,
    "--tlsClusterPassword": _NO_PEERS,
    "--tlsFIPSMode": "use a Python whose OpenSSL is in FIPS mode",
    "--tlsLogVersions": "serverStatus counts connections by version: transportSecurity",
    "--wiredTigerCacheSizeGB": "the operating system's page cache is the cache",
}

EXIT_FAILED: Final = 1
EXIT_BAD_OPTIONS: Final = 2
"""The status of mongod, and of argparse, for options that do not go together."""
EXIT_ADDRESS_IN_USE: Final = 48
"""mongod's status when it cannot listen."""
EXIT_DIRECTORY_IN_USE: Final = 100
_MEGABYTE: Final = 1024 * 1024


class _Refuse(argparse.Action):
    """The action of a known flag that is refused."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        parser.error(f"{option}: {REFUSED_FLAGS[option or '']}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add mongod's flags, with mongod's spelling, and Headrace's own."""
    add = parser.add_argument
    add("--config", "-f", metavar="FILE", type=Path, help="read settings from this file, as mongod.conf has them")
    add("--dbpath", metavar="PATH", type=Path, help="the data directory, created if missing (default: one per user)")
    add("--port", type=port_argument, default=27017, help="TCP port; 0 picks a free one (default: %(default)s)")
    address = parser.add_mutually_exclusive_group()
    address.add_argument(
        "--bind_ip", metavar="HOSTS", help="addresses to listen on, separated by commas (default: 127.0.0.1)"
    )
    address.add_argument("--bind_ip_all", action="store_true", help="listen on all addresses")
    add(
        "--allowUnauthenticated",
        action="store_true",
        help="listen on addresses that other machines reach, though there are no users",
    )
    add("--ipv6", action="store_true", help="with --bind_ip_all: on IPv6, too")
    add(
        "--unixSocketPrefix",
        metavar="PATH",
        type=Path,
        default=Path("/tmp"),
        help="folder of the Unix socket mongodb-PORT.sock",
    )
    add(
        "--filePermissions",
        metavar="MODE",
        type=number_argument(partial(int, base=8), 0, 0o777, "an octal file mode: 0000 to 0777"),
        default=0o700,
        help="permissions of the Unix socket, as an octal number (default: 0700)",
    )
    add_tls_flags(add)
    add("--nounixsocket", action="store_true", help="no Unix socket")
    add(
        "--advertise", metavar="HOST:PORT", help="address that hello returns (default: the one the client connected to)"
    )
    access = parser.add_mutually_exclusive_group()
    access.add_argument(
        "--auth", action="store_true", help="require users to log in, with the privileges that each command needs"
    )
    access.add_argument("--noauth", action="store_true", help="let everybody do everything (the default)")
    add("--replSet", metavar="NAME", default="rs0", help="name of the replica set of one (default: %(default)s)")
    _add_storage_flags(add)
    add("--no-oplog", action="store_true", help="a standalone: no local database and no change streams")
    add("--logpath", metavar="FILE", type=Path, help="log to this file instead of the standard output")
    _add_audit_flags(add)
    add_backup_flags(add)
    add_console_flags(add)
    add(
        "--metricsPort",
        metavar="N",
        type=port_argument,
        help="answer GET /metrics, for Prometheus, and /healthz on this TCP port; 0 picks a free one (default: none)",
    )
    add("--metricsAddress", metavar="HOST", help="the address for --metricsPort (default: 127.0.0.1)")
    add("--logFormat", choices=("text", "json"), default="text", help="lines as text, or as mongod's (default: text)")
    _add_profiling_flags(add)
    _add_rotation_flags(add)
    add("--fork", action="store_true", help="run in the background; returns when the server listens, or has failed")
    add("--shutdown", action="store_true", help="end the server that has --dbpath open, and wait until it has ended")
    add("--pidfilepath", metavar="FILE", type=Path, help="write the process id to this file; it is removed at the end")
    add("--quiet", action="store_true", help="log warnings only")
    add("--enable-test-commands", action="store_true", help="enable fail points, for tests of drivers")
    add("--setParameter", metavar="NAME=VALUE", action="append", default=[], type=_parameter, help=argparse.SUPPRESS)
    for flag in REFUSED_FLAGS:
        add(flag, nargs="?", action=_Refuse, help=argparse.SUPPRESS, dest="refused")


def _add_rotation_flags(add: Callable[..., Any]) -> None:
    add(
        "--logRotate",
        choices=("rename", "reopen"),
        default="rename",
        help="what logRotate, SIGUSR1 and SIGHUP do with the log: rename it, or open it again, which needs --logappend",
    )
    add("--logappend", action="store_true", help="append to an existing log file instead of renaming it")


def _add_storage_flags(add: Callable[..., Any]) -> None:
    add(
        "--oplogSize",
        metavar="MB",
        type=_positive_number,
        help="size limit of the oplog (default: 5%% of the free disk, at least 1 GiB or a quarter of it)",
    )
    add("--oplogMinRetentionHours", metavar="HOURS", type=_hours, default=24.0, help="age limit of the oplog; 0: none")
    add("--oplogEntriesMax", metavar="N", type=positive, help="limit of oplog entries (default: none)")
    add(
        "--memoryLimit",
        metavar="BYTES",
        type=_bytes,
        help="memory that clients can make the server hold, such as 512M or 2G (default: a quarter of the machine's)",
    )
    add(
        "--readers",
        metavar="N",
        type=_count,
        help="processes that run long reads, each started when it is needed; 0: none (default: one for each core)",
    )
    add(
        "--mapSize",
        metavar="BYTES",
        type=_bytes,
        default=limits.MAP_BYTES,
        help="address space for the data file, and so its greatest size (default: 1T); smaller where that is limited",
    )


def _add_profiling_flags(add: Callable[..., Any]) -> None:
    add("--slowms", metavar="MS", type=_count, default=100, help="log commands that take MS or longer (default: 100)")
    add(
        "--slowOpSampleRate",
        metavar="SHARE",
        type=number_argument(float, 0, 1, "a number from 0 to 1"),
        default=1.0,
        help="share of the slow commands that is logged and profiled, 0 to 1 (default: 1)",
    )
    add(
        "--profile",
        metavar="LEVEL",
        type=_count,
        choices=(0, 1, 2),
        default=0,
        help="profile slow commands (1) or all (2) of every database, in its system.profile (default: 0)",
    )


def _add_audit_flags(add: Callable[..., Any]) -> None:
    add("--auditDestination", choices=("console", "file", "syslog"), help="where the audit log goes (default: none)")
    add("--auditFilter", metavar="JSON", help="a filter for the events of the audit log (default: all)")
    add("--auditFormat", choices=("JSON",), help="the audit log's format, JSON, which --auditDestination file needs")
    add("--auditPath", metavar="FILE", type=Path, help="the audit log's file")


def _byte_count(text: str) -> int:
    """Parse a number of bytes, or of K, M, G or T (powers of 1024)."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}.get(text[-1:].upper(), 1)
    return int(float(text if unit == 1 else text[:-1]) * unit)


_bytes = number_argument(
    _byte_count, limits.MEMORY_BYTES_LEAST, 2**63, f"a number of bytes from {limits.MEMORY_BYTES_LEAST} on, such as 2G"
)
_hours = number_argument(float, 0, sys.float_info.max, "a number of hours")
_count = number_argument(int, 0, inf, "a whole number of at least 0")
_positive_number = number_argument(float, sys.float_info.min, sys.float_info.max, "a number above 0")


def _parameter(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if name == "ocspEnabled" and value not in ("0", "false"):
        raise argparse.ArgumentTypeError("Headrace asks no OCSP responder: use --tlsCRLFile")
    if name == "ocspEnabled":
        return name, value
    if name == "authenticationMechanisms":
        if not set(value.split(",")) <= set(MECHANISMS):
            raise argparse.ArgumentTypeError(f"{text}: there are {', '.join(MECHANISMS)}")
    elif name == "ttlMonitorSleepSecs":
        if not value.isdecimal() or int(value) == 0:
            raise argparse.ArgumentTypeError(f"{text}: the value is a whole number of seconds above 0")
    elif (
        not sign
        or name not in ("enableLocalhostAuthBypass", "enableTestCommands")
        or value not in ("0", "1", "false", "true")
    ):
        raise argparse.ArgumentTypeError(
            "only authenticationMechanisms=NAMES, enableLocalhostAuthBypass=0, enableTestCommands=1 and "
            f"ttlMonitorSleepSecs=SECONDS can be set here, not {text}"
        )
    return name, value


def options_of(arguments: argparse.Namespace, words: Sequence[str]) -> ServerOptions:
    """Return the options of a parsed command line. Raises `BadOptions`."""
    hosts = tuple(host.strip() for host in (arguments.bind_ip or "127.0.0.1").split(",") if host.strip())
    if arguments.bind_ip_all:
        hosts = ("0.0.0.0", "::") if arguments.ipv6 else ("0.0.0.0",)
    parameters = dict(arguments.setParameter)
    mechanisms = parameters.get("authenticationMechanisms", ",".join(MECHANISMS)).split(",")
    test_commands = parameters.get("enableTestCommands") in ("1", "true")
    return ServerOptions(
        dbpath=(arguments.dbpath or data_directory()).absolute(),
        bind_ips=hosts,
        port=arguments.port,
        unix_socket_prefix=None if arguments.nounixsocket else arguments.unixSocketPrefix,
        unix_socket_mode=arguments.filePermissions,
        auth=arguments.auth,
        mechanisms=tuple(sorted(set(mechanisms))),
        ttl_seconds=int(parameters.get("ttlMonitorSleepSecs", limits.TTL_SECONDS)),
        localhost_exception=parameters.get("enableLocalhostAuthBypass") not in ("0", "false"),
        allow_unauthenticated=arguments.allowUnauthenticated,
        audit=_audit_options(arguments),
        tls=tls_options_of(arguments),
        replica_set=arguments.replSet.partition("/")[0],
        oplog=not arguments.no_oplog,
        oplog_bytes_max=None if arguments.oplogSize is None else int(arguments.oplogSize * _MEGABYTE),
        oplog_hours=arguments.oplogMinRetentionHours,
        oplog_entries_max=arguments.oplogEntriesMax,
        memory_bytes_max=arguments.memoryLimit,
        readers=_cores() if arguments.readers is None else arguments.readers,
        map_bytes=arguments.mapSize,
        enable_test_commands=arguments.enable_test_commands or test_commands,
        log_format=arguments.logFormat,
        slow_ms=arguments.slowms,
        slow_share=arguments.slowOpSampleRate,
        profile_level=arguments.profile,
        quiet=arguments.quiet,
        logpath=arguments.logpath and arguments.logpath.absolute(),
        logappend=arguments.logappend,
        reopens_log=_reopens_log(arguments),
        metrics_address=_metrics_address(arguments),
        metrics_port=arguments.metricsPort,
        fork=arguments.fork,
        pidfilepath=arguments.pidfilepath and arguments.pidfilepath.absolute(),
        advertised_host=arguments.advertise,
        argv=("headrace", *without_passwords(words)),
    )


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _metrics_address(arguments: argparse.Namespace) -> str:
    if arguments.metricsAddress is not None and arguments.metricsPort is None:
        raise BadOptions("--metricsAddress needs --metricsPort")
    return arguments.metricsAddress or "127.0.0.1"


def _reopens_log(arguments: argparse.Namespace) -> bool:
    reopens: bool = arguments.logRotate == "reopen"
    if reopens and not arguments.logappend:
        raise BadOptions("--logRotate reopen needs --logappend")
    return reopens


def _audit_options(arguments: argparse.Namespace) -> AuditOptions | None:
    destination, path = arguments.auditDestination, arguments.auditPath
    if destination is None:
        for flag in ("auditFilter", "auditFormat", "auditPath"):
            if getattr(arguments, flag) is not None:
                raise BadOptions(f"--{flag} needs --auditDestination")
        return None
    if destination == "file" and (path is None or arguments.auditFormat is None):
        raise BadOptions("--auditDestination file needs --auditPath and --auditFormat JSON")
    return AuditOptions(destination, path and path.absolute(), arguments.auditFilter)


def serve(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Serve until a signal; return 0, or print the reason on stderr and return one of the statuses above."""
    try:
        options = options_of(arguments, words)
        backup = backup_words(arguments, options.dbpath)
        console = ServedConsole(console_words(arguments, options))
    except BadOptions as error:
        return _fail(str(error), EXIT_BAD_OPTIONS)
    if arguments.shutdown:
        return shut_down(options.dbpath)
    if options.fork and options.logpath is None:
        return _fail("--fork requires --logpath", EXIT_FAILED)
    if options.fork:
        return run_in_background(partial(_run, options, backup, console))
    return _run(options, backup, console, _say)


def shut_down(path: Path) -> int:
    """Send SIGTERM to the server of a data directory and wait for its end; return 1 if no server has it open."""
    from headrace.store.lmdb import holder_of, wait_until_free

    holder = holder_of(path)
    if holder is None:
        return _fail(f"no server has the data directory {path} open", EXIT_FAILED)
    try:
        os.kill(holder, signal.SIGTERM)
    except OSError as error:
        return _fail(f"the server with process id {holder} cannot be ended: {error.strerror}", EXIT_FAILED)
    print(f"killing process with pid: {holder}", flush=True)
    wait_until_free(path)
    return 0


def _run(options: ServerOptions, backup: list[str] | None, console: ServedConsole, announce: Announce) -> int:
    from headrace.server import daemon
    from headrace.server.audit import AuditError
    from headrace.server.listener import raise_descriptor_limit
    from headrace.server.protection import UnprotectedAddress
    from headrace.server.tls.context import TlsError
    from headrace.store.data_file import UnusableDirectory
    from headrace.store.lmdb import DirectoryInUse

    try:
        check_startable(options)
        warning = None if options.logpath is None else open_log(options.logpath, append=options.logappend)
        _start_logging(options)
        if warning is not None:
            logging.getLogger("headrace.server").warning("%s", warning)
        raise_descriptor_limit()
        with pid_file(options.pidfilepath):
            rotated = (
                None if options.logpath is None else partial(open_log, options.logpath, append=options.reopens_log)
            )

            def listens(line: str) -> None:
                announce(line)
                notify_ready()
                console.start()

            daemon.run(options, listens, rotate_log=rotated, backup=backup)
    except DirectoryInUse as error:
        return _fail(str(error), EXIT_DIRECTORY_IN_USE)
    except (AuditError, TlsError, UnprotectedAddress) as error:
        return _fail(str(error), EXIT_BAD_OPTIONS)
    except UnusableDirectory as error:
        return _fail(str(error), EXIT_FAILED)
    except OSError as error:
        return _fail(reason_of(error), EXIT_ADDRESS_IN_USE if error.errno == errno.EADDRINUSE else EXIT_FAILED)
    finally:
        console.stop()
    return 0


def check_startable(options: ServerOptions) -> None:
    """Raise `DirectoryInUse`, or OSError for an address in use, before any log, pid file or directory changes."""
    from headrace.server.listener import bound_sockets
    from headrace.store.lmdb import locked_for_reading

    with locked_for_reading(options.dbpath):
        if options.port:
            for address in options.bind_ips:
                for bound in bound_sockets(address, options.port):
                    bound.close()


def _start_logging(options: ServerOptions) -> None:
    """Log to the standard error: warnings and, unless `quiet`, information."""
    from headrace.server.logs import formatter

    handler = logging.StreamHandler()
    handler.setFormatter(formatter(options.log_format))
    logging.basicConfig(level=logging.WARNING if options.quiet else logging.INFO, handlers=[handler])


def _say(line: str) -> None:
    print(line, flush=True)


def _fail(reason: str, status: int) -> int:
    print(f"headrace: {reason}", file=sys.stderr, flush=True)
    return status
