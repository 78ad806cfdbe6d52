"""The `readConcern` of a command outside transactions: its checks, its wait, and the level `snapshot`.

One member sees every commit, so all levels except `snapshot` mean the same. A level or a time that MongoDB refuses is
refused here as well. `afterClusterTime` waits for a commit at that time or later; an idle server writes a no-op to the
oplog every ten seconds. A time ahead of the clock is refused.

Source: MongoDB's read concerns; the drivers' specification of causal consistency.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp

from headrace import limits
from headrace.dispatch import snapshots
from headrace.dispatch.command import Command, Reply, Run
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import MAX_TIME_MS, READ_CONCERN
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.values.position import from_timestamp, seconds, shell_text

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

LEVELS: Final = frozenset({"available", "linearizable", "local", "majority", "snapshot"})
_READS: Final = frozenset({"aggregate", "count", "distinct", "explain", "find", "getMore"})
TAKEN_BY: Final[dict[str, frozenset[str]]] = {
    "linearizable": _READS,
    "majority": _READS,
    "snapshot": frozenset({"aggregate", "distinct", "explain", "find", "getMore"}),
}
"""The commands that accept a level. All commands accept any other level."""
REFUSED_STAGES: Final[dict[str, frozenset[str]]] = {
    "linearizable": frozenset({"$merge", "$out"}),
    "snapshot": frozenset({"$collStats", "$currentOp", "$indexStats", "$listLocalSessions", "$merge", "$out"}),
}
"""The stages that cannot run at a level. `$changeStream` runs at one level only and checks this itself."""


def apply_read_concern(engine: Engine, command: Command, request: Request) -> Command:
    """Return the command as it runs at the request's read concern. Raise 9, 72 or 123."""
    concern = READ_CONCERN.of(request.body)
    _check(command, request, concern)
    at, after = _time(concern, "atClusterTime"), _time(concern, "afterClusterTime")
    level = concern.get("level")
    if (level != "snapshot" and after is None) or command.name == "getMore":  # a cursor reads as it was opened
        return command
    if not engine.store.oplog_enabled:
        raise CommandError(123, "node needs to be a replica set member to use read concern")
    wanted = at if after is None else after
    if wanted is not None:
        _check_time(engine, "afterClusterTime" if at is None else "atClusterTime", wanted)
    run = snapshots.at(command, at) if level == "snapshot" else command.run
    return replace(command, run=run if wanted is None else _once_there(run, wanted))


def check_level(level: str, name: str) -> None:
    """Raise 2 for a level of a read concern that does not exist. `name` is the field's."""
    if level not in LEVELS:
        raise CommandError(2, f"Enumeration value '{level}' for field '{name}' is not a valid value.")


def _check(command: Command, request: Request, concern: dict[str, Any]) -> None:
    level = concern.get("level")
    if level is None:
        level = "local"
    check_level(level, "readConcern.level")
    if level in TAKEN_BY and command.name not in TAKEN_BY[level]:
        raise CommandError(
            72,
            f'Command {command.name} does not support {{ readConcern: {{ level: "{level}", provenance: '
            f'"clientSupplied" }} }} :: caused by :: read concern {level} not supported',
        )
    pipeline = request.body.get("pipeline")
    for stage in pipeline if level in REFUSED_STAGES and type(pipeline) is list else ():
        name = next(iter(stage), "") if type(stage) is dict else ""
        if name in REFUSED_STAGES[level]:
            raise CommandError(72, f"Aggregation stage {name} cannot run with a readConcern of level '{level}'")
    if "atClusterTime" in concern and "afterClusterTime" in concern:
        raise CommandError(72, "Can not specify both atClusterTime and afterClusterTime")
    if "atClusterTime" in concern and level != "snapshot":
        raise CommandError(72, "atClusterTime field can be set only if level is equal to snapshot")
    if "afterClusterTime" in concern and level in ("available", "linearizable"):
        raise CommandError(
            72, "afterClusterTime field can be set only if level is equal to majority, local, or snapshot"
        )


def _time(concern: dict[str, Any], field: str) -> int | None:
    """Return the Timestamp in a field as a position; None if absent."""
    value: Timestamp | None = concern.get(field)
    if value is None:
        return None
    if not value.time and not value.inc:
        raise CommandError(72, f"{field} cannot be a null timestamp")
    return from_timestamp(value)


def _check_time(engine: Engine, field: str, wanted: int) -> None:
    """Raise 72 for a time ahead of the clock. A slightly later time may come from before a crash, so it is allowed."""
    last = engine.store.last_position
    if wanted <= last or seconds(wanted) <= engine.clock.now_ms() // 1000 + limits.CLOCK_SKEW_SECONDS_MAX:
        return
    raise CommandError(
        72,
        f"readConcern {field} value must not be greater than the current clusterTime. Requested clusterTime: "
        f"{{ ts: {shell_text(wanted)} }}; current clusterTime: "
        f"{{ ts: {shell_text(last)} }}",
    )


def _once_there(run: Run, wanted: int) -> Run:
    """Return a `run` that first waits for a commit at the wanted time or later. Raise 50 if maxTimeMS ends before."""

    def run_then(context: CommandContext, request: Request) -> Reply:
        if context.store.last_position < wanted:
            if request.time_is_up:
                raise CommandError(50, "operation exceeded time limit")
            limit_ms = float(MAX_TIME_MS.of(request.body) or limits.AWAIT_MS_MAX)
            return Wait(limit_ms, "")
        return run(context, request)

    return run_then
