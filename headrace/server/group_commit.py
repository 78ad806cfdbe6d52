"""Group commit: waiting writes share one transaction and one synced commit. Used by the server and `headrace.open`.

    run       runs the writes one after the other, then the paused write that continues, and `prepare`
    sync      in any thread
    publish   → each write has its answer
    give_up   answers the write that raised; the others run once more

The caller decides when a group runs, and in which thread: `writer.py` on a loop, `embedded/local_writes.py` in threads.

Rules: no write is answered before it is on disk. A write that fails inside the server costs each other write of its
group at most one more run. A write in its first turn can be run again. A write that has paused before cannot: if its
group fails it ends with that error, and its earlier turns stay committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, TypeVar

from headrace.clock import monotonic
from headrace.running_command import RunningCommand
from headrace.store.store import Store
from headrace.store.write_transaction import WriteTransaction

Write = TypeVar("Write")
Paused = TypeVar("Paused")


@dataclass(slots=True)
class WriteGroup(Generic[Write, Paused]):
    """Writes that share a transaction, with their progress."""

    writes: list[Write]
    resumed: Paused | None = None
    """A paused write that continues in this group, after all others."""
    answers: list[Any] = field(default_factory=list)
    """The answers of the writes that have run, with the answer of `resumed` last."""
    ran_over: bool = False
    """Whether its time was over after the last write that it ran."""
    has_resumed: bool = False
    """Whether the turn of `resumed` has begun."""
    txn: WriteTransaction = field(init=False)
    """Set before the group is run."""


Group = TypeVar("Group", bound=WriteGroup[Any, Any])


class GroupCommitter(Generic[Group, Write, Paused]):
    """The rules for groups of writes, shared by the server and `headrace.open`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Single writes: implemented by subclasses.

    def run_write(self, group: Group, write: Write) -> Any:
        """Return the answer of a write, or its turn if it has paused."""
        raise NotImplementedError

    def resume_write(self, group: Group, paused: Paused) -> Any:
        """Resume a paused write; return the same as `run_write`."""
        raise NotImplementedError

    def abandon_turn(self, turn: Any) -> None:
        """End a turn whose transaction was abandoned."""
        raise NotImplementedError

    def fail_write(self, write: Write, error: BaseException) -> None:
        """Answer a write that failed inside the server. It has changed nothing."""
        raise NotImplementedError

    def fail_paused(self, paused: Paused, error: BaseException) -> None:
        """Answer a write that failed after a pause. Its earlier turns stay committed."""
        raise NotImplementedError

    # Groups.

    def run(self, group: Group, seconds: float = inf, *, is_read_meanwhile: bool = True) -> list[Write]:
        """Run a group in its transaction, up to the sync; return the writes for which no time was left. Raises a
        write's unexpected exception; the caller then calls `give_up`. `is_read_meanwhile`: see `Store.prepare`."""
        ends = monotonic() + seconds
        for write in group.writes:
            group.answers.append(self.run_write(group, write))
            if monotonic() > ends:
                group.ran_over = True
                break
        count = len(group.answers)
        left = group.writes[count:]
        if left:
            group.writes = group.writes[:count]
        if group.resumed is not None:
            group.has_resumed = True
            group.answers.append(self.resume_write(group, group.resumed))
        self._store.prepare(group.txn, is_read_meanwhile=is_read_meanwhile)
        return left

    def abandon(self, group: Group) -> None:
        """Abandon the transaction of a group. No write is answered."""
        for answer in group.answers:
            if isinstance(answer, RunningCommand):
                self.abandon_turn(answer)
        self._store.abandon(group.txn)

    def give_up(self, group: Group, error: BaseException) -> list[list[Write]]:
        """Abandon the transaction and answer the write that raised. Return the writes to run again, in groups: the
        writes before it, which are known to work, and the writes after it, which have not run. If the commit itself
        failed, each write gets its own group, to find the one at fault."""
        writes, count = group.writes, len(group.answers)
        self.abandon(group)
        if group.resumed is not None and group.has_resumed:
            self.fail_paused(group.resumed, error)
            retries: list[list[Write]] = [writes]
        elif count < len(writes):
            self.fail_write(writes[count], error)
            retries = [writes[:count], writes[count + 1 :]]
        elif len(writes) > 1:
            retries = [[write] for write in writes]
        else:
            retries = []
            for write in writes:
                self.fail_write(write, error)
        return [retry for retry in retries if retry]
