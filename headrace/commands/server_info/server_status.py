"""serverStatus: the server's counters, in the sections that MongoDB's tools read.

As in MongoDB, a section can be left out (`{serverStatus: 1, metrics: 0}`). A number that Headrace does not count is
absent: no number in the reply is invented.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.dispatch.arguments import Fields
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_cluster
from headrace.dispatch.server_info import ELECTION_ID, MONGODB_VERSION_TEXT, headrace_version, host_of

_OPERATIONS: Final = {
    "insert": ("operations.insert",),
    "query": ("commands.find.total", "commands.aggregate.total"),
    "update": ("operations.update",),
    "delete": ("operations.delete",),
    "getmore": ("commands.getMore.total",),
}
"""The names of opcounters and their metrics: writes are counted by statement, reads by command."""
_LARGEST: Final = 5
"""The number of largest memory accounts to list."""
_COUNTED: Final = frozenset({"aggregate", "bulkWrite", "delete", "find", "getMore", "insert", "update"})
"""The commands that opcounters count under their own name. All others count under `command`."""


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """serverStatus: answer the sections that are on by default or requested."""
    now_ms = context.clock.now_ms()
    uptime_ms = max(0, now_ms - context.engine.started_ms)
    reply: dict[str, Any] = {
        "host": host_of(context.engine, request.client),
        "version": MONGODB_VERSION_TEXT,
        "process": "headrace",
        "headraceVersion": headrace_version(),
        "pid": Int64(os.getpid()),
        "uptime": float(uptime_ms // 1000),  # whole, as tools read it as an integer
        "uptimeMillis": Int64(uptime_ms),
        "uptimeEstimate": Int64(uptime_ms // 1000),
        "localTime": DatetimeMS(now_ms),
    }
    for name, section in _SECTIONS.items():
        if request.body.get(name, True):
            content = section(context, request)
            if content is not None:
                reply[name] = content
    return reply


def _asserts(context: CommandContext, request: Request) -> dict[str, Any]:
    """Return MongoDB's counts of failures by kind. Here every error reply counts as `user`."""
    failed = [count for name, count in context.engine.metrics.items() if name.endswith(".failed")]
    return {"regular": 0, "warning": 0, "msg": 0, "user": sum(failed), "tripwire": 0, "rollovers": 0}


def _global_lock(context: CommandContext, request: Request) -> dict[str, Any]:
    """Return the numbers of running commands: those that run in turns, and this one. No command waits for a thread
    lock."""
    active = [waiting.name for waiting in context.engine.shell.waiting_requests() if waiting.name not in _IDLE]
    writers = sum(name in _WRITES for name in active)
    none = {"total": 0, "readers": 0, "writers": 0}
    uptime_ms = max(0, context.clock.now_ms() - context.engine.started_ms)
    return {
        "totalTime": Int64(uptime_ms * 1000),
        "currentQueue": none,
        "activeClients": {"total": len(active) + 1, "readers": len(active) + 1 - writers, "writers": writers},
    }


def _connections(context: CommandContext, request: Request) -> dict[str, Any]:
    current = context.engine.connections_open
    return {
        "current": current,
        "available": limits.CONNECTION_COUNT_MAX - current,
        "totalCreated": Int64(context.engine.connections_created),
    }


def _process(context: CommandContext, request: Request) -> dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "note": "fields vary by platform",
        "user_time_us": Int64(usage.ru_utime * 1e6),
        "system_time_us": Int64(usage.ru_stime * 1e6),
        "maximum_resident_set_kb": Int64(_resident_kb(usage.ru_maxrss)),
        "page_faults": Int64(usage.ru_majflt),
        "voluntary_context_switches": Int64(usage.ru_nvcsw),
        "involuntary_context_switches": Int64(usage.ru_nivcsw),
    }


def _resident_kb(maximum: int) -> int:
    """Return `ru_maxrss` in kilobytes: macOS reports it in bytes."""
    return maximum // 1024 if platform.system() == "Darwin" else maximum


def _mapped_mb() -> tuple[int, int]:
    """Return the address space in use, mostly the map of the data file, and its resident part, both in MiB.

    If the system does not report them, return 0 and the largest resident size so far."""
    try:
        pages = [int(word) for word in Path("/proc/self/statm").read_text().split()[:2]]
    except (OSError, ValueError):
        return 0, _resident_kb(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) // 1024
    return pages[0] * resource.getpagesize() // 1024**2, pages[1] * resource.getpagesize() // 1024**2


def _memory(context: CommandContext, request: Request) -> dict[str, Any]:
    memory = context.engine.memory
    virtual, resident = _mapped_mb()
    return {
        "bits": 64 if sys.maxsize > 2**32 else 32,
        "resident": resident,
        "virtual": virtual,
        "supported": True,
        "limitBytes": Int64(memory.bytes_max),
        "countedBytes": Int64(memory.used),
        "cutOff": Int64(memory.released),
        "largest": [{"holder": account.name, "bytes": Int64(account.bytes)} for account in memory.largest(_LARGEST)],
    }


