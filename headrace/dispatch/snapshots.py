"""Reads at one cluster time outside transactions: read concern `snapshot`, with or without `atClusterTime`.

A read without a time is answered with that of the last commit. To read at this time again, the store must retain
what is overwritten later. It does so for open transactions, so that a snapshot is represented by a transaction that
writes nothing and has no client. It is dropped when nothing has read at it for `transactionLifetimeLimitSeconds`, when
there are too many, or when the memory for it is needed; reads at it, and at older times, are then error 246
(SnapshotUnavailable). Until something is written, every time since the last change is available.

What it does not do: block writers. Reading a collection that was dropped or changed meanwhile is error 246 as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import limits
from headrace.dispatch import reply
from headrace.dispatch.command import Command, Reply, Run
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.store.client_transaction import ClientTransaction
from headrace.store.locks import Conflict
from headrace.store.store import Committed
from headrace.store.transaction_registry import SETTLED
from headrace.values.position import shell_text, to_timestamp

if TYPE_CHECKING:
    from headrace.store.store import Store


class Snapshots:
    """The snapshots of one store, by their position."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[int, ClientTransaction] = {}
        self.changed_position = store.last_position
        """The position of the last commit that changed data; periodic no-ops do not count."""
        store.listeners.append(self._committed)
        store.transactions.listeners.append(self._ended)

    def _committed(self, committed: Committed) -> None:
        for topics, _, _ in committed.runs:
            if topics:
                self.changed_position = committed.last
                return

    def _ended(self, transaction: ClientTransaction) -> None:
        if self._held.get(transaction.number) is transaction:
            del self._held[transaction.number]
            del self._store.transactions.latest[transaction.session]

    def get(self, position: int | None, now_ms: float) -> ClientTransaction | None:
        """The snapshot at a position; None: at the last commit. None while a commit is being written. Raises 246."""
        store = self._store
        position = store.last_position if position is None else position
        held = self._held.get(position)
        if held is not None:
            held.started_ms = now_ms
            return held
        if not self.changed_position <= position <= store.last_position:
            raise CommandError(
                246,
                f"Read timestamp {shell_text(position)} is older than the oldest available timestamp.",
            )
        if store.writing is not None:
            store.transactions.awaited = True
            return None
        while len(self._held) >= limits.SNAPSHOT_COUNT_MAX:
            store.transactions.abort(next(iter(self._held.values())), now_ms)
        session = b"\x00snapshot" + position.to_bytes(8, "big")
        made = self._held[position] = store.transactions.start(session, position, now_ms)
        return made


def at(command: Command, position: int | None) -> Run:
    """The command's `run` at the snapshot of a position, or of the last commit (None)."""

    def run(context: CommandContext, request: Request) -> Reply:
        transaction = context.engine.snapshots.get(position, context.clock.monotonic_ms())
        if transaction is None:
            return Wait(limits.AWAIT_MS_MAX, SETTLED)
        context.enter_snapshot(transaction)
        try:
            return _with_cluster_time(command.run(context, request), transaction.number)
        except Conflict as conflict:
            raise CommandError(conflict.code, conflict.message) from None
        finally:
            transaction.touched.clear()

    return run


def _with_cluster_time(answer: Reply, position: int) -> Reply:
    """The answer with `atClusterTime`: in the cursor, or in the reply where there is no cursor."""
    if type(answer) is dict:
        return {**answer, "atClusterTime": to_timestamp(position)}
    if type(answer) is not bytes:
        return answer
    head = b"\x03cursor\x00"
    element = b"\x11atClusterTime\x00" + position.to_bytes(8, "little")
    cursor = answer[len(head) + 4 : -1] + element
    return head + reply.document(cursor, b"\x00")
