"""The context of one run of a command: what it reads and writes, its transaction and its deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import CommandError
from headrace.store.client_transaction import ClientTransaction, TransactionView
from headrace.store.view import View
from headrace.turns import tick

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.cursors.registry import Cursors
    from headrace.dispatch.engine import Engine
    from headrace.store.store import Store
    from headrace.store.write_transaction import WriteTransaction


class CommandContext:
    """Made by the engine for one run of a command and closed behind it.

    An open cursor reads its documents through the context of the command that opened it; each getMore lends that
    context its own view, from `resume` to `pause`.
    """

    __slots__ = (
        "_began",
        "_borrower",
        "_closed",
        "_lender",
        "_view",
        "deadline_ms",
        "engine",
        "snapshot",
        "transaction",
    )

    def __init__(self, engine: Engine, deadline_ms: float | None = None, txn: WriteTransaction | None = None) -> None:
        self.engine = engine
        self.deadline_ms = deadline_ms
        """When the time of the command is over, on the monotonic clock; None: no limit."""
        self.transaction: ClientTransaction | None = None
        """The client's transaction of which the command is a statement."""
        self.snapshot: ClientTransaction | None = None
        """The snapshot that a command with read concern `snapshot` reads."""
        self._view: View | None = txn
        self._began: View | None = None
        self._lender: CommandContext | None = None
        self._borrower: CommandContext | None = None
        self._closed = False

    @property
    def view(self) -> View:
        """What the command reads: the last commit, the write transaction, the client's transaction, or a snapshot.

        Scans ask for it every few documents, and nobody holds it from one time to the next: a command that reads may
        pause here, and then goes on with a view of a later commit. Raises 50 when the deadline is over.
        """
        self._check_deadline()
        tick()
        view = self._view
        return self._begin() if view is None else view

    @property
    def txn(self) -> WriteTransaction:
        """The write transaction of a command that writes."""
        return self._view  # type: ignore[return-value]  # run_write, or a client's transaction, has put it there

    @property
    def store(self) -> Store:
        """The engine's store."""
        return self.engine.store

    @property
    def clock(self) -> Clock:
        """The engine's clock."""
        return self.engine.clock

    @property
    def cursors(self) -> Cursors:
        """The open cursors of all clients."""
        return self.engine.cursors

    def count(self, metric: str, by: int = 1) -> None:
        """Add to a counter of `serverStatus`, by its dotted name."""
        metrics = self.engine.metrics
        metrics[metric] = metrics.get(metric, 0) + by

    def enter(self, view: View, transaction: ClientTransaction | None = None) -> None:
        """From here on the command reads `view`, and writes to it."""
        self._view = view
        self.transaction = transaction

    def enter_snapshot(self, snapshot: ClientTransaction) -> None:
        """From here on the command reads at a snapshot, and so does the cursor that it may open."""
        view = self.view
        self.snapshot = snapshot
        self._view = TransactionView(view, snapshot)

    def _begin(self) -> View:
        """The view at the first look: the lender's, at this context's snapshot if it has one, or one of the store."""
        if self._lender is not None:
            view = self._lender.view
            self._view = view if self.snapshot is None else TransactionView(view, self.snapshot)
        elif self._closed:
            raise RuntimeError("the command that this context belongs to has returned")
        else:
            self._began = View(self.store, self.store.environment.begin_read())
            self._view = self._began if self.snapshot is None else TransactionView(self._began, self.snapshot)
        return self._view

    def _check_deadline(self) -> None:
        if self.deadline_ms is not None and self.engine.clock.monotonic_ms() > self.deadline_ms:
            raise CommandError(50, "operation exceeded time limit")

    def before_pause(self) -> None:
        """The turn is over: end the read transaction. Raises 50 when the deadline is over."""
        self._check_deadline()
        if self._borrower is not None:
            self._borrower._check_deadline()
            self._borrower._view = None
        self._view = None
        if self._began is not None:
            self._began.kv.abort()
            self._began = None

    # What happens behind the command.

    def close(self) -> None:
        """The command has returned: end its read transaction."""
        self._view = None
        self._closed = True
        if self._began is not None:
            self._began.kv.abort()
            self._began = None

    def resume(self, lender: CommandContext, deadline_ms: float | None) -> None:
        """Read through the context of a getMore. Raises 246 where the snapshot is gone."""
        if self.snapshot is not None and self.snapshot.has_ended:
            raise CommandError(246, "the snapshot that the cursor reads is not kept any longer")
        self._lender = lender
        lender._borrower = self
        self.deadline_ms = deadline_ms

    def pause(self) -> None:
        """The getMore has its batch."""
        if self._lender is not None:
            self._lender._borrower = None
        self._lender = self._view = None
        if self.snapshot is not None:
            self.snapshot.touched.clear()


class TrialContext(CommandContext):
    """The context of a write that is run for nothing: what it counts is not counted."""

    __slots__ = ()

    def count(self, metric: str, by: int = 1) -> None:
        """Nothing."""