def _metrics(context: CommandContext, request: Request) -> dict[str, Any]:
    """Return all counters except those of other sections, with each dotted name as a path."""
    section: dict[str, Any] = {}
    for name, count in sorted(context.engine.metrics.items()):
        if name.startswith(_TLS):
            continue
        *folders, last = name.split(".")
        subsection = section
        for folder in folders:
            subsection = subsection.setdefault(folder, {})
        subsection[last] = Int64(count)
    for name in ("network", "operations"):
        section.pop(name, None)
    cursors = list(context.cursors)
    open_counts = {"noTimeout": sum(cursor.no_timeout for cursor in cursors), "total": len(cursors)}
    section["cursor"] = {"open": {name: Int64(count) for name, count in open_counts.items()}}
    return section


def _network(context: CommandContext, request: Request) -> dict[str, Any] | None:
    """Return the counters `network.bytesIn` and `.bytesOut`, and the number of commands."""
    counts = {
        name.split(".")[1]: count for name, count in context.engine.metrics.items() if name.startswith("network.")
    }
    totals = _totals(context)
    if totals:
        counts["numRequests"] = sum(totals.values())
    return {name: Int64(count) for name, count in sorted(counts.items())} or None


def _opcounters(context: CommandContext, request: Request) -> dict[str, Any] | None:
    """Return the counts of commands under the six names of opcounters; None if no command was counted."""
    totals = _totals(context)
    if not totals:
        return None
    metrics = context.engine.metrics
    counts = {name: sum(metrics.get(metric, 0) for metric in of) for name, of in _OPERATIONS.items()}
    counts["command"] = sum(count for name, count in totals.items() if name not in _COUNTED)
    return {name: Int64(count) for name, count in counts.items()}


def _totals(context: CommandContext) -> dict[str, int]:
    """Return the number of answered commands by name, from the counters `commands.NAME.total`."""
    return {
        name.split(".")[1]: count
        for name, count in context.engine.metrics.items()
        if name.startswith("commands.") and name.endswith(".total")
    }


def _replica_set(context: CommandContext, request: Request) -> dict[str, Any] | None:
    if not context.engine.options.oplog:
        return None
    host = host_of(context.engine, request.client)
    is_primary = context.engine.primacy.is_primary
    return {
        "setName": context.engine.options.replica_set,
        "setVersion": 1,
        "isWritablePrimary": is_primary,
        "ismaster": is_primary,  # its former name, which mongostat reads
        "secondary": not is_primary,
        "hosts": [host],
        **({"primary": host} if is_primary else {}),
        "me": host,
        "electionId": ELECTION_ID,
        "rbid": 1,
    }


def _security(context: CommandContext, request: Request) -> dict[str, Any] | None:
    counts = context.engine.access.counts
    mechanisms = {
        mechanism: {kind: {what: Int64(count) for what, count in of.items()} for kind, of in kinds.items()}
        for mechanism, kinds in sorted(counts.items())
    }
    shown: dict[str, Any] = {"authentication": {"mechanisms": mechanisms}} if mechanisms else {}
    options, certificate = context.engine.options.tls, context.engine.shell.certificate
    if options is not None and certificate is not None:
        subject, until = certificate
        shown["SSLServerSubjectName"] = subject
        shown["SSLServerHasCertificateAuthority"] = options.ca_file is not None
        shown["SSLServerCertificateExpirationDate"] = DatetimeMS(int(until * 1000))
    return shown or None


def _transport_security(context: CommandContext, request: Request) -> dict[str, Any] | None:
    """Return the number of TLS connections by version; None if TLS is off."""
    if context.engine.options.tls is None:
        return None
    metrics = context.engine.metrics
    return {version: Int64(metrics.get(f"{_TLS}TLSv{version}", 0)) for version in ("1.0", "1.1", "1.2", "1.3")}


_TLS: Final = "transportSecurity."
"""The prefix of the counters of TLS connections."""
_IDLE: Final = frozenset({"getMore", "hello"})
"""The commands that wait for other clients' writes."""
_WRITES: Final = frozenset({"bulkWrite", "createIndexes", "delete", "findAndModify", "insert", "update"})
_SECTIONS: Final[dict[str, Callable[[CommandContext, Request], dict[str, Any] | None]]] = {
    "asserts": _asserts,
    "connections": _connections,
    "extra_info": _process,
    "globalLock": _global_lock,
    "mem": _memory,
    "metrics": _metrics,
    "network": _network,
    "opcounters": _opcounters,
    "repl": _replica_set,
    "security": _security,
    "storageEngine": lambda context, request: {
        "name": "lmdb",
        "supportsCommittedReads": True,
        "persistent": True,
        "readOnly": False,
    },
    "transportSecurity": _transport_security,
}

COMMANDS: Final = (Command("serverStatus", run, Fields(strict=False), requires=on_cluster("serverStatus")),)
