"""Commands of operators: rotateCertificates, top, fsync, autoCompact, dropConnections, shutdown."""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Field, Fields, FieldType, array, boolean, number, string, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request, require_loopback
from headrace.dispatch.requirement import on_cluster
from headrace.errors import CommandError

LOCK: Final = boolean("lock")
LOG: Final[Field[Any]] = Field(
    "logRotate", FieldType(("string", "long", "int", "decimal", "double")), None, required=True
)
MESSAGE: Final = string("message")


def top(context: CommandContext, request: Request) -> dict[str, Any]:
    """top: how often each collection was used since the start, and for how long."""
    return {"totals": {"note": "all times in microseconds", **context.engine.usage.totals()}}


def fsync(context: CommandContext, request: Request) -> dict[str, Any]:
    """Do nothing, because acknowledged writes are on disk already; raises 115 for a lock."""
    if LOCK.of(request.body):
        raise CommandError(115, "fsync with lock is not supported: copy the data with the server stopped")
    return {"numFiles": 1}


def compact_automatically(context: CommandContext, request: Request) -> dict[str, Any]:
    """autoCompact: nothing is to be done, on or off: what is freed is used again by the next writes, as always, and
    the file never shrinks."""
    return {}


def drop_connections(context: CommandContext, request: Request) -> dict[str, Any]:
    """dropConnections: close the connections that this server has opened to others, and a set of one has none."""
    return {}


def rotate_certificates(context: CommandContext, request: Request) -> dict[str, Any]:
    """Read the files with certificates again: new connections get the new ones, all others stay. Raises 140 if they
    cannot be used, and then the old ones stay; 13 for a client on another machine, unless its user has the
    privilege."""
    if not context.engine.authorizes:
        require_loopback(request)
    context.engine.shell.rotate_certificates(MESSAGE.of(request.body))
    return {}


def rotate_log(context: CommandContext, request: Request) -> dict[str, Any]:
    """Begin new files of the log (`server`), the audit log (`audit`) or, for 1, both. Raises 2, 37."""
    which = request.body["logRotate"]
    if isinstance(which, str) and which not in ("audit", "server"):
        raise CommandError(2, f"Unknown log type '{which}': server or audit, or 1 for both")
    context.engine.shell.rotate_logs(which if isinstance(which, str) else None, request.client)
    return {}


def shut_down(context: CommandContext, request: Request) -> dict[str, Any]:
    """End as at SIGTERM: what was begun is answered, and nothing more. Raises 13 for a
    client on another machine, 115 for a server inside a process."""
    if not context.engine.authorizes:
        require_loopback(request)
    end_server = context.engine.shell.shut_down
    if end_server is None:
        raise CommandError(115, "this server is embedded in a process, which alone can end it")
    end_server()
    return {}


COMMANDS: Final = (
    Command(
        "autoCompact",
        compact_automatically,
        Fields(
            boolean("autoCompact", strict=True, required=True),
            number("freeSpaceTargetMB", least=1),
            *without_effect("bool", "runOnce"),
        ),
        admin_only=True,
        requires=on_cluster("compact"),
    ),
    Command(
        "dropConnections",
        drop_connections,
        Fields(array("hostAndPort", "string", required=True)),
        admin_only=True,
        requires=on_cluster("dropConnections"),
    ),
    Command("fsync", fsync, Fields(LOCK, strict=False), admin_only=True, requires=on_cluster("fsync")),
    Command("logRotate", rotate_log, Fields(LOG, strict=False), admin_only=True, requires=on_cluster("logRotate")),
    Command(
        "rotateCertificates",
        rotate_certificates,
        Fields(MESSAGE),
        admin_only=True,
        requires=on_cluster("rotateCertificates"),
    ),
    Command("shutdown", shut_down, Fields(strict=False), admin_only=True, requires=on_cluster("shutdown")),
    Command("top", top, Fields(strict=False), admin_only=True, requires=on_cluster("top")),
)
