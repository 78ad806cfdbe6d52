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
from headrace.dispatch import reply
from headrace.dispatch.command import Command, Reply, Run
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import MAX_TIME_MS, READ_CONCERN
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.store.view import HeldState, View
from headrace.values.position import from_timestamp, seconds, shell_text, to_timestamp

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.store.store import Store

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
    run = at_snapshot(command, at) if level == "snapshot" else command.run
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


class HeldSnapshot(HeldState):
    """A state that is held for reads at its position."""

    __slots__ = ("has_ended", "position", "read_ms")

    def __init__(self, store: Store, position: int, now_ms: float) -> None:
        super().__init__(store)
        self.position = position
        self.has_ended = False
        self.read_ms = now_ms
        """The monotonic time of the last read at this snapshot."""

    def view(self, store: Store) -> View:
        """Return a view of the state."""
        return View(store, self.kv, self.state)

    def close(self) -> None:
        """Release the state. Cursors that read it end with error 246."""
        self.has_ended = True
        super().close()


class Snapshots:
    """The snapshots of one store, by their position: for reads at one cluster time outside transactions.

    A read without a time is answered at the time of the last commit. The state of that commit is held, so that later
    reads can name the time. The state is released when no client has read it for `transactionLifetimeLimitSeconds`, or
    when too many are held. Reads at its time, or at older times, are then error 246 (SnapshotUnavailable). Until the
    next write, every time since the last change is available. A held state never blocks writers.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[int, HeldSnapshot] = {}
        store.changed_position = store.last_position

    def get(self, position: int | None, now_ms: float) -> HeldSnapshot:
        """Return the snapshot at a position; None: at the last commit. Raise 246 if it is unavailable."""
        store = self._store
        position = store.last_position if position is None else position
        held = self._held.get(position)
        if held is not None:
            held.read_ms = now_ms
            return held
        if not store.changed_position <= position <= store.last_position:
            raise CommandError(
                246,
                f"Read timestamp {shell_text(position)} is older than the oldest available timestamp.",
            )
        while len(self._held) >= limits.SNAPSHOT_COUNT_MAX:
            self._end(next(iter(self._held.values())))
        made = self._held[position] = HeldSnapshot(store, position, now_ms)
        return made

    def end_older(self, read_before_ms: float) -> None:
        """Release the snapshots last read before a time of the monotonic clock, in ms."""
        for held in [held for held in self._held.values() if held.read_ms <= read_before_ms]:
            self._end(held)

    def _end(self, held: HeldSnapshot) -> None:
        del self._held[held.position]
        held.close()


def at_snapshot(command: Command, position: int | None) -> Run:
    """Return the command's `run` at the snapshot of a position, or of the last commit (None)."""

    def run(context: CommandContext, request: Request) -> Reply:
        snapshot = context.engine.snapshots.get(position, context.clock.monotonic_ms())
        context.enter_snapshot(snapshot)
        return _with_cluster_time(command.run(context, request), snapshot.position)

    return run


def _with_cluster_time(answer: Reply, position: int) -> Reply:
    """Return the answer with `atClusterTime`, inside the cursor if there is one."""
    if type(answer) is dict:
        return {**answer, "atClusterTime": to_timestamp(position)}
    if type(answer) is not bytes:
        return answer
    head = b"\x03cursor\x00"
    element = b"\x11atClusterTime\x00" + position.to_bytes(8, "little")
    cursor = answer[len(head) + 4 : -1] + element
    return head + reply.document(cursor, b"\x00")
