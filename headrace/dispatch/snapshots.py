"""Reads at one cluster time outside transactions: read concern `snapshot`, with or without `atClusterTime`.

A read without a time is answered at the time of the last commit. The state of that commit is held, so that later reads
can name the time. The state is released when no client has read it for `transactionLifetimeLimitSeconds`, or when too
many are held. Reads at its time, or at older times, are then error 246 (SnapshotUnavailable). Until the next write,
every time since the last change is available. A held state never blocks writers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import limits
from headrace.dispatch import reply
from headrace.dispatch.command import Command, Reply, Run
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.store.view import HeldState, View
from headrace.values.position import shell_text, to_timestamp

if TYPE_CHECKING:
    from headrace.store.store import Store


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
    """The snapshots of one store, by their position."""

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


def at(command: Command, position: int | None) -> Run:
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
