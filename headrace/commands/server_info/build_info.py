"""The identity of this server: buildInfo, hostInfo, getCmdLineOpts, getLog, features, listCommands.

Rule: `version` is the release of MongoDB that the server follows, because drivers and shells decide by it. Other fields
say openly that the server is Headrace.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.dispatch.api_version import IN_VERSION_1
from headrace.dispatch.arguments import Fields, string
from headrace.dispatch.command import Command, administrative
from headrace.dispatch.context import CommandContext
from headrace.dispatch.options import TlsOptions
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import ANYONE, on_cluster
from headrace.dispatch.server_info import MONGODB_VERSION, MONGODB_VERSION_TEXT, headrace_version
from headrace.errors import CommandError

_ON_LINUX: Final = sys.platform == "linux"
_LOGS: Final = ("global", "startupWarnings")


def build_info(context: CommandContext, request: Request) -> dict[str, Any]:
    """buildInfo: answer the MongoDB release that the server follows, and Headrace's own version."""
    import ssl  # late, to save memory in an embedded store

    return {
        "version": MONGODB_VERSION_TEXT,
        "gitVersion": "unknown",
        "modules": [],
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": [*MONGODB_VERSION, 0],
        "openssl": {"running": ssl.OPENSSL_VERSION, "compiled": ssl.OPENSSL_VERSION},
        "buildEnvironment": {
            "target_arch": platform.machine(),
            "target_os": sys.platform,
            "python": platform.python_version(),
        },
        "bits": 64 if sys.maxsize > 2**32 else 32,
        "debug": False,
        "maxBsonObjectSize": limits.DOCUMENT_BYTES_MAX,
        "storageEngines": ["lmdb"],
        "headrace": {"version": headrace_version(), "arrow": find_spec("pyarrow") is not None},
    }


def features(context: CommandContext, request: Request) -> dict[str, Any]:
    """features: answer as MongoDB without JavaScript."""
    return {"js": {"utf8": False}}


def host_info(context: CommandContext, request: Request) -> dict[str, Any]:
    """hostInfo: describe the machine, its memory and its operating system."""
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)
    cores = os.cpu_count() or 1
    places = _cores()
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
    return {
        "system": {
            "currentTime": DatetimeMS(context.clock.now_ms()),
            "hostname": platform.node(),
            "cpuAddrSize": 64 if sys.maxsize > 2**32 else 32,
            "memSizeMB": Int64(memory_mb),
            "memLimitMB": Int64(memory_mb),
            "numCores": cores,
            "numCoresAvailableToProcess": cores,
            "numPhysicalCores": len(set(places)) or cores,
            "numCpuSockets": len({socket for socket, _ in places}) or 1,
            "cpuArch": platform.machine(),
            "numaEnabled": nodes > 1,
            "numNumaNodes": nodes,
        },
        "os": {"type": platform.system(), "name": platform.platform(terse=True), "version": platform.release()},
        "extra": {
            "versionString": platform.version(),
            **({"libcVersion": platform.libc_ver()[1], "kernelVersion": platform.release()} if _ON_LINUX else {}),
            "pageSize": os.sysconf("SC_PAGE_SIZE"),
            "pythonVersion": platform.python_version(),
        },
    }


def _cores() -> list[tuple[str, str]]:
    """Return the socket and the core of each processor, on Linux; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    fields = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    sockets = [value for name, value in fields if name == "physical id"]
    return list(zip(sockets, (value for name, value in fields if name == "core id"), strict=False))


def get_cmd_line_opts(context: CommandContext, request: Request) -> dict[str, Any]:
    """getCmdLineOpts: answer the command line, and the options parsed from it."""
    options = context.engine.options
    net: dict[str, Any] = {"bindIp": ",".join(options.bind_ips), "port": options.port}
    if options.unix_socket_prefix is not None:
        net["unixDomainSocket"] = {"pathPrefix": str(options.unix_socket_prefix)}
    if options.tls is not None:
        net["tls"] = _tls(options.tls)
    parsed: dict[str, Any] = {"net": net}
    if options.oplog:
        parsed["replication"] = {"replSet": options.replica_set}
    if options.auth:
        parsed["security"] = {"authorization": "enabled"}
    parsed["storage"] = {"dbPath": str(options.dbpath)}
    if options.logpath is not None:
        parsed["systemLog"] = {"destination": "file", "path": str(Path(options.logpath))}
    return {"argv": list(options.argv) or ["headrace"], "parsed": parsed}


def _tls(options: TlsOptions) -> dict[str, Any]:
    """Return `net.tls` as in MongoDB's configuration file, without the password."""
    shown: dict[str, Any] = {"mode": options.mode, "certificateKeyFile": str(options.certificate_key_file)}
    if options.certificate_key_password is not None:
        shown["certificateKeyFilePassword"] = "<password>"
    if options.ca_file is not None:
        shown["CAFile"] = str(options.ca_file)
    if options.revocation_file is not None:
        shown["CRLFile"] = str(options.revocation_file)
    if options.allow_connections_without_certificates:
        shown["allowConnectionsWithoutCertificates"] = True
    if options.allow_invalid_certificates:
        shown["allowInvalidCertificates"] = True
    if options.disabled_protocols:
        shown["disabledProtocols"] = ",".join(sorted(options.disabled_protocols))
    return shown


def get_log(context: CommandContext, request: Request) -> dict[str, Any]:
    """getLog: answer the last lines of the server's log. Raise 96 for an unknown log."""
    name = request.body["getLog"]
    if name == "*":
        return {"names": list(_LOGS)}
    if name not in _LOGS:
        raise CommandError(96, f"No log named '{name}'")
    shell = context.engine.shell
    lines = list(shell.log_lines if name == "global" else shell.startup_warnings)
    return {"totalLinesWritten": len(lines), "log": lines}


def list_commands(context: CommandContext, request: Request) -> dict[str, Any]:
    """listCommands: answer all commands by name, with their aliases."""
    listed: dict[str, Any] = {}
    for command in sorted(set(context.engine.commands.values()), key=lambda command: command.name):
        aliases = {"deprecatedAliases": list(command.aliases)} if command.aliases else {}
        listed[command.name] = {
            "help": (command.run.__doc__ or "").strip(),
            "requiresAuth": command.requires.login,
            "secondaryOk": command.writes is False,
            "adminOnly": command.admin_only,
            **aliases,
            "apiVersions": ["1"] if command.name in IN_VERSION_1 else [],
            "deprecatedApiVersions": [],
        }
    return {"commands": listed}


COMMANDS: Final = (
    Command("buildInfo", build_info, Fields(strict=False), aliases=("buildinfo",), requires=ANYONE),
    Command("features", features, Fields(strict=False), requires=ANYONE),
    administrative("getCmdLineOpts", get_cmd_line_opts),
    administrative("getLog", get_log, string("getLog", required=True)),
    Command("hostInfo", host_info, Fields(), requires=on_cluster("hostInfo")),
    Command("listCommands", list_commands, Fields(strict=False), requires=ANYONE),
)
