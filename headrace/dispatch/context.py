"""The context of one run of a command: its view, its transaction and its deadline."""

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
    from headrace.dispatch.concerns.read_concern import HeldSnapshot
    from headrace.dispatch.engine import Engine
    from headrace.query.operation_memory import OperationMemory
    from headrace.store.store import Store


class CommandContext:
    """The context of one run of a command. The engine makes it, and closes it after the run.

    An open cursor reads its documents through the context of the command that opened it. Each getMore lends its own
    view to that context, from `resume` to `pause`.
    """

    # Defaults are class attributes, without slots: every command makes a context, and few set more than three.

    transaction: ClientTransaction | None = None
    """The client's transaction, if the command is a statement of one."""
    snapshot: HeldSnapshot | None = None
    """The snapshot that a command with read concern `snapshot` reads."""
    session: bytes | None = None
    """The session that the command has checked out: while the command is paused, no other of that session may run."""
    pause_count = 0
    """How often the command has paused. Data read before the last pause may have changed since."""
    progress: dict[str, Any] | None = None
    """The progress of a command of many statements: `next`, the number of the next statement, and the reply so far."""
    save_progress: Callable[[], None] | None = None
    """Called before each pause, while the write transaction still exists, to note what the pause will commit."""
    keeps_empty_timestamps = False
    """Whether top-level timestamps of 0 are stored unchanged, and not replaced by the time of the write."""
    memory: OperationMemory | None = None
    """The memory that the command's stages may use; see `execution/command_memory.py`."""
    outlives_command = False
    """Whether a cursor continues to read through this context, and will release its memory."""
    _wrap: Callable[[View], View] | None = None
    _left_txn: WriteTransaction | None = None  # of a write, while it reads one state
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
        """The end of the command's time on the monotonic clock; None: no limit."""
        self._view: View | None = txn

    @property
    def view(self) -> View:
        """The view that the command reads: of the last commit, a write transaction, the client's transaction, or a
        snapshot.

        A read keeps one state from its first access to its end. A write has another view after each pause, and
        fetches it again every few documents. Raises 50 after the deadline.
        """
        self._check_deadline()
        if self._view is not None:
            tick()
        view = self._view
        return self._begin() if view is None else view

    @property
    def newest_view(self) -> View:
        """A view of the newest published state, for a change stream, which follows new commits while it reads.

        This never pauses the command, because streams share what they read. Raises 50 after the deadline."""
        self._check_deadline()
        if self._began is not None and self._began.state is not self.store.state:
            self._began.kv.abort()
            self._view = self._began = None
        return self._begin() if self._view is None else self._view

    def current_view(self) -> View:
        """Return `view`; for callers that fetch it again after each pause."""
        return self.view

    @property
    def txn(self) -> WriteTransaction:
        """The write transaction of a write; another one after each pause."""
        view = self._view
        if view is None:
            view = self._begin()
        return view  # type: ignore[return-value]  # run_write, or a client's transaction, has put it there

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """Make a write read one published state inside the `with`, as a read does, also after a pause."""
        if not isinstance(self._view, WriteTransaction):
            yield  # a write in a client's transaction
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
        """Whether a write must check for locks of clients' transactions before each change (`lock_waits.py`)."""
        return bool(self.engine.store.transactions.locks) and self.transaction is None and running_command() is not None

    tick = staticmethod(tick)
    """Pause the command if its turn is over. Called between documents."""
    paced = staticmethod(paced)
    """Yield the documents of an iterable, with a tick before each."""

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
        """Make the command read from and write to `view` from here on."""
        self._view = view
        self.transaction = transaction

    def wrap(self, wrap: Callable[[View], View]) -> None:
        """Make the command read through `wrap(view)` from here on, also after a pause."""
        self._view = wrap(self.view)
        self._wrap = wrap

    def enter_snapshot(self, snapshot: HeldSnapshot) -> None:
        """Make the command, and a cursor that it opens, read at a snapshot from here on."""
        self.snapshot = snapshot
        self._view = snapshot.view(self.store)

    def _begin(self) -> View:
        """Return the view for the first access: of the client's transaction, the snapshot, the lender or the last
        commit."""
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
        """Keep the snapshot for longer, because it is being read. Raise 246 if it is gone."""
        if snapshot.has_ended:
            raise Interrupted(246, "the snapshot that the cursor reads is not kept any longer")
        snapshot.read_ms = self.engine.clock.monotonic_ms()

    def _check_snapshot(self) -> None:
        """Raise 239 if the read has held its state too long: commits cannot reuse pages that the read may need."""
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
        """End the turn: release the transaction. Raise 50 after the deadline."""
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
            self._view = None  # the view of a write, or none

    def after_pause(self, txn: WriteTransaction | None) -> None:
        """Resume the command. A write continues in `txn`."""
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
        """Pause until the transaction that holds a lock has ended. Raise 50 after the deadline."""
        command = running_command()
        assert command is not None
        command.pause(holder)
        self._check_deadline()

    # After the command.

    def close(self) -> None:
        """End the read transaction, after the command has returned."""
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
        """Read through the context of a getMore from now on. Raise 246 if the snapshot is gone."""
        if self.snapshot is not None:
            self._keep_snapshot(self.snapshot)
        self._lender = lender
        lender._borrower = self
        self.deadline_ms = deadline_ms

    def pause(self) -> None:
        """Return the view to the getMore, which has its batch."""
        if self._lender is not None:
            self._lender._borrower = None
        self._lender = self._view = None


class TrialContext(CommandContext):
    """The context of a write that is run as a trial: its metrics are not added to the engine's."""

    def __init__(self, engine: Engine, deadline_ms: float | None, txn: WriteTransaction) -> None:
        super().__init__(engine, deadline_ms, txn)
        self.metrics = defaultdict(int)
