"""The context of one run of a command: what it reads and writes, its transaction and its deadline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.errors import Interrupted
from headrace.running_command import running_command
from headrace.store.client_transaction import ClientTransaction, TransactionView
from headrace.store.view import View
from headrace.store.write_transaction import WriteTransaction
from headrace.turns import paced, tick

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.cursors.registry import Cursors
    from headrace.dispatch.engine import Engine
    from headrace.dispatch.snapshots import HeldSnapshot
    from headrace.query.operation_memory import OperationMemory
    from headrace.store.store import Store


class CommandContext:
    """The context of one run of a command. The engine makes it, and closes it after the run.

    An open cursor reads its documents through the context of the command that opened it; each getMore lends that
    context its own view, from `resume` to `pause`.
    """

    # The defaults are the class's, without slots: a context is made for every command, and few set more than three.

    transaction: ClientTransaction | None = None
    """The client's transaction, if the command is a statement of one."""
    snapshot: HeldSnapshot | None = None
    """The snapshot that a command with read concern `snapshot` reads."""
    session: bytes | None = None
    """The session that the command has checked out: while it is paused, no other of that session may run."""
    pause_count = 0
    """How often it has paused. What was read before the last time may have changed since."""
    progress: dict[str, Any] | None = None
    """The progress of a command of many statements: `next`, the number of the next one, and the reply so far."""
    save_progress: Callable[[], None] | None = None
    """Called before each pause while the write transaction is there: notes what the pause will commit."""
    keeps_empty_timestamps = False
    """Whether top-level timestamps of 0 are stored as they are, and not replaced by the time of the write."""
    memory: OperationMemory | None = None
    """The memory that its stages may use; see `execution/command_memory.py`."""
    outlives_command = False
    """Whether a cursor continues to read through this context, and gives back its memory."""
    _wrap: Callable[[View], View] | None = None
    _left_txn: WriteTransaction | None = None  # a write's, while it reads one state
    _began: View | None = None
    _first_pause: tuple[float, int] | None = None  # monotonic ms, and the bytes in use then
    _lender: CommandContext | None = None
    _borrower: CommandContext | None = None
    _closed = False

    def __init__(self, engine: Engine, deadline_ms: float | None = None, txn: WriteTransaction | None = None) -> None:
        self.engine = engine
        self.metrics: dict[str, int] = engine.metrics
        """The counters of `serverStatus`, by their dotted names."""
        self.deadline_ms = deadline_ms
        """When the time of the command is over, on the monotonic clock; None: no limit."""
        self._view: View | None = txn

    @property
    def view(self) -> View:
        """The view that the command reads: of the last commit, a write transaction, the client's transaction, or a
        snapshot.

        A command that reads holds one state from its first look to its end. A write has another view after each pause,
        and asks for it every few documents. Raises 50 when the deadline is over.
        """
        self._check_deadline()
        if self._view is not None:
            tick()
        view = self._view
        return self._begin() if view is None else view

    @property
    def newest_view(self) -> View:
        """A view of the published state, which a change stream reads to its end: that moves while it reads. It does not
        pause: streams share what they read with each other. Raises 50 when the deadline is over."""
        self._check_deadline()
        if self._began is not None and self._began.state is not self.store.state:
            self._began.kv.abort()
            self._view = None
        return self._begin() if self._view is None else self._view

    def current_view(self) -> View:
        """Return `view`; for callers that fetch it again after each pause."""
        return self.view

    @property
    def txn(self) -> WriteTransaction:
        """The write transaction of a command that writes; another one after each pause."""
        view = self._view
        if view is None:
            view = self._begin()
        return view  # type: ignore[return-value]  # run_write, or a client's transaction, has put it there

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """During the `with` a command that writes reads one published state, as a read does, also after a pause."""
        if not isinstance(self._view, WriteTransaction):
            yield  # of a client's transaction
            return
        self._left_txn = self._view
        self._view = self._began = View(self.store, self.store.begin_read())
        try:
            yield
        finally:
            self._began.kv.abort()
            self._began, self._first_pause = None, None
            self._view, self._left_txn = self._left_txn, None

    @property
    def has_locks(self) -> bool:
        """Whether a write must look for the locks of clients' transactions before each change: `lock_waits`."""
        return bool(self.engine.store.transactions.locks) and self.transaction is None and running_command() is not None

    tick = staticmethod(tick)
    """Called between documents: pauses the command if its turn is over."""
    paced = staticmethod(paced)
    """The documents of an iterable, with a tick before each."""

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

    def enter(self, view: View, transaction: ClientTransaction | None = None) -> None:
        """From here on the command reads `view`, and writes to it."""
        self._view = view
        self.transaction = transaction

    def wrap(self, wrap: Callable[[View], View]) -> None:
        """From here on the command reads through `wrap` of its view, after a pause too."""
        self._view = wrap(self.view)
        self._wrap = wrap

    def enter_snapshot(self, snapshot: HeldSnapshot) -> None:
        """From here on the command reads at a snapshot, and so does the cursor that it may open."""
        self.snapshot = snapshot
        self._view = snapshot.view(self.store)

    def _begin(self) -> View:
        """Return the view at the first look: that of the client's transaction, of the snapshot or of the lender, or one
        of the last commit."""
        view: View
        if self._closed and self._lender is None:
            raise RuntimeError("the command that this context belongs to has returned")
        if self.transaction is not None:
            self._check_transaction()
            view = TransactionView(self.store, self.transaction)
        elif self.snapshot is not None:
            self._keep_snapshot(self.snapshot)
            view = self.snapshot.view(self.store)
        elif self._lender is not None:
            view = self._lender.view
        else:
            view = self._began = View(self.store, self.store.begin_read())
        self._view = view if self._wrap is None else self._wrap(view)
        return self._view

    def _check_transaction(self) -> None:
        if self.transaction is not None and self.transaction.has_ended:
            raise Interrupted(251, f"Transaction {self.transaction.number} has been aborted.")

    def _keep_snapshot(self, snapshot: HeldSnapshot) -> None:
        """Keep the snapshot for longer, because it is being read. Raises 246 where it is gone."""
        if snapshot.has_ended:
            raise Interrupted(246, "the snapshot that the cursor reads is not kept any longer")
        snapshot.read_ms = self.engine.clock.monotonic_ms()

    def _check_snapshot(self) -> None:
        """Raise 239 where the read has held its state for too long: commits cannot use the pages that it can read."""
        now_ms, used = self.engine.clock.monotonic_ms(), self.store.environment.used_bytes
        if self._first_pause is None:
            self._first_pause = now_ms, used
        age_ms, growth = now_ms - self._first_pause[0], used - self._first_pause[1]
        if age_ms > limits.SNAPSHOT_SECONDS_MAX * 1000 or growth > limits.SNAPSHOT_GROWTH_BYTES_MAX:
            raise Interrupted(
                239,
                f"the read has held its snapshot for {age_ms / 1000:.0f} s, and the data file has grown by {growth} "
                "bytes meanwhile: read in smaller parts",
            )

    def _check_deadline(self) -> None:
        if self.deadline_ms is not None and self.engine.clock.monotonic_ms() > self.deadline_ms:
            raise Interrupted(50, "operation exceeded time limit")

    def before_pause(self) -> None:
        """End the turn: release the transaction. Raises 50 when the deadline is over."""
        self._check_deadline()
        if self._borrower is not None:
            self._borrower._check_deadline()
        if self.save_progress is not None:
            self.save_progress()
        if self.session is not None and not self.pause_count:
            self.engine.checked_out.add(self.session)
        self.pause_count += 1
        if self._began is not None:
            self._check_snapshot()
        elif self.transaction is None and self.snapshot is None and self._lender is None:
            self._view = None  # a write's, or there is none

    def after_pause(self, txn: WriteTransaction | None) -> None:
        """Resume the command: a write in `txn`."""
        if txn is not None and self._left_txn is not None:
            self._left_txn = txn
        elif txn is not None:
            self._view = txn
        for context in (self, self._borrower):
            if context is not None:
                context._check_transaction()
                if context.snapshot is not None:
                    context._keep_snapshot(context.snapshot)

    def wait_for(self, holder: ClientTransaction) -> None:
        """Pause until the holder of a lock that is in the way has ended. Raises 50 when the time is up."""
        command = running_command()
        assert command is not None
        command.pause(holder)
        self._check_deadline()

    # After the command.

    def close(self) -> None:
        """The command has returned: end its read transaction."""
        self._view = None
        self._closed = True
        if self.save_progress is not None:
            self.save_progress = None
        if self.pause_count and self.session is not None:
            self.engine.return_session(self.session)
        if self.memory is not None and not self.outlives_command:
            self.memory.close()
        if self._began is not None:
            self._began.kv.abort()
            self._began = None

    def resume(self, lender: CommandContext, deadline_ms: float | None) -> None:
        """Read through the context of a getMore. Raises 246 where the snapshot is gone."""
        if self.snapshot is not None:
            self._keep_snapshot(self.snapshot)
        self._lender = lender
        lender._borrower = self
        self.deadline_ms = deadline_ms

    def pause(self) -> None:
        """The getMore has its batch."""
        if self._lender is not None:
            self._lender._borrower = None
        self._lender = self._view = None


class TrialContext(CommandContext):
    """The context of a write that is run for nothing: what it counts is not counted."""

    def __init__(self, engine: Engine, deadline_ms: float | None, txn: WriteTransaction) -> None:
        super().__init__(engine, deadline_ms, txn)
        self.metrics = defaultdict(int)
