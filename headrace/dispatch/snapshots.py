"""Reads at one cluster time outside transactions: read concern `snapshot`, with or without `atClusterTime`.

The first read without a time is told the time of the last commit. To read there again the store must keep what is
overwritten from then on; it does so for open transactions, so a snapshot is held as a transaction that writes nothing
and belongs to nobody. It is let go after `transactionLifetimeLimitSeconds`, or when too many are held; then, and for
a time from before, the answer is 246. Where nothing has been written since, any time will do.

What it does not do: hold back anybody. A collection that is dropped or changed meanwhile is error 246 as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bson import Timestamp

from headrace import limits
from headrace.dispatch import reply
from headrace.dispatch.command import Command, Reply, Run
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.store.locks import Conflict
from headrace.store.store import Committed
from headrace.store.transaction import ClientTransaction, TransactionView
from headrace.store.transactions import SETTLED

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.store.store import Store
    from headrace.store.view import View


class Snapshots:
    """The snapshots of one store, by their position."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[int, ClientTransaction] = {}
        self.changed_position = store.last_position
        """That of the last commit that changed anything: what only tells that time passes does not count."""
        self.current: ClientTransaction | None = None
        """That of the command that runs."""
        store.listeners.append(self._committed)
        store.transactions.listeners.append(self._ended)

    def _committed(self, committed: Committed) -> None:
        if any(topics for topics, _, _ in committed.runs):
            self.changed_position = committed.last

    def _ended(self, transaction: ClientTransaction) -> None:
        if self._held.get(transaction.number) is transaction:
            del self._held[transaction.number]
            del self._store.transactions.latest[transaction.session]

    def get(self, position: int | None, now_ms: float) -> ClientTransaction | None:
        """The snapshot at a position, None: of now; None where a commit is on its way to the disk. Raises 246."""
        store = self._store
        position = store.last_position if position is None else position
        held = self._held.get(position)
        if held is not None:
            return held
        if not self.changed_position <= position <= store.last_position:
            raise CommandError(
                246,
                f"Read timestamp Timestamp({position >> 32}, {position & 0xFFFFFFFF}) is older than the oldest "
                "available timestamp.",
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
    """The command's `run` at a snapshot: that of a position, or where that is None of now."""

    def run(engine: Engine, request: Request) -> Reply:
        snapshots = engine.snapshots
        transaction = snapshots.get(position, engine.clock.monotonic_ms())
        if transaction is None:
            return Wait(None, limits.AWAIT_MS_MAX, SETTLED)
        snapshots.current = transaction
        engine.enter(TransactionView(engine.view, transaction))
        try:
            return _told(command.run(engine, request), transaction.number)
        except Conflict as conflict:
            raise CommandError(conflict.code, conflict.message) from None
        finally:
            snapshots.current = None
            transaction.touched.clear()

    return run


def _told(answer: Reply, position: int) -> Reply:
    """The answer with its `atClusterTime`: of the cursor, or where there is none of the reply."""
    if type(answer) is dict:
        return {**answer, "atClusterTime": Timestamp(position >> 32, position & 0xFFFFFFFF)}
    if type(answer) is not bytes:
        return answer
    head = b"\x03cursor\x00"
    element = b"\x11atClusterTime\x00" + position.to_bytes(8, "little")
    cursor = answer[len(head) + 4 : -1] + element
    return head + reply.document(cursor, b"\x00")


class SnapshotDocuments:
    """Raw documents that are read at a snapshot, whichever command asks for the next. Raises 246 once it is let go."""

    __slots__ = ("_base", "_documents", "_engine", "_transaction", "_view")

    def __init__(self, engine: Engine, transaction: ClientTransaction, documents: Iterator[bytes]) -> None:
        self._engine = engine
        self._transaction = transaction
        self._documents = documents
        self._base: View | None = None
        self._view: Any = None

    def __iter__(self) -> SnapshotDocuments:
        return self

    def __next__(self) -> bytes:
        engine, transaction = self._engine, self._transaction
        if engine.snapshots.current is transaction:
            return next(self._documents)
        if transaction.has_ended:
            raise CommandError(246, "the snapshot that the cursor reads is not kept any longer")
        base = engine.view
        if base is not self._base:
            self._base, self._view = base, TransactionView(base, transaction)
        engine.enter(self._view)
        try:
            return next(self._documents)
        except Conflict as conflict:
            raise CommandError(conflict.code, conflict.message) from None
        finally:
            transaction.touched.clear()
            engine.enter(base)
