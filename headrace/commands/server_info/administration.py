"""Commands of operators: rotateCertificates, top, fsync, setUserWriteBlockMode, autoCompact, shutdown and others."""

from __future__ import annotations

from typing import Any, Final

from bson import Int64

from headrace.dispatch.arguments import Field, FieldType, array, boolean, number, string, without_effect
from headrace.dispatch.cluster_wide import BLOCK
from headrace.dispatch.command import administrative
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request, require_loopback
from headrace.errors import CommandError

FREE_SPACE_MB: Final = number("freeSpaceTargetMB", 20, least=1)
GLOBAL: Final = boolean("global", strict=True, required=True)
LOCK: Final = boolean("lock")
REASON: Final = string(
    "reason", default="Unspecified",
    choices=("ClusterToClusterMigrationInProgress", "DiskUseThresholdExceeded", "Unspecified"),
)  # fmt: skip
LOG: Final[Field[Any]] = Field(
    "logRotate", FieldType(("string", "long", "int", "decimal", "double")), None, required=True
)
MESSAGE: Final = string("message")
RUN_ONCE: Final = boolean("runOnce")


def top(context: CommandContext, request: Request) -> dict[str, Any]:
    """top: answer how often each collection was used since the server's start, and for how long."""
    return {"totals": {"note": "all times in microseconds", **context.engine.usage.totals()}}


def fsync(context: CommandContext, request: Request) -> dict[str, Any]:
    """fsync: do nothing without `lock`, because acknowledged writes are on disk. With `lock`, no new write begins. At
    the answer all earlier writes are on disk, and the directory can be copied."""
    if not LOCK.of(request.body):
        return {"numFiles": 1}
    count = context.engine.write_lock.take(request)
    return {
        "info": "now locked against writes, use db.fsyncUnlock() to unlock",
        "lockCount": Int64(count),
        "seeAlso": "http://dochub.mongodb.org/core/fsynccommand",
    }


def fsync_unlock(context: CommandContext, request: Request) -> dict[str, Any]:
    """fsyncUnlock: undo one `fsync` with `lock`. Raise 20 if there is none."""
    return {"info": "fsyncUnlock completed", "lockCount": Int64(context.engine.write_lock.release())}


def block_user_writes(context: CommandContext, request: Request) -> dict[str, Any]:
    """setUserWriteBlockMode: block the writes of users, or allow them again. A block survives a restart. Raise 20 on a
    standalone, or if the existing block has another reason."""
    if not context.store.oplog_enabled:
        raise CommandError(20, "setUserWriteBlockMode cannot be run on standalones")
    reason, stored = REASON.of(request.body), context.txn.cluster_parameters.get(BLOCK)
    if stored and stored["reason"] != reason:
        raise CommandError(
            20, f"Cannot change the user write block: its reason is {stored['reason']}, and not {reason}"
        )
    if bool(stored) != GLOBAL.of(request.body):
        context.store.log_noop(context.txn, "setUserWriteBlockMode")
        context.store.set_cluster_parameter(context.txn, BLOCK, {} if stored else {"reason": reason})
    return {}


def compact_automatically(context: CommandContext, request: Request) -> dict[str, Any]:
    """autoCompact: do nothing, because later writes always reuse freed pages. Use `compact` to shrink a data file that
    is much larger than its content. Raise 117 if it is on already, with other options."""
    engine, body = context.engine, request.body
    enabled, free_mb, once = body["autoCompact"], FREE_SPACE_MB.of(body), RUN_ONCE.of(body)
    if enabled and engine.compaction_target_mb is not None and (once or free_mb != engine.compaction_target_mb):
        raise CommandError(117, "Cannot reconfigure background compaction while it is enabled; turn it off first")
    engine.compaction_target_mb = free_mb if enabled and not once else None
    return {}


def drop_connections(context: CommandContext, request: Request) -> dict[str, Any]:
    """dropConnections: do nothing, because a set of one has no connections to other servers."""
    return {}


def rotate_certificates(context: CommandContext, request: Request) -> dict[str, Any]:
    """rotateCertificates: read the certificate files again, for new connections. Raise 140 if they cannot be used; the
    old ones then stay in use. Raise 13 for a client on another machine, unless its user has the privilege."""
    if not context.engine.authorizes:
        require_loopback(request)
    context.engine.shell.rotate_certificates(MESSAGE.of(request.body))
    return {}


def rotate_log(context: CommandContext, request: Request) -> dict[str, Any]:
    """logRotate: begin new files of the log (`server`), the audit log (`audit`) or both (1). Raise 2 or 37."""
    which = request.body["logRotate"]
    if isinstance(which, str) and which not in ("audit", "server"):
        raise CommandError(2, f"Unknown log type '{which}': server or audit, or 1 for both")
    context.engine.shell.rotate_logs(which if isinstance(which, str) else None, request.client)
    return {}


def shut_down(context: CommandContext, request: Request) -> dict[str, Any]:
    """shutdown: stop as on SIGTERM, after all running commands are answered. Raise 13 for a client on another machine,
    115 for a server embedded in a process."""
    if not context.engine.authorizes:
        require_loopback(request)
    end_server = context.engine.shell.shut_down
    if end_server is None:
        raise CommandError(115, "this server is embedded in a process, which alone can end it")
    end_server()
    return {}


COMMANDS: Final = (
    administrative(
        "autoCompact",
        compact_automatically,
        boolean("autoCompact", strict=True, required=True),
        FREE_SPACE_MB,
        RUN_ONCE,
        strict=True,
        actions=("compact",),
    ),
    administrative("dropConnections", drop_connections, array("hostAndPort", "string", required=True), strict=True),
    administrative(
        "fsync",
        fsync,
        LOCK,
        *without_effect("int", "fsyncLockAcquisitionTimeoutMillis"),
        strict=True,
        writes=lambda request: LOCK.of(request.body),
    ),
    administrative("fsyncUnlock", fsync_unlock, actions=("unlock",)),
    administrative("logRotate", rotate_log, LOG),
    administrative("rotateCertificates", rotate_certificates, MESSAGE, strict=True),
    administrative("setUserWriteBlockMode", block_user_writes, GLOBAL, REASON, strict=True, writes=True),
    administrative("shutdown", shut_down),
    administrative("top", top),
)
