"""setDefaultRWConcern, getDefaultRWConcern: the read and write concern of commands without their own.

Every read sees the last commit, and every write is on disk before it is answered. So the defaults decide only which
writes have a `writeConcernError`. They are stored with the cluster parameters.
"""

from __future__ import annotations

from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.dispatch.arguments import boolean, document
from headrace.dispatch.command import administrative
from headrace.dispatch.concerns.read_concern import check_level
from headrace.dispatch.concerns.write_concern import DEFAULTS, WRITE_CONCERN, W, shown, unsatisfied
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import READ_CONCERN
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.query.expressions.numbers import to_long
from headrace.values.position import to_timestamp

IN_MEMORY: Final = boolean("inMemory")
READ: Final = document("defaultReadConcern", READ_CONCERN.fields)
WRITE: Final = document("defaultWriteConcern", WRITE_CONCERN.fields, check=WRITE_CONCERN.check)
_IMPLICIT_READ: Final = {"level": "local"}
_IMPLICIT_WRITE: Final = {"w": "majority", "wtimeout": 0}
_SUITABLE: Final = ("available", "local", "majority")


def get_defaults(context: CommandContext, request: Request) -> dict[str, Any]:
    """getDefaultRWConcern: answer the defaults that were set, or MongoDB's implicit ones. Raise 51300 on a
    standalone."""
    _require_set(context, request)
    more = {"inMemory": True} if IN_MEMORY.of(request.body) else {}
    return {**_reply(context.store.cluster_parameters.get(DEFAULTS) or {}, context), **more}


def set_defaults(context: CommandContext, request: Request) -> dict[str, Any]:
    """setDefaultRWConcern: set the defaults. Raise 2 or 79 for concerns that cannot be defaults, 20 to unset the write
    concern, 51300 on a standalone."""
    _require_set(context, request)
    body = request.body
    if body.get("defaultReadConcern") is None and body.get("defaultWriteConcern") is None:
        raise CommandError(
            2, 'At least one of the "defaultReadConcern" or "defaultWriteConcern" fields must be present'
        )
    stored = dict(context.txn.cluster_parameters.get(DEFAULTS) or {})
    if body.get("defaultWriteConcern") is not None:
        _set_write(stored, WRITE.of(body))
    if body.get("defaultReadConcern") is not None:
        _set_read(stored, READ.of(body))
    position = context.store.log_noop(context.txn, "setDefaultRWConcern")
    stored["updateOpTime"] = to_timestamp(position)
    stored["updateWallClockTime"] = DatetimeMS(context.clock.now_ms())
    context.store.set_cluster_parameter(context.txn, DEFAULTS, stored)
    return _reply(stored, context)


def _require_set(context: CommandContext, request: Request) -> None:
    if not context.engine.options.oplog:
        raise CommandError(51300, f"'{request.name}' is not supported on standalone nodes.")


def _set_write(stored: dict[str, Any], concern: dict[str, Any]) -> None:
    if not concern:
        if "defaultWriteConcern" in stored:
            raise CommandError(20, "The global default write concern cannot be unset once it is set.")
        return
    members = W.of(concern)
    if members is None:
        raise CommandError(2, "Default write concern must have 'w' field.")
    if type(members) not in (str, dict) and to_long(members) == 0:
        raise CommandError(2, "Unacknowledged write concern is not suitable for the default write concern")
    if concern.get("provenance") is not None:
        raise CommandError(2, "'provenance' must be unset in default write concern")
    if type(members) is str and unsatisfied(concern):
        raise CommandError(79, f"No write concern mode named '{members}' found in replica set configuration")
    stored["defaultWriteConcern"] = shown(concern)


def _set_read(stored: dict[str, Any], concern: dict[str, Any]) -> None:
    level = concern.get("level")
    if not concern:
        stored.pop("defaultReadConcern", None)
        return
    if level is not None:
        check_level(level, "defaultReadConcern.level")
    if level not in _SUITABLE:
        raise CommandError(2, f"level: '{level or 'local'}' is not suitable for the default read concern")
    for name in ("afterClusterTime", "atClusterTime"):
        if concern.get(name) is not None:
            raise CommandError(2, f"'{name}' is not suitable for the default read concern")
    if concern.get("provenance") is not None:
        raise CommandError(2, "'provenance' must be unset in default read concern")
    stored["defaultReadConcern"] = {"level": level}


def _reply(stored: dict[str, Any], context: CommandContext) -> dict[str, Any]:
    times: dict[str, Any] = {
        name: stored[name] for name in ("updateOpTime", "updateWallClockTime") if name in stored
    }  # fmt: skip
    return {
        "defaultReadConcern": stored.get("defaultReadConcern", _IMPLICIT_READ),
        "defaultWriteConcern": stored.get("defaultWriteConcern", _IMPLICIT_WRITE), **times,
        "defaultWriteConcernSource": "global" if "defaultWriteConcern" in stored else "implicit",
        "defaultReadConcernSource": "global" if "defaultReadConcern" in stored else "implicit",
        "localUpdateWallClockTime": stored.get("updateWallClockTime", DatetimeMS(context.engine.started_ms)),
    }  # fmt: skip


COMMANDS: Final = (
    administrative("getDefaultRWConcern", get_defaults, IN_MEMORY, strict=True),
    administrative("setDefaultRWConcern", set_defaults, READ, WRITE, strict=True, writes=True),
)
